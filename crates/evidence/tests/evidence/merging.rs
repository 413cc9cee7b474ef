//! Two ledgers become one.

use crate::specimen_campaign as specimen;
use std::fs;
use tare_evidence::{Ledger, State, Strictness, verify};

#[test]
fn a_merge_is_the_union_and_merging_again_changes_nothing() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, into) = (Ledger::at(a.path()), Ledger::at(b.path()));
    let (closing, _) = specimen::written(&from);
    from.amend(&closing.id, State::Reopened { why: "a new kernel".into() }, closing.about.created_at).unwrap();
    into.append(&specimen::records()[0]).unwrap();
    let merged = into.merge(&from).unwrap();
    assert_eq!((merged.written.len(), merged.present), (5, 1), "{merged:?}");
    assert!(verify(b.path(), Strictness::Committed).unwrap().is_ok());
    assert_eq!(into.documents().unwrap()[1].state.name(), "reopened");
    let again = into.merge(&from).unwrap();
    assert_eq!((again.written.len(), again.present), (0, 6));
}

#[test]
fn a_file_with_other_bytes_is_refused_and_nothing_is_written() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, into) = (Ledger::at(a.path()), Ledger::at(b.path()));
    specimen::written(&from);
    let path = into.append(&specimen::records()[2]).unwrap();
    fs::write(&path, fs::read_to_string(&path).unwrap() + " ").unwrap();
    let before = fs::read_dir(path.parent().unwrap()).unwrap().count();
    let error = into.merge(&from).unwrap_err().to_string();
    assert!(error.contains("expected the bytes of the other ledger"), "{error}");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), before);
}

/// The folder of a host verifies by itself, and merged it would lose its host.
#[test]
fn a_part_of_a_ledger_is_not_merged() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    specimen::written(&Ledger::at(a.path()));
    for part in ["vm-2core", "vm-2core/attention"] {
        let error = Ledger::at(b.path()).merge(&Ledger::at(a.path().join(part))).unwrap_err().to_string();
        assert!(error.contains("expected HOST/STUDY/FILE in a ledger"), "{part}: {error}");
    }
    assert_eq!(fs::read_dir(b.path()).unwrap().count(), 0);
}

#[test]
fn a_ledger_that_does_not_verify_is_not_merged() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, into) = (Ledger::at(a.path()), Ledger::at(b.path()));
    let (_, path) = specimen::written(&from);
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("Fused", "Nicer")).unwrap();
    assert!(into.merge(&from).unwrap_err().to_string().contains("merge ledgers that verify"));
    assert!(into.list().unwrap_or_default().is_empty());
}
