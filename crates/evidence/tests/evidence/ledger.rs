use crate::specimen;
use std::fs;
use std::path::Path;
use std::process::Command;
use tare_core::Reading;
use tare_evidence::{Ledger, LedgerError, Record, SUMS_FILE, State, Strictness, verify};

fn dirty_record() -> Record {
    let mut draft = specimen::draft(specimen::passed());
    draft.provenance.source.dirty = Reading::Available(true);
    Record::seal(draft).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_record_lies_in_its_folder_and_sha256sum_agrees() {
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    let (a, b) = (specimen::record(), specimen::void_record());
    let path = ledger.append_committed(&a).unwrap();
    assert_eq!(path, root.path().join("vm-2core/clock").join(format!("{}.json", a.id)));
    ledger.append(&b).unwrap();
    assert_eq!(names(path.parent().unwrap()).len(), 3, "two records and {SUMS_FILE}, nothing temporary");
    let checked = Command::new("sha256sum").args(["-c", SUMS_FILE]).current_dir(path.parent().unwrap()).output();
    if let Ok(output) = checked {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let ids: Vec<String> = ledger.list().unwrap().into_iter().map(|e| e.record.id).collect();
    assert!(ids.contains(&a.id) && ids.contains(&b.id) && ids.len() == 2);
    assert_eq!(ledger.show(&b.id).unwrap().record, b);
    assert!(matches!(ledger.show("nothing"), Err(LedgerError::Unknown(_))));
}

#[test]
fn nothing_is_ever_replaced() {
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    let record = specimen::record();
    let path = ledger.append(&record).unwrap();
    let before = (fs::read(&path).unwrap(), fs::read(path.with_file_name(SUMS_FILE)).unwrap());
    assert!(matches!(ledger.append(&record), Err(LedgerError::Duplicate(p)) if p == path));
    fs::write(&path, "someone's file").unwrap();
    assert!(matches!(ledger.append(&record), Err(LedgerError::Duplicate(_))));
    assert_eq!(fs::read(&path).unwrap(), b"someone's file");
    assert_eq!(fs::read(path.with_file_name(SUMS_FILE)).unwrap(), before.1);
    assert_eq!(names(path.parent().unwrap()).len(), 2, "a refused write leaves nothing behind");
}

#[test]
fn writers_of_one_folder_lose_no_checksum() {
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let ledger = ledger.clone();
            scope.spawn(move || {
                let mut draft = specimen::draft(specimen::passed());
                draft.about.title = format!("writer {writer}");
                ledger.append(&Record::seal(draft).unwrap()).unwrap();
            });
        }
    });
    let report = verify(root.path(), Strictness::Committed).unwrap();
    assert!(report.is_ok() && report.files == 8, "{:?}", report.findings);
}

#[test]
fn a_dirty_tree_may_scratch_but_not_commit() {
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    let dirty = dirty_record();
    let error = ledger.append_committed(&dirty).unwrap_err().to_string();
    assert!(error.contains("clean tree") && error.contains("commit the changes"), "{error}");
    assert!(names(root.path()).is_empty());
    ledger.append(&dirty).unwrap();
    assert!(verify(root.path(), Strictness::Scratch).unwrap().is_ok());
    let report = verify(root.path(), Strictness::Committed).unwrap();
    assert_eq!(report.findings[0].fault.at, "provenance.source");

    let mut draft = specimen::draft(specimen::passed());
    draft.provenance.source.dirty = Reading::unavailable("no git here");
    assert!(ledger.append_committed(&Record::seal(draft).unwrap()).is_err(), "unknown is not clean");
}

#[test]
fn an_edited_record_is_not_appended() {
    let root = tempfile::tempdir().unwrap();
    let mut record = specimen::record();
    record.about.title = "Nicer".into();
    assert!(matches!(Ledger::at(root.path()).append(&record), Err(LedgerError::Refused(_))));
    assert!(names(root.path()).is_empty());
}

#[test]
fn states_change_beside_the_record() {
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    let record = specimen::record();
    let path = ledger.append(&record).unwrap();
    let written = fs::read(&path).unwrap();
    assert_eq!(ledger.show(&record.id).unwrap().state, State::Valid);
    let at = "2026-04-01T00:00:00Z".parse().unwrap();
    let reopened = State::Reopened { why: "a new compiler".into() };
    ledger.amend(&record.id, reopened.clone(), at).unwrap();
    assert_eq!(ledger.show(&record.id).unwrap().state, reopened);
    let retracted = State::Retracted { why: "the prompt was wrong".into() };
    let second = ledger.amend(&record.id, retracted.clone(), at).unwrap();
    assert_eq!(ledger.list().unwrap()[0].state, retracted);
    assert_eq!(fs::read(&path).unwrap(), written);
    assert!(verify(root.path(), Strictness::Committed).unwrap().is_ok());

    fs::rename(&second, second.with_file_name(format!("{}.state-3.json", record.id))).unwrap();
    let report = verify(root.path(), Strictness::Committed).unwrap();
    let text: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(text.iter().any(|t| t.contains("without a gap")), "{text:?}");
}

/// Whoever prints an error with everything below it tells each thing once.
#[test]
fn a_cause_is_told_once() {
    let chain = |error: LedgerError| {
        let mut told = vec![error.to_string()];
        let mut below = std::error::Error::source(&error);
        while let Some(e) = below {
            told.push(e.to_string());
            below = e.source();
        }
        told
    };
    let root = tempfile::tempdir().unwrap();
    let missing = chain(Ledger::at(root.path().join("nowhere")).list().unwrap_err());
    assert!(missing.len() == 1 && missing[0].contains("list the folder, found: "), "{missing:?}");
    let mut edited = specimen::record();
    edited.about.title = "Nicer".into();
    let refused = chain(Ledger::at(root.path()).append(&edited).unwrap_err());
    assert!(refused.len() == 1 && refused[0].contains("id: expected"), "{refused:?}");
}
