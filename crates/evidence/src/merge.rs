//! The union of two ledgers.

use crate::ledger::{Ledger, LedgerError, publish, read_text, walk};
use crate::verify::{Strictness, verify};
use std::path::PathBuf;
use tare_core::Fault;

/// What a merge did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Files that were written, by their new path.
    pub written: Vec<PathBuf>,
    /// Files that were there already, byte for byte.
    pub present: usize,
}

impl Ledger {
    /// Adds every file of `from` that this ledger lacks, in the folder of its host and study. All files are looked at
    /// before the first is written, so that a refused merge changes nothing.
    ///
    /// # Errors
    /// When `from` does not verify or is a part of a ledger, a file is here with other bytes, or one cannot be read or
    /// written.
    pub fn merge(&self, from: &Ledger) -> Result<Merged, LedgerError> {
        let source = from.root();
        if let Some(finding) = verify(source, Strictness::Scratch)?.findings.into_iter().next() {
            let fault = finding.fault.within(finding.path.display());
            return Err(fault.remedy("merge ledgers that verify: `tare ledger verify FROM`").into());
        }
        let mut merged = Merged::default();
        let mut missing = Vec::new();
        for path in walk(source)?.files {
            let Ok(place) = path.strip_prefix(source) else { continue };
            if place.components().count() != 3 {
                let fault =
                    Fault::new(path.display().to_string(), "HOST/STUDY/FILE in a ledger", place.display().to_string());
                return Err(fault.remedy("merge the folder that holds the folders of the hosts").into());
            }
            let (text, target) = (read_text(&path)?, self.root().join(place));
            if !target.exists() {
                missing.push((target, text));
            } else if read_text(&target)? == text {
                merged.present += 1;
            } else {
                let fault = Fault::new(target.display().to_string(), "the bytes of the other ledger", "others");
                return Err(fault.remedy("one of the two was changed: verify both and keep the one that holds").into());
            }
        }
        for (target, text) in missing {
            let (Some(folder), Some(name)) = (target.parent(), target.file_name()) else { continue };
            merged.written.push(publish(folder, &name.to_string_lossy(), text.as_bytes())?);
        }
        Ok(merged)
    }
}
