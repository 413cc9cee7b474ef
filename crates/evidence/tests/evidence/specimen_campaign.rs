//! A made-up campaign: a baseline, its twin and a candidate that decodes in three quarters of the time.

use crate::specimen;
use serde_json::{Value, json};
use std::path::PathBuf;
use tare_core::Reading;
use tare_core::digest::sha256_hex;
use tare_evidence::accuracy::{Accuracy, AccuracyMeasured, ScoredArm, ScoredText, Scorer};
use tare_evidence::campaign::{
    Attempt, Campaign, CampaignOutcome, Control, Ended, Pair, PairRole, RecordRef, RoundLog,
};
use tare_evidence::decision::{Decided, Decision, RestsOn};
use tare_evidence::gate::GateReport;
use tare_evidence::identity::{PrefillLogits, Warmth};
use tare_evidence::opening::{OpenedArm, Opening};
use tare_evidence::record::{About, Draft, Role};
use tare_evidence::replay::{Coverage, Dispatch, GroupSamples, Replay, ReplayMeasured, ReplayedStep, StepPhase};
use tare_evidence::ruling::rule;
use tare_evidence::sensitivity::{DelaySample, Sensitivity, SensitivityMeasured};
use tare_evidence::study::{A_A, ArmPlan, Design, Metric, RoundsBy, Rule, StudyPlan, UnderStudy, WorkPlan};
use tare_evidence::{Document, Ledger, Record, canonical};

const ROUNDS: usize = 6;

/// What the arms took, in percent of the specimen's times, round by round.
const BASELINE: [u64; ROUNDS] = [100, 101, 99, 100, 102, 98];
const TWIN: [u64; ROUNDS] = [101, 100, 100, 99, 101, 99];
const CANDIDATE: [u64; ROUNDS] = [75, 76, 75, 74, 76, 75];

pub(crate) fn study() -> StudyPlan {
    let arm = |label: &str| ArmPlan { label: label.into(), what: json!({ "plan": label }) };
    StudyPlan {
        name: "attention".into(),
        question: "Does the fused kernel decode faster?".into(),
        hypothesis: "It reads the cache once instead of twice.".into(),
        falsifier: "The decode takes as long as before.".into(),
        under_study: vec![UnderStudy::Plan],
        design: Design::Balanced,
        work: WorkPlan {
            model: "qwen3-tiny".into(),
            prompt_tokens: 10,
            output_tokens: 5,
            depth: 0,
            seed: 1,
            prefill_logits: PrefillLogits::Last,
            written_as: None,
            head_as: None,
            sequences: 1,
        },
        metric: Metric::Decode,
        rounds: ROUNDS as u32,
        rounds_by: RoundsBy::Fixed,
        rule: Rule::Gain,
        alpha: 0.05,
        worthwhile: 0.01,
        tolerance: 0.01,
        arms: vec![arm("paged"), arm("fused")],
        baseline: "paged".into(),
        warmups: 1,
        warmup_tokens: None,
        turn_tokens: None,
        role: Role::HeldOut,
    }
}

pub(crate) fn about(created_at: &str) -> About {
    let study = study();
    About {
        role: study.role,
        study: study.name,
        campaign: "20260301T100000Z-1".into(),
        created_at: created_at.parse().expect("a time"),
        title: "Fused attention".into(),
        question: study.question,
        notes: vec![],
    }
}

pub(crate) fn opening() -> Document<Opening> {
    let arm = |a: &ArmPlan| OpenedArm { label: a.label.clone(), facts: json!({}) };
    let study = study();
    let body = Opening { attempt: 1, arms: study.arms.iter().map(arm).collect(), study };
    let provenance = specimen::laboratory().provenance;
    Document::seal(about("2026-03-01T10:00:00Z"), provenance, body).expect("the opening holds together")
}

/// The draft of an arm whose times are `percent` of the specimen's.
pub(crate) fn draft(label: &str, percent: [u64; ROUNDS]) -> Draft {
    let study = study();
    let mut draft = specimen::laboratory();
    draft.about = about("2026-03-01T11:00:00Z");
    if label == "fused" {
        draft.arm.plan = label.into();
        draft.plan["widest"]["name"] = json!(label);
        draft.plan["buckets"][0]["kernels"] = json!({ "attention.fused": 2 });
        draft.arm.plan_sha256 = canonical::digest(&draft.plan);
        draft.provenance.config["plan"]["name"] = json!(label);
    }
    draft.provenance.config["rounds"] = json!(ROUNDS);
    draft.method.scheme = study.design.name().into();
    draft.method.order = (0..study.rounds).map(|r| study.order(r).expect("an order")).collect();
    draft.method.planned_rounds = study.rounds;
    draft.method.label = Some(label.into());
    let samples = &mut draft.measured.samples;
    let first = samples.rounds[0].clone();
    samples.rounds = percent
        .iter()
        .enumerate()
        .map(|(n, percent)| {
            let mut round = first.clone();
            round.emitted.round = n as u32;
            round.timing.prefill_ns = 100_000_000;
            round.timing.token_ns.iter_mut().for_each(|ns| *ns = *ns / 100 * percent);
            round
        })
        .collect();
    let runs = 5 * (ROUNDS as u64 + 1);
    let tare_evidence::gate::Judgement::Passed(gate) = &draft.gate else { panic!("the specimen passes") };
    let mut checks = gate.report().checks.clone();
    for check in &mut checks {
        if ["rounds-agree", "emulation-logit", "accuracy-logit"].contains(&check.name.as_str()) {
            check.compared = runs;
        }
    }
    let report = GateReport { thresholds_version: "1".into(), checks, misses: vec![] };
    draft.gate = report.judge().expect("a report");
    draft
}

pub(crate) fn records() -> [Record; 3] {
    [("paged", BASELINE), (A_A, TWIN), ("fused", CANDIDATE)]
        .map(|(label, percent)| Record::seal(draft(label, percent)).expect("the record holds together"))
}

/// The file of a record as the ledger writes it.
pub(crate) fn file(record: &Record) -> String {
    serde_json::to_string_pretty(record).expect("a record") + "\n"
}

pub(crate) fn named(record: &Record) -> RecordRef {
    RecordRef { id: record.id.clone(), sha256: sha256_hex(file(record).as_bytes()) }
}

/// The closing of a campaign over `records`: the baseline, its twin, the candidate.
pub(crate) fn body(opening: &Document<Opening>, records: &[Record; 3]) -> Campaign {
    let study = opening.body.study.clone();
    let [baseline, twin, candidate] = records;
    let pair = |arm: &str, role, record: &Record| Pair {
        arm: arm.into(),
        role,
        identical_to: None,
        baseline: named(baseline),
        candidate: named(record),
    };
    let pairs = vec![pair(A_A, PairRole::AA, twin), pair("fused", PairRole::Candidate, candidate)];
    let both: Vec<_> = [twin, candidate].map(|r| (baseline.clone(), r.clone())).into();
    let ruled = rule(&study, &pairs, &both).expect("records with times");
    let rounds = (0..study.rounds)
        .map(|round| RoundLog {
            round,
            attempt: 1,
            order: study.order(round).expect("an order"),
            quietness: [("load_1m".to_string(), Reading::Available(json!(0.1)))].into(),
            notes: vec![],
        })
        .collect();
    Campaign {
        openings: vec![opening.id.clone()],
        attempts: vec![Attempt {
            number: 1,
            opened_at: opening.about.created_at,
            ended_at: "2026-03-01T11:00:00Z".parse().expect("a time"),
            rounds: study.rounds,
            ended: Ended::Complete,
        }],
        study,
        rounds,
        control: vec![Control::of(1, Reading::Available(140_000_000), Reading::Available(141_000_000))],
        pairs,
        outcome: CampaignOutcome::Ruled(ruled),
        floors: None,
    }
}

pub(crate) fn closing(body: Campaign) -> Document<Campaign> {
    let provenance = specimen::laboratory().provenance;
    Document::seal(about("2026-03-01T12:00:00Z"), provenance, body).expect("the closing holds together")
}

/// A ledger with the whole campaign; gives the closing and its file.
pub(crate) fn written(ledger: &Ledger) -> (Document<Campaign>, PathBuf) {
    let (opening, records) = (opening(), records());
    ledger.append_document(&opening).expect("an opening");
    for record in &records {
        ledger.append(record).expect("a record");
    }
    let closing = closing(body(&opening, &records));
    let path = ledger.append_document(&closing).expect("a closing");
    (closing, path)
}

/// A ledger with the whole campaign, a replay, a sensitivity, a decision and an accuracy; gives the file of the closing.
pub(crate) fn kept(ledger: &Ledger) -> PathBuf {
    let (closing, path) = written(ledger);
    let replay = replay_document();
    ledger.append_document(&replay).expect("a replay");
    ledger.append_document(&sensitivity_document(&replay.id)).expect("a sensitivity");
    let decision = decision_document(decision(&closing.id, &[&closing.id, &replay.id]));
    ledger.append_document(&decision).expect("a decision");
    ledger.append_document(&accuracy_document()).expect("an accuracy");
    path
}

pub(crate) fn step() -> ReplayedStep {
    ReplayedStep {
        model: "qwen3-tiny".into(),
        plan: "paged".into(),
        plan_sha256: "99".repeat(32),
        class: "w4a16".into(),
        phase: StepPhase::Decode,
        rows: 1,
        selected: 1,
        depth: 128,
        threads: 2,
        warmth: Warmth::Warm,
    }
}

/// Two groups of 6 and 3 ms in a step of 10 ms.
pub(crate) fn replay() -> ReplayMeasured {
    let group = |name: &str, ns: u64, floor_ns| GroupSamples {
        name: name.into(),
        calls: 2,
        samples_ns: vec![ns, ns + 1000, ns - 1000],
        floor_ns,
        bytes: None,
        kernels: Vec::new(),
    };
    let order = |names: [&str; 2]| names.map(String::from).to_vec();
    ReplayMeasured {
        step: step(),
        groups: vec![
            group("linear", 6_000_000, Reading::Available(3_000_000.0)),
            group("attention", 3_000_000, Reading::unavailable("no ceiling was measured")),
        ],
        order: vec![order(["linear", "attention"]), order(["attention", "linear"]), order(["linear", "attention"])],
        step_ns: vec![10_000_000, 10_100_000, 9_900_000],
        remainder_is: "barriers, sampling, the scheduler".into(),
        coverage: Coverage { complete: true, reason: "the calls are those of the step".into() },
        dispatch: Dispatch { step_sha256: "11".repeat(32), replay_sha256: "11".repeat(32) },
    }
}

pub(crate) fn replay_document() -> Document<Replay> {
    let provenance = specimen::laboratory().provenance;
    let body = Replay::of(replay()).expect("samples");
    Document::seal(about("2026-03-01T13:00:00Z"), provenance, body).expect("the replay holds together")
}

/// Delays of 10 and 20 % in six rounds, of which nine tenths reach the request.
pub(crate) fn sensitivity(replay: &str) -> SensitivityMeasured {
    let sample = |round: u32, percent: u64| DelaySample {
        round,
        percent: percent as f64,
        injected_ns: percent * 10_000,
        with_ns: 1_000_000_000 + percent * (9_000 + u64::from(round)),
        without_ns: 1_000_000_000,
    };
    SensitivityMeasured {
        step: step(),
        group: "linear".into(),
        replay: replay.into(),
        samples: (0..6).flat_map(|r| [sample(r, 10), sample(r, 20)]).collect(),
        alpha: 0.05,
    }
}

pub(crate) fn sensitivity_document(replay: &str) -> Document<Sensitivity> {
    let provenance = specimen::laboratory().provenance;
    let body = Sensitivity::of(sensitivity(replay)).expect("samples");
    Document::seal(about("2026-03-01T14:00:00Z"), provenance, body).expect("the sensitivity holds together")
}

pub(crate) fn decision(campaign: &str, support: &[&str]) -> Decision {
    Decision {
        dominant_group: "attention".into(),
        mechanism: "The cache is read twice.".into(),
        support: support.iter().map(ToString::to_string).collect(),
        hypothesis: "One pass halves its time.".into(),
        falsifier: "The decode takes as long as before.".into(),
        observed_effect: "A token takes three quarters of the time.".into(),
        verdict: Decided::Keep,
        next_experiment: "Fuse the projection too.".into(),
        rests_on: Some(RestsOn { campaign: campaign.into(), arm: "fused".into() }),
    }
}

pub(crate) fn decision_document(decision: Decision) -> Document<Decision> {
    let provenance = specimen::laboratory().provenance;
    Document::seal(about("2026-03-01T15:00:00Z"), provenance, decision).expect("the decision holds together")
}

/// Six tokens in windows of four, of which four are scored.
pub(crate) fn accuracy() -> AccuracyMeasured {
    let scorer = |label: &str, class: &str, format: &str| Scorer {
        label: label.into(),
        class: class.into(),
        file_format: format.into(),
        head_format: format.into(),
        weights_values_sha256: "77".repeat(32),
        peer: None,
        config: json!({ "threads": 2 }),
    };
    AccuracyMeasured {
        text: ScoredText {
            name: "text.txt".into(),
            sha256: "55".repeat(32),
            ids_sha256: "66".repeat(32),
            tokens: 6,
            window: 4,
        },
        reference: scorer("reference", "f32", "f32"),
        reference_nll: vec![1.0, 2.0, 3.0, 2.0],
        arms: vec![ScoredArm {
            scorer: scorer("q4_0:w4a8", "w4a8", "q4_0"),
            nll: vec![1.0, 2.5, 3.0, 2.5],
            kl: vec![0.01, 0.03, 0.02, 0.02],
            other_best: vec![1],
        }],
    }
}

pub(crate) fn accuracy_document() -> Document<Accuracy> {
    let provenance = specimen::laboratory().provenance;
    let body = Accuracy::of(accuracy()).expect("values for every token");
    Document::seal(about("2026-03-01T16:00:00Z"), provenance, body).expect("the accuracy holds together")
}

/// A value as the file of a document has it.
pub(crate) fn value<T: serde::Serialize>(document: &T) -> Value {
    canonical::value_of(document).expect("a document")
}
