//! A folder of its own for one test, and the binary run in it: nothing of the user's and no environment but PATH.

use assert_cmd::assert::Assert;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// TARE_HOME of one test; it goes with the test.
pub(crate) struct Home(tempfile::TempDir);

impl Home {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
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
