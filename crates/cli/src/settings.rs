//! The only reader of the environment: where tare keeps its things and how it reaches a hub.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// What the environment says.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Folder of models, ceilings, reference logits and scratch records: TARE_HOME, or `tare` under XDG_DATA_HOME or
    /// ~/.local/share.
    pub(crate) home: PathBuf,
    /// HF_ENDPOINT.
    pub(crate) endpoint: Option<String>,
    /// HF_TOKEN.
    pub(crate) token: Option<String>,
}

impl Settings {
    /// Reads the environment.
    pub(crate) fn read() -> Result<Self> {
        let var = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let home = match (var("TARE_HOME"), var("XDG_DATA_HOME"), var("HOME")) {
            (Some(h), _, _) => PathBuf::from(h),
            (_, Some(x), _) => Path::new(&x).join("tare"),
            (_, _, Some(h)) => Path::new(&h).join(".local/share/tare"),
            _ => {
                return Err(anyhow::anyhow!("neither TARE_HOME, XDG_DATA_HOME nor HOME is set"))
                    .context("tare needs a folder for models and records; set TARE_HOME");
            }
        };
        Ok(Self { home, endpoint: var("HF_ENDPOINT"), token: var("HF_TOKEN") })
    }

    /// The value of a variable that the user named.
    pub(crate) fn variable(name: &str) -> Result<String> {
        match std::env::var(name) {
            Ok(v) if !v.is_empty() => Ok(v),
            _ => Err(anyhow::anyhow!("the variable {name} is not set").context("no key for the server")),
        }
    }

    /// Measurements that are no evidence: nothing judged them.
    pub(crate) fn diagnostics(&self) -> PathBuf {
        self.home.join("diagnostics")
    }

    /// Where pulled models lie, each in a folder of its name.
    pub(crate) fn models(&self) -> PathBuf {
        self.home.join("models")
    }

    /// The ledger of records that nobody asked to be kept elsewhere.
    pub(crate) fn scratch_ledger(&self) -> PathBuf {
        self.home.join("records")
    }

    /// Ceilings of this host, measured once per boot.
    pub(crate) fn ceilings(&self) -> PathBuf {
        self.home.join("ceilings.json")
    }

    /// Kernels compiled for a device of this host, under the digest of what they were compiled from.
    pub(crate) fn kernels(&self) -> PathBuf {
        self.home.join("kernels")
    }

    /// Logits of the F32 reference under the digest of what they are the logits of.
    pub(crate) fn references(&self) -> PathBuf {
        self.home.join("references")
    }
}
