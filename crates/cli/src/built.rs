//! What this binary was built from, as the build script wrote it in.

use anyhow::{Context, Result};
use tare_core::Reading;
use tare_evidence::provenance::{Software, Source};
use tare_lab::build_info::{BuildInfo, file_sha256, known};

/// Version, source, compiler and digest of the running binary.
pub(crate) fn build_info() -> Result<BuildInfo> {
    let path = std::env::current_exe().context("cannot find the running binary")?;
    let dirty = match env!("TARE_DIRTY") {
        "true" => Reading::Available(true),
        "false" => Reading::Available(false),
        _ => Reading::unavailable("built outside a git tree"),
    };
    Ok(BuildInfo {
        software: Software {
            tare: env!("CARGO_PKG_VERSION").into(),
            rustc: known(env!("TARE_RUSTC")),
            target: env!("TARE_TARGET").into(),
            profile: env!("TARE_PROFILE").into(),
        },
        source: Source { tree_sha256: known(env!("TARE_SOURCE_DIGEST")), commit: known(env!("TARE_COMMIT")), dirty },
        binary_sha256: file_sha256(&path).with_context(|| format!("cannot read {}", path.display()))?,
    })
}
