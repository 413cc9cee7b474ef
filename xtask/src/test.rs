//! `cargo xtask test`: every test that this host can run, and the number of those that it could not.

use crate::fetch;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs the tests of the workspace at `root`. The last line printed is `N passed, N failed, N skipped`.
///
/// # Errors
/// When a test fails, the tests do not build, or `require_assets` is set and the assets cannot be had: the other tests run all
/// the same.
pub(crate) fn run(root: &Path, require_assets: bool) -> Result<()> {
    // The first tests read nothing of it, and a network and a compiler do not wait for each other.
    let dir = root.join("target/assets");
    let fetching = std::thread::spawn(move || fetch::run(&dir));
    let mut tally = Tally::default();
    cargo_test(&mut workspace_tests(root, &[]), &mut tally, |_| ())?;
    let assets = fetching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if let (Err(e), true) = (&assets, require_assets) {
        tally.fail(&format!("the assets are required: {e:#}"));
    }
    let mut unread = 0;
    if let Err(e) = &assets {
        println!("SKIPPING the tests that read fetched assets: {e:#}");
    } else {
        let mut fetched = Tally::default();
        let reading = &mut workspace_tests(root, &["--tests", "--", "--ignored", "fetched_"]);
        cargo_test(reading, &mut fetched, |_| ())?;
        tally.take_over(&fetched);
        unread = if fetched.passed + fetched.failed == 0 { 1 } else { tally.without_their_assets() };
    }
    tally.print_skipped();
    println!("{tally}");
    if unread > 0 {
        bail!(
            "the assets are here and {unread} or more tests that need them did not run: their names must begin with fetched_"
        );
    }
    tally.verdict()
}

fn workspace_tests(root: &Path, more: &[&str]) -> Command {
    let mut command = crate::cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]).args(more).current_dir(root);
    command
}

/// Runs a `cargo test`, shows what it prints, and counts; `hear` gets every line.
pub(crate) fn cargo_test(command: &mut Command, tally: &mut Tally, mut hear: impl FnMut(&str)) -> Result<()> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("starting cargo test")?;
    let stdout = child.stdout.take().context("cargo test has no output")?;
    let failed_before = tally.failed;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        tally.count(&line);
        hear(&line);
    }
    let status = child.wait()?;
    if !status.success() && tally.failed == failed_before {
        tally.fail(&format!(
            "cargo test ended with {status} without a failed test: something did not build, or a runner died"
        ));
    }
    Ok(())
}

/// What the runners reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    /// Tests that were not run, by name, with the reason their authors gave.
    ignored: BTreeMap<String, String>,
    /// How many the runners said they ignored; more than `ignored` where a name occurs in several crates.
    skipped: u64,
}

impl Tally {
    /// Counts something that went wrong outside of a test.
    pub(crate) fn fail(&mut self, why: &str) {
        println!("{why}");
        self.failed += 1;
    }

    /// An error when something failed.
    pub(crate) fn verdict(&self) -> Result<()> {
        if self.failed > 0 { bail!("{} tests failed", self.failed) } else { Ok(()) }
    }

    /// Takes one line of a runner's output into account.
    fn count(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            let number = |name: &str| -> u64 {
                let part = result.split([';', '.']).find_map(|p| p.trim().strip_suffix(name));
                part.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
            };
            self.passed += number(" passed");
            self.failed += number(" failed");
            self.skipped += number(" ignored");
        } else if let Some((name, reason)) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... ignored")) {
            let reason = reason.trim_start_matches(", ");
            let reason = if reason.is_empty() { "no reason given" } else { reason };
            self.ignored.insert(name.to_string(), reason.to_string());
        }
    }

    /// Adds a second run over tests that the first one ignored.
    fn take_over(&mut self, second: &Tally) {
        self.passed += second.passed;
        self.failed += second.failed;
        self.skipped = self.skipped.saturating_sub(second.passed + second.failed);
        let fetched = |name: &str| name.rsplit("::").next().is_some_and(|n| n.contains("fetched_"));
        self.ignored.retain(|name, _| !fetched(name));
    }

    /// Tests that still wait for assets after the run over those that read them.
    fn without_their_assets(&self) -> usize {
        self.ignored.values().filter(|reason| reason.contains("fetched assets")).count()
    }

    /// Names what was not run, by reason.
    fn print_skipped(&self) {
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, reason) in &self.ignored {
            by_reason.entry(reason).or_default().push(name);
        }
        for (reason, names) in by_reason {
            println!("skipped {}: {reason}: {}", names.len(), names.join(", "));
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(output: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.count(line));
        tally
    }

    const FIRST: &str = "\
running 4 tests
test a::works ... ok
test a::gpu_sum ... ignored, needs an NVIDIA GPU
test fetched_text ... ignored, needs fetched assets: cargo xtask fetch
test plain ... ignored
test result: ok. 1 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.12s
test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 5 filtered out; finished in 0.00s
";

    #[test]
    fn results_of_all_runners_add_up() {
        let t = tally(FIRST);
        assert_eq!(t.to_string(), "8 passed, 2 failed, 3 skipped");
        assert_eq!(t.ignored["a::gpu_sum"], "needs an NVIDIA GPU");
        assert_eq!(t.ignored["plain"], "no reason given");
    }

    #[test]
    fn a_second_run_turns_skipped_tests_into_run_ones() {
        let mut t = tally(FIRST);
        t.take_over(&tally(
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1s",
        ));
        assert_eq!(t.to_string(), "9 passed, 2 failed, 2 skipped");
        assert_eq!(t.ignored.keys().collect::<Vec<_>>(), ["a::gpu_sum", "plain"]);
    }

    #[test]
    fn a_test_that_waits_for_assets_under_another_name_is_noticed() {
        let mut t = tally("test reads_a_model ... ignored, needs fetched assets: cargo xtask fetch\n");
        t.take_over(&Tally::default());
        assert_eq!(t.without_their_assets(), 1);
        let mut t = tally(FIRST);
        t.take_over(&Tally::default());
        assert_eq!(t.without_their_assets(), 0);
    }
}
