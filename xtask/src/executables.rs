//! The test executables of a workspace: built by one call of cargo, found in its messages, run as `cargo test` runs them but for
//! `CARGO_PKG_*`, which they have at compile time alone.

use crate::runners::Runner;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::cmp::Reverse;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program that runs the tests of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Executable {
    /// The target's source file, from the root of the workspace.
    name: String,
    path: PathBuf,
    /// The package's Cargo.toml.
    manifest: PathBuf,
    /// The package's own programs, by name; only tests under `tests/` get them.
    programs: Vec<(String, PathBuf)>,
}

/// Builds what `cargo_test`, a `cargo test` with a selection of packages and targets, would run in the workspace at
/// `root`, and returns it in the order in which it should be run. Cargo's progress and what compilers say go to stderr.
///
/// # Errors
/// When cargo cannot be started, or something does not build.
pub(crate) fn build(cargo_test: &mut Command, root: &Path) -> Result<Vec<Executable>> {
    let command = cargo_test.args(["--no-run", "--message-format=json-render-diagnostics"]).current_dir(root);
    let output = command.stderr(Stdio::inherit()).output().context("starting cargo test")?;
    if !output.status.success() {
        bail!("cargo test ended with {}: the tests did not build", output.status);
    }
    let mut executables = named_in(&String::from_utf8_lossy(&output.stdout), root);
    longest_first(&mut executables);
    Ok(executables)
}

/// The test executables that cargo's messages name, one JSON object a line; other lines come from build scripts and macros.
fn named_in(messages: &str, root: &Path) -> Vec<Executable> {
    let messages: Vec<Value> = messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    messages.iter().filter_map(|message| executable(message, &messages, root)).collect()
}

/// The test executable of one message, if it tells of one.
fn executable(message: &Value, all: &[Value], root: &Path) -> Option<Executable> {
    if message["profile"]["test"] != true {
        return None;
    }
    let source = Path::new(message["target"]["src_path"].as_str()?);
    let integration = has_kind(message, "test");
    let of_package = all.iter().filter(|m| integration && m["package_id"] == message["package_id"]);
    Some(Executable {
        name: source.strip_prefix(root).unwrap_or(source).display().to_string(),
        path: message["executable"].as_str()?.into(),
        manifest: message["manifest_path"].as_str()?.into(),
        programs: of_package.filter_map(program).collect(),
    })
}

/// The program of one message, if it tells of one.
fn program(message: &Value) -> Option<(String, PathBuf)> {
    let built = has_kind(message, "bin") && message["profile"]["test"] == false;
    let (name, path) = (message["target"]["name"].as_str()?, message["executable"].as_str()?);
    built.then(|| (name.to_string(), path.into()))
}

fn has_kind(message: &Value, kind: &str) -> bool {
    message["target"]["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == kind))
}

/// The tests that take longest by far, with an emulated device: see what `cargo xtask test` prints at its end.
const LONGEST: [&str; 2] = ["crates/cuda/tests/cuda/main.rs", "crates/lab/tests/launches/main.rs"];

/// What is begun last should be short. Behind those that are known to be long, what links or starts more of the workspace
/// tends to run longer.
fn longest_first(executables: &mut [Executable]) {
    let bytes = |path: &PathBuf| path.metadata().map_or(0, |file| file.len());
    let all = |e: &Executable| bytes(&e.path) + e.programs.iter().map(|(_, path)| bytes(path)).sum::<u64>();
    executables.sort_by_cached_key(|e| Reverse((LONGEST.contains(&e.name.as_str()), all(e))));
}

impl Executable {
    /// The run of these tests with `arguments`, by the program and first arguments of `emulator` unless that is empty.
    ///
    /// Libraries that are linked at run time are found as by `cargo test`: `cargo run`, which started us, has set their path.
    pub(crate) fn runner(&self, emulator: &[OsString], arguments: &[&str]) -> Runner {
        let mut words = emulator.iter().map(OsString::as_os_str).chain([self.path.as_os_str()]);
        let mut command = Command::new(words.next().expect("the executable at least"));
        command.args(words).args(arguments);
        // Those that `cargo run` set are of this program; tests have their own at compile time.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_")) {
            command.env_remove(name);
        }
        let folder = self.manifest.parent().expect("a manifest lies in a folder");
        command.env("CARGO_MANIFEST_DIR", folder).env("CARGO_MANIFEST_PATH", &self.manifest).current_dir(folder);
        for (name, path) in &self.programs {
            command.env(format!("CARGO_BIN_EXE_{name}"), path);
        }
        Runner { name: [&[self.name.as_str()], arguments].concat().join(" "), command }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runners;
    use crate::tally::Tally;
    use std::ffi::OsStr;

    /// One line of cargo 1.95 with the fields that are read, and some that are not.
    fn artifact(package: &str, kind: &str, source: &str, test: bool, executable: Option<&str>) -> String {
        serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": format!("path+file:///w/{package}#tare-{package}@0.1.0"),
            "manifest_path": format!("/w/{package}/Cargo.toml"),
            "target": {"kind": [kind], "name": "tare", "src_path": format!("/w/{package}/{source}"), "test": true},
            "profile": {"opt_level": "1", "test": test},
            "executable": executable,
            "fresh": false,
        })
        .to_string()
    }

    fn messages() -> String {
        [
            artifact("core", "lib", "src/lib.rs", false, None),
            "a build script said this".to_string(),
            artifact("core", "lib", "src/lib.rs", true, Some("/t/core-1")),
            artifact("core", "example", "examples/rate.rs", false, Some("/t/rate")),
            artifact("cli", "test", "tests/pull.rs", true, Some("/t/pull-2")),
            artifact("cli", "bin", "src/main.rs", true, Some("/t/tare-3")),
            artifact("cli", "bin", "src/main.rs", false, Some("/t/tare")),
            r#"{"reason":"build-script-executed","package_id":"path+file:///w/cli#tare-cli@0.1.0"}"#.to_string(),
            r#"{"reason":"build-finished","success":true}"#.to_string(),
        ]
        .join("\n")
    }

    #[test]
    fn tests_are_told_from_programs_examples_and_libraries() {
        let found = named_in(&messages(), Path::new("/w"));
        let of = |name: &str, path: &str, package: &str, programs: &[(&str, &str)]| Executable {
            name: name.into(),
            path: path.into(),
            manifest: format!("/w/{package}/Cargo.toml").into(),
            programs: programs.iter().map(|(name, path)| (name.to_string(), path.into())).collect(),
        };
        let expected = [
            of("core/src/lib.rs", "/t/core-1", "core", &[]),
            of("cli/tests/pull.rs", "/t/pull-2", "cli", &[("tare", "/t/tare")]),
            of("cli/src/main.rs", "/t/tare-3", "cli", &[]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_runner_has_the_folder_and_the_environment_that_cargo_test_gives() {
        let found = named_in(&messages(), Path::new("/w"));
        let Runner { name, command } = found[1].runner(&[], &["--ignored", "fetched_"]);
        assert_eq!(name, "cli/tests/pull.rs --ignored fetched_");
        assert_eq!(command.get_program(), "/t/pull-2");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["--ignored", "fetched_"]);
        assert_eq!(command.get_current_dir(), Some(Path::new("/w/cli")));
        let value = |name: &str| command.get_envs().find(|(n, _)| *n == name).map(|(_, value)| value);
        assert_eq!(value("CARGO_MANIFEST_DIR"), Some(Some(OsStr::new("/w/cli"))));
        assert_eq!(value("CARGO_MANIFEST_PATH"), Some(Some(OsStr::new("/w/cli/Cargo.toml"))));
        assert_eq!(value("CARGO_BIN_EXE_tare"), Some(Some(OsStr::new("/t/tare"))));
    }

    #[test]
    fn an_emulator_comes_before_the_executable() {
        let found = named_in(&messages(), Path::new("/w"));
        let Runner { name, command } = found[0].runner(&["/e/qemu".into(), "-cpu".into(), "max".into()], &["--list"]);
        assert_eq!((name.as_str(), command.get_program()), ("core/src/lib.rs --list", OsStr::new("/e/qemu")));
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["-cpu", "max", "/t/core-1", "--list"]);
    }

    #[test]
    fn the_largest_comes_first_with_the_programs_that_it_starts_behind_the_longest() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: usize| {
            let path = dir.path().join(name);
            std::fs::write(&path, vec![0; bytes]).unwrap();
            path
        };
        let of = |name: &str, bytes: usize, programs| Executable {
            name: name.into(),
            path: file(name, bytes),
            manifest: "/w/Cargo.toml".into(),
            programs,
        };
        let emulated = Executable { name: LONGEST[0].into(), ..of("emulated", 3, vec![]) };
        let starts = of("starts", 2, vec![("p".into(), file("p", 60))]);
        let mut executables = [of("small", 1, vec![]), of("large", 50, vec![]), starts, emulated];
        longest_first(&mut executables);
        assert_eq!(executables.map(|e| e.name), [LONGEST[0], "starts", "large", "small"]);
    }

    #[test]
    fn what_cargo_builds_is_run_and_what_does_not_build_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let build = || {
            let mut command = crate::cargo();
            build(command.args(["test", "--offline"]).env("CARGO_TARGET_DIR", dir.path().join("target")), dir.path())
        };
        write("Cargo.toml", "[package]\nname = \"fixture\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n");
        write("src/main.rs", "fn main() {}\n#[test]\n#[ignore = \"needs time\"]\nfn waits() {}\n");
        let starts = "let program = std::env::var_os(\"CARGO_BIN_EXE_fixture\").unwrap();
            assert!(std::process::Command::new(program).status().unwrap().success());
            assert!(std::path::Path::new(\"Cargo.toml\").exists());
            assert!(std::env::var_os(\"CARGO_PKG_NAME\").is_none(), \"that of another program\");";
        write("tests/starts.rs", &format!("#[test]\nfn starts() {{ {starts} }}\n#[test]\nfn fails() {{ panic!() }}\n"));
        let executables = build().unwrap();
        assert!(executables[0].name.ends_with("tests/starts.rs") && executables[1].name.ends_with("src/main.rs"));
        let mut tally = Tally::default();
        let ended = runners::run(executables.iter().map(|e| e.runner(&[], &[])).collect());
        ended.iter().for_each(|e| e.count(&mut tally));
        assert_eq!((executables.len(), tally.to_string().as_str()), (2, "1 passed, 1 failed, 1 skipped"));
        write("tests/starts.rs", "#[test]\nfn starts() { broken_on_purpose() }\n");
        let e = build().unwrap_err().to_string();
        assert!(e.contains("did not build"), "{e}");
    }
}
