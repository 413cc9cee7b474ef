//! The golden files are the ones that the manifest lists: an edited golden is found before it excuses a wrong result.

use std::collections::BTreeSet;
use std::path::Path;
use tare_core::digest::sha256_hex;
use tare_testkit::{Tensors, goldens, json};

/// Digest and relative path of every line of the manifest.
fn manifest() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(goldens().join("MANIFEST.sha256")).unwrap();
    text.lines()
        .map(|line| {
            let (digest, path) = line.split_once("  ").expect("a digest, two blanks, a path");
            (digest.to_string(), path.to_string())
        })
        .collect()
}

/// Paths of all files under `dir`, relative to `root`, without what the scripts make for themselves.
fn files_under(root: &Path, dir: &Path, out: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "__pycache__") {
                files_under(root, &path, out);
            }
        } else {
            out.insert(path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/"));
        }
    }
}

#[test]
fn every_listed_file_has_its_digest() {
    let listed = manifest();
    assert!(listed.len() > 100, "the manifest lists {} files", listed.len());
    for (digest, path) in listed {
        let bytes = std::fs::read(goldens().join(&path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_eq!(sha256_hex(&bytes), digest, "{path} is not the file that the manifest lists");
    }
}

#[test]
fn no_golden_is_unlisted() {
    let listed: BTreeSet<String> = manifest().into_iter().map(|(_, path)| path).collect();
    let mut found = BTreeSet::new();
    files_under(&goldens(), &goldens(), &mut found);
    found.remove("MANIFEST.sha256");
    // F32 twins of the tiny models are made by scripts/weights.py and not shipped; their digests are in golden.json.
    found.retain(|path| listed.contains(path) || !path.ends_with("/f32/model.safetensors"));
    assert_eq!(found.difference(&listed).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn golden_tensors_open_by_name_and_type() {
    let file = Tensors::open(goldens().join("models/qwen3-tiny/golden.safetensors"));
    let (shape, logits) = file.f32("f32.logits.p1");
    let prompts = json(goldens().join("models/qwen3-tiny/golden.json"))["prompts"].clone();
    assert_eq!(shape[0], prompts[1].as_array().expect("prompt 1 is a list of ids").len());
    assert_eq!(shape.iter().product::<usize>(), logits.len());
    assert!(logits.iter().all(|x| x.is_finite()));
}
