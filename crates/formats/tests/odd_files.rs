//! Paths that are no regular files: they are refused without being opened, and the system's reason is told once.

#![cfg(unix)]

use std::error::Error;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use tare_formats::{FormatError, open};
use tare_testkit::goldens;

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Opening a pipe that nobody writes to would wait for ever, so a test that ends is a test that did not open it.
fn refused(path: &Path, found: &str) {
    let text = open(path).unwrap_err().to_string();
    let want = format!("expected a regular file, found {found};");
    assert!(text.starts_with(path.to_str().unwrap()) && text.contains(&want), "{text}");
}

#[test]
fn pipes_sockets_and_devices_are_refused_by_kind() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::copy(goldens().join("models/qwen3-tiny/config.json"), at("config.json")).unwrap();
    for extension in ["gguf", "safetensors"] {
        let name = |kind: &str| at(&format!("{kind}.{extension}"));
        pipe(&name("pipe"));
        let socket = UnixListener::bind(name("socket")).unwrap();
        symlink("/dev/zero", name("device")).unwrap();
        refused(&name("pipe"), "a named pipe");
        refused(&name("socket"), "a socket");
        refused(&name("device"), "a device");
        drop(socket);
    }
}

#[test]
fn pipes_inside_a_folder_are_refused_too() {
    for name in ["config.json", "generation_config.json", "tokenizer_config.json", "model.safetensors"] {
        let dir = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(goldens().join("models/qwen3-tiny").join(file), dir.path().join(file)).unwrap();
        }
        let index = r#"{"weight_map": {"model.norm.weight": "model.safetensors"}}"#;
        fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
        // The folder has another weight file, so it is a model; the index names the pipe.
        fs::write(dir.path().join("other.safetensors"), "").unwrap();
        let path = dir.path().join(name);
        if path.exists() {
            fs::remove_file(&path).unwrap();
        }
        pipe(&path);
        refused(dir.path(), "a named pipe");
    }
}

#[test]
fn the_reason_of_the_system_is_told_once() {
    let error = open(&goldens().join("nowhere.gguf")).unwrap_err();
    assert!(matches!(error, FormatError::Io { .. }));
    let reason = error.source().unwrap().to_string();
    let text = error.to_string();
    assert!(text.ends_with("nowhere.gguf: cannot open") && !text.contains(&reason), "{text} | {reason}");
    // Wherever the chain is printed whole, no part of it holds the next one.
    let mut part: &dyn Error = &error;
    while let Some(cause) = part.source() {
        assert!(!part.to_string().contains(&cause.to_string()), "{part}");
        part = cause;
    }
}
