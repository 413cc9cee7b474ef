//! Steps with activations in integers: the same bits on every level and thread count, those of the reference in 8 bits; one
//! layout for each weight, one conversion for all linears that read the same rows.

use half::f16;
use tare_core::{Blob, DType, Format, Weight};
use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, Class, Executable, Fit, ForwardPlan, Isa, KvShape, Op, OpCall, OpError,
    ReferenceBackend, RopeStyle, RopeTable, Row, RowSpace, StepOutput, TokenSource, Variant, Wants, WeightId,
    WeightInfo,
};

const VOCAB: usize = 50;
const HIDDEN: usize = 96;
const FFN: usize = 160;
const ROWS: usize = 70;

/// Random quants under small scales; `halves` of the block are F16.
fn weight(name: &str, format: Format, (rows, cols): (usize, usize), halves: usize) -> Weight {
    let mut state = name.len() as u32 * 7919 + rows as u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let mut bytes: Vec<u8> = (0..rows * format.row_bytes(cols).unwrap()).map(|_| next()).collect();
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for half in block[..2 * halves].as_chunks_mut::<2>().0 {
            *half = f16::from_f32((f32::from(next()) - 120.0) * 1e-4).to_le_bytes();
        }
    }
    Weight::blocks(name, format, rows, cols, Blob::from_vec(bytes)).unwrap()
}

/// A gated unit between a table and itself as the head. Weights are packed once, so that plans share them.
struct Model {
    weights: Vec<WeightInfo>,
}

impl Model {
    fn pack(backend: &mut dyn Backend) -> Self {
        let all = [
            weight("table", Format::Q8_0, (VOCAB, HIDDEN), 1),
            weight("gate", Format::Q4_0, (FFN, HIDDEN), 1),
            weight("up", Format::Q5_0, (FFN, HIDDEN), 1),
            weight("down", Format::Q4_1, (HIDDEN, FFN), 2),
        ];
        let info = |w: &Weight| {
            let (rows, cols) = (w.rows(), w.cols());
            let id = backend.pack(w).unwrap();
            WeightInfo { id, name: w.name().into(), format: w.format(), rows, cols, bytes: w.bytes() }
        };
        Self { weights: all.iter().map(info).collect() }
    }

    fn plan(&self, backend: &dyn Backend, class: &str) -> ForwardPlan {
        let class = Class::by_name(class).unwrap();
        let rounding = class.rounding;
        let buffer = |name: &str, width, rows| Buffer { name: name.into(), width, rows };
        let [table, gate, up, down] = [0, 1, 2, 3].map(|i: usize| self.weights[i].id);
        let linear = |x, weight, accumulate, out| Op::Linear {
            x: BufId(x),
            weight,
            bias: None,
            accumulate,
            rounding,
            out: BufId(out),
        };
        let ops = [
            Op::Embedding { table, out: BufId(0) },
            linear(0, gate, false, 1),
            linear(0, up, false, 2),
            Op::SwiGlu { gate: BufId(1), up: BufId(2), out: BufId(1) },
            linear(1, down, true, 0),
            Op::SelectRows { x: BufId(0), out: BufId(3) },
            linear(3, table, false, 4),
            Op::Sample { logits: BufId(4) },
        ];
        let mut plan = ForwardPlan {
            name: "panels".into(),
            class: class.name.into(),
            bucket: Bucket { rows: ROWS, selected: ROWS },
            buffers: vec![
                buffer("hidden", HIDDEN, RowSpace::All),
                buffer("gate", FFN, RowSpace::All),
                buffer("up", FFN, RowSpace::All),
                buffer("picked", HIDDEN, RowSpace::Selected),
                buffer("logits", VOCAB, RowSpace::Selected),
            ],
            weights: self.weights.clone(),
            rope: RopeTable { inv_freq: Vec::new(), factor: 1.0, style: RopeStyle::HalfSplit },
            kv: KvShape { layers: 1, kv_heads: 1, head_size: 1, dtype: DType::F32 },
            calls: ops.into_iter().map(|op| OpCall { op, kernel: String::new(), layer: None }).collect(),
        };
        let isa = backend.describe().isa;
        for i in 0..plan.calls.len() {
            let op = &plan.calls[i].op;
            let shape = plan.shape_of(op, 1, 1);
            let fits = |v: &&Variant| {
                v.op == op.name() && class.allows(v.order).is_ok() && !matches!(v.fit(&shape, &isa), Fit::No { .. })
            };
            plan.calls[i].kernel = backend.variants().iter().find(fits).unwrap().key.clone();
        }
        plan
    }
}

fn cpu(threads: usize, level: Isa) -> CpuBackend {
    CpuBackend::new(CpuConfig { threads, isa: detect_isa().up_to(level), pin: false, keep_workers: false }).unwrap()
}

/// Each level of this host, and thread counts.
fn hosts() -> impl Iterator<Item = (usize, Isa)> {
    let levels = detect_isa().levels().to_vec();
    levels.into_iter().flat_map(|level| [(1, level), (2, level), (3, level)])
}

/// `rows` tokens, of which every third row and the last one want their logits.
fn batch(rows: usize) -> Batch {
    let row = |t: usize| Row {
        token: TokenSource::Id((t * 17 % VOCAB) as u32),
        position: t as u32,
        table: 0,
        slot: t as u32,
        context: 1,
        wants: if t.is_multiple_of(3) || t + 1 == rows { Wants::Logits } else { Wants::Nothing },
    };
    Batch { rows: (0..rows).map(row).collect(), ..Batch::default() }
}

fn answers(backend: &mut dyn Backend, exe: Executable) -> Vec<Vec<u32>> {
    let mut out = StepOutput::default();
    let answer = |rows| {
        backend.run(exe, &batch(rows), &mut out).unwrap();
        out.rows.iter().flat_map(|r| r.logits.iter().map(|x| x.to_bits())).collect()
    };
    [1, 2, 7, 64, ROWS].into_iter().map(answer).collect()
}

fn compiled(backend: &mut dyn Backend, model: &Model, class: &str) -> Result<Executable, OpError> {
    let plan = model.plan(backend, class);
    backend.compile(&plan)
}

#[test]
fn steps_are_bitwise_those_of_the_reference() {
    for class in ["w4a8", "w4a15"] {
        let mut reference = ReferenceBackend::new();
        let model = Model::pack(&mut reference);
        let exe = compiled(&mut reference, &model, class).unwrap();
        let want = answers(&mut reference, exe);
        for (threads, level) in hosts() {
            let mut backend = cpu(threads, level);
            let model = Model::pack(&mut backend);
            let exe = compiled(&mut backend, &model, class).unwrap();
            assert_eq!(answers(&mut backend, exe), want, "{class}: {threads} threads, up to {level}");
        }
    }
}

/// A class in any order has no reference to the bit, and yet its steps are the same everywhere.
#[test]
fn steps_in_any_order_are_the_same_on_every_level() {
    let mut portable = cpu(1, Isa::Portable);
    let model = Model::pack(&mut portable);
    let exe = compiled(&mut portable, &model, "w4a16-free").unwrap();
    let want = answers(&mut portable, exe);
    for (threads, level) in hosts().filter(|(_, level)| *level != Isa::Amx) {
        let mut backend = cpu(threads, level);
        let model = Model::pack(&mut backend);
        let exe = compiled(&mut backend, &model, "w4a16-free").unwrap();
        assert_eq!(answers(&mut backend, exe), want, "{threads} threads, up to {level}");
    }
}

#[test]
fn linears_that_read_the_same_rows_share_one_conversion() {
    let mut backend = cpu(2, Isa::Amx);
    let model = Model::pack(&mut backend);
    let exe = compiled(&mut backend, &model, "w4a8").unwrap();
    let ran = backend.dispatches(exe, &batch(3)).unwrap();
    let calls: Vec<usize> = ran.iter().filter(|d| d.stage == "quantize").map(|d| d.call).collect();
    assert_eq!(calls, [1, 4, 6], "gate with up, down, head");
    let embedding = ran.iter().find(|d| d.call == 0).unwrap();
    assert_eq!(embedding.kernel, "embedding.q8_0.panels.portable", "the table is read where the head has it");
}

#[test]
fn a_weight_is_kept_in_one_layout_and_older_executables_go_on() {
    let mut backend = cpu(2, Isa::Amx);
    let model = Model::pack(&mut backend);
    let exact = compiled(&mut backend, &model, "f32").unwrap();
    let before = answers(&mut backend, exact);
    let rounded = compiled(&mut backend, &model, "w4a8").unwrap();
    assert_ne!(answers(&mut backend, rounded), before);
    assert_eq!(answers(&mut backend, exact), before, "it keeps what it reads");
    let again = compiled(&mut backend, &model, "w4a8").unwrap();
    assert_eq!(answers(&mut backend, again), answers(&mut backend, rounded));
    let error = compiled(&mut backend, &model, "f32").unwrap_err().to_string();
    assert!(error.contains("table") && error.contains("pack the weight again"), "{error}");
}

#[test]
fn classes_that_read_panels_share_them() {
    let mut backend = cpu(2, Isa::Avx512Vnni);
    let model = Model::pack(&mut backend);
    let plan = model.plan(&backend, "w4a16-free");
    let in_panels =
        |call: &OpCall| call.op.matrix().is_none() || call.kernel.contains(".i16.") || call.kernel.contains(".panels.");
    assert!(plan.calls.iter().all(in_panels), "{:?}", plan.calls);
    let free = backend.compile(&plan).unwrap();
    let before = answers(&mut backend, free);
    let eight = compiled(&mut backend, &model, "w4a8").unwrap();
    assert_ne!(answers(&mut backend, eight), before);
    assert_eq!(answers(&mut backend, free), before);
    let error = compiled(&mut backend, &model, "w4a16").unwrap_err().to_string();
    assert!(error.contains("table") && error.contains("pack the weight again"), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn pages_count_what_is_held_and_what_older_executables_keep() {
    let mut backend = cpu(2, Isa::Amx);
    let model = Model::pack(&mut backend);
    let file: u64 = model.weights.iter().map(|w| w.bytes as u64).sum();
    let weights = |backend: &CpuBackend| backend.pages().available().unwrap()["weights"].bytes;
    assert_eq!(weights(&backend), file);
    let exact = compiled(&mut backend, &model, "f32").unwrap();
    assert_eq!(weights(&backend), file, "no copy for kernels that read the file's layout");
    compiled(&mut backend, &model, "w4a8").unwrap();
    let both = weights(&backend);
    compiled(&mut backend, &model, "w4a8").unwrap();
    assert_eq!(weights(&backend), both, "plans share panels");
    backend.release(exact);
    let panels = weights(&backend);
    assert_eq!(panels, both - file, "panels alone");
    assert!((file..2 * file).contains(&panels), "{panels} bytes of panels for {file} of the file");
}

#[test]
fn kernels_of_other_arithmetic_are_refused() {
    let mut backend = cpu(1, Isa::Amx);
    let model = Model::pack(&mut backend);
    let refused = |backend: &mut CpuBackend, change: &dyn Fn(&mut ForwardPlan)| {
        let mut plan = model.plan(backend, "w4a8");
        change(&mut plan);
        backend.compile(&plan).unwrap_err().to_string()
    };
    let error = refused(&mut backend, &|p| p.calls[1].kernel = "linear.q4_0.portable".into());
    assert!(error.contains("activations in int8"), "{error}");
    let plain = Weight::blocks("plain", Format::F32, FFN, HIDDEN, Blob::from_vec(vec![0; FFN * HIDDEN * 4])).unwrap();
    let id = backend.pack(&plain).unwrap();
    let info = |id: WeightId| WeightInfo {
        id,
        name: "plain".into(),
        format: Format::F32,
        rows: FFN,
        cols: HIDDEN,
        bytes: plain.bytes(),
    };
    let error = refused(&mut backend, &|p| {
        p.weights.push(info(id));
        if let Op::Linear { weight, .. } = &mut p.calls[1].op {
            *weight = id;
        }
    });
    assert!(error.contains("packed format") && error.contains("f32"), "{error}");
}
