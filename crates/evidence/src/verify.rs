//! Verification: everything that can be checked about records and documents without running anything again.

use crate::campaign::Campaign;
use crate::check;
use crate::document::{AnyDocument, Kind};
use crate::ledger::{FileKind, Found, LedgerError, parse_amendment, read_text, walk};
use crate::provenance::Provenance;
use crate::record::About;
use crate::shelf::Shelf;
use crate::sums::{SUMS_FILE, Sums};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use tare_core::Fault;
use tare_core::digest::sha256_hex;

/// What a verification asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// Records from any tree.
    Scratch,
    /// Records fit to be committed: from clean trees only.
    Committed,
}

/// What a verification found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Records, documents and amendments that were read.
    pub files: usize,
    /// Everything that does not hold.
    pub findings: Vec<Finding>,
    /// What could not be checked, and why.
    pub notes: Vec<String>,
}

/// Something that does not hold.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.fault)
    }
}

impl Report {
    /// Whether everything holds.
    pub fn is_ok(&self) -> bool {
        self.findings.is_empty()
    }

    fn find(&mut self, path: &Path, fault: Fault) {
        self.findings.push(Finding { path: path.to_path_buf(), fault });
    }
}

/// Verifies one file, or every file under a folder. All findings are reported, not only the first.
///
/// For each file: its checksum, the schema, every digest inside it, its id, the counts that gate and work demand, facts
/// that stand in two places, and every figure derived again. A document is also held against the records and documents
/// that it names, which are looked for in its whole ledger. For a folder also: names and places, files without checksum,
/// checksums without file, amendments of nothing. A single file away from its ledger is checked without a checksum,
/// and a note says so.
///
/// # Errors
/// When the path cannot be listed; a file that cannot be read is a finding.
pub fn verify(path: &Path, strictness: Strictness) -> Result<Report, LedgerError> {
    let mut report = Report::default();
    let whole_folder = path.is_dir();
    let Found { files, folders } = if whole_folder {
        walk(path)?
    } else {
        Found { files: vec![path.to_path_buf()], folders: [folder_of(path).to_path_buf()].into() }
    };
    if files.is_empty() {
        report.find(path, Fault::new("records", "at least one", "none").remedy("name a folder of a ledger"));
    }
    let mut sums = BTreeMap::new();
    for folder in &folders {
        let read = read_sums(folder, &mut report);
        if whole_folder {
            check_complete(folder, read.as_ref(), &mut report);
        } else if read.is_none() {
            report.notes.push(format!("{}: no {SUMS_FILE} beside it: its checksum was not checked", path.display()));
        }
        sums.insert(folder.as_path(), read);
    }
    let how = (strictness, whole_folder);
    let shelf = Shelf::of(&around(path, &files)?);
    for file in &files {
        report.files += 1;
        let folder_sums = sums.get(folder_of(file)).and_then(Option::as_ref);
        match read_text(file) {
            Ok(text) => {
                check_sum(file, &text, folder_sums, whole_folder, &mut report);
                match FileKind::of(file) {
                    FileKind::Record { .. } => check_record(file, &text, how, &mut report),
                    FileKind::Document { kind, .. } => check_document(file, (kind, &text), how, &shelf, &mut report),
                    FileKind::Amendment { of, number } => check_amendment(file, &text, (&of, number), &mut report),
                }
            }
            Err(e) => report.find(file, Fault::new("file", "a readable record", e.to_string())),
        }
    }
    Ok(report)
}

/// The files of the ledger that `path` is a part of: two folders above a file, where those are a host and a study.
fn around(path: &Path, files: &[PathBuf]) -> Result<Vec<PathBuf>, LedgerError> {
    let Some(file) = files.iter().find(|f| matches!(FileKind::of(f), FileKind::Document { .. })) else {
        return Ok(files.to_vec());
    };
    let whole = fs::canonicalize(file).unwrap_or_else(|_| file.clone());
    let ledger = whole.ancestors().nth(3);
    let inside = ledger.is_some_and(|l| fs::canonicalize(path).is_ok_and(|p| p.starts_with(l) && p != *l));
    match ledger.filter(|_| inside && lies_as_it_says(&whole)) {
        Some(ledger) => Ok(walk(ledger)?.files),
        None => Ok(files.to_vec()),
    }
}

/// Whether the folders of a document are the host and the study that it names.
fn lies_as_it_says(file: &Path) -> bool {
    let FileKind::Document { kind, .. } = FileKind::of(file) else { return false };
    let document = read_text(file).ok().and_then(|text| AnyDocument::parse(kind, &text).ok());
    document.is_some_and(|d| place_fault(file, d.about(), d.provenance()).is_none())
}

/// A file of a ledger lies in the folders of its host and its study.
fn place_fault(file: &Path, about: &About, provenance: &Provenance) -> Option<Fault> {
    let whole = fs::canonicalize(file).unwrap_or_else(|_| file.to_path_buf());
    let name = |n: usize| whole.ancestors().nth(n)?.file_name().map(|n| n.to_string_lossy().into_owned());
    let found = format!("{}/{}", name(2).unwrap_or_default(), name(1).unwrap_or_default());
    let expected = format!("{}/{}", provenance.host.name, about.study);
    (found != expected).then(|| {
        Fault::new("folder", format!("{expected}, the host and the study that the file names"), found)
            .remedy("put the file back where it was written")
    })
}

fn folder_of(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new(""))
}

fn read_sums(folder: &Path, report: &mut Report) -> Option<Sums> {
    let path = folder.join(SUMS_FILE);
    if !path.exists() {
        return None;
    }
    match read_text(&path) {
        Ok(text) => Sums::parse(&text).map_err(|fault| report.find(&path, fault)).ok(),
        Err(e) => {
            report.find(&path, Fault::new("file", "a readable checksum file", e.to_string()));
            None
        }
    }
}

fn check_complete(folder: &Path, sums: Option<&Sums>, report: &mut Report) {
    let Some(sums) = sums else {
        if !folder.join(SUMS_FILE).exists() {
            report.find(folder, Fault::new(SUMS_FILE, "a checksum file beside the records", "none"));
        }
        return;
    };
    for name in sums.names().filter(|n| !folder.join(n).exists()) {
        report.find(&folder.join(name), Fault::new("file", format!("a file, as {SUMS_FILE} lists it"), "none"));
    }
}

fn check_sum(file: &Path, text: &str, sums: Option<&Sums>, whole_folder: bool, report: &mut Report) {
    let Some(sums) = sums else { return };
    let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let computed = sha256_hex(text.as_bytes());
    match sums.get(&name) {
        Some(written) if written == computed => {}
        Some(written) => {
            let fault = Fault::new("checksum", format!("{written}, as {SUMS_FILE} has it"), computed);
            report.find(file, fault.remedy("restore the file as it was written"));
        }
        None if whole_folder => report.find(file, Fault::new("checksum", format!("a line in {SUMS_FILE}"), "none")),
        None => report.notes.push(format!("{}: not listed in {SUMS_FILE}", file.display())),
    }
}

fn check_record(file: &Path, text: &str, (strictness, in_ledger): (Strictness, bool), report: &mut Report) {
    let (record, value) = match check::parse(text) {
        Ok(parsed) => parsed,
        Err(fault) => return report.find(file, fault),
    };
    for fault in check::faults(&record, &value) {
        report.find(file, fault);
    }
    if in_ledger && file.file_stem().is_none_or(|stem| *stem != *record.id) {
        report.find(file, Fault::new("file name", format!("{}.json", record.id), file.display().to_string()));
    }
    check_origin(file, (&record.about, &record.provenance), (strictness, in_ledger), report);
}

/// Checks the folder and, where it matters, the source tree.
fn check_origin(
    file: &Path,
    (about, provenance): (&About, &Provenance),
    (strictness, in_ledger): (Strictness, bool),
    report: &mut Report,
) {
    if let Some(fault) = place_fault(file, about, provenance).filter(|_| in_ledger) {
        report.find(file, fault);
    }
    if strictness == Strictness::Committed
        && let Err(fault) = provenance.source.check_clean()
    {
        report.find(file, fault);
    }
}

fn check_document(
    file: &Path,
    (kind, text): (Kind, &str),
    how: (Strictness, bool),
    shelf: &Shelf,
    report: &mut Report,
) {
    let (document, faults) = match AnyDocument::parse_checked(kind, text) {
        Ok(parsed) => parsed,
        Err(fault) => return report.find(file, fault),
    };
    for fault in faults.into_iter().chain(document.faults_in(shelf)) {
        report.find(file, fault);
    }
    if let AnyDocument::Opening(opening) = &document {
        let campaign = &opening.about.campaign;
        if !shelf.documents::<Campaign>().any(|d| d.about.campaign == *campaign) {
            report.notes.push(format!("{}: campaign {campaign} was opened and has no closing", file.display()));
        }
    }
    let name = format!("{}.{}.json", document.id(), kind.name());
    if how.1 && file.file_name().is_none_or(|n| *n != *name) {
        report.find(file, Fault::new("file name", name, file.display().to_string()));
    }
    check_origin(file, (document.about(), document.provenance()), how, report);
}

fn check_amendment(file: &Path, text: &str, (of, number): (&str, u32), report: &mut Report) {
    let amendment = match parse_amendment(text) {
        Ok(amendment) => amendment,
        Err(fault) => return report.find(file, fault),
    };
    if amendment.record != of || amendment.number != number {
        let found = format!("{} number {}", amendment.record, amendment.number);
        report.find(file, Fault::new("record, number", format!("{of} number {number}, as its name says"), found));
    }
    let sibling = |name: String| file.with_file_name(name).exists();
    let document = || Kind::ALL.iter().any(|k| sibling(format!("{of}.{}.json", k.name())));
    if !sibling(format!("{of}.json")) && !document() {
        report.find(file, Fault::new("record", format!("{of}.json, or a document of that id, beside it"), "none"));
    }
    if number == 0 || (number > 1 && !sibling(format!("{of}.state-{}.json", number - 1))) {
        report.find(file, Fault::new("number", "numbers from 1 without a gap", number.to_string()));
    }
}
