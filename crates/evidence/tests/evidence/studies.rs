//! Studies as data, and the verdicts that follow from their records.

use crate::specimen::laboratory;
use crate::specimen_campaign as specimen;
use tare_core::Reading;
use tare_evidence::Record;
use tare_evidence::campaign::{Pair, PairRole};
use tare_evidence::canonical;
use tare_evidence::gate::{GateReport, Miss};
use tare_evidence::ruling::rule;
use tare_evidence::stats::Verdict;
use tare_evidence::study::{A_A, Design, Metric, RoundsBy, Rule, StudyPlan, UnderStudy};

/// The field at fault and the change that makes it so.
type Edit = (&'static str, fn(&mut StudyPlan));

fn order(design: Design, round: u32) -> String {
    let plan = StudyPlan { design, ..specimen::study() };
    plan.order(round).unwrap().join(" ")
}

#[test]
fn a_design_gives_the_order_of_every_round() {
    for design in [Design::Balanced, Design::Abba] {
        assert_eq!([order(design, 0), order(design, 1)], ["paged a-a fused", "fused a-a paged"]);
        assert_eq!(order(design, 2), order(design, 0));
    }
    assert_eq!([order(Design::Duet, 0), order(Design::Duet, 1)], ["paged a-a paged fused", "a-a paged fused paged"]);
    let all: std::collections::BTreeSet<String> = (0..6).map(|r| order(Design::Permutations, r)).collect();
    assert_eq!((all.len(), order(Design::Permutations, 6)), (6, order(Design::Permutations, 0)));
}

#[test]
fn a_study_that_does_not_hold_together_is_named_field_by_field() {
    let edits: [Edit; 16] = [
        ("study.question", |s| s.question.clear()),
        ("study.falsifier", |s| s.falsifier = " ".into()),
        ("study.under_study", |s| s.under_study.clear()),
        ("study.arms", |s| s.arms[1].label = "paged".into()),
        ("study.arms", |s| s.arms[1].label = A_A.into()),
        ("study.baseline", |s| s.baseline = "another".into()),
        ("study.rounds", |s| s.rounds = 0),
        ("study.rounds", |s| (s.design, s.rounds) = (Design::Abba, 7)),
        ("study.rounds", |s| s.rounds = 7),
        ("study.rounds", |s| (s.design, s.rounds) = (Design::Duet, 7)),
        ("study.rounds", |s| (s.design, s.rounds) = (Design::Permutations, 8)),
        ("study.work", |s| s.work.output_tokens = 0),
        ("study.work", |s| (s.design, s.work.output_tokens) = (Design::Duet, 2)),
        ("study.alpha", |s| s.alpha = 0.0),
        ("study.tolerance", |s| s.tolerance = f64::NAN),
        ("study.rounds_by", |s| {
            s.rounds_by = RoundsBy::Power { effect: 0.0, power: 0.9, spread: 0.01, spread_from: "id".into() };
        }),
    ];
    assert!(specimen::study().faults().is_empty());
    for (at, edit) in edits {
        let mut study = specimen::study();
        edit(&mut study);
        let faults = study.faults();
        assert!(faults.len() == 1 && faults[0].at == at, "{at}: {faults:?}");
    }
    let mut twins = specimen::study();
    twins.under_study.clear();
    twins.arms.pop();
    assert!(twins.faults().is_empty(), "the baseline and its twin vary nothing");
}

/// The pairs of the specimen and their records, with the candidate's times in percent.
fn pooled(percent: [u64; 6]) -> (Vec<Pair>, Vec<(Record, Record)>) {
    let [baseline, twin, _] = specimen::records();
    let candidate = Record::seal(specimen::draft("fused", percent)).unwrap();
    let pair = |arm: &str, role, record: &Record| Pair {
        arm: arm.into(),
        role,
        identical_to: None,
        baseline: specimen::named(&baseline),
        candidate: specimen::named(record),
    };
    let pairs = vec![pair(A_A, PairRole::AA, &twin), pair("fused", PairRole::Candidate, &candidate)];
    (pairs, vec![(baseline.clone(), twin), (baseline, candidate)])
}

#[test]
fn a_rule_decides_what_it_is_asked() {
    let verdict = |rule_: Rule, percent: [u64; 6]| {
        let (pairs, records) = pooled(percent);
        let study = StudyPlan { rule: rule_, tolerance: 0.02, ..specimen::study() };
        rule(&study, &pairs, &records).unwrap().rulings[0].verdict
    };
    assert_eq!(verdict(Rule::Gain, [75, 76, 75, 74, 76, 75]), Verdict::Keep);
    assert_eq!(verdict(Rule::Gain, [100, 101, 99, 100, 102, 98]), Verdict::Reject, "no worthwhile gain is left");
    assert_eq!(verdict(Rule::NoRegression, [100, 101, 99, 100, 102, 98]), Verdict::Keep);
    assert_eq!(verdict(Rule::NoRegression, [110, 111, 109, 110, 112, 108]), Verdict::Reject);
}

/// The candidate takes 11 where the baseline takes 10, and the host is three times slower for two steps of one arm and one
/// of the other: medians of each arm would say 30 against 11.
#[test]
fn in_a_duet_steps_are_held_against_each_other() {
    let turns = |label: &str, token_ns: [u64; 4]| {
        let mut draft = specimen::draft(label, [100; 6]);
        draft.method.scheme = Design::Duet.name().into();
        for (n, round) in draft.measured.samples.rounds.iter_mut().enumerate() {
            // The one that is started first, the baseline in even rounds, is a tenth slower.
            let percent = if (n % 2 == 0) == (label == "paged") { 110 } else { 100 };
            let ns = token_ns.map(|ms| ms * 10_000 * percent);
            (round.timing.token_ns, round.timing.untimed) = (ns.to_vec(), vec![0]);
        }
        Record::seal(draft).unwrap()
    };
    let (pairs, mut records) = pooled([100; 6]);
    records[0] = (turns("paged", [40, 10, 30, 30]), turns(A_A, [40, 10, 30, 30]));
    records[1] = (turns("paged", [40, 10, 30, 30]), turns("fused", [40, 11, 11, 33]));
    let study = StudyPlan { metric: Metric::InterToken, turn_tokens: Some(4), ..specimen::study() };
    let ratios =
        |design| rule(&StudyPlan { design, ..study.clone() }, &pairs, &records).unwrap().rulings.remove(0).log_ratios;
    let duet = ratios(Design::Duet);
    assert_eq!(duet.len(), 3, "two rounds, one in each order, are one sample");
    assert!(duet.iter().all(|r| (r - (10f64 / 11.0).ln()).abs() < 1e-12), "{duet:?}");
    let apart = ratios(Design::Balanced);
    assert!(apart.iter().step_by(2).all(|r| (r - (33f64 / 11.0).ln()).abs() < 1e-12), "{apart:?}");
    let mut other = specimen::draft("fused", [100; 6]);
    other.measured.samples.rounds.iter_mut().for_each(|r| r.timing.untimed = vec![1]);
    other.method.scheme = Design::Duet.name().into();
    records[1].1 = Record::seal(other).unwrap();
    let said = rule(&StudyPlan { design: Design::Duet, ..study }, &pairs, &records).unwrap_err().to_string();
    assert!(said.contains("untimed: expected [0], as the baseline has it, found [1]"), "{said}");
}

/// Two rounds are one sample of an ABBA study: six rounds give three, which the level cannot decide on.
#[test]
fn too_few_samples_are_inconclusive_with_the_rounds_that_are_needed() {
    let (pairs, records) = pooled([75; 6]);
    let study = StudyPlan { design: Design::Abba, ..specimen::study() };
    let ruled = rule(&study, &pairs, &records).unwrap();
    let ruling = &ruled.rulings[0];
    assert_eq!((ruling.log_ratios.len(), ruling.verdict), (3, Verdict::Inconclusive { needs_rounds: 12 }));
    let Reading::Unavailable { why } = &ruling.interval else { panic!("three samples have no interval") };
    assert!(why.contains("at least 6") && ruled.a_a.detectable.available().is_none(), "{why}");
}

#[test]
fn there_is_no_verdict_over_a_failed_gate_a_missing_round_or_without_a_twin() {
    let (pairs, records) = pooled([75; 6]);
    let refused = |study: &StudyPlan, pairs: &[Pair], records: &[(Record, Record)]| {
        rule(study, pairs, records).unwrap_err().to_string()
    };
    let longer = StudyPlan { rounds: 8, ..specimen::study() };
    assert!(refused(&longer, &pairs, &records).contains("expected 8 rounds"));
    assert!(refused(&specimen::study(), &pairs[1..], &records[1..]).contains("an A/A pair"));
    let mut draft = specimen::draft("fused", [75; 6]);
    let tare_evidence::gate::Judgement::Passed(gate) = &draft.gate else { panic!("it passed") };
    let miss = Miss { check: "kv".into(), at: "layer 0".into(), expected: "0".into(), found: "1".into() };
    let report = GateReport { misses: vec![miss], ..gate.report().clone() };
    draft.gate = report.judge().unwrap();
    let void = vec![records[0].clone(), (records[1].0.clone(), Record::seal(draft).unwrap())];
    assert!(refused(&specimen::study(), &pairs, &void).contains("a record whose gate passed"));
}

#[test]
fn another_engine_may_differ_in_all_that_an_arm_says_of_itself() {
    let arm = canonical::value_of(&laboratory().arm).unwrap();
    let allowed = UnderStudy::Peer.arm_fields();
    for field in arm.as_object().unwrap().keys() {
        assert!(allowed.contains(&field.as_str()), "{field}: an honest peer is refused");
    }
    assert!(!allowed.contains(&"delay"), "a delay is planted, and said where it is under study");
}
