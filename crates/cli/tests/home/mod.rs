//! A folder of its own for one test, and the binary run in it: nothing of the user's and no environment but PATH.

use assert_cmd::assert::Assert;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;
use tare_probe::Host;
use tare_probe::ceilings::{Ceilings, Effort};

/// Where a home keeps the ceilings of its host.
const CEILINGS: &str = "ceilings.json";
/// Milliseconds instead of seconds, and kept however busy the host is.
const ROUGHLY: Effort = Effort {
    buffer_bytes_limit: 8 << 20,
    fill_ns_limit: 500_000_000,
    rounds: 5,
    read_series_ns: 0,
    fma_round_ns: 1_000_000,
    quiet_window: Duration::ZERO,
    busy_limit: 1.0,
};

/// TARE_HOME of one test; it goes with the test.
pub(crate) struct Home(tempfile::TempDir);

impl Home {
    /// One with nothing but ceilings of this host, which are measured once and roughly: every command that needs them would
    /// spend seconds, as what is measured beside other tests is not kept.
    pub(crate) fn new() -> Self {
        static KEPT: LazyLock<Vec<u8>> = LazyLock::new(|| {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join(CEILINGS);
            Ceilings::kept_at(&file, &Host::read(), &ROUGHLY);
            std::fs::read(file).unwrap_or_default()
        });
        let home = tempfile::tempdir().unwrap();
        // A host that cannot keep them measures them whenever they are asked for.
        if !KEPT.is_empty() {
            std::fs::write(home.path().join(CEILINGS), &*KEPT).unwrap();
        }
        Self(home)
    }

    /// A path inside it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The binary with `args`, ready to be started.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_tare"));
        let path = std::env::var("PATH").unwrap_or_default();
        c.env_clear().env("PATH", path).env("TARE_HOME", self.0.path()).args(args);
        c
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Assert {
        assert_cmd::Command::from_std(self.command(args)).assert()
    }

    /// What it prints as JSON when it succeeds.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let done = self.run(args).success();
        let out = String::from_utf8_lossy(&done.get_output().stdout);
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("tare {}: {e}: {out}", args.join(" ")))
    }

    /// Its complaint when it fails, as it must.
    pub(crate) fn refused(&self, args: &[&str]) -> String {
        let done = self.run(args).failure();
        String::from_utf8_lossy(&done.get_output().stderr).into_owned()
    }
}
