//! What the running binary is: handed in by the command line, which alone was built with it.

use serde::{Deserialize, Serialize};
use tare_core::{Reading, digest::Hasher};
use tare_evidence::provenance::{Software, Source};

/// What was written into the binary when it was built, and where it lies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuildInfo {
    /// Version, compiler, target, profile.
    pub software: Software,
    /// Source tree.
    pub source: Source,
    /// SHA-256 of the file that runs.
    pub binary_sha256: String,
}

/// Digest of a file, read in parts.
///
/// # Errors
/// When the file cannot be read.
pub fn file_sha256(path: &std::path::Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut file = std::fs::File::open(path)?;
    let mut hasher = Hasher::new();
    let mut part = vec![0; 1 << 20];
    loop {
        match file.read(&mut part)? {
            0 => return Ok(hasher.finish()),
            n => hasher.update(&part[..n]),
        }
    }
}

/// A fact that a build may not have known.
pub fn known(value: &str) -> Reading<String> {
    match value {
        "" | "unknown" => Reading::unavailable("not known when the binary was built"),
        v => Reading::Available(v.to_string()),
    }
}
