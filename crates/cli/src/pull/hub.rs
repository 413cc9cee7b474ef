//! A repository of a model hub, as Hugging Face's API lists it.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::Path;

use super::Wanted;
use super::fetch::{Check, Fetcher, Remote};
use super::manifest::{FileEntry, Manifest};

#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// Fetches what a model needs of `repository` into `parts`.
pub(crate) fn fetch(wanted: &Wanted<'_>, repository: &str, only: Option<&str>, parts: &Path) -> Result<Manifest> {
    let endpoint = wanted.endpoint.trim_end_matches('/');
    let fetcher = Fetcher::new(wanted.token);
    let url = format!("{endpoint}/api/models/{repository}/revision/{}?blobs=true", wanted.revision);
    let listing: Listing = serde_json::from_str(&fetcher.text(&url)?)
        .with_context(|| format!("{url}: expected a listing of the repository's files"))?;
    let remotes = select(&listing, only)
        .into_iter()
        .map(|s| remote(s, &format!("{endpoint}/{repository}/resolve/{}", listing.sha)))
        .collect::<Result<Vec<_>>>()?;
    if !remotes.iter().any(|r| is_weights(&r.path)) {
        let there: Vec<&str> =
            listing.siblings.iter().map(|s| s.rfilename.as_str()).filter(|f| is_weights(f)).collect();
        bail!(
            "{repository}: expected safetensors files or one .gguf file, found {there:?}; name one as {repository}:FILE"
        );
    }
    let mut files = Vec::with_capacity(remotes.len());
    for r in &remotes {
        let sha256 = fetcher.file(r, parts)?;
        files.push(FileEntry { path: r.path.clone(), bytes: r.bytes, sha256 });
    }
    Ok(Manifest {
        name: wanted.name.into(),
        source: repository.into(),
        revision: listing.sha,
        asked: Some(wanted.revision.into()),
        files,
    })
}

/// The files of a model: all safetensors with the JSON and Jinja files beside them, or the one file that was named, or
/// the only GGUF file.
fn select<'a>(listing: &'a Listing, only: Option<&str>) -> Vec<&'a Sibling> {
    let all = || listing.siblings.iter().filter(|s| is_safe(&s.rfilename));
    if let Some(file) = only {
        return all().filter(|s| s.rfilename == file).collect();
    }
    let ggufs: Vec<&Sibling> = all().filter(|s| s.rfilename.ends_with(".gguf")).collect();
    if all().any(|s| s.rfilename.ends_with(".safetensors")) {
        let beside = [".safetensors", ".json", ".jinja"];
        return all()
            .filter(|s| !s.rfilename.contains('/') && beside.iter().any(|e| s.rfilename.ends_with(e)))
            .collect();
    }
    if ggufs.len() == 1 { ggufs } else { Vec::new() }
}

fn is_weights(path: &str) -> bool {
    path.ends_with(".safetensors") || path.ends_with(".gguf")
}

/// Whether a listed path stays inside the folder.
fn is_safe(path: &str) -> bool {
    !path.is_empty() && !path.contains('\\') && path.split('/').all(|p| !p.is_empty() && p != "." && p != "..")
}

fn remote(s: &Sibling, base: &str) -> Result<Remote> {
    let (bytes, check) = match (&s.lfs, s.size, &s.blob_id) {
        (Some(l), _, _) => (l.size, Check::Sha256(l.sha256.clone())),
        (None, Some(size), Some(id)) => (size, Check::GitBlob(id.clone())),
        _ => bail!("{}: expected a size and a digest in the hub's listing, found neither", s.rfilename),
    };
    Ok(Remote { path: s.rfilename.clone(), url: format!("{base}/{}", s.rfilename), bytes, check })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Listing {
        let sibling =
            |n: &&str| Sibling { rfilename: n.to_string(), size: Some(1), blob_id: Some("b".into()), lfs: None };
        Listing { sha: "s".into(), siblings: names.iter().map(sibling).collect() }
    }

    fn names(l: &Listing, only: Option<&str>) -> Vec<String> {
        select(l, only).into_iter().map(|s| s.rfilename.clone()).collect()
    }

    #[test]
    fn a_model_is_its_weights_and_the_json_beside_them() {
        let l = listing(&["config.json", "model.safetensors", "README.md", "onnx/config.json", "pytorch_model.bin"]);
        assert_eq!(names(&l, None), ["config.json", "model.safetensors"]);
        let l = listing(&["a-Q4.gguf", "a-Q8.gguf"]);
        assert!(names(&l, None).is_empty(), "which of two formats is wanted is not guessed");
        assert_eq!(names(&l, Some("a-Q8.gguf")), ["a-Q8.gguf"]);
    }

    #[test]
    fn hostile_paths_are_not_followed() {
        let l = listing(&["../x.json", "model.safetensors", "/etc/x.json", "a//b.json"]);
        assert_eq!(names(&l, None), ["model.safetensors"]);
    }
}
