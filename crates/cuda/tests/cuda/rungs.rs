//! The ladder on a device: in a class in any order a rung binds the kernels that it is about, in one in the reference's order
//! all rungs bind the same; steps that mix both kinds run.

use crate::emulator::Emulator;
use crate::gpu;
use tare_cpu::{CpuConfig, detect_isa};
use tare_cuda::{CudaBackend, Driver};
use tare_engine::Engine;
use tare_lab::clock::clock;
use tare_lab::{ClockedRequest, Lengths, On, Rig};
use tare_model::{Model, PlanSpec};
use tare_ops::{Backend, Class, OpName};

const RUNGS: [&str; 10] = [
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
];

struct Scene {
    model: Model,
    request: ClockedRequest,
}

impl Scene {
    fn new() -> Self {
        let model = Model::open("synthetic:qwen3-tiny?format=w4g128").unwrap();
        let lengths = Lengths { depth: 0, prompt_tokens: 18, output_tokens: 3 };
        let request = ClockedRequest::drawn(lengths, model.config().vocab, 1).unwrap();
        Self { model, request }
    }

    fn engine(&self, plan: &str, class: &str, backend: Box<dyn Backend>) -> Engine {
        let rig = Rig {
            model: &self.model,
            on: On::Cpu,
            cpu: CpuConfig { threads: 2, isa: detect_isa(), pin: false, keep_workers: false },
            plan: PlanSpec::find(plan).unwrap(),
            class: Class::by_name(class).unwrap(),
            sequences: 1,
            context: self.request.total_tokens(),
            max_rows: 24,
            delay: None,
        };
        rig.engine_on(backend).unwrap()
    }

    /// Rungs that mix kernels of both kinds run to their end.
    fn run(&self, plans: &[(&str, &str)], backend: impl Fn() -> Box<dyn Backend>) {
        for (plan, class) in plans {
            let tokens = clock(&mut self.engine(plan, class, backend()), &self.request).unwrap().tokens;
            assert_eq!(tokens[0].ids.len(), 3, "{plan} {class}");
        }
    }
}

fn emulated() -> Box<dyn Backend> {
    Box::new(CudaBackend::new(Emulator::default()))
}

/// The kernels of `op` at one row and in the widest bucket.
fn kernels(engine: &Engine, op: OpName) -> [String; 2] {
    let ends = [engine.resolved().first(), engine.resolved().last()];
    ends.map(|r| r.unwrap().choices.iter().find(|c| c.op == op).unwrap().chosen.clone())
}

#[test]
fn a_rung_binds_what_it_is_about() {
    let scene = Scene::new();
    let of = |plan, op| kernels(&scene.engine(plan, "w4a16-free", emulated()), op);
    assert_eq!(of("readable-capacity-cache", OpName::Linear), ["linear.w4g128.cuda"; 2].map(String::from));
    assert_eq!(
        of("quantized-matvec", OpName::Linear),
        ["linear.w4g128.gemv.cuda", "linear.w4g128.cuda"].map(String::from)
    );
    let [few, many] = of("simd-matmul", OpName::Linear);
    assert!(few.contains("gemv") && many.contains("mma"), "{few}, {many}");
    assert_eq!(of("simd-matmul", OpName::RmsNorm), ["rms_norm.cuda"; 2].map(String::from));
    assert_eq!(of("rmsnorm", OpName::RmsNorm), ["rms_norm.block.cuda"; 2].map(String::from));
    let [few, many] = of("tiled-prefill", OpName::Attention);
    assert!(few == "attention.cuda" && many.contains("mma"), "{few}, {many}");
    let [few, many] = of("decode-attention", OpName::Attention);
    assert!(few.contains("split") && many.contains("mma"), "{few}, {many}");
}

#[test]
fn in_the_references_order_every_rung_binds_the_same() {
    let scene = Scene::new();
    let bound = |plan: &str| {
        let engine = scene.engine(plan, "w4a16", emulated());
        let keys = |r: &tare_model::Resolved| r.plan.calls.iter().map(|c| c.kernel.clone()).collect::<Vec<_>>();
        engine.resolved().iter().map(keys).collect::<Vec<_>>()
    };
    let all = RUNGS.map(bound);
    assert!(all.iter().all(|b| *b == all[0]));
    let refused = |plan: &str, class: &str| {
        let (spec, class) = (PlanSpec::find(plan).unwrap(), Class::by_name(class).unwrap());
        spec.runs(&emulated().describe().name, class).unwrap_err().to_string()
    };
    let said = refused("split-k", "w4a16");
    assert!(said.contains("cuda") && said.contains("share the columns"), "{said}");
    let said = refused("deterministic", "w4a16-free");
    assert!(said.ends_with("take class w4a16"), "{said}");
}

#[test]
fn rungs_run() {
    Scene::new().run(&[("quantized-matvec", "w4a16-free"), ("tiled-prefill", "w4a16-free")], emulated);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_rungs_run() {
    let scene = Scene::new();
    for plan in RUNGS {
        let on_a_gpu = || Box::new(CudaBackend::new(Driver::open(gpu(false)).unwrap())) as Box<dyn Backend>;
        scene.run(&[(plan, "w4a16-free"), (plan, "w4a16")], on_a_gpu);
    }
}
