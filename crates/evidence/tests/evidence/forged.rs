//! Records that somebody changed who computed every figure, digest, id, name and checksum anew. What is left to find is
//! that they contradict themselves.

use crate::specimen;
use serde_json::json;
use std::fs;
use tare_core::Reading;
use tare_core::digest::sha256_hex;
use tare_evidence::derive::derive;
use tare_evidence::floor::Demand;
use tare_evidence::gate::{Check, GateReport, Judgement};
use tare_evidence::identity::Peer;
use tare_evidence::record::{Draft, Measured, Timed};
use tare_evidence::{Outcome, Record, SUMS_FILE, State, Strictness, canonical, verify};

/// The committed record, as tare lays it out.
const WRITTEN: &str = include_str!("../data/record-v2-laboratory.json");

fn timed(record: &mut Record) -> &mut Timed {
    match &mut record.outcome {
        Outcome::Timed(timed) => timed,
        Outcome::Void(_) => panic!("the committed record has times"),
    }
}

fn measured(record: &mut Record) -> &mut Measured {
    &mut timed(record).measured
}

fn demand(reading: &mut Reading<Demand>) -> &mut Demand {
    match reading {
        Reading::Available(demand) => demand,
        Reading::Unavailable { why } => panic!("{why}"),
    }
}

/// Changes the gate's report; it must still pass.
fn judged(record: &mut Record, change: impl FnOnce(&mut GateReport)) {
    let mut report = timed(record).gate.report().clone();
    change(&mut report);
    let Judgement::Passed(gate) = report.judge().unwrap() else { panic!("a forger keeps the gate passed") };
    timed(record).gate = gate;
}

/// The committed record after `change`, with every figure and digest computed anew.
fn forged(change: impl FnOnce(&mut Record)) -> Record {
    let mut record = Record::parse(WRITTEN).unwrap();
    change(&mut record);
    let work = record.work.clone();
    let Measured { samples, ceilings, demands, .. } = measured(&mut record).clone();
    timed(&mut record).derived = derive(&work, &samples, &ceilings, &demands).unwrap();
    record.plan.sha256 = canonical::digest(&record.plan.resolved);
    record.arm.plan_sha256 = record.plan.sha256.clone();
    record.work_sha256 = canonical::digest_of(&record.work).unwrap();
    record.arm_sha256 = canonical::digest_of(&record.arm).unwrap();
    let mut rest = canonical::value_of(&record).unwrap();
    rest.as_object_mut().unwrap().remove("id");
    record.id = format!("{}-{}", record.about.created_at.compact(), &canonical::digest(&rest)[..16]);
    record
}

/// What verification finds in a folder that holds `text` under the name `id`, signed anew.
fn found(id: &str, text: &str) -> Vec<String> {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("vm-2core/clock");
    fs::create_dir_all(&folder).unwrap();
    let name = format!("{id}.json");
    fs::write(folder.join(&name), text).unwrap();
    fs::write(folder.join(SUMS_FILE), format!("{}  {name}\n", sha256_hex(text.as_bytes()))).unwrap();
    let report = verify(root.path(), Strictness::Committed).unwrap();
    report.findings.into_iter().map(|f| f.fault.to_string()).collect()
}

/// `change` is found by verification, at `place` alone, and no writer can seal it.
fn refused(place: &str, change: impl FnOnce(&mut Record)) {
    let record = forged(change);
    let faults = found(&record.id, &serde_json::to_string_pretty(&record).unwrap());
    assert!(!faults.is_empty() && faults.iter().all(|f| f.starts_with(place)), "{place}: {faults:?}");
    let Record { about, work, arm, provenance, plan, method, memory, outcome, .. } = record;
    let Outcome::Timed(timed) = outcome else { panic!("a forger keeps the times") };
    let Timed { gate, measured, .. } = *timed;
    let (plan, gate) = (plan.resolved, Judgement::Passed(gate));
    let draft = Draft { about, work, arm, provenance, plan, method, memory, gate, measured };
    let fault = Record::seal(draft).unwrap_err();
    assert!(fault.at.starts_with(place), "{place}: {fault}");
}

#[test]
fn without_a_change_nothing_is_found() {
    let record = forged(|_| {});
    assert_eq!(record, Record::parse(WRITTEN).unwrap());
    assert_eq!(found(&record.id, WRITTEN), Vec::<String>::new());
    assert_eq!(record, Record::seal(specimen::laboratory()).unwrap(), "the committed file is the specimen");
}

#[test]
fn a_gate_is_held_against_the_samples() {
    refused("gate.checks: ", |r| measured(r).samples.rounds[1].emitted.rows[0].ids[3] += 1);
    refused("gate.checks: ", |r| measured(r).samples.warmups[0].rows[0].ids[0] = 0);
    refused("gate.checks: emulation-logit: max_error", |r| {
        measured(r).samples.rounds[1].emitted.rows[0].logits[3] += 0.125;
    });
    for check in 0..6 {
        refused("gate.checks: ", |r| judged(r, |report| report.checks[check].compared += 1));
    }
    // From version 6 on the limits have one check more, which counts as that of the cache does.
    let with_tokens = |r: &mut Record, more: u64, version: &str| {
        judged(r, |report| {
            let cache = report.checks.iter().find(|c| c.name == "kv").cloned().unwrap();
            report.checks.push(Check { name: "kv-token".into(), compared: cache.compared + more, ..cache });
            report.thresholds_version = version.into();
        });
    };
    for version in ["1", "6", "7"] {
        let record = forged(|r| with_tokens(r, 0, version));
        assert!(record.faults().unwrap().is_empty(), "{:?}", record.faults());
        refused("gate.checks: kv-token: compared", |r| with_tokens(r, 1, version));
    }
    refused("gate.checks: rounds-agree: max_error", |r| {
        judged(r, |report| (report.checks[0].max_error, report.checks[0].limit) = (1.0, 1.0));
    });
}

#[test]
fn a_check_that_its_version_has_cannot_be_left_out() {
    for version in ["6", "7"] {
        refused("gate.checks: kv-token", |r| judged(r, |report| report.thresholds_version = version.into()));
    }
    for left_out in 0..6 {
        refused("gate.checks: ", |r| {
            judged(r, |report| {
                report.checks.remove(left_out);
                report.thresholds_version = "5".into();
            });
        });
    }
    refused("gate.thresholds_version", |r| judged(r, |report| report.thresholds_version = "older".into()));
}

/// Ids that differ and a check that owns up to it: the counts follow, and only the limit is a lie.
#[test]
fn a_limit_is_the_forgers_to_choose() {
    let record = forged(|r| {
        measured(r).samples.rounds[1].emitted.rows[0].ids[3] += 1;
        judged(r, |report| {
            (report.checks[0].max_error, report.checks[0].limit) = (1.0, 1.0);
            report.checks[1].compared = 15;
            report.checks[3].compared = 15;
        });
    });
    assert!(record.faults().unwrap().is_empty(), "{:?}", record.faults());
}

/// A gate that failed for ids that differ says so, and one that failed for something else says that they agree.
#[test]
fn a_failed_gate_is_held_against_the_samples_too() {
    let sealed = |max_error: f64, compared: u64| {
        let mut draft = specimen::laboratory();
        let Judgement::Passed(gate) = &draft.gate else { panic!("the specimen passes") };
        let mut report = gate.report().clone();
        report.checks[0].max_error = max_error;
        report.checks[2].max_error = 0.5;
        for logits in [1, 3] {
            report.checks[logits].compared = compared;
        }
        draft.gate = report.judge().unwrap();
        draft.measured.samples.rounds[1].emitted.rows[0].ids[3] += 1;
        Record::seal(draft)
    };
    assert!(sealed(1.0, 15).is_ok_and(|r| !r.passed()));
    assert!(sealed(0.0, 15).unwrap_err().at.starts_with("gate.checks: rounds-agree: max_error"));
    assert!(sealed(1.0, 20).unwrap_err().at.starts_with("gate.checks: emulation-logit: compared"));
}

#[test]
fn an_arm_is_held_against_plan_and_configuration() {
    refused("arm.class", |r| r.arm.class = "f32".into());
    refused("arm.class", |r| r.plan.resolved["widest"]["class"] = json!("f32"));
    refused("arm.class", |r| r.provenance.config["class"] = json!("f32"));
    refused("arm.plan", |r| r.arm.plan = "recompute".into());
    refused("arm.plan", |r| r.plan.resolved["widest"]["name"] = json!("recompute"));
    refused("arm.cache", |r| r.arm.cache = "capacity".into());
    refused("arm.page_tokens", |r| r.arm.page_tokens = Reading::Available(16));
    refused("arm.threads", |r| r.arm.threads = Reading::Available(1));
    refused("arm.settings", |r| r.provenance.config["keep_workers"] = json!(true));
    refused("arm.settings", |r| r.arm.settings = Some(json!({ "keep_workers": true })));
    refused("arm.settings", |r| {
        r.arm.settings = Some(json!({ "keep_workers": true }));
        r.provenance.config["keep_workers"] = json!(false);
    });
    refused("samples.rounds", |r| r.provenance.config["rounds"] = json!(5));
    refused("samples.warmups", |r| r.provenance.config["warmups"] = json!(0));
}

#[test]
fn work_is_held_against_demands_and_context() {
    refused("demands.kv_write_bytes", |r| r.work.prompt_lengths = vec![9]);
    refused("demands.kv_write_bytes", |r| demand(&mut measured(r).demands.decode).kv_write_bytes *= 2);
    refused("demands.kv_write_bytes", |r| {
        let demands = &mut measured(r).demands;
        demand(&mut demands.prefill).kv_write_bytes *= 2;
        demand(&mut demands.decode).kv_write_bytes *= 2;
    });
    refused("demands.kv_write_bytes", |r| {
        r.plan.resolved["widest"].as_object_mut().unwrap().remove("kv");
        r.work.prompt_lengths = vec![9];
    });
    refused("work.depth", |r| r.work.depth = 1);
    refused("work.depth", |r| {
        r.work.prompt_lengths = vec![20];
        demand(&mut measured(r).demands.prefill).kv_write_bytes *= 2;
    });
}

/// A slow token that would count in no figure.
#[test]
fn tokens_of_an_arm_that_ran_alone_all_count() {
    refused("samples: untimed", |r| measured(r).samples.rounds[1].timing.untimed = vec![1]);
}

#[test]
fn rounds_are_in_order_and_complete() {
    refused("method.order", |r| r.method.order.truncate(2));
    refused("method.order", |r| r.method.order[1].clear());
    refused("method.order", |r| r.method.order[1][0].clear());
    refused("samples.rounds", |r| measured(r).samples.rounds.swap(0, 2));
    refused("samples.rounds", |r| measured(r).samples.rounds[2].emitted.round = 7);
    refused("samples.warmups", |r| measured(r).samples.warmups[0].round = 1);
    // A slow round dropped and the others moved up: the plan of the campaign still has it.
    let drop_one = |r: &mut Record| {
        measured(r).samples.rounds.truncate(2);
        judged(r, |report| [0, 1, 3].into_iter().for_each(|i| report.checks[i].compared = 15));
        r.provenance.config["rounds"] = json!(2);
    };
    refused("method.", |r| {
        drop_one(r);
        r.method.order.truncate(2);
    });
    refused("method.", drop_one);
}

#[test]
fn a_record_is_written_as_valid() {
    let record = forged(|r| r.state = State::Stale { why: "an older compiler".into() });
    let faults = found(&record.id, &serde_json::to_string(&record).unwrap());
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].starts_with("state: expected `valid`"), "{faults:?}");
}

/// Two readers of such a file would see two records, and the id fits one of them.
#[test]
fn a_key_that_comes_twice_is_refused() {
    let id = Record::parse(WRITTEN).unwrap().id;
    for key in ["\"page_tokens\": 64", "\"layers\": 2", "\"cores\": 2", "\"planned_rounds\": 3"] {
        let twice = WRITTEN.replacen(key, &format!("{}9, {key}", &key[..key.len() - 1]), 1);
        assert_ne!(twice, WRITTEN, "{key} is in the record");
        let faults = found(&id, &twice);
        assert!(faults.len() == 1 && faults[0].contains("twice in one object"), "{key}: {faults:?}");
    }
}

/// A record of before the switch says nothing of it, and reads as one in which workers may sit out.
#[test]
fn a_record_says_whether_its_workers_were_kept_in() {
    let before = Record::parse(WRITTEN).unwrap();
    assert!(!before.arm.keeps_workers() && before.provenance.config.get("keep_workers").is_none());
    let kept = forged(|r| {
        r.arm.settings = Some(json!({ "keep_workers": true }));
        r.provenance.config["keep_workers"] = json!(true);
    });
    assert!(kept.faults().unwrap().is_empty(), "{:?}", kept.faults());
    let again = Record::parse(&serde_json::to_string(&kept).unwrap()).unwrap();
    assert!(again.arm.keeps_workers());
    assert_ne!(again.arm_sha256, before.arm_sha256, "it is another arm");
    let let_go = forged(|r| r.provenance.config["keep_workers"] = json!(false));
    assert!(let_go.faults().unwrap().is_empty() && let_go.arm_sha256 == before.arm_sha256);
}

/// Another engine's configuration has its own words, and a writer may leave out what it does not know.
#[test]
fn what_another_writer_leaves_out_is_not_asked_for() {
    let silent = forged(|r| {
        r.provenance.config = json!({});
        r.plan.resolved = json!("opaque");
    });
    assert!(silent.faults().unwrap().is_empty(), "{:?}", silent.faults());
    let peer = forged(|r| {
        r.arm.peer = Some(Peer { name: "other".into(), version: "1".into(), settings: json!({}) });
        r.arm.class = "undeclared".into();
        r.provenance.config["context"] = json!(1);
    });
    assert!(peer.faults().unwrap().is_empty(), "{:?}", peer.faults());
}
