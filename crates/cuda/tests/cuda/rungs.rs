//! The ladder on a device: in a class in any order a rung binds the kernels that it is about, in one in the reference's order
//! all rungs bind the same; launches that mix both run and give what the reference gives.

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
        let lengths = Lengths { depth: 0, prompt_tokens: 30, output_tokens: 3 };
        let request = ClockedRequest::drawn(lengths, model.config().vocab, 1).unwrap();
        Self { model, request }
    }

    fn engine(&self, plan: &str, class: &str, backend: Box<dyn Backend>) -> Engine {
        let rig = Rig {
            model: &self.model,
            on: On::Cpu,
            cpu: CpuConfig { threads: 2, isa: detect_isa(), pin: false },
            plan: PlanSpec::find(plan).unwrap(),
            class: Class::by_name(class).unwrap(),
            context: self.request.total_tokens(),
            max_rows: 24,
            delay: None,
        };
        rig.engine_on(backend).unwrap()
    }

    /// Every rung runs and draws what it drew in the reference's order, of which there is one.
    fn run(&self, backend: impl Fn() -> Box<dyn Backend>) {
        let ids = |plan, class| clock(&mut self.engine(plan, class, backend()), &self.request).unwrap().ids;
        let want = ids("paged", "w4a16");
        for plan in ["readable-recompute", "readable-kv-cache", "quantized-matvec", "swiglu", "tiled-prefill"] {
            assert_eq!(ids(plan, "w4a16"), want, "{plan}");
            assert_eq!(ids(plan, "w4a16-free").len(), want.len(), "{plan}");
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
    let spec = PlanSpec::find("split-k").unwrap();
    let refused = spec.runs(&emulated().describe().name, Class::by_name("w4a16").unwrap()).unwrap_err().to_string();
    assert!(refused.contains("cuda") && refused.contains("share the columns"), "{refused}");
}

#[test]
fn rungs_run() {
    Scene::new().run(emulated);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_rungs_run() {
    Scene::new().run(|| Box::new(CudaBackend::new(Driver::open(gpu(false)).unwrap())));
}
