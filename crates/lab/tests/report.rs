//! The report over the committed records, and over copies that somebody changed.

use std::path::{Path, PathBuf};
use tare_evidence::campaign::Campaign;
use tare_evidence::decision::Decision;
use tare_evidence::replay::Replay;
use tare_evidence::sensitivity::Sensitivity;
use tare_evidence::{Ledger, State, Utc};
use tare_lab::report::report;

/// A copy of the committed records of one host.
fn copy(to: &Path) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../evidence/amd-epyc-2t/clock");
    let folder = to.join("amd-epyc-2t/clock");
    std::fs::create_dir_all(&folder).unwrap();
    for item in std::fs::read_dir(from).unwrap() {
        let path = item.unwrap().path();
        std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    folder
}

fn records(folder: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).unwrap().map(|item| item.unwrap().path());
    let mut records: Vec<PathBuf> = all.filter(|p| p.extension().is_some_and(|e| e == "json")).collect();
    records.sort();
    records
}

fn id(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

#[test]
fn every_committed_record_is_in_the_report_with_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let folder = copy(dir.path());
    let report = report(dir.path()).unwrap();
    let records = records(&folder);
    assert_eq!((report.shown, report.refused.len()), (records.len(), 0), "{:?}", report.refused);
    for path in &records {
        assert!(report.html.contains(&id(path)), "{}", path.display());
    }
    assert!(report.html.contains("<svg") && report.html.contains("percent of floor"));
    for outside in ["<script", "<link", "@import", "src="] {
        assert!(!report.html.contains(outside), "{outside}");
    }
}

#[test]
fn an_edited_record_is_refused_and_not_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let folder = copy(dir.path());
    let victim = records(&folder).remove(0);
    let text = std::fs::read_to_string(&victim).unwrap();
    std::fs::write(&victim, text.replacen("\"prefill_ns\": ", "\"prefill_ns\": 1", 1)).unwrap();
    let report = report(dir.path()).unwrap();
    assert_eq!(report.shown, records(&folder).len() - 1);
    assert!(report.refused.iter().any(|(file, _)| file.contains(&id(&victim))), "{:?}", report.refused);
    let drawn = report.html.split("<h2>Records</h2>").nth(1).unwrap();
    assert!(!drawn.contains(&id(&victim)), "what was refused is listed alone");
    assert!(report.html.split("<h2>Records</h2>").next().unwrap().contains(&id(&victim)));
}

#[test]
fn states_are_shown_and_a_retracted_record_has_no_bar() {
    let dir = tempfile::tempdir().unwrap();
    let folder = copy(dir.path());
    let all = records(&folder);
    let at = Utc::from_unix_seconds(1_800_000_000).unwrap();
    let ledger = Ledger::at(dir.path());
    ledger.amend(&id(&all[0]), State::Retracted { why: "a wrong clock".into() }, at).unwrap();
    ledger.amend(&id(&all[1]), State::Stale { why: "a new kernel".into() }, at).unwrap();
    let report = report(dir.path()).unwrap();
    assert!(report.html.contains("retracted: a wrong clock") && report.html.contains("stale: a new kernel"));
    let picture = report.html.split("<svg").nth(1).unwrap().split("</svg>").next().unwrap();
    assert!(!picture.contains(&id(&all[0])) && picture.contains(&id(&all[1])));
}

#[test]
fn a_folder_without_records_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let report = report(dir.path()).unwrap();
    assert_eq!(report.shown, 0);
    assert!(report.refused.iter().any(|(_, why)| why.contains("at least one")), "{:?}", report.refused);
}

/// A ledger with a document of each kind.
fn every_kind(to: &Path) {
    fn copy_all(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for item in std::fs::read_dir(from).unwrap() {
            let path = item.unwrap().path();
            let target = to.join(path.file_name().unwrap());
            match path.is_dir() {
                true => copy_all(&path, &target),
                false => {
                    std::fs::copy(&path, &target).unwrap();
                }
            }
        }
    }
    copy_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../evidence/tests/data/ledger"), to);
}

#[test]
fn every_kind_of_document_with_figures_is_in_the_report() {
    let dir = tempfile::tempdir().unwrap();
    every_kind(dir.path());
    let report = report(dir.path()).unwrap();
    assert_eq!(report.refused, Vec::new());
    let shelf = Ledger::at(dir.path()).shelf().unwrap();
    let sensitivities: Vec<_> = shelf.documents::<Sensitivity>().collect();
    assert!(!sensitivities.is_empty());
    let ids = [
        sensitivities.iter().map(|d| d.id.clone()).collect::<Vec<_>>(),
        shelf.documents::<Campaign>().map(|d| d.id).collect(),
        shelf.documents::<Replay>().map(|d| d.id).collect(),
        shelf.documents::<Decision>().map(|d| d.id).collect(),
    ];
    for id in ids.concat() {
        assert!(report.html.contains(&id), "{id}");
    }
    for s in &sensitivities {
        let slope = format!("<td>{:.2}</td>", s.body.derived.slope);
        assert!(report.html.contains(&s.body.measured.group) && report.html.contains(&slope), "{slope}");
    }
    let id = &sensitivities[0].id;
    let at = Utc::from_unix_seconds(1_800_000_000).unwrap();
    Ledger::at(dir.path()).amend(id, State::Retracted { why: "a wrong group".into() }, at).unwrap();
    let html = tare_lab::report::report(dir.path()).unwrap().html;
    assert!(html.contains("retracted: a wrong group") && html.contains("not shown"));
}
