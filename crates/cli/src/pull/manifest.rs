//! What a pulled folder holds, written last: a folder without it is not a pulled model.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

use super::DEFAULT_REVISION;

const NAME: &str = "tare-pull.json";

/// The contents of a pulled folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    /// The name it was pulled by.
    pub(crate) name: String,
    /// Repository or package.
    pub(crate) source: String,
    /// Commit or version.
    pub(crate) revision: String,
    /// The branch, tag or commit of a repository that was asked for.
    #[serde(default)]
    pub(crate) asked: Option<String>,
    /// Its files.
    pub(crate) files: Vec<FileEntry>,
}

/// A file of a pulled folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileEntry {
    /// Path inside the folder.
    pub(crate) path: String,
    /// Length.
    pub(crate) bytes: u64,
    /// Digest of what was written.
    pub(crate) sha256: String,
}

impl Manifest {
    /// Whether it is what asking for `revision` gave.
    pub(crate) fn answers(&self, revision: &str) -> bool {
        self.revision == revision || self.asked.as_deref().unwrap_or(DEFAULT_REVISION) == revision
    }

    /// Writes it into `folder`.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(NAME);
        std::fs::write(&path, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The manifest of `folder`; none when it is no pulled model.
pub(crate) fn read(folder: &Path) -> Result<Option<Manifest>> {
    let path = folder.join(NAME);
    let bytes = match std::fs::read(&path) {
        Ok(b) => b,
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
    };
    let manifest: Manifest = serde_json::from_slice(&bytes).with_context(|| {
        format!("{}: expected what `tare pull` wrote; remove the folder and pull again", path.display())
    })?;
    for f in &manifest.files {
        let length = std::fs::metadata(folder.join(&f.path)).map(|m| m.len()).unwrap_or(0);
        if length != f.bytes {
            anyhow::bail!(
                "{}: expected {} bytes, found {length}; remove the folder and pull again",
                folder.join(&f.path).display(),
                f.bytes
            );
        }
    }
    Ok(Some(manifest))
}
