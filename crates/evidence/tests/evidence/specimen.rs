//! A made-up measurement with round numbers, so that its figures can be worked out by hand.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use tare_core::Reading;
use tare_evidence::canonical;
use tare_evidence::floor::{Ceiling, CeilingSample, Demand, Demands, Resource};
use tare_evidence::gate::{Check, GateReport, Judgement, Miss};
use tare_evidence::identity::{Arm, EosRule, PrefillLogits, Warmth, Work, prompt_ids_sha256};
use tare_evidence::provenance::{Host, Provenance, Software, Source};
use tare_evidence::record::{About, Clock, Draft, Measured, Memory, Method, Record, Role, TimingContract};
use tare_evidence::samples::{Emitted, RowTokens, Samples, TimedRound, Timing};

/// A sealed record with timings.
pub(crate) fn record() -> Record {
    Record::seal(draft(passed())).expect("the specimen holds together")
}

/// A sealed record of a failed gate.
pub(crate) fn void_record() -> Record {
    let miss = Miss {
        check: "emitted ids".into(),
        at: "round 1, row 0, position 12".into(),
        expected: "id 7 within 0.1 of the best logit".into(),
        found: "0.4 below".into(),
    };
    let report = GateReport { misses: vec![miss], ..report() };
    Record::seal(draft(report.judge().expect("a report"))).expect("the specimen holds together")
}

pub(crate) fn passed() -> Judgement {
    report().judge().expect("a report")
}

fn report() -> GateReport {
    let check = Check { name: "emitted logits".into(), compared: 16, max_error: 0.02, limit: 0.1 };
    GateReport { thresholds_version: "1".into(), checks: vec![check], misses: vec![] }
}

/// Ten prompt tokens, five emitted; rounds of 100/1, 120/1 and 140/1 ms and tokens of 10 ms.
pub(crate) fn draft(gate: Judgement) -> Draft {
    let plan = json!({ "name": "selected", "calls": ["rms_norm.f32.portable", "linear.w4g128.avx512"] });
    let work = work();
    let binary_sha256 = "b1".repeat(32);
    Draft {
        about: About {
            role: Role::Tuning,
            study: "clock".into(),
            campaign: "2026-03-01-a".into(),
            created_at: "2026-03-01T12:00:00Z".parse().expect("a time"),
            title: "Request clock of the tiny model".into(),
            question: "How long does a request take?".into(),
            notes: vec!["h\u{e9}".into()],
        },
        arm: Arm { plan_sha256: canonical::digest(&plan), binary_sha256: binary_sha256.clone(), ..arm() },
        work,
        provenance: provenance(binary_sha256),
        plan,
        method: method(),
        memory: Memory {
            allocator_peak_bytes: Reading::Available(1 << 20),
            anonymous_rss_bytes: Reading::Available(3 << 20),
            file_rss_bytes: Reading::Available(5 << 20),
            device_bytes: Reading::unavailable("no device"),
            kv_bytes: Reading::Available(4096),
            peak_rss_bytes: None,
        },
        gate,
        measured: Measured { samples: samples(), ceilings: ceilings(), demands: demands(), startup: None },
    }
}

/// The specimen as the laboratory lays it out: what the arm sums up stands in the plan and the configuration too, checks
/// have the gate's names, and a token writes 64 bytes of keys and values.
pub(crate) fn laboratory() -> Draft {
    let kv = json!({ "layers": 2, "kv_heads": 1, "head_size": 8, "dtype": "bf16" });
    let plan = json!({
        "buckets": [{ "bucket": { "rows": 16, "selected": 1 }, "sha256": "99".repeat(32), "kernels": { "rope.avx512": 2 } }],
        "widest": { "name": "paged", "class": "w4a16", "kv": kv },
    });
    let check = |name: &str, compared, max_error, limit| Check { name: name.into(), compared, max_error, limit };
    let checks = vec![
        check("rounds-agree", 20, 0.0, 0.0),
        check("emulation-logit", 20, 0.0, 0.01),
        check("emulation-rank", 5, 0.0, 0.0),
        check("accuracy-logit", 20, 0.070_941_925_048_828_12, 0.3),
        check("accuracy-rank", 5, 0.0, 0.1),
        check("kv", 4, 0.0, 0.0),
    ];
    let report = GateReport { thresholds_version: "1".into(), checks, misses: vec![] };
    let mut draft = draft(report.judge().expect("a report"));
    draft.arm.plan = "paged".into();
    draft.arm.plan_sha256 = canonical::digest(&plan);
    draft.plan = plan;
    draft.provenance.config = json!({
        "plan": { "name": "paged", "cache": "paged", "page_tokens": 64 },
        "class": "w4a16", "context": 15, "threads": 2, "rounds": 3, "warmups": 1,
    });
    draft.method.order = vec![vec!["paged".into()]; 3];
    for (demand, bytes) in [(&mut draft.measured.demands.prefill, 640), (&mut draft.measured.demands.decode, 256)] {
        if let Reading::Available(demand) = demand {
            demand.kv_write_bytes = bytes;
        }
    }
    draft
}

pub(crate) fn work() -> Work {
    Work {
        weights_values_sha256: "aa".repeat(32),
        shape: "qwen3-tiny".into(),
        prompt_ids_sha256: prompt_ids_sha256(&[(0..10).collect()]).expect("ids"),
        prompt_lengths: vec![10],
        output_lengths: vec![5],
        prefill_logits: PrefillLogits::Last,
        rows: 1,
        sampling: json!({ "temperature": 0.0 }),
        eos: EosRule::Ignore,
        depth: 0,
        warmth: Warmth::Warm,
    }
}

fn arm() -> Arm {
    Arm {
        plan: "selected".into(),
        plan_sha256: String::new(),
        binary_sha256: String::new(),
        class: "w4a16".into(),
        file_format: "w4g128".into(),
        file_sha256: "cc".repeat(32),
        head_format: "w4g128".into(),
        cache: "paged".into(),
        page_tokens: Reading::Available(64),
        threads: Reading::Available(2),
        isa: "avx512".into(),
        backend: "cpu".into(),
        streamed_bytes_per_token: Reading::Available(1000),
        peer: None,
        settings: None,
        delay: None,
    }
}

fn provenance(binary_sha256: String) -> Provenance {
    let facts = |pairs: &[(&str, Value)]| -> BTreeMap<String, Reading<Value>> {
        pairs.iter().map(|(k, v)| ((*k).to_string(), Reading::Available(v.clone()))).collect()
    };
    let class = facts(&[("cpu", json!("a processor")), ("cores", json!(2)), ("isa", json!(["avx2", "avx512f"]))]);
    let mut state = facts(&[("kernel", json!("6.1"))]);
    state.insert("governor".into(), Reading::unavailable("no cpufreq"));
    Provenance {
        host: Host::new("vm-2core", class, state).expect("a host"),
        software: Software {
            tare: "0.1.0".into(),
            rustc: Reading::Available("1.95.0".into()),
            target: "x86_64-unknown-linux-gnu".into(),
            profile: "release".into(),
        },
        source: Source {
            tree_sha256: Reading::Available("dd".repeat(32)),
            commit: Reading::Available("ee".repeat(20)),
            dirty: Reading::Available(false),
        },
        binary_sha256,
        config: json!({ "threads": 2, "temperature": 0.7 }),
    }
}

fn method() -> Method {
    let clock = |inside: &[&str], outside: &[&str]| {
        let list = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let source = "CLOCK_MONOTONIC".to_string();
        Reading::Available(Clock { source, inside: list(inside), outside: list(outside) })
    };
    Method {
        timing_contract: TimingContract {
            device: Reading::unavailable("the CPU is the device"),
            request: clock(&["cache set-up", "prefill", "decode", "release"], &["load", "gate"]),
            wall: clock(&["load", "gate", "requests"], &["build"]),
        },
        scheme: "solo".into(),
        order: vec![vec!["selected".into()]; 3],
        planned_rounds: 3,
        attempt: 1,
        label: None,
    }
}

fn samples() -> Samples<TimedRound> {
    let emitted = |round: u32| Emitted {
        round,
        rows: vec![RowTokens { ids: vec![7, 8, 9, 10, 11], logits: vec![0.1, 12.345_678, 3.0, -1.5, 2.25] }],
    };
    let round = |round: u32, prefill_ms: u64| TimedRound {
        emitted: emitted(round),
        timing: Timing {
            device: None,
            setup_ns: 1_000_000,
            prefill_ns: prefill_ms * 1_000_000,
            token_ns: vec![10_000_000, 11_000_000, 9_000_000, 10_000_000],
            release_ns: 500_000,
            main_thread_cpu_ns: Reading::Available(130_000_000),
            untimed: Vec::new(),
        },
    };
    Samples { warmups: vec![emitted(0)], rounds: vec![round(0, 100), round(1, 140), round(2, 120)] }
}

/// 100 bytes a microsecond and 10 flops a nanosecond.
fn ceilings() -> Vec<Ceiling> {
    let ceiling = |name: &str, resource, amount| Ceiling {
        name: name.into(),
        arm: None,
        resource,
        threads: 2,
        working_set_bytes: 1 << 30,
        pages: "4k".into(),
        samples: Reading::Available(
            (0..3).map(|round| CeilingSample { round: Some(round), turn: None, amount, ns: 1_000_000 }).collect(),
        ),
    };
    vec![ceiling("read", Resource::Bytes, 100_000), ceiling("fma", Resource::Flops, 10_000_000)]
}

/// Prefill: 60 ms of flops against 10 us of bytes. Decode: 20 ms of bytes against 1 ms of flops. A token writes 50 bytes.
fn demands() -> Demands {
    let demand = |weight_bytes, kv_write_bytes, flops| {
        let (byte_ceiling, flop_ceiling, kv_read_bytes) = ("read".into(), "fma".into(), 300);
        Reading::Available(Demand { weight_bytes, kv_read_bytes, kv_write_bytes, flops, byte_ceiling, flop_ceiling })
    };
    Demands { prefill: demand(200, 500, 600_000_000), decode: demand(1_999_500, 200, 10_000_000) }
}
