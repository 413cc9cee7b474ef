//! `tare peers` without network: what is listed, what is refused, and that an install that ends early leaves nothing.

mod home;

use home::Home;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A `python3` that runs `script`, put before the real one in the PATH of the returned command.
fn with_python(home: &Home, args: &[&str], script: &str) -> Command {
    let bin = home.path("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let python = bin.join("python3");
    std::fs::write(&python, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = home.command(args);
    command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default()));
    command
}

fn nothing_left(home: &Home) -> bool {
    let parts = std::fs::read_dir(home.path("peers/.parts")).map_or(0, Iterator::count);
    parts == 0 && !home.path("peers/llama.cpp-0.3.36").exists()
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let patience = Instant::now();
    while !done() {
        assert!(patience.elapsed() < Duration::from_secs(120), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_peer_is_listed_with_its_state() {
    let home = Home::new();
    let all = home.json(&["peers", "list", "--json"]);
    let state = |name: &str| {
        let found = all.as_array().unwrap().iter().find(|p| p["name"] == name);
        found.unwrap_or_else(|| panic!("{name} is not listed"))["installed"]["unavailable"]
            .as_str()
            .unwrap()
            .to_string()
    };
    assert!(state("llama.cpp").contains("tare peers install llama.cpp"));
    assert!(state("mlx").contains("reference BLAS"));
    assert!(state("llama.cpp-cuda").contains("tare peers install llama.cpp-cuda"));
    for name in ["candle", "transformers", "openai", "openvino", "mistral.rs"] {
        assert!(!state(name).is_empty());
    }
    home.run(&["peers", "list"]).success();
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason() {
    let home = Home::new();
    assert!(home.refused(&["peers", "install", "lama.cpp"]).contains("llama.cpp"));
    assert!(home.refused(&["peers", "install", "mlx"]).contains("reference BLAS"));
    let archive = home.path("sources.tar.gz");
    let archive = archive.to_str().unwrap();
    let said = home.refused(&["peers", "sources", "mlx", "-o", archive]);
    assert!(said.contains("built from sources of a package"), "{said}");
    let model = home.path("q4.gguf");
    let model = model.to_str().unwrap();
    home.run(&["quantize", "-m", "synthetic:llama-tiny", "--format", "q4_0", "-o", model]).success();
    for command in ["tune", "check"] {
        let error = home.refused(&["peers", command, "llama.cpp", "-m", model]);
        assert!(error.contains("not installed") && error.contains("tare peers install llama.cpp"), "{error}");
    }
    let own = ["peers", "check", "openvino", "-m", "synthetic:qwen3-tiny?format=bf16", "--written-as", "openvino-int4"];
    let error = home.refused(&own);
    assert!(error.contains("openvino-int4") && error.contains("tare peers install openvino"), "{error}");
    assert!(home.refused(&[&own[..], &["--head-as", "q8_0"]].concat()).contains("the tools of openvino choose it"));
    let written = std::fs::read_dir(home.path("written")).map_or(0, Iterator::count);
    assert!(!home.path("peers/tuned").exists() && written == 0, "nothing is frozen or written");
    assert!(home.refused(&["peers", "tune", "llama.cpp", "-m", model, "--seconds", "0"]).contains("--seconds"));
}

#[test]
fn sources_that_were_carried_here_are_those_of_the_recipe_or_nothing_is_built() {
    let home = Home::new();
    let archive = home.path("sources.tar.gz");
    std::fs::write(home.path("CMakeLists.txt"), "other sources\n").unwrap();
    let made = Command::new("python3")
        .args(["-m", "tarfile", "-c", archive.to_str().unwrap(), "CMakeLists.txt"])
        .current_dir(home.path(""))
        .status();
    assert!(made.unwrap().success());
    let said = home.refused(&["peers", "install", "llama.cpp", "--sources", archive.to_str().unwrap()]);
    assert!(said.contains("LICENSE in it"), "{said}");
    assert!(nothing_left(&home));
    let said = home.refused(&["peers", "install", "llama.cpp", "--sources", home.path("none").to_str().unwrap()]);
    assert!(said.contains("unpacking the sources"), "{said}");
    assert!(nothing_left(&home));
}

#[test]
fn a_step_that_fails_is_named_with_its_output_and_leaves_nothing() {
    let home = Home::new();
    let out =
        with_python(&home, &["peers", "install", "llama.cpp"], "echo no such module >&2; exit 4").output().unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(error.contains("making a Python environment") && error.contains("no such module"), "{error}");
    assert_eq!(out.status.code(), Some(1));
    assert!(nothing_left(&home));
}

#[test]
fn ctrl_c_ends_the_step_and_leaves_nothing() {
    let home = Home::new();
    let mark = home.path("started");
    let script = format!("echo $$ > {0}.part; mv {0}.part {0}; exec sleep 600", mark.display());
    let mut tare = with_python(&home, &["peers", "install", "llama.cpp"], &script).spawn().unwrap();
    wait_for("the step", || mark.exists());
    let sent = Command::new("kill").args(["-INT", &tare.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(tare.wait().unwrap().code(), Some(130));
    let step = std::fs::read_to_string(&mark).unwrap();
    let process = Path::new("/proc").join(step.trim());
    let gone = || std::fs::read_to_string(process.join("stat")).map_or(true, |s| s.contains(") Z "));
    wait_for("the end of the step", gone);
    assert!(nothing_left(&home));
}
