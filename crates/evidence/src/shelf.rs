//! What a ledger has, by id: how a document finds the records and documents that it names.

use crate::document::{Body, Document, Kind};
use crate::ledger::{FileKind, LedgerError, read_text, walk};
use crate::record::Record;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tare_core::Fault;
use tare_core::digest::sha256_hex;

/// Files by id. Nothing is read before it is asked for.
#[derive(Clone, Debug, Default)]
pub struct Shelf {
    records: BTreeMap<String, PathBuf>,
    documents: BTreeMap<(Kind, String), PathBuf>,
}

impl Shelf {
    /// What lies under a folder, which need not exist yet.
    ///
    /// # Errors
    /// When a folder cannot be listed.
    pub fn under(root: &Path) -> Result<Self, LedgerError> {
        Ok(if root.is_dir() { Self::of(&walk(root)?.files) } else { Self::default() })
    }

    pub(crate) fn of(files: &[PathBuf]) -> Self {
        let mut shelf = Self::default();
        for path in files {
            match FileKind::of(path) {
                FileKind::Record { id } => drop(shelf.records.insert(id, path.clone())),
                FileKind::Document { id, kind } => drop(shelf.documents.insert((kind, id), path.clone())),
                FileKind::Amendment { .. } => {}
            }
        }
        shelf
    }

    /// Whether some record or document has this id.
    ///
    /// # Errors
    /// When none has.
    pub fn check_known(&self, at: &str, id: &str) -> Result<(), Fault> {
        let known =
            self.records.contains_key(id) || Kind::ALL.iter().any(|k| self.documents.contains_key(&(*k, id.into())));
        if known { Ok(()) } else { Err(unknown(at, id)) }
    }

    /// A record and the SHA-256 of its file.
    ///
    /// # Errors
    /// When there is none or it cannot be read.
    pub fn record(&self, at: &str, id: &str) -> Result<(Record, String), Fault> {
        let text = read(at, self.records.get(id).ok_or_else(|| unknown(at, id))?)?;
        Ok((Record::parse(&text).map_err(|f| f.within(id).within(at))?, sha256_hex(text.as_bytes())))
    }

    /// A document of one kind.
    ///
    /// # Errors
    /// When there is none or it cannot be read.
    pub fn document<B: Body>(&self, at: &str, id: &str) -> Result<Document<B>, Fault> {
        let path = self.documents.get(&(B::KIND, id.to_string())).ok_or_else(|| unknown(at, id))?;
        Document::parse(&read(at, path)?).map_err(|f| f.within(id).within(at))
    }

    /// Every document of one kind that can be read, in order of id.
    pub fn documents<B: Body>(&self) -> impl Iterator<Item = Document<B>> {
        let of_kind = self.documents.iter().filter(|((kind, _), _)| *kind == B::KIND);
        of_kind.filter_map(|(_, path)| Document::parse(&read_text(path).ok()?).ok())
    }

    /// Every record that can be read, in order of id.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.records.values().filter_map(|path| Record::parse(&read_text(path).ok()?).ok())
    }
}

fn read(at: &str, path: &Path) -> Result<String, Fault> {
    read_text(path).map_err(|e| Fault::new(at, "a readable file", e.to_string()))
}

fn unknown(at: &str, id: &str) -> Fault {
    Fault::new(at, format!("`{id}` in this ledger"), "no such record or document")
        .remedy("bring it into this ledger: `tare ledger merge FROM INTO`")
}
