//! Plans by hand for tests of gated units: weights of noise, calls bound to kernels of a kind, steps of rows that attend to
//! nothing.

use half::bf16;
use tare_core::{Blob, DType, Format, Weight};
use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, Fit, ForwardPlan, KvShape, Op, OpCall, RopeStyle, RopeTable, Rounding, Row,
    RowSpace, TokenSource, Variant, Wants, WeightId, WeightInfo,
};

pub(crate) const VOCAB: usize = 37;
pub(crate) const ROWS: usize = 45;

/// A backend that has every kernel of tiles, over emulated tiles too.
pub(crate) fn backend(threads: usize) -> CpuBackend {
    tare_emulated::backend(CpuConfig { threads, isa: detect_isa(), pin: false, keep_workers: false }).unwrap()
}

/// Noise of size `size`.
fn noise(n: usize, seed: u32, size: f32) -> impl Iterator<Item = f32> {
    let mut state = seed | 1;
    (0..n).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * size
    })
}

/// A weight of noise: plain, or in Q8_0.
pub(crate) fn weight(name: &str, format: Format, rows: usize, cols: usize, seed: u32) -> Weight {
    let bytes: Vec<u8> = match format {
        Format::BF16 => noise(rows * cols, seed, 0.3).flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
        Format::F32 => noise(rows * cols, seed, 1.0).flat_map(f32::to_le_bytes).collect(),
        _ => {
            let mut bytes: Vec<u8> = noise(rows * cols / 32 * 34, seed, 127.0).map(|x| x as i8 as u8).collect();
            let scale = half::f16::from_f32(0.002).to_le_bytes();
            bytes.chunks_exact_mut(34).for_each(|b| b[..2].copy_from_slice(&scale));
            bytes
        }
    };
    Weight::blocks(name, format, rows, cols, Blob::from_vec(bytes)).unwrap()
}

/// Weights that `backend` has taken, in order.
pub(crate) fn packed(backend: &mut dyn Backend, all: &[Weight]) -> Vec<WeightInfo> {
    let mut info = |w: &Weight| {
        let (id, name, format) = (backend.pack(w).unwrap(), w.name().to_string(), w.format());
        WeightInfo { id, name, format, rows: w.rows(), cols: w.cols(), bytes: w.bytes() }
    };
    all.iter().map(&mut info).collect()
}

/// A linear without a bias over rounded rows.
pub(crate) fn linear(x: u16, weight: WeightId, accumulate: bool, out: u16) -> Op {
    Op::Linear { x: BufId(x), weight, bias: None, accumulate, rounding: Rounding::Bf16, out: BufId(out) }
}

/// A buffer of the plan.
pub(crate) fn buffer(name: &str, width: usize, rows: RowSpace) -> Buffer {
    Buffer { name: name.into(), width, rows }
}

/// The plan of `ops`, each on the first kernel that takes it and is `wanted`.
pub(crate) fn planned(
    backend: &dyn Backend,
    buffers: Vec<Buffer>,
    weights: Vec<WeightInfo>,
    ops: impl IntoIterator<Item = Op>,
    wanted: impl Fn(&Variant) -> bool,
) -> ForwardPlan {
    let mut plan = ForwardPlan {
        name: "units".into(),
        class: "w8a16-free".into(),
        bucket: Bucket { rows: ROWS, selected: ROWS },
        buffers,
        calls: ops.into_iter().map(|op| OpCall { op, kernel: String::new(), layer: None }).collect(),
        weights,
        rope: RopeTable { inv_freq: Vec::new(), factor: 1.0, style: RopeStyle::HalfSplit },
        kv: KvShape { layers: 1, kv_heads: 1, head_size: 1, dtype: DType::F32 },
    };
    let isa = backend.describe().isa;
    for i in 0..plan.calls.len() {
        let op = &plan.calls[i].op;
        let shape = plan.shape_of(op, ROWS, 1);
        let takes = |v: &&Variant| v.op == op.name() && !matches!(v.fit(&shape, &isa), Fit::No { .. }) && wanted(v);
        plan.calls[i].kernel = backend.variants().iter().find(takes).unwrap().key.clone();
    }
    plan
}

/// A step of `rows` that wants the logits of all.
pub(crate) fn batch(rows: usize) -> Batch {
    let row = |t: u32| Row {
        token: TokenSource::Id(t * 5 % VOCAB as u32),
        position: t,
        table: 0,
        slot: t,
        context: 1,
        wants: Wants::Logits,
    };
    Batch { rows: (0..rows as u32).map(row).collect(), ..Batch::default() }
}
