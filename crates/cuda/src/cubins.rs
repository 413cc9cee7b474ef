//! Compiled units: from a folder that keeps them from one process to the next, else from the compiler, several at a time.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tare_core::digest::sha256_hex;
use tare_ops::OpError;

use crate::device::failed;
use crate::nvrtc::{Compiled, Nvrtc, OPTIONS};
use crate::units::Unit;

/// Of the files of this process that are not whole yet: each has a name of its own, whichever thread writes it.
static PARTS: AtomicU64 = AtomicU64::new(0);

/// A compiler for one architecture, and where it keeps what it made.
#[derive(Clone, Copy, Debug)]
pub struct Cubins<'a> {
    /// The compiler.
    pub nvrtc: &'a Nvrtc,
    /// `sm_90a`
    pub arch: &'a str,
    /// None keeps nothing.
    pub folder: Option<&'a Path>,
}

impl Cubins<'_> {
    /// The cubin of a unit: from the folder, else compiled and put there, with what the compiler had to say beside it.
    ///
    /// # Errors
    /// The compiler's own words.
    pub fn of(&self, unit: &Unit) -> Result<Vec<u8>, OpError> {
        let file = self.file(unit);
        if let Some(kept) = file.as_deref().and_then(kept) {
            return Ok(kept);
        }
        let Compiled { cubin, log } =
            self.nvrtc.compile(&unit.name, &unit.text, self.arch).map_err(|e| failed(&unit.name, e))?;
        if let Some(file) = file {
            if !log.is_empty() {
                keep(&file.with_extension("log"), log.as_bytes());
            }
            keep(&file, &[&cubin, seal(&cubin).as_bytes()].concat());
        }
        Ok(cubin)
    }

    /// Compiles the units that the folder does not have, on as many threads, and tells of each that is there now.
    ///
    /// # Errors
    /// The compiler's own words on the first unit that it refuses; those that were begun are finished.
    pub fn prepare(&self, units: &[Unit], threads: usize, told: &(dyn Fn(usize, &Unit) + Sync)) -> Result<(), OpError> {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let refused = Mutex::new(None);
        let work = || {
            while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(e) = self.of(unit) {
                    next.store(units.len(), Ordering::Relaxed);
                    refused.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                    return;
                }
                told(done.fetch_add(1, Ordering::Relaxed) + 1, unit);
            }
        };
        std::thread::scope(|scope| (0..threads.clamp(1, units.len().max(1))).for_each(|_| drop(scope.spawn(work))));
        refused.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// The units that the folder does not have, or not whole.
    pub fn missing(&self, units: &[Unit]) -> Vec<Unit> {
        let mut seen = BTreeSet::new();
        let lacks = |unit: &&Unit| self.file(unit).is_some_and(|f| kept(&f).is_none() && seen.insert(f));
        units.iter().filter(lacks).cloned().collect()
    }

    /// What the compiler had to say of units that the folder has.
    pub fn said(&self, units: &[Unit]) -> Vec<(String, String)> {
        let log = |unit: &Unit| std::fs::read_to_string(self.file(unit)?.with_extension("log")).ok();
        units.iter().filter_map(|unit| log(unit).map(|log| (unit.name.clone(), log))).collect()
    }

    fn file(&self, unit: &Unit) -> Option<PathBuf> {
        let (major, minor) = self.nvrtc.version();
        let key = format!("{}\n{}\n{}\n{major}.{minor}\n", unit.text, OPTIONS.join(" "), self.arch);
        self.folder.map(|folder| folder.join(format!("{}.cubin", sha256_hex(key.as_bytes()))))
    }
}

/// What stands behind a kept cubin: how many bytes it has, and their digest. Tools that read the file see the cubin.
fn seal(cubin: &[u8]) -> String {
    format!("\n{} bytes, SHA-256 {}\n", cubin.len(), sha256_hex(cubin))
}

/// The cubin in a file that [`Cubins::of`] kept; none where there is no such file, or it is not the one that was written.
fn kept(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(file).ok()?;
    let (_, line) = bytes.split_last()?;
    let end = line.iter().rposition(|b| *b == b'\n')?;
    if bytes[end..] != *seal(&bytes[..end]).as_bytes() {
        return None;
    }
    bytes.truncate(end);
    Some(bytes)
}

/// Puts bytes into a file that appears whole or not at all. A folder that cannot be written is a cache that keeps nothing.
fn keep(file: &Path, bytes: &[u8]) {
    let Some(folder) = file.parent() else { return };
    let number = PARTS.fetch_add(1, Ordering::Relaxed);
    let part = file.with_extension(format!("{}.{number}.part", std::process::id()));
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&part, bytes));
    if written.and_then(|()| std::fs::rename(&part, file)).is_err() {
        std::fs::remove_file(&part).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_the_one_that_was_written_is_none() {
        let folder = std::env::temp_dir().join(format!("tare-cubins-kept-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("unit.cubin");
        let read = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            kept(&file)
        };
        assert_eq!(kept(&file), None, "there is none");
        // Line ends inside and at the end, as bytes of a cubin may be.
        for cubin in [&b"\x7fELF\n1 bytes\n"[..], b"\x7fELF", b"\n", b""] {
            let whole = [cubin, seal(cubin).as_bytes()].concat();
            assert_eq!(read(&whole).as_deref(), Some(cubin));
            for length in 0..whole.len() {
                assert_eq!(read(&whole[..length]), None, "the first {length} of {} bytes", whole.len());
            }
            for at in 0..whole.len() {
                let mut spoiled = whole.clone();
                spoiled[at] ^= 1;
                assert_eq!(read(&spoiled), None, "byte {at} is another one");
            }
            assert_eq!(read(&[&whole[..], b"\n"].concat()), None, "a byte more");
        }
        assert_eq!(read(b"\x7fELF as it was kept without a seal"), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_that_many_threads_write_at_once_is_whole_all_the_time() {
        let folder = std::env::temp_dir().join(format!("tare-cubins-{}", std::process::id()));
        let file = folder.join("unit.cubin");
        // Of different lengths: a file that two threads write into would have the end of the longer one.
        let texts: Vec<Vec<u8>> = (0u8..8).map(|t| vec![t; 40_000 + 5_000 * usize::from(t)]).collect();
        std::thread::scope(|scope| {
            for text in &texts {
                let (file, texts) = (&file, &texts);
                scope.spawn(move || {
                    for _ in 0..50 {
                        keep(file, text);
                        let found = std::fs::read(file).unwrap();
                        assert!(texts.contains(&found), "{} bytes of more than one", found.len());
                    }
                });
            }
        });
        let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["unit.cubin"], "no part is left behind");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
