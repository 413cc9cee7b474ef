//! Looking at a path before opening it: a pipe would wait for a writer, and a device may never end.

use crate::error::FormatError;
use std::fs::{FileType, Metadata};
use std::path::Path;
use tare_core::Fault;

/// The metadata of the regular file at `path`, links followed.
///
/// # Errors
/// When there is nothing, or something that is no regular file.
pub(crate) fn regular(path: &Path) -> Result<Metadata, FormatError> {
    let meta = std::fs::metadata(path).map_err(|e| FormatError::io(path, "open", e))?;
    if meta.is_file() {
        return Ok(meta);
    }
    let fault = Fault::new(name(path), "a regular file", kind(meta.file_type()));
    Err(fault.remedy("models are mapped, so copy the bytes to a file on disk and name that").into())
}

/// Reads a small file of at most `limit` bytes.
///
/// # Errors
/// When it is no regular file, is longer, or cannot be read.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FormatError> {
    let len = regular(path)?.len();
    if len > limit {
        let fault = Fault::new(name(path), format!("at most {limit} bytes"), len.to_string());
        return Err(fault.into());
    }
    std::fs::read(path).map_err(|e| FormatError::io(path, "read", e))
}

/// The last part of `path`: whoever opened the model puts the path of the model before it.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).display().to_string()
}

/// What stands where a file was expected.
fn kind(found: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if found.is_fifo() {
            return "a named pipe";
        }
        if found.is_socket() {
            return "a socket";
        }
        if found.is_char_device() || found.is_block_device() {
            return "a device";
        }
    }
    if found.is_dir() { "a folder" } else { "something else" }
}
