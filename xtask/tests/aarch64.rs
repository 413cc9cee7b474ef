//! `cargo xtask aarch64` as a command, on a host that has nothing of what it takes.

use std::process::Command;

#[test]
fn what_is_missing_is_said_and_is_an_error_only_when_it_is_required() {
    let nothing = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.arg("aarch64").args(more).env("PATH", nothing.path()).output().unwrap()
    };
    let (said, required) = (run(&[]), run(&["--require"]));
    let out = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success() && out.starts_with("unavailable: this host lacks"), "{out}");
    let err = String::from_utf8_lossy(&required.stderr);
    assert!(!required.status.success() && err.contains("unavailable: this host lacks"), "{err}");
}
