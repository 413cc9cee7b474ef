//! What can go wrong with a file, told apart by what a caller would do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use tare_core::Fault;

/// An error of reading or writing a model.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The operating system refused.
    #[error("{}: cannot {action}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried: `open`, `map`, `write`...
        action: &'static str,
        /// The system's reason, which stands in the chain of causes and not in the text again.
        source: io::Error,
    },
    /// The file contradicts its format, its configuration or itself.
    #[error(transparent)]
    Malformed(#[from] Fault),
    /// The file is sound, but it needs something that tare does not do.
    #[error("unsupported: {0}")]
    Unsupported(Fault),
}

impl FormatError {
    /// An I/O error at `path` while trying to `action`.
    pub fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), action, source }
    }

    /// The same error seen from outside: `outer` is put before the place.
    #[must_use]
    pub fn within(self, outer: impl fmt::Display) -> Self {
        match self {
            Self::Malformed(f) => Self::Malformed(f.within(outer)),
            Self::Unsupported(f) => Self::Unsupported(f.within(outer)),
            io => io,
        }
    }
}
