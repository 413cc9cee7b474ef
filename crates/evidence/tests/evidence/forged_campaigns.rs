//! Campaigns that somebody changed for a better verdict, or for none, with every figure and digest computed anew.

use crate::forged_documents::{found, kept, refused};
use crate::specimen_campaign as specimen;
use serde_json::json;
use std::fs;
use tare_core::Reading;
use tare_evidence::campaign::{Campaign, CampaignOutcome, Pair, PairRole, RoundLog};
use tare_evidence::floor::{Ceiling, CeilingSample};
use tare_evidence::floors::Floors;
use tare_evidence::gate::Judgement;
use tare_evidence::opening::{OpenedArm, Opening};
use tare_evidence::ruling::rule;
use tare_evidence::stats::samples_for_power;
use tare_evidence::study::{A_A, ArmPlan, Design, Metric, RoundsBy, StudyPlan};
use tare_evidence::{Document, Draft, Ledger, Record, Strictness, verify};

/// What a change of a study is refused with, and the change.
type Edit<'a> = (&'a str, &'a dyn Fn(&mut StudyPlan));

/// A duet in turns of two tokens.
fn duet() -> StudyPlan {
    StudyPlan { design: Design::Duet, turn_tokens: Some(2), ..specimen::study() }
}

/// A side of a duet that met `other`, or is `other`.
fn side(label: &str, other: &str, percent: [u64; 6], untimed: &[u32]) -> Record {
    let study = duet();
    let mut draft = specimen::draft(label, percent);
    draft.method.scheme = study.design.name().into();
    let met = |round| {
        let order = study.order(round).unwrap();
        order.chunks(2).find(|two| two.iter().any(|l| l == other)).unwrap().to_vec()
    };
    draft.method.order = (0..study.rounds).map(met).collect();
    draft.measured.samples.rounds.iter_mut().for_each(|r| r.timing.untimed = untimed.to_vec());
    Record::seal(draft).unwrap()
}

/// The baseline beside its twin, the twin, the baseline beside the candidate, the candidate.
fn sides() -> [Record; 4] {
    let turns = &[0, 2];
    [
        side("paged", A_A, [110, 111, 110, 109, 112, 108], turns),
        side(A_A, A_A, [111, 110, 110, 109, 111, 109], turns),
        side("paged", "fused", [100, 101, 99, 100, 102, 98], turns),
        side("fused", "fused", [99, 100, 99, 100, 101, 98], turns),
    ]
}

/// What a ledger says to a duet that closes with these pairs of `records`.
fn closed(records: &[Record; 4], baselines: [usize; 2]) -> Result<(), String> {
    let study = duet();
    let opening = specimen::opening();
    let body = Opening { study: study.clone(), ..opening.body };
    let opening = Document::seal(opening.about, opening.provenance, body).unwrap();
    let pair = |arm: &str, role, baseline: usize, candidate: usize| Pair {
        arm: arm.into(),
        role,
        identical_to: None,
        baseline: specimen::named(&records[baseline]),
        candidate: specimen::named(&records[candidate]),
    };
    let pairs = vec![pair(A_A, PairRole::AA, baselines[0], 1), pair("fused", PairRole::Candidate, baselines[1], 3)];
    let both = [(baselines[0], 1), (baselines[1], 3)].map(|(b, c)| (records[b].clone(), records[c].clone()));
    let outcome = CampaignOutcome::Ruled(rule(&study, &pairs, &both).unwrap());
    let whole = specimen::body(&opening, &specimen::records());
    let rounds = whole.rounds.iter().map(|r| RoundLog { order: study.order(r.round).unwrap(), ..r.clone() }).collect();
    let body = Campaign { study, rounds, pairs, outcome, ..whole };
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    ledger.append_document(&opening).unwrap();
    records.iter().for_each(|r| drop(ledger.append(r).unwrap()));
    ledger.append_document(&specimen::closing(body)).map(drop).map_err(|e| e.to_string())
}

/// The baseline that was slower beside its twin is no baseline of the candidate.
#[test]
fn in_a_duet_each_pair_has_its_own_baseline() {
    assert_eq!(closed(&sides(), [0, 2]), Ok(()));
    for baselines in [[0, 0], [2, 2], [2, 0]] {
        let said = closed(&sides(), baselines).unwrap_err();
        assert!(said.contains("method.order: round 0: expected"), "{baselines:?}: {said}");
    }
}

#[test]
fn outside_of_a_duet_all_pairs_have_one_baseline() {
    let (opening, records) = (specimen::opening(), specimen::records());
    let slower = Record::seal(specimen::draft("paged", [110; 6])).unwrap();
    let mut body = specimen::body(&opening, &records);
    body.pairs[1].baseline = specimen::named(&slower);
    let both = [(records[0].clone(), records[1].clone()), (slower.clone(), records[2].clone())];
    body.outcome = CampaignOutcome::Ruled(rule(&body.study, &body.pairs, &both).unwrap());
    let said = appended(&opening, &[&records[..], &[slower]].concat(), body).unwrap_err();
    assert!(said.contains("pairs: fused: baseline: expected") && said.contains("the baseline of every pair"), "{said}");
}

/// What a ledger says to a closing over `records`.
fn appended(opening: &Document<Opening>, records: &[Record], body: Campaign) -> Result<(), String> {
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    ledger.append_document(opening).unwrap();
    records.iter().for_each(|r| drop(ledger.append(r).unwrap()));
    ledger.append_document(&specimen::closing(body)).map_err(|e| e.to_string())?;
    let report = verify(root.path(), Strictness::Committed).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
    Ok(())
}

#[test]
fn a_slow_token_of_a_duet_cannot_be_called_the_first_of_a_turn() {
    for untimed in [&[0, 1, 2][..], &[0], &[], &[1, 3]] {
        let mut records = sides();
        records[3] = side("fused", "fused", [99, 100, 99, 100, 101, 98], untimed);
        let said = closed(&records, [0, 2]).unwrap_err();
        assert!(said.contains("samples: round 0: untimed: expected [0, 2]"), "{untimed:?}: {said}");
    }
}

#[test]
fn a_verdict_is_not_taken_away() {
    let unruled = json!({ "unruled": { "why": "the host was busy" } });
    refused("campaign", "outcome: expected verdicts: every round ran", |v| v["body"]["outcome"] = unruled.clone());
    refused("campaign", "pairs: expected one A/A pair", |v| {
        v["body"]["outcome"] = unruled.clone();
        v["body"]["pairs"] = json!([]);
    });
    refused("campaign", "pairs: expected one for each of", |v| {
        v["body"]["outcome"] = unruled.clone();
        v["body"]["pairs"].as_array_mut().unwrap().pop();
    });
    refused("campaign", "method.label: expected", |v| {
        v["body"]["outcome"] = unruled.clone();
        let swapped = v["body"]["pairs"][1]["baseline"].clone();
        v["body"]["pairs"][1]["baseline"] = v["body"]["pairs"][1]["candidate"].clone();
        v["body"]["pairs"][1]["candidate"] = swapped;
    });
}

/// A campaign that was stopped names what it has, and those records cannot be deleted.
#[test]
fn records_of_a_campaign_without_a_verdict_are_kept() {
    let kept = kept();
    kept.forge("campaign", |v| {
        v["body"]["attempts"][0]["ended"] = json!("interrupted");
        v["body"]["outcome"] = json!({ "unruled": { "why": "interrupted" } });
    });
    let other = |f: &String| !f.contains("decision");
    assert_eq!(kept.found().into_iter().filter(other).collect::<Vec<_>>(), Vec::<String>::new());
    fs::remove_file(kept.folder.join(format!("{}.json", specimen::records()[2].id))).unwrap();
    kept.sign();
    let found = kept.found();
    assert!(found.iter().any(|f| f.contains("pairs: fused: candidate: expected")), "{found:#?}");
}

#[test]
fn a_campaign_is_closed_once() {
    let kept = kept();
    let path = kept.file("campaign");
    let first = fs::read_to_string(&path).unwrap();
    kept.forge("campaign", |v| v["about"]["title"] = json!("A nicer closing"));
    fs::write(&path, first).unwrap();
    kept.sign();
    let twice =
        found(kept.root.path()).iter().filter(|f| f.contains("about.campaign: expected one closing of")).count();
    assert_eq!(twice, 2, "each of the two is named: {:#?}", kept.found());
    let records = specimen::records();
    let third = specimen::closing(specimen::body(&specimen::opening(), &records));
    let said = Ledger::at(kept.root.path()).append_document(&third).unwrap_err().to_string();
    assert!(said.contains("one closing of"), "{said}");
}

/// The candidate of the specimen after `change`.
fn candidate(change: impl FnOnce(&mut Draft)) -> [Record; 3] {
    let [baseline, twin, _] = specimen::records();
    let mut draft = specimen::draft("fused", [75, 76, 75, 74, 76, 75]);
    change(&mut draft);
    [baseline, twin, Record::seal(draft).unwrap()]
}

/// A build agrees with the judge of the same build; only the other arms know better.
#[test]
fn arms_of_one_class_draw_the_same_tokens_under_the_same_limits() {
    let other_tokens = candidate(|draft| {
        let samples = &mut draft.measured.samples;
        let all = samples.rounds.iter_mut().map(|r| &mut r.emitted).chain(&mut samples.warmups);
        all.for_each(|e| e.rows[0].ids[3] += 1);
    });
    let looser = candidate(|draft| {
        let Judgement::Passed(gate) = &draft.gate else { panic!("the specimen passes") };
        let mut report = gate.report().clone();
        report.checks.iter_mut().find(|c| c.name == "accuracy-logit").unwrap().limit *= 2.0;
        draft.gate = report.judge().unwrap();
    });
    let fewer = candidate(|draft| {
        let Judgement::Passed(gate) = &draft.gate else { panic!("the specimen passes") };
        let mut report = gate.report().clone();
        report.checks.retain(|c| c.name != "accuracy-rank");
        draft.gate = report.judge().unwrap();
    });
    for (records, says) in [
        (other_tokens, "pairs: fused: `fused` against `paged`: tokens: row 0: token 3: expected id"),
        (looser, "gate.checks: accuracy-logit: limit: expected"),
        (fewer, "gate.checks: accuracy-rank: limit: expected"),
    ] {
        let opening = specimen::opening();
        let mut body = specimen::body(&opening, &records);
        let said = appended(&opening, &records, body.clone()).unwrap_err();
        assert!(said.contains(says), "{said}");
        body.outcome = CampaignOutcome::Unruled { why: said };
        assert_eq!(appended(&opening, &records, body), Ok(()), "without a verdict it is kept");
    }
}

/// The records of a campaign with an arm that measures what is read, which had a turn of one sample beside each of three arms,
/// after `change` of what the candidate quotes, or of what all do.
fn beside_a_ceiling(of_all: bool, change: impl Fn(&mut Vec<Ceiling>)) -> Result<(), String> {
    let mut study = specimen::study();
    study.arms.push(ArmPlan { label: "top".into(), what: json!({ "ceiling": "read" }) });
    let arms = study.arms.iter().map(|a| OpenedArm { label: a.label.clone(), facts: json!({}) }).collect();
    let opening = specimen::opening();
    let body = Opening { study: study.clone(), arms, ..opening.body };
    let opening = Document::seal(opening.about, opening.provenance, body).unwrap();
    let sealed = |(label, percent): (&str, u64)| {
        let mut draft = specimen::draft(label, [percent; 6]);
        let ceilings = &mut draft.measured.ceilings;
        ceilings.truncate(1);
        ceilings[0].arm = Some("top".into());
        let sample = |n: u32| CeilingSample {
            round: Some(n / 3),
            turn: Some(n % 3),
            amount: 100_000 + u64::from(n),
            ns: 1_000_000,
        };
        ceilings[0].samples = Reading::Available((0..6 * 3).map(sample).collect());
        if of_all || label == "fused" {
            change(ceilings);
        }
        Record::seal(draft).unwrap()
    };
    let records = [("paged", 100), (A_A, 101), ("fused", 75)].map(sealed);
    let mut body = specimen::body(&opening, &records);
    let both: Vec<_> = records[1..].iter().map(|r| (records[0].clone(), r.clone())).collect();
    body.floors = Floors::of(&study, &both).unwrap();
    appended(&opening, &records, body)
}

/// Records of a campaign quote the turns of its own ceiling arms, all of them and no others.
#[test]
fn ceilings_of_another_campaign_are_none_of_this_one() {
    fn samples(ceilings: &mut [Ceiling]) -> &mut Vec<CeilingSample> {
        match &mut ceilings[0].samples {
            Reading::Available(samples) => samples,
            Reading::Unavailable { why } => panic!("{why}"),
        }
    }
    type Change<'a> = (bool, &'a str, &'a dyn Fn(&mut Vec<Ceiling>));
    assert_eq!(beside_a_ceiling(true, |_| {}), Ok(()));
    let unavailable = |c: &mut Vec<Ceiling>| c[0].samples = Reading::unavailable("its arm had no turn");
    assert_eq!(beside_a_ceiling(true, unavailable), Ok(()));
    let cases: [Change<'_>; 9] = [
        (false, "samples: expected those of", &|c| samples(c).iter_mut().for_each(|s| s.amount *= 2)),
        (false, "samples: expected those of", &|c| c[0].threads += 1),
        (false, "samples: expected those of", &unavailable),
        (false, "samples: expected those of", &|c| c.clear()),
        (true, "arm: expected those of the arms", &|c| c.clear()),
        (true, "arm: expected those of the arms", &|c| c[0].arm = Some("best".into())),
        (true, "arm: expected those of the arms", &|c| c[0].arm = None),
        (true, "read: expected samples of every turn", &|c| samples(c).truncate(17)),
        (true, "read: expected samples of every turn", &|c| samples(c).last_mut().unwrap().turn = Some(3)),
    ];
    for (of_all, says, change) in cases {
        let said = beside_a_ceiling(of_all, change).unwrap_err();
        assert!(said.contains("ceilings: ") && said.contains(says), "{says}: {said}");
    }
}

#[test]
fn planned_rounds_follow_from_a_campaign_of_their_kind() {
    let root = tempfile::tempdir().unwrap();
    let ledger = Ledger::at(root.path());
    let (closing, _) = specimen::written(&ledger);
    let replay = specimen::replay_document();
    ledger.append_document(&replay).unwrap();
    let CampaignOutcome::Ruled(ruled) = &closing.body.outcome else { panic!("the specimen is ruled") };
    let Reading::Available(spread) = ruled.a_a.spread else { panic!("the specimen has a spread") };
    let (effect, power) = (0.03, 0.9);
    let samples = samples_for_power(effect, power, spread, &specimen::study().terms()).unwrap();
    let needed = samples.next_multiple_of(2) as u32;
    let open = |change: &dyn Fn(&mut StudyPlan)| {
        let rounds_by = RoundsBy::Power { effect, power, spread, spread_from: closing.id.clone() };
        let mut study = StudyPlan { rounds: needed, rounds_by, ..specimen::study() };
        change(&mut study);
        let opening = specimen::opening();
        let mut about = specimen::about("2026-03-02T10:00:00Z");
        about.campaign = format!("20260302T100000Z-{}", study.rounds);
        let body = Opening { study, ..opening.body };
        let document = Document::seal(about, opening.provenance, body).unwrap();
        ledger.append_document(&document).map(drop).map_err(|e| e.to_string())
    };
    let by = |study: &mut StudyPlan, spread: f64, from: &str| {
        study.rounds_by = RoundsBy::Power { effect, power, spread, spread_from: from.into() };
    };
    let cases: [Edit<'_>; 6] = [
        ("study.rounds_by.spread: expected", &|s| by(s, spread * 0.9, &closing.id)),
        ("study.rounds: expected", &|s| s.rounds += 2),
        ("expected a campaign of prefill in design balanced, found decode", &|s| s.metric = Metric::Prefill),
        ("expected a campaign of decode in design abba, found decode in design balanced", &|s| {
            (s.design, s.rounds) = (Design::Abba, 2 * s.rounds);
        }),
        ("no such record or document", &|s| by(s, spread, &replay.id)),
        ("no such record or document", &|s| by(s, spread, "20260101T000000Z-0000000000000000")),
    ];
    for (says, change) in cases {
        let said = open(change).unwrap_err();
        assert!(said.contains(says), "{says}: {said}");
    }
    assert_eq!(open(&|_| {}), Ok(()));
}
