//! Documents that hold together, and the ledger that keeps them.

use crate::specimen_campaign as specimen;
use std::fs;
use std::path::Path;
use tare_evidence::campaign::CampaignOutcome;
use tare_evidence::ledger::Shown;
use tare_evidence::stats::Verdict;
use tare_evidence::{AnyDocument, Kind, Ledger, State, Strictness, schema, verify};

#[test]
fn a_whole_campaign_is_kept_found_and_verified() {
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    let (closing, path) = specimen::written(&ledger);
    let CampaignOutcome::Ruled(ruled) = &closing.body.outcome else { panic!("it is ruled") };
    assert_eq!(ruled.rulings[0].verdict, Verdict::Keep, "{ruled:?}");
    assert!((ruled.rulings[0].effect - 0.2854).abs() < 1e-3, "ln(100 / 75) or so: {}", ruled.rulings[0].effect);
    let replay = specimen::replay_document();
    ledger.append_document(&replay).unwrap();
    let sensitivity = specimen::sensitivity_document(&replay.id);
    ledger.append_document(&sensitivity).unwrap();
    assert!((sensitivity.body.derived.slope - 0.90025).abs() < 1e-9, "{:?}", sensitivity.body.derived);
    let decision = specimen::decision_document(specimen::decision(&closing.id, &[&closing.id, &replay.id]));
    ledger.append_document(&decision).unwrap();
    ledger.append_document(&specimen::accuracy_document()).unwrap();

    for target in [root.path(), path.parent().unwrap(), &path] {
        let report = verify(target, Strictness::Committed).unwrap();
        assert!(report.is_ok(), "{}: {:?}", target.display(), report.findings);
    }
    let kinds: Vec<Kind> = ledger.documents().unwrap().iter().map(|e| e.document.kind()).collect();
    assert_eq!(kinds, Kind::ALL);
    assert_eq!(ledger.list().unwrap().len(), 3);
    let Shown::Document(found) = ledger.find(&closing.id).unwrap() else { panic!("it is a document") };
    assert_eq!(found.document, AnyDocument::Campaign(Box::new(closing.clone())));
    ledger.amend(&closing.id, State::Stale { why: "a new kernel".into() }, closing.about.created_at).unwrap();
    assert_eq!(ledger.documents().unwrap()[1].state.name(), "stale");
    assert!(verify(root.path(), Strictness::Committed).unwrap().is_ok());
}

/// Documents written by earlier versions; files are only ever added here. Those of this version are the specimen.
#[test]
fn old_documents_stay_readable_and_valid() {
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ledger");
    let report = verify(&old, Strictness::Committed).unwrap();
    assert!(report.is_ok() && report.files == 9, "{:?}", report.findings);
    let root = tempfile::tempdir().unwrap();
    let folder = specimen::kept(&Ledger::at(root.path())).parent().unwrap().to_path_buf();
    for file in fs::read_dir(&folder).unwrap().map(|f| f.unwrap()) {
        let committed = fs::read_to_string(old.join("vm-2core/attention").join(file.file_name())).unwrap_or_default();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), committed, "{}", file.path().display());
    }
}

#[test]
fn a_replay_says_what_its_samples_say() {
    let derived = specimen::replay_document().body.derived;
    assert_eq!((derived.sum_ns, derived.remainder_ns, derived.remainder_percent), (9e6, 1e6, 10.0));
    assert_eq!(derived.groups[0].percent_of_floor.available(), Some(&50.0));
    assert!((derived.groups[1].share_percent - 100.0 / 3.0).abs() < 1e-9);
}

#[test]
fn an_accuracy_says_what_its_tokens_say() {
    let derived = specimen::accuracy_document().body.derived;
    assert_eq!((derived.scored, derived.reference_perplexity), (4, 2f64.exp()));
    let arm = &derived.arms[0];
    assert_eq!((arm.perplexity, arm.kl_largest, arm.kl_p99, arm.same_best), (2.25f64.exp(), 0.03, 0.03, 0.75));
    assert!((arm.kl_mean - 0.02).abs() < 1e-15);
    // A deviation of sqrt(2 / 3) hundredths over two, the root of four tokens.
    assert!((arm.kl_standard_error - (2.0f64 / 3.0).sqrt() / 200.0).abs() < 1e-15, "{arm:?}");
}

#[test]
fn every_schema_knows_the_fields_of_its_kind() {
    let (opening, records) = (specimen::opening(), specimen::records());
    let closing = specimen::closing(specimen::body(&opening, &records));
    let values = [
        specimen::value(&opening),
        specimen::value(&closing),
        specimen::value(&specimen::replay_document()),
        specimen::value(&specimen::sensitivity_document("id")),
        specimen::value(&specimen::decision_document(specimen::decision("id", &["id"]))),
        specimen::value(&specimen::accuracy_document()),
    ];
    for (kind, value) in Kind::ALL.into_iter().zip(values) {
        let schema = schema::document_schema(kind);
        let known = schema["properties"].as_object().unwrap();
        assert!(value.as_object().unwrap().keys().all(|k| known.contains_key(k)), "{kind:?}");
        assert!(AnyDocument::parse(kind, &value.to_string()).is_ok(), "{kind:?}");
        for other in Kind::ALL.into_iter().filter(|k| *k != kind) {
            assert!(AnyDocument::parse(other, &value.to_string()).is_err(), "{kind:?} as {other:?}");
        }
    }
}
