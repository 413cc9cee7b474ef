use crate::specimen;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tare_core::digest::sha256_hex;
use tare_evidence::{Ledger, Record, SUMS_FILE, Strictness, canonical, verify};
use tempfile::TempDir;

fn ledger_of(titles: &[&str]) -> (TempDir, Vec<PathBuf>) {
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    let append = |title: &&str| {
        let mut draft = specimen::draft(specimen::passed());
        draft.about.title = (*title).to_string();
        ledger.append(&Record::seal(draft).unwrap()).unwrap()
    };
    let paths = titles.iter().map(append).collect();
    (root, paths)
}

/// Changes one place of a record and leaves its checksum as it was.
fn edit(path: &Path, place: &str, with: Value) {
    let mut value: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    *value.pointer_mut(place).unwrap() = with;
    fs::write(path, value.to_string()).unwrap();
}

/// Writes the checksum file of a folder anew, as somebody would who hides an edit.
fn recompute_sums(folder: &Path) {
    let mut lines: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .map(|p| format!("{}  {}\n", sha256_hex(&fs::read(&p).unwrap()), p.file_name().unwrap().to_string_lossy()))
        .collect();
    lines.sort();
    fs::write(folder.join(SUMS_FILE), lines.concat()).unwrap();
}

fn findings(path: &Path) -> Vec<String> {
    verify(path, Strictness::Scratch).unwrap().findings.iter().map(ToString::to_string).collect()
}

fn named(findings: &[String], what: &str) -> bool {
    findings.iter().any(|f| f.contains(what))
}

#[test]
fn an_edited_sample_is_found_by_checksum_and_by_figure() {
    let (root, paths) = ledger_of(&["a"]);
    edit(&paths[0], "/samples/rounds/0/timing/prefill_ns", json!(50_000_000));
    let found = findings(root.path());
    assert!(named(&found, "checksum: expected") && named(&found, "derived.prefill.ns.min"), "{found:?}");
    assert_eq!(findings(&paths[0]).len(), found.len(), "the file alone tells as much");
}

#[test]
fn a_recomputed_checksum_does_not_hide_an_edit() {
    for (place, with, figure) in [
        ("/samples/rounds/0/timing/token_ns/1", json!(10_999_999), "derived.decode.ns"),
        ("/samples/rounds/2/timing/setup_ns", json!(999_999), "derived.ttft_ns.median"),
        ("/samples/rounds/1/rows/0/ids/3", json!(12), "derived.emitted_ids_sha256"),
        ("/derived/decode/rate_tokens_per_s/median", json!(101.0), "derived.decode.rate_tokens_per_s.median"),
        ("/derived/prefill/percent_of_floor", json!(51.0), "derived.prefill.percent_of_floor"),
    ] {
        let (root, paths) = ledger_of(&["a"]);
        edit(&paths[0], place, with);
        recompute_sums(paths[0].parent().unwrap());
        let found = findings(root.path());
        assert!(!named(&found, "checksum"), "{found:?}");
        assert!(named(&found, figure) && named(&found, "derived from the samples"), "{place}: {found:?}");
    }
}

/// Even with checksum and id recomputed, a figure that does not follow is named.
#[test]
fn a_recomputed_id_does_not_hide_an_edit() {
    let (root, paths) = ledger_of(&["a"]);
    edit(&paths[0], "/samples/rounds/0/timing/prefill_ns", json!(50_000_000));
    let mut value: Value = serde_json::from_str(&fs::read_to_string(&paths[0]).unwrap()).unwrap();
    value.as_object_mut().unwrap().remove("id");
    let id = format!("20260301T120000Z-{}", &canonical::digest(&value)[..16]);
    value["id"] = json!(id);
    fs::write(paths[0].with_file_name(format!("{id}.json")), value.to_string()).unwrap();
    fs::remove_file(&paths[0]).unwrap();
    recompute_sums(paths[0].parent().unwrap());
    let found = findings(root.path());
    assert!(!found.is_empty() && found.iter().all(|f| f.contains("derived.")), "{found:?}");
}

#[test]
fn every_bad_file_of_a_folder_is_reported() {
    let (root, paths) = ledger_of(&["a", "b", "c", "d", "e"]);
    edit(&paths[0], "/about/title", json!("Nicer"));
    fs::write(&paths[1], "{ torn").unwrap();
    fs::remove_file(&paths[2]).unwrap();
    fs::write(&paths[3], [0xff, 0xfe]).unwrap();
    fs::copy(&paths[4], paths[4].with_file_name("copy.json")).unwrap();
    let found = findings(root.path());
    for bad in &paths[..4] {
        assert!(named(&found, &bad.display().to_string()), "{}: {found:?}", bad.display());
    }
    assert!(named(&found, "copy.json: file name: expected") && named(&found, "copy.json: checksum"), "{found:?}");
    assert!(!named(&found, &format!("{}: ", paths[4].display())), "the good record is left alone: {found:?}");
}

#[test]
fn torn_temporary_files_are_ignored() {
    let (root, paths) = ledger_of(&["a"]);
    let folder = paths[0].parent().unwrap();
    fs::write(folder.join(".new-1-0"), "{ \"schema_ver").unwrap();
    fs::write(folder.join(".new-1-1.json"), "{").unwrap();
    let report = verify(root.path(), Strictness::Committed).unwrap();
    assert!(report.is_ok() && report.files == 1, "{:?}", report.findings);
    assert_eq!(Ledger::at(root.path()).list().unwrap().len(), 1);
}

#[test]
fn the_schemas_of_a_ledger_are_no_records() {
    let (root, _) = ledger_of(&["a"]);
    fs::create_dir(root.path().join("schema")).unwrap();
    fs::write(root.path().join("schema/record-v1.json"), "{}").unwrap();
    assert!(verify(root.path(), Strictness::Committed).unwrap().is_ok());
}

#[test]
fn nothing_to_verify_is_not_success() {
    let (root, paths) = ledger_of(&["a"]);
    let folder = paths[0].parent().unwrap();
    fs::remove_file(&paths[0]).unwrap();
    let found = findings(root.path());
    assert!(named(&found, "at least one") && named(&found, "as SHA256SUMS lists it"), "{found:?}");
    fs::remove_file(folder.join(SUMS_FILE)).unwrap();
    assert_eq!(findings(root.path()).len(), 1);
    assert!(named(&findings(&paths[0]), "a readable record"));
    assert!(verify(&root.path().join("nowhere.json"), Strictness::Scratch).is_ok_and(|r| !r.is_ok()));
}

#[test]
fn a_record_away_from_its_ledger_is_checked_without_checksum_and_says_so() {
    let (_root, paths) = ledger_of(&["a"]);
    let elsewhere = tempfile::tempdir().unwrap();
    let copy = elsewhere.path().join("result.json");
    fs::copy(&paths[0], &copy).unwrap();
    let report = verify(&copy, Strictness::Committed).unwrap();
    assert!(report.is_ok() && report.notes[0].contains("its checksum was not checked"), "{report:?}");
    edit(&copy, "/samples/rounds/0/timing/prefill_ns", json!(1));
    assert!(named(&findings(&copy), "derived.prefill"));
}

#[test]
fn a_broken_checksum_file_is_a_finding() {
    let (root, paths) = ledger_of(&["a"]);
    let sums = paths[0].with_file_name(SUMS_FILE);
    let text = fs::read_to_string(&sums).unwrap();
    fs::write(&sums, &text[..40]).unwrap();
    assert!(named(&findings(root.path()), "SHA256SUMS: line 1: expected 64 hexadecimal digits"));
    let error = Ledger::at(root.path()).append(&specimen::record()).unwrap_err().to_string();
    assert!(error.contains("SHA256SUMS: line 1"), "{error}");
    assert_eq!(fs::read_dir(paths[0].parent().unwrap()).unwrap().count(), 2, "nothing is written beside it");
}
