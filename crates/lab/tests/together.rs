//! Sequences that run together: each draws what it draws alone, every step has one row of each, and each is judged.

use std::slice::from_ref;
use tare_cpu::{CpuConfig, detect_isa};
use tare_evidence::gate::{GateReport, Judgement};
use tare_lab::clock::{Baton, Timed, Turns, clock, clock_together};
use tare_lab::floor::{FLOP_CEILING, demands, demands_of_shape};
use tare_lab::gate::{Gate, Run};
use tare_lab::thresholds::Thresholds;
use tare_lab::{ClockedRequest, EngineRunner, Lengths, On, ReferenceStore, Rig, facts};
use tare_model::{Model, PlanSpec};
use tare_ops::Class;

const LENGTHS: Lengths = Lengths { depth: 0, prompt_tokens: 20, output_tokens: 6 };
const SEQUENCES: usize = 3;

/// A tiny model and requests that run together.
struct Scene {
    model: Model,
    requests: Vec<ClockedRequest>,
}

impl Scene {
    fn new(lengths: Lengths) -> Self {
        let model = Model::open("synthetic:qwen3-tiny?format=w4g128").unwrap();
        let requests = ClockedRequest::drawn_together(lengths, SEQUENCES, model.config().vocab, 1).unwrap();
        Self { model, requests }
    }

    fn rig(&self, plan: &str, class: &str) -> Rig<'_> {
        Rig {
            model: &self.model,
            on: On::Cpu,
            cpu: CpuConfig { threads: 2, isa: detect_isa(), pin: false, keep_workers: false },
            plan: PlanSpec::find(plan).unwrap(),
            class: Class::by_name(class).unwrap(),
            sequences: SEQUENCES,
            context: self.requests[0].total_tokens(),
            max_rows: 16,
            delay: None,
        }
    }

    /// What the gate says of what `edit` makes of an honest run.
    fn judged(&self, rig: &Rig<'_>, edit: impl FnOnce(&mut Timed)) -> GateReport {
        let mut engine = rig.engine().unwrap();
        let mut timed = [(); 2].map(|()| clock_together(&mut engine, &self.requests).unwrap());
        edit(&mut timed[1]);
        let (thresholds, store) = (Thresholds::built_in().unwrap(), ReferenceStore::none());
        let gate = Gate { rig, requests: &self.requests, thresholds: &thresholds, store: &store };
        let runs = [("warm-up 0", &timed[0]), ("round 0", &timed[1])].map(|(label, t)| Run { label, rows: &t.tokens });
        match gate.judge(&mut engine, &runs).unwrap().judge().unwrap() {
            Judgement::Passed(p) => p.report().clone(),
            Judgement::Failed(f) => f.report().clone(),
        }
    }
}

#[test]
fn each_draws_what_it_draws_alone_whatever_keeps_its_cache() {
    for depth in [0, 8] {
        let scene = Scene::new(Lengths { depth, ..LENGTHS });
        for plan in ["kv-cache", "capacity-cache", "paged"] {
            let rig = scene.rig(plan, "w4a16");
            let alone = Rig { sequences: 1, ..rig.clone() };
            let each: Vec<_> = scene
                .requests
                .iter()
                .map(|r| clock(&mut alone.engine().unwrap(), r).unwrap().tokens.remove(0))
                .collect();
            let mut engine = rig.engine().unwrap();
            // Twice: the second time storage is there that the first left.
            for _ in 0..2 {
                let timed = clock_together(&mut engine, &scene.requests).unwrap();
                assert_eq!(timed.tokens, each, "{plan} at depth {depth}");
                assert_eq!(timed.decode_ns.len(), LENGTHS.output_tokens - 1, "a step gives each its token");
                let rows = SEQUENCES * (LENGTHS.prompt_tokens + LENGTHS.output_tokens - 1);
                let counted = (rows as u64, (SEQUENCES * LENGTHS.output_tokens) as u64);
                assert_eq!(timed.rows.available(), Some(&counted), "{plan}: nothing is computed twice");
            }
        }
    }
}

#[test]
fn a_step_has_one_row_of_each_and_runs_in_the_bucket_of_as_many() {
    let scene = Scene::new(LENGTHS);
    let rig = scene.rig("paged", "w4a16");
    let tap = rig.tap().unwrap();
    let mut engine = rig.engine_on(Box::new(tap.clone())).unwrap();
    tap.watch().unwrap();
    clock_together(&mut engine, &scene.requests).unwrap();
    let seen = tap.seen().unwrap();
    let tables: Vec<u32> = seen.batch.rows.iter().map(|r| r.table).collect();
    assert_eq!((tables, seen.plan.bucket.rows), (vec![0, 1, 2], SEQUENCES));
}

#[test]
fn turns_draw_what_one_turn_draws_and_a_short_run_leaves_nothing_behind() {
    let scene = Scene::new(LENGTHS);
    let rig = scene.rig("paged", "w4a16");
    let whole = clock_together(&mut rig.engine().unwrap(), &scene.requests).unwrap();
    let mut runner = EngineRunner::new(rig.engine().unwrap());
    // A warm-up that draws the first tokens alone never runs them together.
    let first: Vec<ClockedRequest> =
        scene.requests.iter().map(|r| ClockedRequest { output_tokens: 1, ..r.clone() }).collect();
    let short = Turns::begin(&mut runner, &first).unwrap().end(&mut runner).unwrap();
    assert!(short.tokens.iter().zip(&whole.tokens).all(|(s, w)| s.ids == w.ids[..1]));
    assert_eq!(runner.engine().counters().pool.live, 0);
    let mut run = Turns::begin(&mut runner, &scene.requests).unwrap();
    for steps in [2, 0, 3] {
        run.decode(&mut runner, steps, Baton::Returned).unwrap();
    }
    let turned = run.end(&mut runner).unwrap();
    assert_eq!((&turned.tokens, &turned.untimed[..]), (&whole.tokens, &[0, 2][..]));
    assert_eq!(runner.engine().counters().pool.live, 0);
}

#[test]
fn every_sequence_passes_the_gate_in_every_kind_of_class() {
    let scene = Scene::new(Lengths { depth: 5, ..LENGTHS });
    for class in ["f32", "w4a16", "w4a16-free", "w4a8", "w4a15"] {
        let report = scene.judged(&scene.rig("paged", class), |_| {});
        assert!(report.misses.is_empty(), "{class}: {:?}", report.misses);
        let compared = |name: &str| report.checks.iter().find(|c| c.name == name).map_or(0, |c| c.compared);
        let tokens = (SEQUENCES * LENGTHS.output_tokens) as u64;
        assert_eq!((compared("emulation-rank"), compared("emulation-logit")), (tokens, 2 * tokens), "{class}");
        let planes = (2 * SEQUENCES * scene.model.config().layers) as u64;
        assert_eq!((compared("kv"), compared("kv-token")), (planes, planes), "{class}");
        assert_eq!(compared("operators") > 0, class == "w4a16-free", "{class}");
    }
}

#[test]
fn a_fault_in_one_sequence_is_found_and_named() {
    let scene = Scene::new(LENGTHS);
    let missed = |class: &str, edit: fn(&mut Timed)| {
        let report = scene.judged(&scene.rig("paged", class), edit);
        let first = report.misses.first().expect("a miss").clone();
        (first.check, first.at)
    };
    let (check, at) = missed("w4a16", |t| {
        let logit = &mut t.tokens[2].logits[3];
        *logit = f32::from_bits(logit.to_bits() ^ 1);
    });
    assert_eq!((check.as_str(), at.contains("round 0 sequence 2 token 3")), ("emulation-logit", true), "{at}");
    let (check, at) = missed("w4a16", |t| t.tokens[1].ids[4] ^= 1);
    assert_eq!((check.as_str(), at.contains("round 0 sequence 1 token 4")), ("rounds-agree", true), "{at}");
    let (check, at) = missed("w4a16", |t| t.tokens.swap(0, 1));
    assert_eq!((check.as_str(), at.contains("round 0 sequence 0")), ("rounds-agree", true), "{at}");
}

#[test]
fn what_does_not_run_together_is_refused_with_why() {
    let scene = Scene::new(LENGTHS);
    let refused = |rig: &Rig<'_>, requests: &[ClockedRequest]| {
        clock_together(&mut rig.engine().unwrap(), requests).unwrap_err().to_string()
    };
    let said = refused(&scene.rig("recompute", "w4a16"), &scene.requests);
    assert!(said.contains("cannot run beside others: this plan keeps no cache"), "{said}");
    let mut longer = scene.requests.clone();
    longer[1].prompt.pop();
    let said = refused(&scene.rig("paged", "w4a16"), &longer);
    assert!(said.contains("only equal lengths"), "{said}");
    let narrow = Rig { sequences: 2, ..scene.rig("paged", "w4a16") };
    let said = refused(&narrow, &scene.requests);
    assert!(said.contains("2 of 3 sequences in one step") || said.contains("QueueFull"), "{said}");
    assert!(refused(&scene.rig("paged", "w4a16"), &[]).contains("has no sequence"));
}

#[test]
fn floors_count_weights_once_and_the_cache_of_each() {
    let scene = Scene::new(Lengths { depth: 7, ..LENGTHS });
    let rig = scene.rig("paged", "w4a16");
    let engine = rig.engine().unwrap();
    let plan = &engine.resolved().last().unwrap().plan;
    let one = demands(plan, from_ref(&scene.requests[0]), FLOP_CEILING);
    let all = demands(plan, &scene.requests, FLOP_CEILING);
    let n = SEQUENCES as u64;
    for (one, all) in [(&one.prefill, &all.prefill), (&one.decode, &all.decode)] {
        let (one, all) = (one.available().unwrap(), all.available().unwrap());
        assert_eq!((all.kv_read_bytes, all.kv_write_bytes), (n * one.kv_read_bytes, n * one.kv_write_bytes));
        assert_eq!(all.flops, n * one.flops);
        // Rows of the embedding are each token's own; everything else is read once.
        assert!(
            all.weight_bytes > one.weight_bytes && all.weight_bytes < one.weight_bytes * 11 / 10,
            "{all:?} {one:?}"
        );
    }
    // Of another engine: the same cache and products, and its own bytes of matrices in every step.
    let theirs = demands_of_shape(scene.model.config(), &scene.requests, (1000, 2), "dot-int8");
    for (steps, ours, theirs) in [(1, &all.prefill, &theirs.prefill), (5, &all.decode, &theirs.decode)] {
        let (ours, theirs) = (ours.available().unwrap(), theirs.available().unwrap());
        assert_eq!((ours.kv_read_bytes, ours.kv_write_bytes), (theirs.kv_read_bytes, theirs.kv_write_bytes));
        assert_eq!((theirs.weight_bytes, theirs.flop_ceiling.as_str()), (1000 * steps, "dot-int8"));
        // Norms and rotations are a plan's own.
        assert!(theirs.flops <= ours.flops && theirs.flops > ours.flops * 9 / 10, "{theirs:?} {ours:?}");
    }
    let work = facts::work(&rig, &scene.requests).unwrap();
    assert_eq!((work.rows, work.prompt_lengths, work.output_lengths), (3, vec![20; 3], vec![6; 3]));
    assert_ne!(work.prompt_ids_sha256, facts::work(&rig, from_ref(&scene.requests[0])).unwrap().prompt_ids_sha256);
}
