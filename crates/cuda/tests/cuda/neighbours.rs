//! What a row's attention is does not depend on the rows beside it: not on tokens of its own sequence that it may not see, nor
//! on other sequences of its tile, to the bit.

use tare_core::{Blob, DType, Format, Weight};
use tare_cuda::{CudaBackend, Driver};
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, ForwardPlan, KvShape, Op, OpCall, RopeStyle, RopeTable, Row, RowSpace,
    StepOutput, Table, TokenSource, Wants, WeightId, WeightInfo,
};

use crate::emulator::Emulator;
use crate::gpu;

const HEADS: usize = 3;
const HEAD_SIZE: usize = 64;
const TOKENS: usize = 512;
const PAGE_TOKENS: usize = 16;
const KV: KvShape = KvShape { layers: 1, kv_heads: 1, head_size: HEAD_SIZE, dtype: DType::BF16 };

/// A sequence of a step: its first token and how many there are. Each stands for a query, a key and a value.
type Sequence = (u32, u32);

/// Numbers in [-size, size), a function of the seed.
fn table(seed: u32, width: usize, size: f32) -> Weight {
    let number = |i: u32| {
        let x = i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(2_246_822_519));
        ((x ^ x >> 15).wrapping_mul(2_654_435_769) >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let bytes = (1..=(TOKENS * width) as u32).flat_map(|i| (size * number(i)).to_le_bytes()).collect();
    Weight::blocks("table", Format::F32, TOKENS, width, Blob::from_vec(bytes)).unwrap()
}

fn plan(weights: &[(Weight, WeightId)], rows: usize, method: &str) -> ForwardPlan {
    let [q, k, v, out, picked] = [0, 1, 2, 3, 4].map(BufId);
    let embed = |n: usize, out| (Op::Embedding { table: weights[n].1, out }, "embedding.f32.cuda".to_string());
    let attention = Op::Attention { layer: 0, q, kv_of_head: vec![0; HEADS], scale: 0.125, out };
    let calls = [
        embed(0, q),
        embed(1, k),
        embed(2, v),
        (Op::KvAppend { layer: 0, k, v }, "kv_append.cuda".into()),
        (attention, format!("attention.{method}.cuda")),
        (Op::SelectRows { x: out, out: picked }, "select_rows.cuda".into()),
        (Op::Sample { logits: picked }, "sample.cuda".into()),
    ];
    let buffer = |width, rows| Buffer { name: "rows".into(), width, rows };
    let info = |(w, id): &(Weight, WeightId)| WeightInfo {
        id: *id,
        name: w.name().into(),
        format: w.format(),
        rows: w.rows(),
        cols: w.cols(),
        bytes: w.bytes(),
    };
    let (wide, narrow) = (HEADS * HEAD_SIZE, HEAD_SIZE);
    ForwardPlan {
        name: "neighbours".into(),
        class: "bf16-free".into(),
        bucket: Bucket { rows, selected: rows },
        buffers: vec![
            buffer(wide, RowSpace::All),
            buffer(narrow, RowSpace::All),
            buffer(narrow, RowSpace::All),
            buffer(wide, RowSpace::All),
            buffer(wide, RowSpace::Selected),
        ],
        weights: weights.iter().map(info).collect(),
        rope: RopeTable { inv_freq: Vec::new(), factor: 1.0, style: RopeStyle::HalfSplit },
        kv: KV,
        calls: calls.into_iter().map(|(op, kernel)| OpCall { op, kernel, layer: None }).collect(),
    }
}

/// What each row of these sequences, one after the other in one step, gets: the bits of all heads.
fn attended(backend: &mut dyn Backend, rows: usize, method: &str, sequences: &[Sequence]) -> Vec<Vec<u32>> {
    let width = HEADS * HEAD_SIZE;
    let weights = [table(1, width, 6.0), table(2, HEAD_SIZE, 1.0), table(3, HEAD_SIZE, 1.0)].map(|w| {
        let id = backend.pack(&w).unwrap();
        (w, id)
    });
    let exe = backend.compile(&plan(&weights, rows, method)).unwrap();
    let pages = |tokens: u32| tokens.div_ceil(PAGE_TOKENS as u32);
    let all: u32 = sequences.iter().map(|s| pages(s.1)).sum();
    let kv = backend.alloc_kv(KV, all as usize, PAGE_TOKENS).unwrap();
    let mut batch = Batch::default();
    let mut free = all;
    for (table, (first, tokens)) in (0..).zip(sequences) {
        let own = pages(*tokens);
        free -= own;
        batch.tables.push(Table { kv, pages: (free..free + own).rev().collect() });
        batch.rows.extend((0..*tokens).map(|i| Row {
            token: TokenSource::Id(first + i),
            position: i,
            table,
            slot: i,
            context: i + 1,
            wants: Wants::Logits,
        }));
    }
    let mut out = StepOutput::default();
    backend.run(exe, &batch, &mut out).unwrap();
    backend.release(exe);
    backend.free_kv(kv).unwrap();
    out.rows.iter().map(|r| r.logits.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Each method with the most rows of its step and the sequences of one: tiles of one and of several, a run that goes on in the
/// next tile, more tokens than are taken at once.
const STEPS: [(&str, usize, &[Sequence]); 3] = [
    ("split", 16, &[(0, 7), (100, 1), (200, 8)]),
    ("mma", 300, &[(0, 70), (100, 3), (200, 140), (400, 20)]),
    ("wgmma", 300, &[(0, 70), (100, 3), (200, 150), (400, 20)]),
];

fn rows_stand_alone(mut backend: impl Backend) {
    for (method, rows, sequences) in STEPS {
        let together = attended(&mut backend, rows, method, sequences);
        let mut at = 0;
        for sequence in sequences {
            let mine = &together[at..at + sequence.1 as usize];
            at += mine.len();
            for tokens in [sequence.1, sequence.1.div_ceil(2)] {
                let alone = attended(&mut backend, rows, method, &[(sequence.0, tokens)]);
                assert!(alone == mine[..tokens as usize], "{method}: {tokens} tokens of {sequence:?}");
            }
        }
    }
}

#[test]
fn rows_stand_alone_whatever_is_beside_them() {
    rows_stand_alone(CudaBackend::new(Emulator::default()));
}

#[test]
#[ignore = "needs an NVIDIA GPU with sm_90a"]
fn gpu_rows_stand_alone_whatever_is_beside_them() {
    rows_stand_alone(CudaBackend::new(Driver::open(gpu(false)).unwrap()));
}
