//! Tokens that count in no figure, and rows of another engine without logits.

use crate::specimen;
use tare_evidence::derive::metric_ns;
use tare_evidence::gate::{GateReport, Judgement, Miss};
use tare_evidence::identity::Peer;
use tare_evidence::study::Metric;
use tare_evidence::{Draft, Outcome, Record};

fn draft(untimed: &[u32]) -> Draft {
    let mut draft = specimen::draft(specimen::passed());
    if !untimed.is_empty() {
        draft.method.scheme = "duet".into();
    }
    for round in &mut draft.measured.samples.rounds {
        round.timing.untimed = untimed.to_vec();
    }
    draft
}

/// Steps of 10, 11, 9 and 10 ms, of which the second counts in no figure.
#[test]
fn an_untimed_token_counts_in_no_figure() {
    let record = Record::seal(draft(&[1])).unwrap();
    let derived = record.derived().unwrap();
    let decode = derived.decode.available().unwrap();
    assert_eq!(decode.ns.median, 29e6);
    assert_eq!(decode.rate_tokens_per_s.median, 3.0 * 1e9 / 29e6);
    // 20 ms of floor for four tokens are 15 for three.
    assert_eq!(decode.floor.available().unwrap().ns, 15e6);
    assert_eq!(decode.percent_of_floor.available().unwrap(), &(100.0 * 15e6 / 29e6));
    assert_eq!(derived.inter_token_ns.available().unwrap().max, 10e6, "the step of 11 ms is left out");
    assert_eq!(derived.end_to_end_ns.min, 101.5e6 + 29e6 * 4.0 / 3.0, "four tokens at the pace of three");
    let Outcome::Timed(timed) = &record.outcome else { panic!("it has times") };
    let round = &timed.measured.samples.rounds[0];
    assert_eq!(metric_ns(round, Metric::Decode).unwrap(), 29e6 / 3.0);
    assert_eq!(metric_ns(round, Metric::InterToken).unwrap(), 10e6, "of 10, 9 and 10 ms");
    assert_eq!(metric_ns(round, Metric::Ttft).unwrap(), 101e6);
    assert_eq!(Record::parse(&serde_json::to_string(&record).unwrap()).unwrap(), record);
}

#[test]
fn untimed_tokens_are_places_of_steps_and_never_all_of_them() {
    for (untimed, complaint) in [
        (vec![4], "ascending places among 4 steps"),
        (vec![2, 1], "ascending places among 4 steps"),
        (vec![1, 1], "ascending places among 4 steps"),
        (vec![0, 1, 2, 3], "at least one step that counts"),
    ] {
        let error = Record::seal(draft(&untimed)).unwrap_err().to_string();
        assert!(error.contains(complaint), "{untimed:?}: {error}");
    }
}

#[test]
fn tokens_are_untimed_where_arms_take_turns_alone() {
    for scheme in ["solo", "balanced", "abba", "permutations"] {
        let mut draft = draft(&[1]);
        draft.method.scheme = scheme.into();
        let error = Record::seal(draft).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("samples: untimed: expected nothing, as `method.scheme` is `{scheme}`")),
            "{error}"
        );
    }
}

/// A logit that is no number has no place in a record, and the record of the gate that failed for it is kept.
#[test]
fn behind_a_failed_gate_logits_may_be_missing() {
    let mut draft = draft(&[]);
    let samples = &mut draft.measured.samples;
    let all = samples.rounds.iter_mut().map(|r| &mut r.emitted).chain(&mut samples.warmups);
    all.flat_map(|e| &mut e.rows).for_each(|row| row.logits.clear());
    let Judgement::Passed(gate) = &draft.gate else { panic!("the specimen passes") };
    let miss = Miss { check: "kv".into(), at: "token 0".into(), expected: "a number".into(), found: "NaN".into() };
    draft.gate = GateReport { misses: vec![miss], ..gate.report().clone() }.judge().unwrap();
    assert!(Record::seal(draft).unwrap().faults().unwrap().is_empty());
}

#[test]
fn only_another_engine_keeps_its_logits_to_itself() {
    let silent = |peer: Option<Peer>| {
        let mut draft = draft(&[]);
        draft.arm.peer = peer;
        let samples = &mut draft.measured.samples;
        let rows = samples.rounds.iter_mut().map(|r| &mut r.emitted).chain(&mut samples.warmups);
        rows.flat_map(|e| &mut e.rows).for_each(|row| row.logits.clear());
        Record::seal(draft)
    };
    let error = silent(None).unwrap_err().to_string();
    assert!(error.contains("a finite logit for every id"), "{error}");
    let peer = Peer { name: "other".into(), version: "1".into(), settings: serde_json::json!({}) };
    assert!(silent(Some(peer)).unwrap().faults().unwrap().is_empty());
}

/// What version 2 added cannot stand in a record that says it is of version 1.
#[test]
fn a_record_of_version_1_has_no_field_of_version_2() {
    let mut record = Record::seal(draft(&[1])).unwrap();
    record.schema_version = 1;
    record.method.label = Some("selected".into());
    record.arm.settings = Some(serde_json::json!({}));
    let faults: Vec<String> = record.faults().unwrap().iter().map(ToString::to_string).collect();
    for at in ["samples: untimed: expected nothing", "method.label: expected nothing", "arm.settings: expected nothing"]
    {
        assert!(faults.iter().any(|f| f.starts_with(at)), "{at}: {faults:?}");
    }
    let mut other = draft(&[]);
    other.method.label = Some("another".into());
    assert!(Record::seal(other).unwrap_err().to_string().contains("method.label"));
}
