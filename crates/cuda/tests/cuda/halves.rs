//! Products of one row by a matrix of few outputs, whose tiles have a row for each half of the columns: near the reference for
//! every packing, added to what is there.

use half::bf16;
use tare_core::{Affine, AffineBits, Blob, DType, Format, Weight};
use tare_cuda::{CudaBackend, Driver};
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, ForwardPlan, KvShape, Op, OpCall, Order, ReferenceBackend, RopeStyle,
    RopeTable, Rounding, Row, RowSpace, StepOutput, TokenSource, Wants, WeightId, WeightInfo,
};

use crate::emulator::Emulator;
use crate::gpu;

/// Outputs and columns: a tile that is not full and chunks that do not come out even between warps; more chunks of a warp than
/// are loaded ahead.
const SHAPES: [(usize, usize); 2] = [(41, 2304), (20, 9728)];
/// Largest difference as a share of the largest number: another order of the same sums.
const CLOSE: f32 = 2e-5;

fn formats() -> impl Iterator<Item = Format> {
    let affine = |bits| [32, 64, 128].map(|group| Format::Affine { bits, group });
    [AffineBits::Four, AffineBits::Eight].into_iter().flat_map(affine).chain([Format::BF16])
}

/// Numbers in [-size, size), a function of the seed.
fn noise(seed: u32, n: usize, size: f32) -> impl Iterator<Item = f32> {
    (1..=n as u32).map(move |i| {
        let x = i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(2_246_822_519));
        size * (((x ^ x >> 15).wrapping_mul(2_654_435_769) >> 8) as f32 / (1 << 23) as f32 - 1.0)
    })
}

fn table(seed: u32, width: usize) -> Weight {
    let bytes = noise(seed, width, 1.0).flat_map(f32::to_le_bytes).collect();
    Weight::blocks("table", Format::F32, 1, width, Blob::from_vec(bytes)).unwrap()
}

fn matrix(format: Format, rows: usize, cols: usize) -> Weight {
    let halves =
        |seed, n, size| Blob::from_vec(noise(seed, n, size).flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect());
    let Format::Affine { bits, group } = format else {
        return Weight::blocks("matrix", format, rows, cols, halves(5, rows * cols, 0.3)).unwrap();
    };
    let groups = rows * cols / group as usize;
    let data = Affine {
        words: Blob::from_vec(noise(5, rows * cols * bits.bits() / 8, 127.0).map(|x| x as i8 as u8).collect()),
        scales: halves(6, groups, 0.02),
        biases: halves(7, groups, 0.2),
        scale_dtype: DType::BF16,
    };
    Weight::affine("matrix", bits, group, (rows, cols), data).unwrap()
}

/// Row 0 of `out` plus the product of row 0 of `x`; `key` names the product's kernel.
fn product(backend: &mut dyn Backend, format: Format, (rows, cols): (usize, usize), key: &str) -> Vec<f32> {
    let [x, out, picked] = [0, 1, 2].map(BufId);
    let weights = [table(1, cols), table(2, rows), matrix(format, rows, cols)];
    let ids: Vec<WeightId> = weights.iter().map(|w| backend.pack(w).unwrap()).collect();
    let all = backend.variants().to_vec();
    let kernel = |op: &Op| match op {
        Op::Linear { .. } => key.to_string(),
        other => {
            let mine = |v: &&tare_ops::Variant| {
                v.op == other.name() && v.order == Order::Reference && v.format.is_none_or(|f| f == Format::F32)
            };
            all.iter().find(mine).unwrap().key.clone()
        }
    };
    let calls = [
        Op::Embedding { table: ids[0], out: x },
        Op::Embedding { table: ids[1], out },
        Op::Linear { x, weight: ids[2], bias: None, accumulate: true, rounding: Rounding::Bf16, out },
        Op::SelectRows { x: out, out: picked },
        Op::Sample { logits: picked },
    ];
    let buffer = |width, rows| Buffer { name: "row".into(), width, rows };
    let info = |(w, id): (&Weight, &WeightId)| WeightInfo {
        id: *id,
        name: w.name().into(),
        format: w.format(),
        rows: w.rows(),
        cols: w.cols(),
        bytes: w.bytes(),
    };
    let plan = ForwardPlan {
        name: "product".into(),
        class: "f32".into(),
        bucket: Bucket { rows: 1, selected: 1 },
        buffers: vec![buffer(cols, RowSpace::All), buffer(rows, RowSpace::All), buffer(rows, RowSpace::Selected)],
        weights: weights.iter().zip(&ids).map(info).collect(),
        rope: RopeTable { inv_freq: Vec::new(), factor: 1.0, style: RopeStyle::HalfSplit },
        kv: KvShape { layers: 1, kv_heads: 1, head_size: 1, dtype: DType::F32 },
        calls: calls.into_iter().map(|op| OpCall { kernel: kernel(&op), op, layer: None }).collect(),
    };
    let row = Row { token: TokenSource::Id(0), position: 0, table: 0, slot: 0, context: 1, wants: Wants::Logits };
    let batch = Batch { rows: vec![row], ..Batch::default() };
    let exe = backend.compile(&plan).unwrap();
    let mut answer = StepOutput::default();
    backend.run(exe, &batch, &mut answer).unwrap();
    backend.release(exe);
    answer.rows.remove(0).logits
}

fn near_the_reference(mut backend: impl Backend) {
    let mut reference = ReferenceBackend::new();
    for format in formats() {
        let mine = |v: &&tare_ops::Variant| v.op == tare_ops::OpName::Linear && v.format == Some(format);
        let key = reference.variants().iter().find(mine).unwrap().key.clone();
        for shape in SHAPES {
            let want = product(&mut reference, format, shape, &key);
            let got = product(&mut backend, format, shape, &format!("linear.{format}.gemv.cuda"));
            let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            for (n, (g, w)) in got.iter().zip(&want).enumerate() {
                assert!((g - w).abs() <= CLOSE * largest, "{format} {shape:?}, output {n}: {g} instead of {w}");
            }
            assert_eq!(got.len(), want.len());
        }
    }
}

#[test]
fn halves_are_near_the_reference() {
    near_the_reference(CudaBackend::new(Emulator::default()));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_halves_are_near_the_reference() {
    near_the_reference(CudaBackend::new(Driver::open(gpu(false)).unwrap()));
}
