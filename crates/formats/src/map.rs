//! Files mapped into memory: the only unsafe code of this crate.

#![allow(unsafe_code, reason = "mapping a file is unsafe by nature; DESIGN keeps it here")]

use crate::error::FormatError;
use crate::regular::{name, regular};
use memmap2::Mmap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use tare_core::{Blob, Fault};

/// Maps all of `path`, read-only and private; nothing is read before it is used. Huge pages are asked for.
///
/// # Errors
/// When the file is no regular file, cannot be opened or mapped, or is empty.
pub(crate) fn map(path: &Path) -> Result<Blob, FormatError> {
    if regular(path)?.len() == 0 {
        return Err(Fault::new(name(path), "a file with content", "an empty file").into());
    }
    let file = File::open(path).map_err(|e| FormatError::io(path, "open", e))?;
    // SAFETY: the map is read-only and lives as long as the `Blob`s cut from it, which hold the `Arc`. What remains
    // is the caveat of every mapped file: another process that truncates or rewrites it in place while it is in use
    // breaks us. Model files are replaced by rename, here and by the tools that fetch them, which leaves the mapped
    // bytes alone.
    let mapped = unsafe { Mmap::map(&file) }.map_err(|e| FormatError::io(path, "map", e))?;
    // Advice: a file system that cannot do it refuses, and the map works all the same.
    #[cfg(target_os = "linux")]
    let _ = mapped.advise(memmap2::Advice::HugePage);
    Ok(Blob::new(Arc::new(mapped)))
}
