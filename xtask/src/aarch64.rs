//! `cargo xtask aarch64`: the tests of the CPU backend on emulated Arm processors. They say whether it is right, never how fast.

use crate::executables::{self, Executable};
use crate::runners;
use crate::tally::Tally;
use anyhow::{Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// The emulator's names, with the C library of the host and without.
const EMULATORS: [&str; 2] = ["qemu-aarch64", "qemu-aarch64-static"];

/// A processor that the emulator knows.
struct Processor {
    name: &'static str,
    /// The highest level that has to be found on it.
    level: &'static str,
    /// What is run: everything once, and elsewhere what depends on the level.
    tests: &'static [&'static str],
}

const PROCESSORS: [Processor; 2] = [
    Processor {
        name: "cortex-a72",
        level: "neon",
        tests: &["--lib", "--test", "levels", "--test", "int16", "--test", "panels", "--test", "registry"],
    },
    Processor { name: "max", level: "neondotprod", tests: &["--lib", "--tests"] },
];

/// Runs the tests on each processor, when everything that it takes is there; else says what is not.
///
/// # Errors
/// When a test fails, a level is not found, or `required` and something is missing.
pub(crate) fn run(root: &Path, required: bool) -> Result<()> {
    let tools = match Found::look().tools() {
        Ok(tools) => tools,
        Err(why) if required => bail!("unavailable: {why}"),
        Err(why) => {
            println!("unavailable: {why}");
            return Ok(());
        }
    };
    let (mut tally, mut levels) = (Tally::default(), Vec::new());
    for p in PROCESSORS {
        println!("== the processor {} of {}", p.name, tools.emulator.display());
        let before = levels.len();
        match tools.build(root, &p) {
            Ok(executables) => {
                // What passing tests print says how many cases there were.
                let emulated = |e: &Executable| e.runner(&tools.emulator(&p), &["--show-output"]);
                for ended in runners::run(executables.iter().map(emulated).collect()) {
                    ended.count(&mut tally);
                    let found = ended.output.lines().filter_map(|line| Some((level(line)?, line)));
                    levels.extend(found.map(|(level, line)| (level.to_string(), format!("{}: {line}", p.name))));
                }
            }
            Err(e) => tally.fail(&format!("{e:#}")),
        }
        if levels[before..].iter().all(|(found, _)| found != p.level) {
            tally.fail(&format!("no case ran up to the level {} on the processor {}", p.level, p.name));
        }
    }
    levels.iter().for_each(|(_, said)| println!("{said}"));
    println!("{tally}");
    tally.verdict()
}

/// The level of a line that says how many cases ran up to it.
fn level(line: &str) -> Option<&str> {
    line.strip_prefix("up to ")?.split_once(": ").map(|(level, _)| level)
}

/// What is on this host.
#[derive(Clone, Debug, Default)]
struct Found {
    target: bool,
    linker: Option<PathBuf>,
    /// The folder that holds `lib` with the target's C library.
    libraries: Option<PathBuf>,
    emulator: Option<PathBuf>,
}

/// What the tests are built and run with.
struct Tools {
    linker: PathBuf,
    libraries: PathBuf,
    emulator: PathBuf,
}

impl Found {
    fn look() -> Self {
        let libdir = answer(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]));
        let linker = on_the_path(LINKER);
        // A compiler that does not have the file gives its name back.
        let loader =
            linker.as_ref().and_then(|l| answer(Command::new(l).arg("-print-file-name=ld-linux-aarch64.so.1")));
        let loader = loader.filter(|l| l.is_absolute()).and_then(|l| l.canonicalize().ok());
        Self {
            target: libdir.is_some_and(|d| d.is_dir()),
            linker,
            libraries: loader.and_then(|l| Some(l.parent()?.parent()?.to_path_buf())),
            emulator: EMULATORS.into_iter().find_map(on_the_path),
        }
    }

    /// The tools, or what is missing and where it comes from.
    fn tools(self) -> Result<Tools, String> {
        match self {
            Self { target: true, linker: Some(linker), libraries: Some(libraries), emulator: Some(emulator) } => {
                Ok(Tools { linker, libraries, emulator })
            }
            Self { target, linker, libraries, emulator } => {
                let missing = [
                    (target, format!("the Rust target (rustup target add {TARGET})")),
                    (linker.is_some(), format!("the linker {LINKER} (apt-get install gcc-aarch64-linux-gnu)")),
                    (libraries.is_some(), "its C library (apt-get install libc6-dev-arm64-cross)".to_string()),
                    (emulator.is_some(), format!("the emulator {} (apt-get install qemu-user)", EMULATORS[0])),
                ];
                let missing: Vec<String> = missing.into_iter().filter(|(has, _)| !has).map(|(_, what)| what).collect();
                Err(format!("this host lacks {}", missing.join(", ")))
            }
        }
    }
}

impl Tools {
    /// The executables of the tests that are run on processor `p`.
    fn build(&self, root: &Path, p: &Processor) -> Result<Vec<Executable>> {
        let mut command = crate::cargo();
        command
            .args(["test", "--target", TARGET, "--package", "tare-cpu"])
            .args(p.tests)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", &self.linker);
        executables::build(&mut command, root)
    }

    /// The emulator as processor `p`, with its arguments.
    fn emulator(&self, p: &Processor) -> [OsString; 5] {
        let [cpu, libraries] = ["-cpu", "-L"].map(OsString::from);
        [self.emulator.clone().into(), cpu, p.name.into(), libraries, self.libraries.clone().into()]
    }
}

/// The path that a program prints, if it runs and succeeds.
fn answer(command: &mut Command) -> Option<PathBuf> {
    let output = command.output().ok().filter(|o| o.status.success())?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

/// A program of this name.
fn on_the_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_missing_is_named_with_its_remedy() {
        let path = || Some(PathBuf::from("/a"));
        let all = Found { target: true, linker: path(), libraries: path(), emulator: path() };
        assert!(all.clone().tools().is_ok());
        let lacks = [
            (Found { target: false, ..all.clone() }, "rustup target add"),
            (Found { linker: None, ..all.clone() }, "gcc-aarch64-linux-gnu"),
            (Found { libraries: None, ..all.clone() }, "libc6-dev-arm64-cross"),
            (Found { emulator: None, ..all }, "qemu-user"),
        ];
        for (found, remedy) in &lacks {
            let why = found.clone().tools().err().unwrap_or_default();
            assert_eq!(lacks.iter().filter(|(_, r)| why.contains(r)).count(), 1, "{why}");
            assert!(why.contains(remedy), "{why}");
        }
        let why = Found::default().tools().err().unwrap_or_default();
        assert!(lacks.iter().all(|(_, remedy)| why.contains(remedy)), "{why}");
    }

    #[test]
    fn levels_are_read_out_of_what_tests_print() {
        assert_eq!(level("up to neon: 3 pairs of case and kernel, 2 cases"), Some("neon"));
        assert_eq!(level("test up to neon: ok"), None);
        assert_eq!(level("up to nowhere"), None);
    }
}
