//! `cargo xtask check` as a command: a sound workspace passes, and one with every invariant broken on purpose fails and
//! names each.

use std::path::Path;
use std::process::{Command, Output};

fn write(root: &Path, files: &[(&str, String)]) {
    for (path, text) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

fn manifest(name: &str, rest: &str) -> String {
    format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{rest}")
}

fn check(root: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(["check", "--root"]).arg(root).output().unwrap()
}

#[test]
fn a_sound_workspace_passes() {
    let dir = tempfile::tempdir().unwrap();
    let lib = "//! Sound.\n#![forbid(unsafe_code)]\n";
    write(
        dir.path(),
        &[
            ("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n".into()),
            ("crates/core/Cargo.toml", manifest("tare-core", "")),
            ("crates/core/src/lib.rs", lib.into()),
            ("crates/engine/Cargo.toml", manifest("tare-engine", "[dependencies]\ntare-core.path = \"../core\"\n")),
            ("crates/engine/src/lib.rs", lib.into()),
        ],
    );
    let output = check(dir.path());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("0 violations"), "{text}");
}

#[test]
fn every_broken_invariant_is_named_and_the_command_fails() {
    let dir = tempfile::tempdir().unwrap();
    let broken = "fn a() { println!(\"{:?}\", std::env::var(\"X\")); }\nfn b() { unsafe { c() } }\n".to_string()
        + concat!("// TO", "DO\n");
    write(
        dir.path(),
        &[
            (
                "Cargo.toml",
                "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n[workspace.dependencies]\nleft = \"1\"\n"
                    .into(),
            ),
            ("crates/cpu/Cargo.toml", manifest("tare-cpu", "[features]\navx512 = []\n")),
            ("crates/cpu/src/lib.rs", "".into()),
            ("crates/cpu/src/kernels/sum.rs", "//! math: x\n".into()),
            ("crates/cpu/src/pool.rs", "// line\n".repeat(801)),
            (
                "crates/engine/Cargo.toml",
                manifest("tare-engine", "[dependencies]\naxum = \"0.8\"\ntare-cpu.path = \"../cpu\"\n"),
            ),
            ("crates/engine/src/lib.rs", broken),
            ("crates/engine/src/utils.rs", "".into()),
        ],
    );
    let output = check(dir.path());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{text}");
    for named in [
        "layers: tare-engine: depends on tare-cpu",
        "http: tare-engine: depends on axum",
        "features: tare-cpu:",
        "unused: Cargo.toml: no package uses left",
        "forbid-unsafe: crates/engine/src/lib.rs:",
        "environment: crates/engine/src/lib.rs:1:",
        "printing: crates/engine/src/lib.rs:1:",
        "safety: crates/engine/src/lib.rs:2:",
        "words: crates/engine/src/lib.rs:3:",
        "kernel-header: crates/cpu/src/kernels/sum.rs:",
        "size: crates/cpu/src/pool.rs:",
        "names: crates/engine/src/utils.rs:",
    ] {
        assert!(text.contains(named), "\"{named}\" is missing in:\n{text}");
    }
}
