//! The feed-forward part in tiles on an emulated device, and on a real one: products that share rows, the gated unit
//! between them, packed weights. Close to the reference, and every row the same whatever travels beside it.

use half::bf16;
use tare_core::{AffineBits, Blob, DType, Format, Weight};
use tare_cuda::{CudaBackend, Driver};
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, ForwardPlan, KvShape, Op, OpCall, ReferenceBackend, RopeStyle, RopeTable,
    Rounding, Row, RowSpace, StepOutput, TokenSource, Wants, WeightId, WeightInfo,
};

use crate::emulator::Emulator;
use crate::gpu;

/// Rows, widths and the format of one case.
#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: usize,
    hidden: usize,
    inner: usize,
    format: Format,
}

const W4: Format = Format::Affine { bits: AffineBits::Four, group: 64 };

/// Each gated tile once, full and padded columns, weights as they are and packed.
const SHAPES: [Shape; 4] = [
    Shape { rows: 500, hidden: 64, inner: 100, format: Format::BF16 },
    Shape { rows: 100, hidden: 200, inner: 200, format: Format::BF16 },
    Shape { rows: 100, hidden: 130, inner: 100, format: Format::BF16 },
    Shape { rows: 40, hidden: 64, inner: 192, format: W4 },
];

/// Numbers in [-1, 1), a function of the seed.
fn noise(seed: u32, n: usize) -> impl Iterator<Item = f32> {
    (0..n as u32).map(move |i| {
        let x = (i + 1).wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(2_246_822_519));
        ((x ^ x >> 15).wrapping_mul(2_654_435_769) >> 8) as f32 / (1 << 23) as f32 - 1.0
    })
}

fn weight(name: &str, format: Format, rows: usize, cols: usize, seed: u32) -> Weight {
    let bytes = |n: usize| Blob::from_vec(noise(seed, n).map(|x| (x * 127.0) as i8 as u8).collect());
    let halves = |n: usize, size: f32| {
        Blob::from_vec(noise(seed + 1, n).flat_map(|x| bf16::from_f32(x * size).to_le_bytes()).collect())
    };
    match format {
        Format::Affine { bits, group } => {
            let groups = rows * cols / group as usize;
            let data = tare_core::Affine {
                words: bytes(rows * cols * bits.bits() / 8),
                scales: halves(groups, 0.02),
                biases: halves(groups, 0.2),
                scale_dtype: DType::BF16,
            };
            Weight::affine(name, bits, group, (rows, cols), data).unwrap()
        }
        Format::BF16 => Weight::blocks(name, format, rows, cols, halves(rows * cols, 0.3)).unwrap(),
        _ => {
            let values = noise(seed, rows * cols).flat_map(|x| (2.0 * x).to_le_bytes()).collect();
            Weight::blocks(name, Format::F32, rows, cols, Blob::from_vec(values)).unwrap()
        }
    }
}

/// `down(silu(gate x) * (up x))` of as many rows, by the kernels that `keys` names for products and the gated unit.
fn feed_forward(backend: &mut dyn Backend, s: Shape, rows: usize, keys: impl Fn(&Op, &str) -> String) -> Vec<f32> {
    let [x, gate, up, y, picked] = [0, 1, 2, 3, 4].map(BufId);
    let weights = [
        weight("table", Format::F32, s.rows, s.hidden, 1),
        weight("gate", s.format, s.inner, s.hidden, 3),
        weight("up", s.format, s.inner, s.hidden, 5),
        weight("down", s.format, s.hidden, s.inner, 7),
    ];
    let ids: Vec<WeightId> = weights.iter().map(|w| backend.pack(w).unwrap()).collect();
    let linear =
        |x, weight, out| Op::Linear { x, weight, bias: None, accumulate: false, rounding: Rounding::Bf16, out };
    let ops = [
        Op::Embedding { table: ids[0], out: x },
        linear(x, ids[1], gate),
        linear(x, ids[2], up),
        Op::SwiGlu { gate, up, out: gate },
        linear(gate, ids[3], y),
        Op::SelectRows { x: y, out: picked },
        Op::Sample { logits: picked },
    ];
    let buffer = |name: &str, width, rows| Buffer { name: name.into(), width, rows };
    let info = |(w, id): (&Weight, &WeightId)| WeightInfo {
        id: *id,
        name: w.name().into(),
        format: w.format(),
        rows: w.rows(),
        cols: w.cols(),
        bytes: w.bytes(),
    };
    let plan = ForwardPlan {
        name: "feed-forward".into(),
        class: "f32".into(),
        bucket: Bucket { rows: s.rows, selected: s.rows },
        buffers: vec![
            buffer("x", s.hidden, RowSpace::All),
            buffer("gate", s.inner, RowSpace::All),
            buffer("up", s.inner, RowSpace::All),
            buffer("y", s.hidden, RowSpace::All),
            buffer("picked", s.hidden, RowSpace::Selected),
        ],
        weights: weights.iter().zip(&ids).map(info).collect(),
        rope: RopeTable { inv_freq: Vec::new(), factor: 1.0, style: RopeStyle::HalfSplit },
        kv: KvShape { layers: 1, kv_heads: 1, head_size: 1, dtype: DType::F32 },
        calls: ops.into_iter().map(|op| OpCall { kernel: keys(&op, &s.format.to_string()), op, layer: None }).collect(),
    };
    let row =
        |t| Row { token: TokenSource::Id(t), position: t, table: 0, slot: t, context: t + 1, wants: Wants::Logits };
    let batch = Batch { rows: (0..rows as u32).map(row).collect(), ..Batch::default() };
    let exe = backend.compile(&plan).unwrap();
    let mut out = StepOutput::default();
    backend.run(exe, &batch, &mut out).unwrap();
    backend.release(exe);
    out.rows.iter().flat_map(|r| r.logits.clone()).collect()
}

/// The kernels of this backend, products in tiles by `method`.
fn keys(method: &'static str) -> impl Fn(&Op, &str) -> String {
    move |op, format| match op {
        Op::Linear { .. } => format!("linear.{format}.{method}.cuda"),
        Op::SwiGlu { .. } => "swiglu.fast.cuda".into(),
        Op::Embedding { .. } => "embedding.f32.cuda".into(),
        other => format!("{}.cuda", other.name()),
    }
}

fn reference(s: Shape) -> Vec<f32> {
    let mut backend = ReferenceBackend::new();
    let all = backend.variants().to_vec();
    let find = |op: &Op, format: &str| {
        let format = match op {
            Op::Embedding { .. } => "f32",
            _ => format,
        };
        let mine = |v: &&tare_ops::Variant| v.op == op.name() && v.format.is_none_or(|f| f.to_string() == format);
        all.iter().find(mine).unwrap().key.clone()
    };
    feed_forward(&mut backend, s, s.rows, find)
}

/// Largest difference as a share of the largest number.
fn distance(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    got.iter().zip(want).fold(0.0f32, |m, (g, w)| if g.is_nan() { f32::INFINITY } else { m.max((g - w).abs()) })
        / largest
}

/// One rounding to BF16 of the gated unit's values and one of each packed weight lie between the two.
const CLOSE: f32 = 0.01;

fn close_to_the_reference<B: Backend>(fused: impl Fn() -> B, apart: impl Fn() -> B) {
    for s in SHAPES {
        let want = reference(s);
        for method in ["wgmma", "mma"] {
            let got = feed_forward(&mut fused(), s, s.rows, keys(method));
            let alone = feed_forward(&mut apart(), s, s.rows, keys(method));
            for (got, how) in [(&got, "together"), (&alone, "one by one")] {
                let off = distance(got, &want);
                assert!(off < CLOSE, "{s:?} by {method}, {how}: {off}");
            }
            // Fewer rows than the step has room for, and other neighbours: the same numbers.
            let few = feed_forward(&mut fused(), s, 17, keys(method));
            assert_eq!(few, got[..few.len()], "{s:?} by {method}");
        }
    }
}

#[test]
fn feed_forward_in_tiles_is_close_to_the_reference() {
    close_to_the_reference(|| CudaBackend::new(Emulator::default()), || CudaBackend::unfused(Emulator::default()));
}

#[test]
#[ignore = "needs an NVIDIA GPU with sm_90a"]
fn gpu_feed_forward_in_tiles_is_close_to_the_reference() {
    let driver = || Driver::open(gpu(true)).unwrap();
    close_to_the_reference(|| CudaBackend::new(driver()), || CudaBackend::unfused(driver()));
}
