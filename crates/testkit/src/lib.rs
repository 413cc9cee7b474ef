//! Shared by tests alone: where the golden files lie, how they are read, and when two vectors are close enough.
//!
//! Everything here panics with a sentence instead of returning an error: the caller is a test.

#![forbid(unsafe_code)]

mod close;
mod noting;
mod tensors;

pub use close::assert_close;
pub use noting::Noting;
pub use tensors::{Element, Tensors};

use std::path::{Path, PathBuf};

/// The root of the workspace that this crate was compiled in.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace root exists")
}

/// The folder of golden values, `goldens/` under the workspace root. Its README says what to expect of each file.
pub fn goldens() -> PathBuf {
    workspace().join("goldens")
}

/// The folder of fetched assets, `target/assets/` under the workspace root whatever the target folder of the build is.
///
/// `cargo xtask fetch` fills it with `smollm2-135m.gguf` and `qwen3-tokenizer.json`. Tests that read it are ignored
/// by default and have names that start with `fetched_`; `cargo xtask test` runs them once the files are there.
pub fn assets() -> PathBuf {
    workspace().join("target").join("assets")
}

/// A JSON file as a value.
///
/// # Panics
/// When the file is missing or is not JSON, naming it.
pub fn json(path: impl AsRef<Path>) -> serde_json::Value {
    let path = path.as_ref();
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
