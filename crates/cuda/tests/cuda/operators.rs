//! The gate's look at every launch, of models in classes in any order: a healthy run passes, and each planted fault is found
//! by it alone, at the call that made it.

use crate::emulator::Emulator;
use crate::gpu;
use tare_cpu::{CpuConfig, detect_isa};
use tare_cuda::{CudaBackend, Driver};
use tare_evidence::gate::GateReport;
use tare_evidence::samples::RowTokens;
use tare_formats::{Part, Role};
use tare_lab::clock::clock;
use tare_lab::gate::{Gate, Run};
use tare_lab::mutation::{Mutant, Mutation};
use tare_lab::thresholds::Thresholds;
use tare_lab::{ClockedRequest, Lengths, On, ReferenceStore, Rig};
use tare_model::{Model, PlanSpec};
use tare_ops::{Backend, Class};

/// Two chunks in tiles of rows, pages of four tokens, steps of one row.
const CHUNKS: Lengths = Lengths { depth: 0, prompt_tokens: 44, output_tokens: 4 };
/// Steps of one row alone, whose launches carry most calls.
const SINGLE: Lengths = Lengths { depth: 0, prompt_tokens: 1, output_tokens: 3 };

/// Models and classes that add in any order.
const BF16: (&str, &str) = ("synthetic:qwen3-tiny?format=bf16", "bf16-free");
const W4: (&str, &str) = ("synthetic:qwen3-tiny?format=w4g128", "w4a16-free");
const W8: (&str, &str) = ("synthetic:qwen3-tiny?format=q8_0", "w8a16-free");

/// A model, what is asked of it, and where it runs.
struct Scene<F> {
    model: Model,
    class: &'static str,
    request: ClockedRequest,
    backend: F,
}

impl<B: Backend + 'static, F: Fn() -> B> Scene<F> {
    fn new((model, class): (&str, &'static str), lengths: Lengths, backend: F) -> Self {
        let model = Model::open(model).unwrap();
        let request = ClockedRequest::drawn(lengths, model.config().vocab, 1).unwrap();
        Self { model, class, request, backend }
    }

    fn rig(&self) -> Rig<'_> {
        Rig {
            model: &self.model,
            on: On::Cpu,
            cpu: CpuConfig { threads: 2, isa: detect_isa(), pin: false, keep_workers: false },
            plan: PlanSpec { page_tokens: Some(4), ..PlanSpec::find("paged").unwrap() },
            class: Class::by_name(self.class).unwrap(),
            sequences: 1,
            context: self.request.total_tokens(),
            max_rows: 24,
            delay: None,
        }
    }

    /// Tokens of a run on `backend`; none of one that ended early.
    fn timed(&self, backend: Box<dyn Backend>) -> Option<Vec<RowTokens>> {
        clock(&mut self.rig().engine_on(backend).unwrap(), &self.request).ok().map(|t| t.tokens)
    }

    /// What the check of launches says of runs on such backends.
    fn judged(&self, make: impl Fn() -> Box<dyn Backend>) -> GateReport {
        let rig = self.rig();
        let healthy = || self.timed(Box::new((self.backend)())).unwrap();
        let rows = self.timed(make()).unwrap_or_else(healthy);
        let (thresholds, store) = (Thresholds::built_in().unwrap(), ReferenceStore::none());
        let gate =
            Gate { rig: &rig, requests: std::slice::from_ref(&self.request), thresholds: &thresholds, store: &store };
        let mut report = GateReport { thresholds_version: String::new(), checks: vec![], misses: vec![] };
        let run = Run { label: "run", rows: &rows };
        gate.judge_operators(&mut rig.engine_on(make()).unwrap(), &run, &mut report).unwrap();
        report
    }

    fn healthy(&self) {
        let report = self.judged(|| Box::new((self.backend)()));
        assert!(report.misses.is_empty(), "{}: {:#?}", self.class, report.misses);
        let check = &report.checks[0];
        assert!(check.compared > 100_000 && check.max_error > 0.0, "{}: {check:?}", self.class);
    }

    /// A fault is found at a call whose kernel begins with one of `kernels`.
    fn planted(&self, mutation: Mutation, spoiled: Role, kernels: &[&str]) {
        let spoiled = self.model.weight(spoiled).unwrap();
        let prompt = self.request.input().len() as u32;
        let mutant = || Mutant::new((self.backend)(), mutation, prompt, spoiled.name());
        let report = self.judged(|| Box::new(mutant().0));
        let named = |at: &str| kernels.iter().any(|k| at.contains(k));
        let (name, class) = (mutation.name(), self.class);
        assert!(report.misses.iter().any(|m| named(&m.at)), "{name} of {class}: {:#?}", report.misses);
    }

    fn all_planted(&self) {
        let last = self.model.config().layers - 1;
        for (mutation, kernels) in FOUND_AT {
            self.planted(mutation, Role::Layer { layer: last, part: Part::Down }, kernels);
        }
    }
}

/// Where each fault is found.
const FOUND_AT: [(Mutation, &[&str]); 12] = [
    (Mutation::PositionOffByOne, &["(kv_append"]),
    (Mutation::PageSwapped, &["(kv_append"]),
    (Mutation::PageSkipped, &["(attention"]),
    (Mutation::MaskOffByOne, &["(attention"]),
    (Mutation::StaleKvSlot, &["(kv_append"]),
    (Mutation::ScaleGroupShifted, &["(linear"]),
    (Mutation::ScaleGroupZeroed, &["(linear"]),
    (Mutation::WrongKvHead, &["(attention"]),
    (Mutation::ResidualDropped, &["(linear"]),
    (Mutation::LastMlpDropped, &["launch of calls"]),
    (Mutation::TailRowUnwritten, &["(linear"]),
    (Mutation::OneRowPrunedTooMany, &["(select_rows", "launch of calls"]),
];

fn emulated() -> CudaBackend<Emulator> {
    CudaBackend::new(Emulator::default())
}

fn on_a_gpu() -> CudaBackend<Driver> {
    CudaBackend::new(Driver::open(gpu(false)).unwrap())
}

#[test]
fn every_launch_of_a_healthy_run_passes() {
    for model in [BF16, W4, W8] {
        Scene::new(model, CHUNKS, emulated).healthy();
    }
}

#[test]
fn every_launch_of_a_single_call_passes() {
    Scene::new(W4, CHUNKS, || CudaBackend::unfused(Emulator::default())).healthy();
}

#[test]
fn every_fault_in_bf16_is_found_where_it_is_made() {
    Scene::new(BF16, CHUNKS, emulated).all_planted();
}

#[test]
fn every_fault_in_four_bits_is_found_where_it_is_made() {
    Scene::new(W4, CHUNKS, emulated).all_planted();
}

/// Norms, projections and the gated unit are one launch, norms of heads, rotation, append and attention another.
#[test]
fn a_fault_inside_a_launch_of_many_calls_is_found() {
    let scene = Scene::new(W8, SINGLE, emulated);
    for (part, kernel) in [
        (Part::Gate, "(swiglu"),
        (Part::FfnNorm, "(swiglu"),
        (Part::AttnNorm, "(linear"),
        (Part::QNorm, "(attention"),
        (Part::KNorm, "(kv_append"),
    ] {
        scene.planted(Mutation::ScaleGroupZeroed, Role::Layer { layer: 2, part }, &[kernel]);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_launches_pass_and_planted_faults_are_found() {
    for model in [BF16, W4, W8] {
        let scene = Scene::new(model, CHUNKS, on_a_gpu);
        scene.healthy();
        scene.all_planted();
    }
}
