//! A place to write to: a temporary name first, the wanted one at the end, nothing left behind on failure.

use crate::error::FormatError;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tare_core::Fault;

/// The wanted path and the temporary one beside it. Dropping it removes what was not committed.
pub(super) struct Place {
    wanted: PathBuf,
    temporary: PathBuf,
}

impl Place {
    /// # Errors
    /// When something is at `wanted` already, or its folder does not exist.
    pub(super) fn new(wanted: &Path) -> Result<Self, FormatError> {
        refuse_existing(wanted)?;
        let Some(name) = wanted.file_name() else {
            return Err(Fault::new(wanted.display().to_string(), "a path with a name", "none").into());
        };
        let parent = wanted.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = parent.canonicalize().map_err(|e| FormatError::io(parent, "find", e))?;
        let hidden = format!(".{}.{}.partial", name.to_string_lossy(), std::process::id());
        let temporary = parent.join(hidden);
        refuse_existing(&temporary)?;
        Ok(Self { wanted: parent.join(name), temporary })
    }

    /// Where to write.
    pub(super) fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Renames to the wanted path, unless something has come up there.
    pub(super) fn commit(self) -> Result<(), FormatError> {
        refuse_existing(&self.wanted)?;
        fs::rename(&self.temporary, &self.wanted).map_err(|e| FormatError::io(&self.wanted, "rename to", e))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // After a commit nothing is there; after a failure its own error is already on the way.
        let _ = fs::remove_file(&self.temporary);
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

fn refuse_existing(path: &Path) -> Result<(), FormatError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Err(Fault::new(path.display().to_string(), "a new path", "something that exists")
            .remedy("choose another name or remove it first")
            .into()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(FormatError::io(path, "look at", e)),
    }
}

/// A new file at `path`.
pub(super) fn create(path: &Path) -> Result<File, FormatError> {
    File::options().write(true).create_new(true).open(path).map_err(|e| FormatError::io(path, "create", e))
}
