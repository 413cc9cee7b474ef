//! `cargo xtask test`: every test that this host can run, and the number of those that it could not.

use crate::executables::{self, Executable};
use crate::fetch;
use crate::runners::{self, Ended, Runner};
use crate::tally::Tally;
use anyhow::{Result, bail};
use std::path::Path;

/// Runs the tests of the workspace at `root`. The last line printed is `N passed, N failed, N skipped`.
///
/// # Errors
/// When a test fails, the tests do not build, or `require_assets` is set and the assets cannot be had: the other tests run all
/// the same.
pub(crate) fn run(root: &Path, require_assets: bool) -> Result<()> {
    // A network and a compiler do not wait for each other.
    let dir = root.join("target/assets");
    let fetching = std::thread::spawn(move || fetch::run(&dir));
    let mut tally = Tally::default();
    let executables = executables::build(crate::cargo().args(["test", "--workspace"]), root).unwrap_or_else(|e| {
        tally.fail(&format!("{e:#}"));
        Vec::new()
    });
    let assets = fetching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if let (Err(e), true) = (&assets, require_assets) {
        tally.fail(&format!("the assets are required: {e:#}"));
    }
    if let Err(e) = &assets {
        println!("SKIPPING the tests that read fetched assets: {e:#}");
    }
    let ended = runners::run(all(root, &executables, assets.is_ok()));
    let (fetched, plain): (Vec<&Ended>, Vec<&Ended>) = ended.iter().partition(|e| reads_assets(&e.name));
    plain.into_iter().for_each(|e| e.count(&mut tally));
    let mut unread = 0;
    if !fetched.is_empty() {
        let mut second = Tally::default();
        fetched.into_iter().for_each(|e| e.count(&mut second));
        tally.take_over(&second);
        unread = if second.ran() == 0 { 1 } else { tally.without_their_assets() };
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

/// How tests that read fetched assets are asked for: they are ignored else.
const READING: [&str; 2] = ["--ignored", "fetched_"];

fn reads_assets(name: &str) -> bool {
    name.ends_with(&READING.join(" "))
}

/// Every test but those that are ignored, and with `assets` those that read them. Nothing where nothing was built: the doc tests
/// would only say why again.
fn all(root: &Path, executables: &[Executable], assets: bool) -> Vec<Runner> {
    if executables.is_empty() {
        return Vec::new();
    }
    let mut doc_tests = crate::cargo();
    doc_tests.args(["test", "--workspace", "--doc", "--no-fail-fast"]).current_dir(root);
    // They begin first: cargo takes package after package, which no other worker can shorten. Then come those that read assets,
    // few and long ones, each a single thread's work.
    let doc_tests = Runner { name: "doc tests".to_string(), command: doc_tests };
    let reading = executables.iter().filter(|_| assets).map(|e| e.runner(&[], &READING));
    std::iter::once(doc_tests).chain(reading).chain(executables.iter().map(|e| e.runner(&[], &[]))).collect()
}
