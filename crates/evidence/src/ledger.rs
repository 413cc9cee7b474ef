//! The ledger: an append-only folder `<root>/<host>/<study>/` of records `<id>.json` and documents `<id>.<kind>.json`
//! with `SHA256SUMS` beside them.
//!
//! A record is written to a hidden temporary file, synced, and linked to its name; a link never replaces a file. Then
//! the folder's checksum file is replaced as a whole. A crash leaves at worst a hidden file, which readers ignore, or
//! a record without checksum, which verification names. Writers of one folder take turns by a lock on the folder.

use crate::check;
use crate::document::{AnyDocument, Body, Document, Kind};
use crate::provenance::check_folder_name;
use crate::record::Record;
use crate::shelf::Shelf;
use crate::state::{AMENDMENT_VERSION, Amendment, State};
use crate::sums::{SUMS_FILE, Sums};
use crate::utc::Utc;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tare_core::Fault;
use tare_core::digest::sha256_hex;

/// Folder under the root that holds JSON schemas instead of records.
pub const SCHEMA_FOLDER: &str = "schema";

/// Why a ledger could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file system refused.
    #[error("{}: expected to {doing}, found: {found}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said. It is in the text already, so that it is no source: a chain would tell it twice.
        found: io::Error,
    },
    /// The record is there already; nothing was changed.
    #[error("{}: expected no such file, found one; a record is written once", .0.display())]
    Duplicate(PathBuf),
    /// The record does not hold together, or may not be kept here.
    #[error(transparent)]
    Refused(#[from] Fault),
    /// No record or document has this id.
    #[error("`{0}`: expected in the ledger, found none; `tare ledger list` names what it has")]
    Unknown(String),
}

/// A ledger on disk.
#[derive(Clone, Debug)]
pub struct Ledger {
    root: PathBuf,
}

/// One line of a listing.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The record.
    pub record: Record,
    /// Its file.
    pub path: PathBuf,
    /// Its present state, amendments included.
    pub state: State,
}

/// A document of a listing.
#[derive(Clone, Debug)]
pub struct DocumentEntry {
    /// The document.
    pub document: AnyDocument,
    /// Its file.
    pub path: PathBuf,
    /// Its present state, amendments included.
    pub state: State,
}

/// Whatever has an id.
#[derive(Clone, Debug)]
pub enum Shown {
    /// A record.
    Record(Box<Entry>),
    /// A document.
    Document(Box<DocumentEntry>),
}

impl Shown {
    /// Its file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Record(e) => &e.path,
            Self::Document(e) => &e.path,
        }
    }
}

impl Ledger {
    /// The ledger in folder `root`, which need not exist yet.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Its folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Writes a record, from whatever tree it was built; gives its file.
    ///
    /// # Errors
    /// When the record does not hold together, is there already, or cannot be written.
    pub fn append(&self, record: &Record) -> Result<PathBuf, LedgerError> {
        if let Some(fault) = record.faults()?.into_iter().next() {
            return Err(fault.within(&record.id).into());
        }
        check_folder_name("about.study", &record.about.study)?;
        check_folder_name("provenance.host.name", &record.provenance.host.name)?;
        let folder = self.root.join(&record.provenance.host.name).join(&record.about.study);
        publish(&folder, &format!("{}.json", record.id), &pretty(record)?)
    }

    /// As [`Ledger::append`], for evidence that will be committed: refuses a source tree that is not clean.
    ///
    /// # Errors
    /// As [`Ledger::append`], and for a dirty or unknown tree.
    pub fn append_committed(&self, record: &Record) -> Result<PathBuf, LedgerError> {
        record.provenance.source.check_clean().map_err(|f| f.within(&record.id))?;
        self.append(record)
    }

    /// Writes a document, from whatever tree it was built; gives its file. What it names must be in this ledger and
    /// say what it says: a campaign is appended after its records, a decision after its evidence.
    ///
    /// # Errors
    /// When the document does not hold together, contradicts what it names, is there already, or cannot be written.
    pub fn append_document<B: Body>(&self, document: &Document<B>) -> Result<PathBuf, LedgerError> {
        let mut faults = document.faults()?;
        if faults.is_empty() {
            faults = B::faults_in(document, &self.shelf()?);
        }
        if let Some(fault) = faults.into_iter().next() {
            return Err(fault.within(&document.id).into());
        }
        let folder = self.root.join(&document.provenance.host.name).join(&document.about.study);
        publish(&folder, &format!("{}.{}.json", document.id, B::KIND.name()), &pretty(document)?)
    }

    /// As [`Ledger::append_document`], for evidence that will be committed: refuses a source tree that is not clean.
    ///
    /// # Errors
    /// As [`Ledger::append_document`], and for a dirty or unknown tree.
    pub fn append_document_committed<B: Body>(&self, document: &Document<B>) -> Result<PathBuf, LedgerError> {
        document.provenance.source.check_clean().map_err(|f| f.within(&document.id))?;
        self.append_document(document)
    }

    /// What this ledger has, by id.
    ///
    /// # Errors
    /// When a folder cannot be listed.
    pub fn shelf(&self) -> Result<Shelf, LedgerError> {
        Shelf::under(&self.root)
    }

    /// Writes a new state beside a record or a document, which stays as it is.
    ///
    /// # Errors
    /// When there is no such thing or the amendment cannot be written.
    pub fn amend(&self, id: &str, state: State, at: Utc) -> Result<PathBuf, LedgerError> {
        let shown = self.find(id)?;
        let folder = parent(shown.path());
        let number = amendments(folder, id)?.len() as u32 + 1;
        let amendment =
            Amendment { schema_version: AMENDMENT_VERSION, record: id.into(), number, created_at: at, state };
        publish(folder, &amendment_name(id, number), &pretty(&amendment)?)
    }

    /// All records, oldest first. Reading stops at the first file that is no record: verification names them all.
    ///
    /// # Errors
    /// When a folder or a record cannot be read.
    pub fn list(&self) -> Result<Vec<Entry>, LedgerError> {
        let mut entries = Vec::new();
        for path in walk(&self.root)?.files {
            if matches!(FileKind::of(&path), FileKind::Record { .. }) {
                entries.push(entry(path)?);
            }
        }
        entries.sort_by(|a, b| a.record.id.cmp(&b.record.id));
        Ok(entries)
    }

    /// All documents, oldest first. Reading stops at the first file that is none: verification names them all.
    ///
    /// # Errors
    /// When a folder or a document cannot be read.
    pub fn documents(&self) -> Result<Vec<DocumentEntry>, LedgerError> {
        let mut entries = Vec::new();
        for path in walk(&self.root)?.files {
            if let FileKind::Document { kind, .. } = FileKind::of(&path) {
                entries.push(document_entry(path, kind)?);
            }
        }
        entries.sort_by(|a, b| a.document.id().cmp(b.document.id()));
        Ok(entries)
    }

    /// Whatever has this id, with its present state.
    ///
    /// # Errors
    /// When there is no such thing or it cannot be read.
    pub fn find(&self, id: &str) -> Result<Shown, LedgerError> {
        for path in walk(&self.root)?.files {
            match FileKind::of(&path) {
                FileKind::Record { id: its } if its == id => return Ok(Shown::Record(Box::new(entry(path)?))),
                FileKind::Document { id: its, kind } if its == id => {
                    return Ok(Shown::Document(Box::new(document_entry(path, kind)?)));
                }
                _ => {}
            }
        }
        Err(LedgerError::Unknown(id.into()))
    }

    /// One record with its present state.
    ///
    /// # Errors
    /// When there is no such record or it cannot be read.
    pub fn show(&self, id: &str) -> Result<Entry, LedgerError> {
        let name = format!("{id}.json");
        let found = walk(&self.root)?.files.into_iter().find(|p| p.file_name().is_some_and(|n| *n == *name));
        entry(found.ok_or_else(|| LedgerError::Unknown(id.into()))?)
    }
}

/// SHA-256 of the file that a ledger writes for a record.
///
/// # Errors
/// When the record has no JSON form.
pub fn file_sha256(record: &Record) -> Result<String, Fault> {
    Ok(sha256_hex(&pretty(record)?))
}

/// What a JSON file of a ledger is, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Record { id: String },
    Document { id: String, kind: Kind },
    Amendment { of: String, number: u32 },
}

impl FileKind {
    pub(crate) fn of(path: &Path) -> Self {
        let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let amendment = stem.rsplit_once(".state-").and_then(|(id, n)| Some((id.to_string(), n.parse().ok()?)));
        let document = || stem.rsplit_once('.').and_then(|(id, kind)| Some((id.to_string(), kind.parse().ok()?)));
        match (amendment, document()) {
            (Some((of, number)), _) => Self::Amendment { of, number },
            (None, Some((id, kind))) => Self::Document { id, kind },
            (None, None) => Self::Record { id: stem },
        }
    }
}

/// What lies under a folder, in order of path. Hidden files and folders and the schemas are left out.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// JSON files.
    pub(crate) files: Vec<PathBuf>,
    /// Folders that hold a JSON file or a checksum file.
    pub(crate) folders: BTreeSet<PathBuf>,
}

pub(crate) fn walk(root: &Path) -> Result<Found, LedgerError> {
    let mut found = Found::default();
    let mut open = vec![root.to_path_buf()];
    while let Some(folder) = open.pop() {
        for item in fs::read_dir(&folder).map_err(io_error(&folder, "list the folder"))? {
            let item = item.map_err(io_error(&folder, "list the folder"))?;
            let kind = item.file_type().map_err(io_error(&item.path(), "tell a file from a folder"))?;
            let name = item.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') || name == SCHEMA_FOLDER {
                continue;
            }
            if kind.is_dir() {
                open.push(item.path());
            } else if name == SUMS_FILE {
                found.folders.insert(folder.clone());
            } else if name.ends_with(".json") {
                found.folders.insert(folder.clone());
                found.files.push(item.path());
            }
        }
    }
    found.files.sort_unstable();
    Ok(found)
}

pub(crate) fn read_text(path: &Path) -> Result<String, LedgerError> {
    fs::read_to_string(path).map_err(io_error(path, "read the file as UTF-8"))
}

/// Reads an amendment.
pub(crate) fn parse_amendment(text: &str) -> Result<Amendment, Fault> {
    let fault = |e: serde_json::Error| Fault::new("amendment", "JSON of a change of state", e.to_string());
    check::check_version(&serde_json::from_str(text).map_err(fault)?, &[AMENDMENT_VERSION])?;
    serde_json::from_str(text).map_err(fault)
}

fn entry(path: PathBuf) -> Result<Entry, LedgerError> {
    let record = Record::parse(&read_text(&path)?).map_err(|f| f.within(path.display()))?;
    let last = amendments(parent(&path), &record.id)?.pop();
    let state = last.map_or_else(|| record.state.clone(), |a| a.state);
    Ok(Entry { record, path, state })
}

fn document_entry(path: PathBuf, kind: Kind) -> Result<DocumentEntry, LedgerError> {
    let document = AnyDocument::parse(kind, &read_text(&path)?).map_err(|f| f.within(path.display()))?;
    let last = amendments(parent(&path), document.id())?.pop();
    let state = last.map_or_else(|| document.state().clone(), |a| a.state);
    Ok(DocumentEntry { document, path, state })
}

/// The amendments of a record or document in the order of their numbers, up to the first gap.
fn amendments(folder: &Path, id: &str) -> Result<Vec<Amendment>, LedgerError> {
    let mut found = Vec::new();
    loop {
        let path = folder.join(amendment_name(id, found.len() as u32 + 1));
        if !path.exists() {
            return Ok(found);
        }
        found.push(parse_amendment(&read_text(&path)?).map_err(|f| f.within(path.display()))?);
    }
}

fn amendment_name(id: &str, number: u32) -> String {
    format!("{id}.state-{number}.json")
}

fn pretty<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, Fault> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Fault::new("record", "a JSON form", e.to_string()))?;
    Ok((text + "\n").into_bytes())
}

/// Writes `bytes` as `name` into `folder`, which never replaces a file, and enters its checksum.
pub(crate) fn publish(folder: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, LedgerError> {
    fs::create_dir_all(folder).map_err(io_error(folder, "create the folder"))?;
    let lock = File::open(folder).map_err(io_error(folder, "open the folder"))?;
    lock.lock().map_err(io_error(folder, "lock the folder"))?;
    let (target, sums_path) = (folder.join(name), folder.join(SUMS_FILE));
    // Read before anything changes: beside a broken checksum file nothing is written.
    let mut sums = if sums_path.exists() { Sums::parse(&read_text(&sums_path)?)? } else { Sums::default() };
    let temporary = write_temporary(folder, bytes)?;
    let linked = fs::hard_link(&temporary, &target);
    fs::remove_file(&temporary).map_err(io_error(&temporary, "remove the temporary file"))?;
    match linked {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => return Err(LedgerError::Duplicate(target)),
        linked => linked.map_err(io_error(&target, "link the record to its name"))?,
    }
    sums.insert(name, sha256_hex(bytes));
    let temporary = write_temporary(folder, sums.text().as_bytes())?;
    fs::rename(&temporary, &sums_path).map_err(io_error(&sums_path, "replace the checksum file"))?;
    lock.sync_all().map_err(io_error(folder, "sync the folder"))?;
    if let Some(above) = folder.parent() {
        let above_file = File::open(above).map_err(io_error(above, "open the folder"))?;
        above_file.sync_all().map_err(io_error(above, "sync the folder"))?;
    }
    Ok(target)
}

fn write_temporary(folder: &Path, bytes: &[u8]) -> Result<PathBuf, LedgerError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".new-{}-{number}", std::process::id()));
    // A file of that name is what a crashed writer with our process number left behind: no live writer holds it.
    match fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(io_error(&path, "remove a torn file")(e)),
        _ => {}
    }
    let mut file =
        OpenOptions::new().write(true).create_new(true).open(&path).map_err(io_error(&path, "create the file"))?;
    file.write_all(bytes).map_err(io_error(&path, "write the file"))?;
    file.sync_all().map_err(io_error(&path, "sync the file"))?;
    Ok(path)
}

fn io_error(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> LedgerError + use<> {
    let path = path.to_path_buf();
    move |found| LedgerError::Io { path, doing, found }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}
