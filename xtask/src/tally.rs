//! What test runners reported, added up.

use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::fmt;

/// Counts of tests, and those that were not run with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    /// Those of `failed` that were no test.
    outside: u64,
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
        self.outside += 1;
    }

    /// An error when something failed.
    ///
    /// # Errors
    /// With the number of failures.
    pub(crate) fn verdict(&self) -> Result<()> {
        if self.failed > 0 { bail!("{} tests failed", self.failed) } else { Ok(()) }
    }

    /// Takes the whole output of a runner into account. One that did not reach a result, or failed after its tests had
    /// passed, is one failure: `end` says how it ended.
    pub(crate) fn add(&mut self, name: &str, output: &str, succeeded: bool, end: &str) {
        let failed_before = self.failed;
        let mut results = 0;
        for line in output.lines() {
            results += usize::from(self.count(line));
        }
        if results == 0 {
            self.fail(&format!("{name} ended without a test result: {end}"));
        } else if !succeeded && self.failed == failed_before {
            self.fail(&format!("{name} ended without a failed test, and yet did not succeed: {end}"));
        }
    }

    /// Takes one line of a runner's output into account; whether it is a result.
    fn count(&mut self, line: &str) -> bool {
        let result = line.strip_prefix("test result: ");
        if let Some(result) = result {
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
        result.is_some()
    }

    /// How many tests ran.
    pub(crate) fn ran(&self) -> u64 {
        self.passed + self.failed - self.outside
    }

    /// Adds a second run over tests that the first one ignored.
    pub(crate) fn take_over(&mut self, second: &Tally) {
        self.passed += second.passed;
        self.failed += second.failed;
        self.outside += second.outside;
        self.skipped = self.skipped.saturating_sub(second.ran());
        let fetched = |name: &str| name.rsplit("::").next().is_some_and(|n| n.contains("fetched_"));
        self.ignored.retain(|name, _| !fetched(name));
    }

    /// Tests that still wait for assets after the run over those that read them.
    pub(crate) fn without_their_assets(&self) -> usize {
        self.ignored.values().filter(|reason| reason.contains("fetched assets")).count()
    }

    /// Names what was not run, by reason.
    pub(crate) fn print_skipped(&self) {
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
        tally.add("a runner", output, true, "exit status: 0");
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
    const PASSED: &str = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1s";

    #[test]
    fn results_of_all_runners_add_up() {
        let t = tally(FIRST);
        assert_eq!(t.to_string(), "8 passed, 2 failed, 3 skipped");
        assert_eq!(t.ignored["a::gpu_sum"], "needs an NVIDIA GPU");
        assert_eq!(t.ignored["plain"], "no reason given");
    }

    #[test]
    fn a_runner_that_dies_is_one_failure_and_one_with_failed_tests_is_not_another() {
        let mut t = Tally::default();
        for (output, succeeded, failed) in [
            ("running 2 tests\ntest a ... ok\n", false, 1),
            ("", true, 2),
            (PASSED, false, 3),
            (FIRST, false, 5),
            (PASSED, true, 5),
        ] {
            t.add("a runner", output, succeeded, "signal: 6 (SIGABRT)");
            assert_eq!(t.failed, failed, "{output}");
        }
    }

    #[test]
    fn a_second_run_turns_skipped_tests_into_run_ones() {
        let mut t = tally(FIRST);
        t.take_over(&tally(PASSED));
        assert_eq!(t.to_string(), "9 passed, 2 failed, 2 skipped");
        assert_eq!(t.ignored.keys().collect::<Vec<_>>(), ["a::gpu_sum", "plain"]);
    }

    #[test]
    fn a_test_that_waits_for_assets_under_another_name_is_noticed() {
        let mut t =
            tally(&format!("test reads_a_model ... ignored, needs fetched assets: cargo xtask fetch\n{PASSED}"));
        t.take_over(&Tally::default());
        assert_eq!(t.without_their_assets(), 1);
        let mut t = tally(FIRST);
        t.take_over(&Tally::default());
        assert_eq!(t.without_their_assets(), 0);
    }
}
