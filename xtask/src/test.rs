//! `cargo xtask test`: every test that this host can run, and the number of those that it could not.

use crate::executables::{self, Executable};
use crate::fetch;
use crate::runners::{self, Runner};
use crate::tally::Tally;
use anyhow::{Result, bail};
use std::path::Path;

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
    let executables = executables::build(crate::cargo().args(["test", "--workspace"]), root).unwrap_or_else(|e| {
        tally.fail(&format!("{e:#}"));
        Vec::new()
    });
    let mut ended = runners::run(first(root, &executables), &mut tally);
    let assets = fetching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if let (Err(e), true) = (&assets, require_assets) {
        tally.fail(&format!("the assets are required: {e:#}"));
    }
    let mut unread = 0;
    if let Err(e) = &assets {
        println!("SKIPPING the tests that read fetched assets: {e:#}");
    } else if !executables.is_empty() {
        let mut fetched = Tally::default();
        let reading = executables.iter().map(|e| e.runner(&[], &["--ignored", "fetched_"])).collect();
        ended.extend(runners::run(reading, &mut fetched));
        tally.take_over(&fetched);
        unread = if fetched.ran() == 0 { 1 } else { tally.without_their_assets() };
    }
    print!("{}", runners::in_short(&ended));
    tally.print_skipped();
    println!("{tally}");
    if unread > 0 {
        bail!(
            "the assets are here and {unread} or more tests that need them did not run: their names must begin with fetched_"
        );
    }
    tally.verdict()
}

/// Every test but those that are ignored. Nothing where nothing was built: the doc tests would only say why again.
fn first(root: &Path, executables: &[Executable]) -> Vec<Runner> {
    if executables.is_empty() {
        return Vec::new();
    }
    let mut doc_tests = crate::cargo();
    doc_tests.args(["test", "--workspace", "--doc", "--no-fail-fast"]).current_dir(root);
    // They begin first: cargo takes package after package, which no other worker can shorten.
    let doc_tests = Runner { name: "doc tests".to_string(), command: doc_tests };
    std::iter::once(doc_tests).chain(executables.iter().map(|e| e.runner(&[], &[]))).collect()
}
