use crate::specimen;
use proptest::prelude::*;
use serde_json::{Value, json};
use tare_core::Reading;
use tare_evidence::floor::{CeilingSample, Resource};
use tare_evidence::identity::EosRule;
use tare_evidence::record::{Draft, Record};
use tare_evidence::{Outcome, canonical};

/// A place of the JSON, how to change it, and what the finding must name.
type Edit = (&'static str, fn(&mut Value), &'static str);

#[test]
fn figures_are_those_worked_out_by_hand() {
    let record = specimen::record();
    let d = record.derived().unwrap();
    assert_eq!(d.prefill.ns.median, 120e6);
    assert_eq!((d.prefill.ns.min, d.prefill.ns.max, d.prefill.ns.mad), (100e6, 140e6, 20e6));
    assert!((d.prefill.rate_tokens_per_s.median - 10.0 / 0.12).abs() < 1e-12);
    assert_eq!(d.ttft_ns.median, 121e6);
    assert_eq!(d.end_to_end_ns.median, 161.5e6);
    let decode = d.decode.available().unwrap();
    assert_eq!((decode.ns.median, decode.rate_tokens_per_s.median), (40e6, 100.0), "four tokens after the first");
    let tokens = d.inter_token_ns.available().unwrap();
    assert_eq!((tokens.p50, tokens.p90, tokens.p99, tokens.max), (10e6, 11e6, 11e6, 11e6));
    assert_eq!(d.main_thread_cpu_ns.available().unwrap().median, 130e6);
    let floor = d.prefill.floor.available().unwrap();
    assert_eq!((floor.ns, floor.bound), (60e6, Resource::Flops));
    assert_eq!(d.prefill.percent_of_floor, Reading::Available(50.0));
    assert_eq!(decode.floor.available().unwrap().bound, Resource::Bytes);
    assert_eq!(decode.percent_of_floor, Reading::Available(50.0));
}

#[test]
fn a_missing_ceiling_leaves_its_reason_and_the_other_bound() {
    let mut draft = specimen::draft(specimen::passed());
    draft.measured.ceilings[1].samples = Reading::unavailable("no vector unit");
    let record = Record::seal(draft).unwrap();
    let floor = record.derived().unwrap().prefill.floor.clone();
    let floor = floor.available().unwrap();
    assert_eq!((floor.bound, &floor.flop_ns), (Resource::Bytes, &Reading::unavailable("no vector unit")));

    let mut draft = specimen::draft(specimen::passed());
    draft.measured.ceilings.clear();
    let record = Record::seal(draft).unwrap();
    let percent = &record.derived().unwrap().prefill.percent_of_floor;
    assert_eq!(percent, &Reading::unavailable("no ceiling `read` was measured"));
}

#[test]
fn one_emitted_token_has_no_decode_phase() {
    let mut draft = specimen::draft(specimen::passed());
    draft.work.output_lengths = vec![1];
    draft.measured.demands.decode = Reading::unavailable("no token after the first");
    for emitted in emitted_mut(&mut draft) {
        emitted.truncate(1);
    }
    for round in &mut draft.measured.samples.rounds {
        round.timing.token_ns.clear();
    }
    let record = Record::seal(draft).unwrap();
    let d = record.derived().unwrap();
    assert!(d.decode.available().is_none() && d.inter_token_ns.available().is_none());
    assert_eq!(d.end_to_end_ns.median, 121.5e6);
}

#[test]
fn reads_back_as_it_was_written() {
    for record in [specimen::record(), specimen::void_record()] {
        let text = serde_json::to_string_pretty(&record).unwrap();
        let read = Record::parse(&text).unwrap();
        assert_eq!(read, record);
        assert!(read.faults().unwrap().is_empty());
    }
}

#[test]
fn a_failed_gate_has_no_timings() {
    let record = specimen::void_record();
    assert!(!record.passed() && record.derived().is_none());
    let value = canonical::value_of(&record).unwrap();
    assert_eq!(value["gate"]["passed"], json!(false));
    assert_eq!(value["samples"]["rounds"].as_array().unwrap().len(), 3, "what was emitted is kept");
    let text = canonical::text(&value["samples"]);
    assert!(!text.contains("_ns"), "{text}");
    assert!(["derived", "ceilings", "demands"].iter().all(|k| value.get(k).is_none()));
}

#[test]
fn a_failed_gate_cannot_be_given_timings_nor_turned_into_a_passed_one() {
    let timed = canonical::value_of(&specimen::record()).unwrap();
    let void = canonical::value_of(&specimen::void_record()).unwrap();
    let refused = |edit: &dyn Fn(&mut Value), want: &str| {
        let mut value = void.clone();
        edit(&mut value);
        let error = Record::parse(&value.to_string()).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    };
    refused(&|v| v["samples"]["rounds"][1]["timing"] = timed["samples"]["rounds"][1]["timing"].clone(), "round 1");
    refused(&|v| v["derived"] = timed["derived"].clone(), "derived");
    refused(&|v| v["gate"]["passed"] = json!(true), "gate.passed");
    refused(&|v| v["gate"]["misses"] = json!([]), "gate.passed");
    refused(&|v| v["gate"] = timed["gate"].clone(), "the gate passed");
    refused(&|v| v["gate"]["checks"] = json!([]), "gate.checks");
}

#[test]
fn unknown_fields_and_versions_are_refused() {
    let value = canonical::value_of(&specimen::record()).unwrap();
    for place in ["", "/about", "/work", "/arm", "/samples", "/samples/rounds/0/timing", "/gate", "/method", "/memory"]
    {
        let mut edited = value.clone();
        edited.pointer_mut(place).unwrap()["surprise"] = json!(1);
        let error = Record::parse(&edited.to_string()).unwrap_err().to_string();
        assert!(error.contains("surprise"), "{place}: {error}");
    }
    let mut newer = value.clone();
    newer["schema_version"] = json!(3);
    let error = Record::parse(&newer.to_string()).unwrap_err().to_string();
    assert!(error.contains("schema_version: expected 1 or 2, found 3; read it with"), "{error}");
    assert!(Record::parse("{\"schema_version\": 1").is_err());
}

#[test]
fn every_edit_is_found_and_named() {
    let edits: [Edit; 14] = [
        ("/work/depth", |v| *v = json!(1), "work_sha256"),
        ("/arm/class", |v| *v = json!("w4a8"), "arm_sha256"),
        ("/plan/resolved/name", |v| *v = json!("other"), "plan.sha256"),
        ("/plan/sha256", |v| *v = json!("00"), "arm.plan_sha256"),
        ("/provenance/binary_sha256", |v| *v = json!("00"), "arm.binary_sha256"),
        ("/provenance/host/class/cores", |v| *v = json!(4), "provenance.host.class_sha256"),
        ("/about/title", |v| *v = json!("Nicer"), "id"),
        ("/samples/rounds/1/timing/prefill_ns", |v| *v = json!(1), "derived.prefill.ns.min"),
        ("/samples/rounds/0/timing/token_ns/2", |v| *v = json!(1), "derived.decode.rate_tokens_per_s.max"),
        ("/samples/rounds/0/timing/token_ns", |v| *v = json!([1, 2]), "samples: round 0: token_ns"),
        ("/samples/rounds/2/rows/0/logits", |v| *v = json!([1.0]), "samples: round 2: row 0: logits"),
        ("/samples/warmups/0/rows/0/ids", |v| *v = json!([1]), "samples: round 0: row 0: ids"),
        ("/derived/decode/percent_of_floor", |v| *v = json!(99.0), "derived.decode.percent_of_floor"),
        ("/ceilings/0/samples/1/amount", |v| *v = json!(100_001), "id"),
    ];
    let value = canonical::value_of(&specimen::record()).unwrap();
    for (place, edit, named) in edits {
        let mut edited = value.clone();
        edit(edited.pointer_mut(place).unwrap_or_else(|| panic!("{place} is in the record")));
        let faults = Record::parse(&edited.to_string()).unwrap().faults().unwrap();
        assert!(faults.iter().any(|f| f.at == named), "{place}: {faults:?}");
    }
}

#[test]
fn every_derived_figure_is_held_against_the_samples() {
    fn leaves(path: &str, value: &Value, out: &mut Vec<String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(k, v)| leaves(&format!("{path}/{k}"), v, out)),
            _ => out.push(path.to_string()),
        }
    }
    let value = canonical::value_of(&specimen::record()).unwrap();
    let mut places = Vec::new();
    leaves("/derived", &value["derived"], &mut places);
    assert!(places.len() > 30, "{places:?}");
    for place in places {
        let mut edited = value.clone();
        let leaf = edited.pointer_mut(&place).unwrap();
        *leaf = match leaf.as_f64() {
            Some(number) => json!(number * (1.0 + 1e-9) + 1e-9),
            None if leaf == "bytes" => json!("flops"),
            None if leaf == "flops" => json!("bytes"),
            None => json!("00"),
        };
        let faults = Record::parse(&edited.to_string()).unwrap().faults().unwrap();
        assert!(faults.iter().any(|f| f.at == place[1..].replace('/', ".")), "{place}: {faults:?}");
    }
}

#[test]
fn what_does_not_fit_together_is_not_sealed() {
    let refused = |change: &dyn Fn(&mut Draft), named: &str| {
        let mut draft = specimen::draft(specimen::passed());
        change(&mut draft);
        let fault = Record::seal(draft).unwrap_err();
        assert!(fault.at.contains(named), "{fault}");
    };
    refused(&|d| d.method.planned_rounds = 4, "method.planned_rounds");
    refused(&|d| d.measured.samples.rounds.clear(), "samples.rounds");
    refused(&|d| d.measured.samples.rounds[1].emitted.rows[0].logits[2] = f32::NAN, "round 1: row 0: logits");
    refused(&|d| d.measured.samples.rounds[0].timing.prefill_ns = 0, "round 0: timing");
    refused(&|d| d.work.rows = 2, "round 0: rows");
    refused(&|d| d.arm.plan_sha256 = "00".into(), "arm.plan_sha256");
    refused(&|d| d.about.study = "../up".into(), "about.study");
    refused(&|d| d.about.study = "schema".into(), "about.study");
    refused(&|d| d.provenance.host.name = ".hidden".into(), "provenance.host.name");
}

#[test]
fn a_stop_rule_allows_fewer_tokens_but_not_none() {
    let shortened = |keep: usize| {
        let mut draft = specimen::draft(specimen::passed());
        draft.work.eos = EosRule::Stop;
        emitted_mut(&mut draft).into_iter().for_each(|row| row.truncate(keep));
        draft.measured.samples.rounds.iter_mut().for_each(|r| r.timing.token_ns.truncate(keep.saturating_sub(1)));
        Record::seal(draft)
    };
    assert!(shortened(3).is_ok());
    assert!(shortened(0).is_err());
}

#[test]
fn hostile_numbers_are_findings_not_panics() {
    let value = canonical::value_of(&specimen::record()).unwrap();
    for place in ["/samples/rounds/0/timing/setup_ns", "/samples/rounds/0/timing/token_ns/0", "/demands/decode/flops"] {
        let mut edited = value.clone();
        *edited.pointer_mut(place).unwrap() = json!(u64::MAX);
        assert!(!Record::parse(&edited.to_string()).unwrap().faults().unwrap().is_empty(), "{place}");
    }
    for (place, with) in
        [("/work/rows", json!(0)), ("/work/output_lengths", json!([])), ("/work/output_lengths", json!([0]))]
    {
        let mut edited = value.clone();
        *edited.pointer_mut(place).unwrap() = with;
        assert!(!Record::parse(&edited.to_string()).unwrap().faults().unwrap().is_empty(), "{place}");
    }
}

#[test]
fn an_id_is_the_digest_of_everything_else() {
    let record = specimen::record();
    let mut rest = canonical::value_of(&record).unwrap();
    rest.as_object_mut().unwrap().remove("id");
    assert_eq!(record.id, format!("20260301T120000Z-{}", &canonical::digest(&rest)[..16]));
    let Outcome::Timed(_) = record.outcome else { panic!("the specimen has timings") };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever the clock said, a written record verifies to the last digit, and its figures keep their order.
    #[test]
    fn any_measurement_verifies_after_writing(
        ns in prop::collection::vec(1u64..10_000_000_000, 15),
        logit in -1e6f32..1e6,
        amount in 1u64..1 << 50,
    ) {
        let mut draft = specimen::draft(specimen::passed());
        for (round, ns) in draft.measured.samples.rounds.iter_mut().zip(ns.chunks(5)) {
            round.timing.prefill_ns = ns[0];
            round.timing.token_ns = ns[1..].to_vec();
            round.emitted.rows[0].logits[1] = logit;
        }
        draft.measured.ceilings[0].samples =
            Reading::Available(vec![CeilingSample { round: None, turn: None, amount, ns: ns[3] }]);
        let record = Record::seal(draft).unwrap();
        let read = Record::parse(&serde_json::to_string_pretty(&record).unwrap()).unwrap();
        prop_assert_eq!(&read, &record);
        prop_assert!(read.faults().unwrap().is_empty());
        let d = read.derived().unwrap();
        let tokens = d.inter_token_ns.available().unwrap();
        prop_assert!(tokens.p50 <= tokens.p90 && tokens.p90 <= tokens.p95 && tokens.p95 <= tokens.p99);
        prop_assert!(d.prefill.ns.min <= d.prefill.ns.median && d.prefill.ns.median <= d.prefill.ns.max);
        prop_assert!(d.ttft_ns.median < d.end_to_end_ns.median);
    }
}

/// The tokens of every warm-up and round, cut in step.
struct RowMut<'a>(&'a mut Vec<u32>, &'a mut Vec<f32>);

impl RowMut<'_> {
    fn truncate(self, keep: usize) {
        self.0.truncate(keep);
        self.1.truncate(keep);
    }
}

fn emitted_mut(draft: &mut Draft) -> Vec<RowMut<'_>> {
    let samples = &mut draft.measured.samples;
    let rounds = samples.rounds.iter_mut().map(|r| &mut r.emitted);
    let all = samples.warmups.iter_mut().chain(rounds);
    all.flat_map(|e| e.rows.iter_mut()).map(|r| RowMut(&mut r.ids, &mut r.logits)).collect()
}
