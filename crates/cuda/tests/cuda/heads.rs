//! Attention of one row that carries what its heads go through before: token after token, near the reference in what it gives and
//! equal to it in what it stores, for heads that have a kernel of their own and for others.

use tare_core::{Blob, DType, Format, Weight};
use tare_cuda::{CudaBackend, Driver};
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, ForwardPlan, KvShape, KvSpan, Op, OpCall, Order, ReferenceBackend,
    RopeStyle, RopeTable, Row, RowSpace, StepOutput, Table, TokenSource, Variant, Wants, WeightId, WeightInfo,
};

use crate::emulator::Emulator;
use crate::gpu;

/// Elements of a head, query heads, and which kv head each of them reads: a group that is full, two groups of one kv head, a kv
/// head that nobody reads.
const SHAPES: [(usize, &[u16]); 3] = [(128, &[0, 0, 0, 0, 0, 1]), (128, &[1]), (64, &[0, 1, 1])];
const KV_HEADS: usize = 2;
/// More tokens than the warps of a block take at once, in pages whose tokens are no power of two.
const TOKENS: u32 = 200;
const PAGE_TOKENS: usize = 12;
/// Steps whose answers are compared; the others only store.
const ASKED: [u32; 5] = [0, 15, 17, 130, TOKENS - 1];
/// Largest difference as a share of the largest number: another order of the same sums.
const CLOSE: f32 = 2e-5;

/// Numbers in [-1, 1), a function of the seed.
fn noise(seed: u32, n: usize) -> impl Iterator<Item = f32> {
    (1..=n as u32).map(move |i| {
        let x = i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(2_246_822_519));
        ((x ^ x >> 15).wrapping_mul(2_654_435_769) >> 8) as f32 / (1 << 23) as f32 - 1.0
    })
}

fn weight(name: &str, seed: u32, rows: usize, cols: usize) -> Weight {
    let bytes = noise(seed, rows * cols).flat_map(|x| (1.5 * x).to_le_bytes()).collect();
    Weight::blocks(name, Format::F32, rows, cols, Blob::from_vec(bytes)).unwrap()
}

fn plan(backend: &mut dyn Backend, (e, kv_of_head): (usize, &[u16]), style: RopeStyle, attention: &str) -> ForwardPlan {
    let [q, k, v, out, picked] = [0, 1, 2, 3, 4].map(BufId);
    let (heads, kv) = (kv_of_head.len(), KV_HEADS * e);
    let tables = [heads * e, kv, kv].into_iter().zip(1..).map(|(width, seed)| weight("table", seed, 32, width));
    let norms = [4, 5].map(|seed| weight("norm", seed, 1, e));
    let weights: Vec<Weight> = tables.chain(norms).collect();
    let ids: Vec<WeightId> = weights.iter().map(|w| backend.pack(w).unwrap()).collect();
    let all = backend.variants().to_vec();
    let kernel = |op: &Op| match op {
        Op::Attention { .. } => attention.to_string(),
        other => {
            let mine = |v: &&Variant| {
                v.op == other.name() && v.order == Order::Reference && v.format.is_none_or(|f| f == Format::F32)
            };
            all.iter().find(mine).unwrap().key.clone()
        }
    };
    let calls = [
        Op::Embedding { table: ids[0], out: q },
        Op::Embedding { table: ids[1], out: k },
        Op::Embedding { table: ids[2], out: v },
        Op::HeadNorm { x: q, weight: ids[3], heads: heads as u32, eps: 1e-6 },
        Op::HeadNorm { x: k, weight: ids[4], heads: KV_HEADS as u32, eps: 1e-6 },
        Op::Rope { x: q, heads: heads as u32 },
        Op::Rope { x: k, heads: KV_HEADS as u32 },
        Op::KvAppend { layer: 0, k, v },
        Op::Attention { layer: 0, q, kv_of_head: kv_of_head.to_vec(), scale: 0.2, out },
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
    let rows = [heads * e, kv, kv, heads * e].map(|width| buffer(width, RowSpace::All));
    ForwardPlan {
        name: "heads".into(),
        class: "f32".into(),
        bucket: Bucket { rows: 1, selected: 1 },
        buffers: rows.into_iter().chain([buffer(heads * e, RowSpace::Selected)]).collect(),
        weights: weights.iter().zip(&ids).map(info).collect(),
        rope: RopeTable { inv_freq: (0..e / 2).map(|i| 0.7 / (1 + i) as f64).collect(), factor: 1.0, style },
        kv: KvShape { layers: 1, kv_heads: KV_HEADS, head_size: e, dtype: DType::BF16 },
        calls: calls.into_iter().map(|op| OpCall { kernel: kernel(&op), op, layer: None }).collect(),
    }
}

/// What attention gives at the steps that are asked for, and the cache at the end.
fn story(
    backend: &mut dyn Backend,
    shape: (usize, &[u16]),
    style: RopeStyle,
    attention: &str,
) -> (Vec<Vec<f32>>, Vec<Vec<u8>>) {
    let plan = plan(backend, shape, style, attention);
    let exe = backend.compile(&plan).unwrap();
    let pages = (TOKENS as usize).div_ceil(PAGE_TOKENS);
    let kv = backend.alloc_kv(plan.kv, pages, PAGE_TOKENS).unwrap();
    let table = Table { kv, pages: (0..pages as u32).rev().collect() };
    let (mut answers, mut out) = (Vec::new(), StepOutput::default());
    for i in 0..TOKENS {
        let token = TokenSource::Id(i * 13 % 32);
        let row = Row { token, position: i, table: 0, slot: i, context: i + 1, wants: Wants::Logits };
        let batch = Batch { rows: vec![row], tables: vec![table.clone()], ..Batch::default() };
        backend.run(exe, &batch, &mut out).unwrap();
        if ASKED.contains(&i) {
            answers.push(out.rows[0].logits.clone());
        }
    }
    let whole = |page| KvSpan {
        kv,
        page,
        start: 0,
        tokens: if page == 0 { TOKENS as usize % PAGE_TOKENS } else { PAGE_TOKENS },
    };
    let cache = (0..pages as u32).map(|page| backend.read_kv(whole(page)).unwrap()).collect();
    (answers, cache)
}

fn near_the_reference(backend: impl Fn() -> Box<dyn Backend>) {
    for shape in SHAPES {
        for style in [RopeStyle::HalfSplit, RopeStyle::Interleaved] {
            let mut reference = ReferenceBackend::new();
            let mine = |v: &&Variant| v.op == tare_ops::OpName::Attention;
            let key = reference.variants().iter().find(mine).unwrap().key.clone();
            let want = story(&mut reference, shape, style, &key);
            let got = story(&mut *backend(), shape, style, "attention.split.cuda");
            assert!(got.1 == want.1, "{shape:?}, {style:?}: the cache");
            for (step, (got, want)) in ASKED.iter().zip(got.0.iter().zip(&want.0)) {
                let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                assert!(largest > 0.0 && got.len() == want.len());
                for (n, (g, w)) in got.iter().zip(want).enumerate() {
                    assert!(
                        (g - w).abs() <= CLOSE * largest,
                        "{shape:?}, {style:?}, token {step}, {n}: {g} instead of {w}"
                    );
                }
            }
        }
    }
}

#[test]
fn attention_with_its_heads_is_near_the_reference() {
    near_the_reference(|| Box::new(CudaBackend::new(Emulator::default())));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_attention_with_its_heads_is_near_the_reference() {
    near_the_reference(|| Box::new(CudaBackend::new(Driver::open(gpu(false)).unwrap())));
}
