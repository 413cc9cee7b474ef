//! Documents that somebody changed who computed id, name and checksums anew: each is named by what it contradicts.

use crate::specimen_campaign as specimen;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tare_core::digest::sha256_hex;
use tare_evidence::campaign::{Attempt, Campaign, Control, Ended};
use tare_evidence::opening::Opening;
use tare_evidence::record::{About, Role};
use tare_evidence::{Document, Ledger, SUMS_FILE, Strictness, canonical, verify};
use tempfile::TempDir;

/// A ledger with one document of each kind, and the file of each by its kind.
pub(crate) struct Kept {
    pub(crate) root: TempDir,
    pub(crate) folder: PathBuf,
}

pub(crate) fn kept() -> Kept {
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    let path = specimen::kept(&ledger);
    Kept { folder: path.parent().unwrap().to_path_buf(), root }
}

impl Kept {
    pub(crate) fn file(&self, kind: &str) -> PathBuf {
        let ends = format!(".{kind}.json");
        let mut files = fs::read_dir(&self.folder).unwrap().map(|e| e.unwrap().path());
        files.find(|p| p.to_string_lossy().ends_with(&ends)).unwrap()
    }

    /// Changes the document of a kind, and signs it and its folder anew.
    pub(crate) fn forge(&self, kind: &str, change: impl FnOnce(&mut Value)) {
        let path = self.file(kind);
        let mut value: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut value);
        value.as_object_mut().unwrap().remove("id");
        let at = value["about"]["created_at"].as_str().unwrap().replace(['-', ':'], "");
        let id = format!("{at}-{}", &canonical::digest(&value)[..16]);
        value["id"] = json!(id);
        fs::remove_file(&path).unwrap();
        fs::write(self.folder.join(format!("{id}.{kind}.json")), value.to_string()).unwrap();
        self.sign();
    }

    pub(crate) fn sign(&self) {
        sign(&self.folder);
    }

    pub(crate) fn found(&self) -> Vec<String> {
        found(self.root.path())
    }
}

fn sign(folder: &Path) {
    let files = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).filter(|p| p.extension().is_some());
    let line = |p: PathBuf| format!("{}  {}\n", sha256_hex(&fs::read(&p).unwrap()), p.file_name().unwrap().display());
    let mut lines: Vec<String> = files.map(line).collect();
    lines.sort();
    fs::write(folder.join(SUMS_FILE), lines.concat()).unwrap();
}

pub(crate) fn found(root: &Path) -> Vec<String> {
    verify(root, Strictness::Committed).unwrap().findings.iter().map(ToString::to_string).collect()
}

/// `change` of the document of `kind` is named by `contradiction`.
pub(crate) fn refused(kind: &str, contradiction: &str, change: impl FnOnce(&mut Value)) {
    let kept = kept();
    kept.forge(kind, change);
    let found = kept.found();
    assert!(found.iter().any(|f| f.contains(contradiction)), "{kind}: {contradiction}: {found:#?}");
}

#[test]
fn a_whole_ledger_holds_and_signing_it_anew_changes_nothing() {
    let kept = kept();
    assert_eq!(kept.found(), Vec::<String>::new());
    kept.sign();
    assert_eq!(kept.found(), Vec::<String>::new());
}

#[test]
fn an_edited_figure_does_not_follow() {
    let ruling = "/body/outcome/ruled/rulings/0";
    for (place, with, name) in [
        ("/effect", json!(0.4), "outcome.ruled.rulings"),
        ("/p_adjusted", json!(0.001), "outcome.ruled.rulings"),
        ("/verdict", json!("reject"), "outcome.ruled.rulings"),
        ("/log_ratios/0", json!(0.9), "outcome.ruled.rulings"),
        ("/interval/low", json!(0.28), "outcome.ruled.rulings"),
    ] {
        refused("campaign", name, |v| *v.pointer_mut(&format!("{ruling}{place}")).unwrap() = with);
    }
    refused("campaign", "outcome.ruled.a_a.detectable", |v| {
        v["body"]["outcome"]["ruled"]["a_a"]["detectable"] = json!(0.0)
    });
    refused("campaign", "control: 1: drift", |v| v["body"]["control"][0]["drift"] = json!(0.0));
    refused("replay", "derived.remainder_percent", |v| v["body"]["derived"]["remainder_percent"] = json!(1.0));
    refused("replay", "derived.sum_ns", |v| v["body"]["measured"]["groups"][0]["samples_ns"][0] = json!(5_000_000));
    refused("sensitivity", "derived.slope", |v| v["body"]["derived"]["slope"] = json!(1.0));
    refused("accuracy", "derived.arms", |v| v["body"]["measured"]["arms"][0]["kl"][2] = json!(0.0));
    refused("accuracy", "derived.reference_perplexity", |v| {
        v["body"]["measured"]["reference_nll"][0] = json!(0.5);
    });
}

#[test]
fn a_truncated_file_is_no_document() {
    for kind in ["opening", "campaign", "replay", "sensitivity", "decision", "accuracy"] {
        let kept = kept();
        let path = kept.file(kind);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(kept.found().iter().any(|f| f.contains("checksum: expected")), "{kind}");
        kept.sign();
        let schema = format!("{kind}: expected JSON of {kind} schema 1");
        assert!(kept.found().iter().any(|f| f.contains(&schema)), "{kind}: {:?}", kept.found());
    }
}

#[test]
fn an_edit_without_a_new_id_is_found_by_the_id() {
    for kind in ["opening", "campaign", "replay", "sensitivity", "decision", "accuracy"] {
        let kept = kept();
        let path = kept.file(kind);
        let text = fs::read_to_string(&path).unwrap().replace("Fused attention", "Nicer attention");
        fs::write(&path, text).unwrap();
        kept.sign();
        let edited = format!("{}: id: expected", path.display());
        assert!(kept.found().iter().any(|f| f.starts_with(&edited)), "{kind}: {:?}", kept.found());
    }
}

#[test]
fn rounds_are_complete_and_in_the_order_of_the_design() {
    refused("campaign", "rounds: 1: order: expected", |v| {
        let order = v["body"]["rounds"][0]["order"].clone();
        v["body"]["rounds"][1]["order"] = order;
    });
    refused("campaign", "rounds: 2: expected round 2, found round 3", |v| {
        v["body"]["rounds"].as_array_mut().unwrap().swap(2, 3);
    });
    refused("campaign", "rounds: expected 6 rounds, as `study.rounds` planned, found 5", |v| {
        v["body"]["rounds"].as_array_mut().unwrap().pop();
        v["body"]["attempts"][0]["rounds"] = json!(5);
    });
}

#[test]
fn a_study_is_not_changed_after_its_opening() {
    refused("campaign", "study: expected", |v| v["body"]["study"]["hypothesis"] = json!("It was so all along."));
    refused("campaign", "study: expected", |v| v["body"]["study"]["metric"] = json!("end_to_end"));
    refused("opening", "no such record or document", |v| v["body"]["study"]["worthwhile"] = json!(0.0));
}

#[test]
fn an_opening_comes_before_the_first_record() {
    let kept = kept();
    kept.forge("opening", |v| v["about"]["created_at"] = json!("2026-03-01T11:30:00Z"));
    let opening = kept.file("opening");
    let id = opening.file_name().unwrap().to_string_lossy().replace(".opening.json", "");
    kept.forge("campaign", |v| {
        v["body"]["openings"] = json!([id]);
        v["body"]["attempts"][0]["opened_at"] = json!("2026-03-01T11:30:00Z");
        v["body"]["attempts"][0]["ended_at"] = json!("2026-03-01T11:40:00Z");
    });
    let found = kept.found();
    assert!(found.iter().any(|f| f.contains("after the first opening and before the closing")), "{found:#?}");
}

#[test]
fn no_attempt_is_dropped() {
    let kept = kept();
    let body = Opening { attempt: 2, ..specimen::opening().body };
    let provenance = specimen::opening().provenance;
    let second = Document::seal(specimen::about("2026-03-01T10:30:00Z"), provenance, body).unwrap();
    Ledger::at(kept.root.path()).append_document(&second).unwrap();
    let found = kept.found();
    assert!(found.iter().any(|f| f.contains("openings: expected every attempt")), "{found:#?}");
    refused("campaign", "attempts: expected numbers from 1 without a gap", |v| {
        v["body"]["attempts"][0]["number"] = json!(2)
    });
}

#[test]
fn pairs_are_not_swapped() {
    refused("campaign", "method.label: expected", |v| {
        let pair = &mut v["body"]["pairs"][1];
        let baseline = pair["baseline"].clone();
        pair["baseline"] = pair["candidate"].clone();
        pair["candidate"] = baseline;
    });
    refused("campaign", "method.label: expected", |v| {
        let twin = v["body"]["pairs"][0]["candidate"].clone();
        v["body"]["pairs"][0]["candidate"] = v["body"]["pairs"][1]["candidate"].clone();
        v["body"]["pairs"][1]["candidate"] = twin;
    });
    refused("campaign", "pairs: expected one A/A pair", |v| {
        v["body"]["pairs"].as_array_mut().unwrap().remove(0);
    });
    refused("campaign", "identical_to: expected none", |v| v["body"]["pairs"][1]["identical_to"] = json!("paged"));
    refused("campaign", "the record was changed", |v| {
        v["body"]["pairs"][1]["baseline"]["sha256"] = json!("00".repeat(32))
    });
}

#[test]
fn a_record_that_is_gone_is_missed() {
    let kept = kept();
    let [_, _, candidate] = specimen::records();
    fs::remove_file(kept.folder.join(format!("{}.json", candidate.id))).unwrap();
    kept.sign();
    let found = kept.found();
    assert!(found.iter().any(|f| f.contains("pairs: fused: candidate: expected")), "{found:#?}");
}

#[test]
fn a_confound_is_named_by_its_field() {
    let (opening, [baseline, twin, _]) = (specimen::opening(), specimen::records());
    let mut draft = specimen::draft("fused", [75; 6]);
    draft.arm.threads = tare_core::Reading::Available(1);
    draft.provenance.config["threads"] = json!(1);
    let other = tare_evidence::Record::seal(draft).unwrap();
    let records = [baseline, twin, other];
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    ledger.append_document(&opening).unwrap();
    records.iter().for_each(|r| drop(ledger.append(r).unwrap()));
    let closing = specimen::closing(specimen::body(&opening, &records));
    let error = ledger.append_document(&closing).unwrap_err().to_string();
    assert!(error.contains("arm.threads: expected one value: under study is [Plan]"), "{error}");
}

#[test]
fn arms_that_ran_the_same_are_not_ruled_on_twice() {
    let (opening, [baseline, twin, _]) = (specimen::opening(), specimen::records());
    let mut draft = specimen::draft("paged", [99; 6]);
    draft.method.label = Some("fused".into());
    let same = tare_evidence::Record::seal(draft).unwrap();
    let records = [baseline, twin, same];
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    ledger.append_document(&opening).unwrap();
    records.iter().for_each(|r| drop(ledger.append(r).unwrap()));
    let mut body = specimen::body(&opening, &records);
    let error = ledger.append_document(&specimen::closing(body.clone())).unwrap_err().to_string();
    assert!(error.contains("identical_to: expected `paged`, by what both ran, found none"), "{error}");
    body.pairs[1].identical_to = Some("paged".into());
    let both: Vec<_> = records[1..].iter().map(|r| (records[0].clone(), r.clone())).collect();
    let ruled = tare_evidence::ruling::rule(&body.study, &body.pairs, &both).unwrap();
    assert!(ruled.rulings.is_empty(), "{ruled:?}");
    body.outcome = tare_evidence::campaign::CampaignOutcome::Ruled(ruled);
    ledger.append_document(&specimen::closing(body)).unwrap();
}

#[test]
fn a_file_in_the_folder_of_another_host_is_out_of_place() {
    let kept = kept();
    let elsewhere = kept.root.path().join("other-host");
    fs::rename(kept.root.path().join("vm-2core"), &elsewhere).unwrap();
    let found = kept.found();
    let out_of_place = found.iter().filter(|f| f.contains("folder: expected vm-2core/attention")).count();
    assert_eq!(out_of_place, 9, "three records and six documents: {found:#?}");
}

#[test]
fn a_dirty_tree_may_scratch_but_not_commit() {
    let kept = kept();
    kept.forge("decision", |v| v["provenance"]["source"]["dirty"] = json!(true));
    assert!(kept.found().iter().any(|f| f.contains("provenance.source: expected a clean tree")));
    assert!(verify(kept.root.path(), Strictness::Scratch).unwrap().is_ok());
    let mut dirty = specimen::replay_document();
    dirty.provenance.source.dirty = tare_core::Reading::Available(true);
    let dirty = Document::seal(dirty.about, dirty.provenance, dirty.body).unwrap();
    assert!(Ledger::at(kept.root.path()).append_document_committed(&dirty).is_err());
}

#[test]
fn a_replay_owns_up_to_what_it_left_out() {
    refused("replay", "dispatch: expected", |v| {
        v["body"]["measured"]["dispatch"]["replay_sha256"] = json!("22".repeat(32))
    });
    refused("replay", "order: 0: expected every group once", |v| {
        v["body"]["measured"]["order"][0] = json!(["linear", "linear"])
    });
    refused("replay", "and a sample for each of 2 iterations", |v| {
        v["body"]["measured"]["order"].as_array_mut().unwrap().pop();
    });
}

#[test]
fn a_sensitivity_rests_on_its_replay() {
    refused("sensitivity", "group: expected one of", |v| v["body"]["measured"]["group"] = json!("softmax"));
    refused("sensitivity", "replay: expected `nothing` in this ledger", |v| {
        v["body"]["measured"]["replay"] = json!("nothing")
    });
    refused("sensitivity", "the delays of round 0 in every round", |v| {
        v["body"]["measured"]["samples"].as_array_mut().unwrap().pop();
    });
}

#[test]
fn an_accuracy_has_every_token_of_every_arm() {
    let arm = |v: &mut Value, field: &str, with: Value| v["body"]["measured"]["arms"][0][field] = with;
    refused("accuracy", "arms: q4_0:w4a8: kl: expected a value of 0 or more for each of 4 tokens, found 3", |v| {
        arm(v, "kl", json!([0.01, 0.03, 0.02]))
    });
    refused("accuracy", "arms: q4_0:w4a8: nll: expected", |v| arm(v, "nll", json!([1.0, -2.5, 3.0, 2.5])));
    refused("accuracy", "other_best: expected places", |v| arm(v, "other_best", json!([4])));
    refused("accuracy", "other_best: expected places", |v| arm(v, "other_best", json!([1, 1])));
    refused("accuracy", "for each of 5 tokens", |v| v["body"]["measured"]["text"]["window"] = json!(6));
    refused("accuracy", "reference: expected tare in class f32", |v| {
        v["body"]["measured"]["reference"]["class"] = json!("bf16");
    });
    refused("accuracy", "arms: expected at least one", |v| v["body"]["measured"]["arms"] = json!([]));
}

#[test]
fn a_decision_says_what_the_campaign_ruled() {
    refused("decision", "verdict: expected keep", |v| v["body"]["verdict"] = json!("reject"));
    refused("decision", "support: expected `nothing` in this ledger", |v| v["body"]["support"] = json!(["nothing"]));
    refused("decision", "rests_on.arm: expected an arm", |v| v["body"]["rests_on"]["arm"] = json!("other"));
    refused("decision", "rests_on: expected the campaign that ruled `keep`", |v| {
        v["body"].as_object_mut().unwrap().remove("rests_on");
    });
    refused("decision", "falsifier: expected a sentence", |v| v["body"]["falsifier"] = json!(" "));
}

/// What a choice was made by does not confirm it.
#[test]
fn nothing_is_kept_for_a_screening_or_a_tuning() {
    for (role, says) in [(Role::Screening, "one for screening"), (Role::Tuning, "one for tuning")] {
        let about = |at: &str| About { role, ..specimen::about(at) };
        let first = specimen::opening();
        let mut body = first.body;
        body.study.role = role;
        let opening = Document::seal(about("2026-03-01T10:00:00Z"), first.provenance.clone(), body).unwrap();
        let records = [("paged", 100), ("a-a", 101), ("fused", 75)].map(|(label, percent)| {
            let mut draft = specimen::draft(label, [percent; 6]);
            draft.about.role = role;
            tare_evidence::Record::seal(draft).unwrap()
        });
        let body = specimen::body(&opening, &records);
        let closing = Document::seal(about("2026-03-01T12:00:00Z"), first.provenance, body).unwrap();
        let root = tempfile::tempdir().unwrap();
        let ledger = Ledger::at(root.path());
        ledger.append_document(&opening).unwrap();
        records.iter().for_each(|r| drop(ledger.append(r).unwrap()));
        ledger.append_document(&closing).unwrap();
        let keep = specimen::decision_document(specimen::decision(&closing.id, &[&closing.id]));
        let said = ledger.append_document(&keep).unwrap_err().to_string();
        assert!(
            said.contains("rests_on.campaign: expected a campaign that may confirm") && said.contains(says),
            "{said}"
        );
    }
}

/// A campaign that was stopped once and taken up again pools the rounds of both attempts.
#[test]
fn attempts_are_pooled() {
    let first = specimen::opening();
    let again = Opening { attempt: 2, ..first.body.clone() };
    let second = Document::seal(specimen::about("2026-03-01T10:30:00Z"), first.provenance.clone(), again).unwrap();
    let records = [("paged", 100), ("a-a", 101), ("fused", 75)].map(|(label, percent)| {
        let mut draft = specimen::draft(label, [percent; 6]);
        draft.method.attempt = 2;
        tare_evidence::Record::seal(draft).unwrap()
    });
    let mut body: Campaign = specimen::body(&first, &records);
    body.openings.push(second.id.clone());
    let complete = body.attempts.remove(0);
    body.attempts = vec![
        Attempt { ended: Ended::Interrupted, rounds: 2, ended_at: second.about.created_at, ..complete.clone() },
        Attempt { number: 2, opened_at: second.about.created_at, rounds: 4, ..complete },
    ];
    body.rounds.iter_mut().skip(2).for_each(|r| r.attempt = 2);
    let missing = || tare_core::Reading::unavailable("interrupted");
    body.control.insert(0, Control::of(1, tare_core::Reading::Available(1), missing()));
    body.control[1].attempt = 2;
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    ledger.append_document(&first).unwrap();
    ledger.append_document(&second).unwrap();
    records.iter().for_each(|r| drop(ledger.append(r).unwrap()));
    ledger.append_document(&specimen::closing(body)).unwrap();
    assert_eq!(found(root.path()), Vec::<String>::new());
}
