//! Files mapped into memory: the only unsafe code of this crate.

#![allow(unsafe_code, reason = "mapping a file is unsafe by nature; DESIGN keeps it here")]

use crate::error::FormatError;
use crate::regular::{name, regular};
use memmap2::Mmap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tare_core::{Blob, Fault, Source};

/// The most that the system maps at once around a page that is looked at, in bytes: a huge page, where the file lies in such.
/// What was given back comes back with a neighbour, so that neighbours are given back in whole windows.
#[cfg(target_os = "linux")]
const AROUND: usize = 2 << 20;

/// Maps all of `path`, read-only; nothing is read before it is used. Huge pages are asked for.
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
    Ok(Blob::new(Arc::new(Mapped(mapped))))
}

/// A mapped file.
struct Mapped(Mmap);

impl Source for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    #[cfg(target_os = "linux")]
    fn unload(&self, range: Range<usize>) {
        let first = self.0.as_ptr() as usize;
        let from = ((first + range.start) / AROUND * AROUND).max(first) - first;
        let to = ((first + range.end).next_multiple_of(AROUND) - first).min(self.0.len());
        // SAFETY: the map is of a file and read-only, so that its pages hold nothing that the file does not: whoever looks
        // at one later has the same bytes from the file again, also who looks at it meanwhile. A refusal costs memory only.
        let _ = unsafe { self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, to - from) };
    }

    /// The system takes pages of files back when it needs them.
    #[cfg(not(target_os = "linux"))]
    fn unload(&self, _range: Range<usize>) {}
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    /// Bytes of the mapping at `at` that are in memory, by the system's own account.
    fn resident(at: usize) -> usize {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let head = format!("{at:x}-");
        let fields = text.lines().skip_while(|line| !line.starts_with(&head));
        let rss = fields.skip(1).find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }

    #[test]
    fn what_was_given_back_is_out_of_memory_and_reads_the_same() {
        const MIB: usize = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..12 * MIB).map(|i| (i / 4096 * 7 + i) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let blob = map(&path).unwrap();
        let at = blob.as_ptr() as usize;
        assert!(*blob == *bytes);
        assert_eq!(resident(at), 12 * MIB);
        let part = blob.slice(4 * MIB + 100..8 * MIB + 100).unwrap();
        part.unload(0..4 * MIB);
        assert!(resident(at) <= 8 * MIB, "{} bytes of the file", resident(at));
        assert!(*part == bytes[4 * MIB + 100..8 * MIB + 100]);
        blob.unload(0..blob.len());
        assert_eq!(resident(at), 0);
        assert!(*blob == *bytes);
    }
}
