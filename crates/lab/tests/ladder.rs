//! The ladder at a tiny shape: each rung adds one thing to the one below, all of them give the same bits and pass the gate,
//! and the gate still fails for a fault that is planted under readable kernels.

use std::collections::BTreeSet;
use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_engine::{Engine, EngineConfig, Event, Request, RequestId};
use tare_evidence::gate::Judgement;
use tare_lab::clock::{Timed, clock};
use tare_lab::gate::{Gate, Run};
use tare_lab::mutants::{self, Verdict};
use tare_lab::thresholds::Thresholds;
use tare_lab::{ClockedRequest, Lengths, On, ReferenceStore, Rig};
use tare_model::kernel_matrix::cells;
use tare_model::strategy::FEW_ROWS;
use tare_model::{CacheKind, Model, PlanSpec, classes};
use tare_ops::class::CLASSES;
use tare_ops::{Backend, Class, Isa, IsaSet, OpName, Order};

/// The rungs that a processor runs, from the bottom.
const RUNGS: [&str; 12] = [
    "readable-recompute",
    "readable-kv-cache",
    "readable-capacity-cache",
    "quantized-matvec",
    "simd-matmul",
    "rmsnorm",
    "rope",
    "swiglu",
    "tiled-prefill",
    "decode-attention",
    "selected",
    "paged",
];

fn model(format: &str) -> Model {
    Model::open(&format!("synthetic:qwen3-tiny?format={format}")).unwrap()
}

/// More tokens than count as few rows, in one chunk and a short one.
fn request(model: &Model) -> ClockedRequest {
    let lengths = Lengths { depth: 0, prompt_tokens: 40, output_tokens: 5 };
    ClockedRequest::drawn(lengths, model.config().vocab, 1).unwrap()
}

fn rig<'m>(model: &'m Model, request: &ClockedRequest, plan: &str, class: Class) -> Rig<'m> {
    Rig {
        model,
        on: On::Cpu,
        cpu: CpuConfig { threads: 2, isa: detect_isa(), pin: false, keep_workers: false },
        plan: PlanSpec::find(plan).unwrap(),
        class,
        sequences: 1,
        context: request.total_tokens(),
        max_rows: 32,
        delay: None,
    }
}

/// Ids and logits of a run, as bits.
fn bits(timed: &Timed) -> (Vec<u32>, Vec<u32>) {
    let row = &timed.tokens[0];
    (row.ids.clone(), row.logits.iter().map(|x| x.to_bits()).collect())
}

/// Asks the gate of a run.
fn passes(rig: &Rig<'_>, request: &ClockedRequest, engine: &mut Engine, timed: &Timed) {
    let (thresholds, store) = (Thresholds::built_in().unwrap(), ReferenceStore::none());
    let gate = Gate { rig, requests: std::slice::from_ref(request), thresholds: &thresholds, store: &store };
    let run = Run { label: "run", rows: &timed.tokens };
    let judgement = gate.judge(engine, &[run]).unwrap().judge().unwrap();
    assert!(matches!(judgement, Judgement::Passed(_)), "{} {}: {judgement:?}", rig.plan.name, rig.class.name);
}

/// Operators that run readable in buckets of few rows (false) and of many (true).
fn readable(rig: &Rig<'_>) -> BTreeSet<(OpName, bool)> {
    let engine = rig.engine().unwrap();
    let of = |r: &tare_model::Resolved| {
        let many = r.plan.bucket.rows > FEW_ROWS;
        r.fallbacks().map(|(c, _)| (c.op, many)).collect::<Vec<_>>()
    };
    engine.resolved().iter().flat_map(of).collect()
}

#[test]
fn each_rung_takes_one_thing_from_what_is_readable() {
    use OpName::{Attention, HeadNorm, Linear, RmsNorm, Rope, SwiGlu};
    if !detect_isa().has(Isa::Avx2) {
        return; // Every kernel of this host is the readable one.
    }
    let (model, class) = (model("w4g128"), Class::by_name("w4a16").unwrap());
    let request = request(&model);
    let adds: [&[(OpName, bool)]; 12] = [
        &[],
        &[],
        &[],
        &[(Linear, false)],
        &[(Linear, true)],
        &[(RmsNorm, false), (RmsNorm, true), (HeadNorm, false), (HeadNorm, true)],
        &[(Rope, false), (Rope, true)],
        &[(SwiGlu, false), (SwiGlu, true)],
        &[(Attention, true)],
        &[(Attention, false)],
        &[],
        &[],
    ];
    let mut left: BTreeSet<(OpName, bool)> = adds.iter().flat_map(|a| a.iter().copied()).collect();
    for (rung, adds) in RUNGS.iter().zip(adds) {
        adds.iter().for_each(|a| assert!(left.remove(a), "{rung}"));
        assert_eq!(readable(&rig(&model, &request, rung, class)), left, "{rung}");
    }
    assert!(left.is_empty());
}

#[test]
fn every_rung_gives_the_same_bits_and_passes_the_gate() {
    for (format, class) in [("w4g128", "w4a16"), ("q8_0", "w8a8")] {
        let (model, class) = (model(format), Class::by_name(class).unwrap());
        let request = request(&model);
        let mut said: Option<(Vec<u32>, Vec<u32>)> = None;
        for rung in RUNGS {
            let rig = rig(&model, &request, rung, class);
            let mut engine = rig.engine().unwrap();
            let timed = clock(&mut engine, &request).unwrap();
            let this = bits(&timed);
            assert_eq!(said.get_or_insert_with(|| this.clone()), &this, "{rung} {}", class.name);
            // The bits are those of one run that was judged: what a gate would say of the others is known.
            if class.name == "w4a16" || rung == RUNGS[0] {
                passes(&rig, &request, &mut engine, &timed);
            }
        }
    }
}

#[test]
fn a_rung_runs_in_a_class_in_any_order_and_passes_its_gate() {
    let (model, class) = (model("w4g128"), Class::by_name("w4a16-free").unwrap());
    let request = request(&model);
    for rung in ["readable-capacity-cache", "quantized-matvec", "tiled-prefill"] {
        let rig = rig(&model, &request, rung, class);
        let mut engine = rig.engine().unwrap();
        let timed = clock(&mut engine, &request).unwrap();
        passes(&rig, &request, &mut engine, &timed);
    }
}

#[test]
fn faults_under_readable_kernels_are_caught() {
    let model = model("w4g128");
    let lengths = Lengths { depth: 0, prompt_tokens: 48, output_tokens: 6 };
    let request = ClockedRequest::drawn(lengths, model.config().vocab, 0).unwrap();
    for class in ["w4a16", "w4a15"] {
        let mut rig = rig(&model, &request, "quantized-matvec", Class::by_name(class).unwrap());
        // In pages, which some of the faults are about.
        (rig.plan.cache, rig.plan.page_tokens) = (CacheKind::Paged, Some(16));
        let verdicts = mutants::run(&rig, &request, &ReferenceStore::none(), &mut |_| true).unwrap();
        let open: Vec<&Verdict> = verdicts.iter().filter(|v| !v.holds()).collect();
        assert!(open.is_empty() && verdicts.len() > 12, "{class}: {open:?}");
    }
}

#[test]
fn an_empty_rung_and_a_promise_that_a_class_cannot_keep_are_refused_by_name() {
    let model = model("w4g128");
    let request = request(&model);
    let refused = |plan: &str, class: &str| {
        let rig = rig(&model, &request, plan, Class::by_name(class).unwrap());
        rig.engine().map(|_| ()).unwrap_err().to_string()
    };
    let said = refused("split-k", "w4a16");
    assert!(said.contains("split-k") && said.contains("empty") && said.contains("decode-attention"), "{said}");
    let said = refused("deterministic", "w4a16-free");
    assert!(said.contains("chunks") && said.contains("take class w4a15"), "{said}");
    for plan in PlanSpec::names() {
        let refused = PlanSpec::find(plan).unwrap().refused;
        assert!(refused.keys().all(|b| ["cpu", "cuda"].contains(&b.as_str())), "{plan}: {refused:?}");
    }
}

#[test]
fn deterministic_gives_the_same_bits_on_other_threads_levels_and_chunks() {
    for format in ["w4g128", "bf16"] {
        let model = model(format);
        let request = request(&model);
        let fits = |c: &Class| c.order == Order::Reference && classes::choose(&model, Some(c.name)).is_ok();
        for class in CLASSES.into_iter().filter(fits) {
            let mut said: Option<(Vec<u32>, Vec<u32>)> = None;
            for (threads, max_rows, level) in [(1, 64, None), (2, 7, None), (3, 1, None), (2, 33, Some(Isa::Portable))]
            {
                let mut rig = rig(&model, &request, "deterministic", class);
                (rig.cpu.threads, rig.max_rows) = (threads, max_rows);
                rig.cpu.isa = level.map_or_else(detect_isa, |l| detect_isa().up_to(l));
                let timed = clock(&mut rig.engine().unwrap(), &request).unwrap();
                let this = bits(&timed);
                let first = said.get_or_insert_with(|| this.clone());
                assert_eq!(first, &this, "{format} {}: {threads} threads, chunks of {max_rows}", class.name);
            }
        }
    }
}

/// Six tokens and their log-probabilities, as bits, after each prompt.
fn answers(engine: &mut Engine, prompts: &[Vec<u32>]) -> Vec<Vec<(u32, u32)>> {
    let ids: Vec<RequestId> = prompts.iter().map(|p| engine.submit(Request::greedy(p.clone(), 6)).unwrap()).collect();
    let mut said = vec![Vec::new(); ids.len()];
    while engine.has_work() {
        for event in engine.step().unwrap().events {
            let Event::Token { request, token, logprob, .. } = event else { continue };
            let at = ids.iter().position(|id| *id == request).unwrap();
            said[at].push((token, logprob.to_bits()));
        }
    }
    said
}

#[test]
fn deterministic_gives_the_same_bits_alone_and_in_a_burst() {
    let model = model("w4g128");
    let drawn = |(prompt_tokens, seed): (usize, u64)| {
        let lengths = Lengths { depth: 0, prompt_tokens, output_tokens: 6 };
        ClockedRequest::drawn(lengths, model.config().vocab, seed).unwrap().prompt
    };
    let prompts: Vec<Vec<u32>> = [33, 1, 18, 7, 40].into_iter().zip(1..).map(drawn).collect();
    for class in ["w4a16", "w4a8", "w4a15"] {
        let engine = |max_sequences, max_rows| {
            let plan = PlanSpec::find("deterministic").unwrap();
            let config = EngineConfig {
                kv_tokens: EngineConfig::kv_tokens_for(&plan, 64, max_sequences),
                plan,
                class: Class::by_name(class).unwrap(),
                context: 64,
                max_rows,
                max_sequences,
                max_queue: 8,
            };
            let cpu =
                CpuBackend::new(CpuConfig { threads: 2, isa: detect_isa(), pin: false, keep_workers: false }).unwrap();
            Engine::new(&model, Box::new(cpu), config).unwrap()
        };
        let mut one = engine(1, 64);
        let alone: Vec<_> = prompts.iter().flat_map(|p| answers(&mut one, std::slice::from_ref(p))).collect();
        for (sequences, rows) in [(5, 64), (3, 9)] {
            let burst = answers(&mut engine(sequences, rows), &prompts);
            assert_eq!(burst, alone, "{class}: {sequences} at a time, {rows} rows a step");
        }
    }
}

#[test]
fn on_a_host_with_avx512_the_readable_cells_are_the_three_that_the_readme_names() {
    if !cfg!(target_arch = "x86_64") {
        return; // Kernels of other levels are not in the binary.
    }
    // What would be bound there, on whatever host this is: nothing runs.
    let backend =
        CpuBackend::new(CpuConfig { threads: 1, isa: IsaSet::new([]), pin: false, keep_workers: false }).unwrap();
    let isa = IsaSet::new([Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni]);
    let all = cells(backend.variants(), &isa);
    let top = all.iter().filter(|c| c.level == Isa::Avx512Vnni);
    let readable: BTreeSet<&str> = top.filter(|c| c.is_readable()).map(|c| c.operator.name()).collect();
    assert_eq!(readable, BTreeSet::from(["embedding", "kv_append", "select_rows"]));
    let readme = std::fs::read_to_string(tare_testkit::workspace().join("README.md")).unwrap();
    assert!(readme.contains("`tare doctor --kernels`"), "README says where readable cells are named");
    for operator in readable {
        assert!(readme.contains(&format!("`{operator}`")), "README names the readable cell of {operator}");
    }
}
