//! Linears of queries, keys and values together with all that makes these ready, and attention that gives tiles: the same bits as
//! one by one.

use std::ops::Range;

use half::bf16;
use tare_core::{Blob, DType, Format, Weight};
use tare_cpu::{CpuBackend, CpuConfig, Dispatch, Split, detect_isa};
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, Executable, Fit, ForwardPlan, Isa, KvId, KvShape, KvSpan, Launched, Op,
    OpCall, OpName, RopeStyle, RopeTable, Rounding, Row, RowSpace, StepOutput, Table, TokenSource, Variant, Wants,
    WeightInfo,
};

const VOCAB: usize = 37;
const HIDDEN: usize = 576;
const LAYERS: usize = 2;
const PAGE_TOKENS: usize = 7;
/// Sequences, whose pages take turns.
const SEQUENCES: usize = 3;

const HIDDEN_BUF: u16 = 0;
const NORMED: u16 = 1;
const Q: u16 = 2;
const K: u16 = 3;
const V: u16 = 4;
const GIVEN: u16 = 5;

/// The weight of a head in integers.
const HEAD: usize = 9;

/// What the plan of a test looks like.
#[derive(Clone, Copy, Debug)]
struct Scene {
    /// Of the first step.
    rows: usize,
    format: Format,
    heads: usize,
    kv_heads: usize,
    size: usize,
    normed: bool,
    bias: bool,
    style: RopeStyle,
    scale: f32,
    /// Whether the head multiplies integers.
    integers: bool,
    /// A buffer that is read again behind each layer, so that it must be there.
    read: Option<u16>,
}

const SCENE: Scene = Scene {
    rows: 45,
    format: Format::Q8_0,
    heads: 4,
    kv_heads: 2,
    size: 64,
    normed: true,
    bias: false,
    style: RopeStyle::HalfSplit,
    scale: 0.1,
    integers: false,
    read: None,
};

/// Noise of size `size`.
fn noise(n: usize, seed: u32, size: f32) -> impl Iterator<Item = f32> {
    let mut state = seed | 1;
    (0..n).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * size
    })
}

fn weight(name: &str, format: Format, rows: usize, cols: usize, seed: u32) -> Weight {
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

/// A backend with a plan and a pool.
struct World {
    backend: CpuBackend,
    exe: Executable,
    kv: KvId,
    plan: ForwardPlan,
    /// Of a sequence.
    pages: usize,
    rows: u32,
}

impl World {
    /// Two layers of attention over the same weights; every linear and all attention in tiles of `level`.
    fn new(scene: Scene, threads: usize, level: Isa) -> Self {
        let config = CpuConfig { threads, isa: detect_isa(), pin: false, keep_workers: false };
        let mut backend = tare_emulated::backend(config).unwrap();
        let plan = plan(&mut backend, scene, level);
        let exe = backend.compile(&plan).unwrap();
        let pages = scene.rows.div_ceil(PAGE_TOKENS);
        let kv = backend.alloc_kv(plan.kv, pages * SEQUENCES, PAGE_TOKENS).unwrap();
        Self { backend, exe, kv, plan, pages, rows: scene.rows as u32 }
    }

    /// Chunks of sequences: which, and its tokens.
    fn batch(&self, chunks: &[(u32, Range<u32>)]) -> Batch {
        let row = |table: u32, at: u32| Row {
            token: TokenSource::Id((table * 11 + at * 5) % VOCAB as u32),
            position: at,
            table,
            slot: at,
            context: at + 1,
            wants: Wants::Logits,
        };
        let rows = chunks.iter().flat_map(|(table, tokens)| tokens.clone().map(|at| row(*table, at))).collect();
        let page = |table: u32, page: usize| (page * SEQUENCES) as u32 + table;
        let pages = |table| (0..self.pages).rev().map(|n| page(table, n)).collect();
        let tables = (0..SEQUENCES as u32).map(|table| Table { kv: self.kv, pages: pages(table) }).collect();
        Batch { rows, tables, ..Batch::default() }
    }

    /// The bits of all logits of two steps, and the cache behind them. Both steps have chunks, and rows that are alone in
    /// their sequence.
    fn bits(&mut self) -> (Vec<u32>, Vec<Vec<u8>>) {
        let mut out = StepOutput::default();
        let mut all = Vec::new();
        for batch in self.steps() {
            self.backend.run(self.exe, &batch, &mut out).unwrap();
            all.extend(out.rows.iter().flat_map(|r| r.logits.iter().map(|x| x.to_bits())));
        }
        assert!(all.iter().all(|b| f32::from_bits(*b).is_finite()));
        let mut cached = |(page, tokens)| self.backend.read_kv(KvSpan { kv: self.kv, page, start: 0, tokens }).unwrap();
        // The pages of the first tokens of each sequence; of the last sequence 2 tokens of the second page are stored.
        let page = |back: usize, table: usize| ((self.pages - back) * SEQUENCES + table) as u32;
        let spans = [(1, 0, 7), (2, 0, 7), (1, 1, 7), (2, 1, 7), (1, 2, 7), (2, 2, 2)];
        (all, spans.map(|(back, table, tokens)| cached((page(back, table), tokens))).into())
    }

    fn steps(&self) -> [Batch; 2] {
        let n = self.rows - 7;
        [self.batch(&[(0, 0..n), (1, 0..1), (2, 0..6)]), self.batch(&[(1, 1..20), (0, n..n + 1), (2, 6..9)])]
    }

    /// What each stage of a step was launched with.
    fn dispatches(&mut self) -> Vec<Dispatch> {
        let batch = self.steps()[0].clone();
        self.backend.dispatches(self.exe, &batch).unwrap()
    }

    /// Stages that carry linears and what makes heads ready, and those that only lay rows out in tiles.
    fn stages(&mut self) -> (usize, usize) {
        let ran = self.dispatches();
        let carries =
            |d: &&Dispatch| matches!(d.split, Split::Fixed { unit: "squares of 32 numbers of heads by 32 rows", .. });
        (ran.iter().filter(carries).count(), ran.iter().filter(|d| d.stage == "tiles").count())
    }

    /// The first step call by call.
    fn apart(&mut self, rows: &[usize]) -> Vec<Launched> {
        let (mut launched, mut out, batch) = (Vec::new(), StepOutput::default(), self.steps()[0].clone());
        self.backend.run_apart(self.exe, &batch, rows, &mut out, &mut launched).unwrap();
        launched
    }
}

fn plan(backend: &mut CpuBackend, scene: Scene, level: Isa) -> ForwardPlan {
    let Scene { format, heads, kv_heads, size, .. } = scene;
    let (wide, narrow) = (heads * size, kv_heads * size);
    let all = [
        weight("table", Format::BF16, VOCAB, HIDDEN, 1),
        weight("norm", Format::F32, 1, HIDDEN, 2),
        weight("q", format, wide, HIDDEN, 3),
        weight("k", format, narrow, HIDDEN, 4),
        weight("v", format, narrow, HIDDEN, 5),
        weight("o", format, HIDDEN, wide, 6),
        weight("q norm", Format::F32, 1, size, 7),
        weight("k norm", Format::F32, 1, size, 8),
        weight("bias", Format::F32, 1, narrow, 9),
        weight("head", Format::Q8_0, VOCAB, HIDDEN, 10),
    ];
    let weights: Vec<WeightInfo> = all
        .iter()
        .map(|w| {
            let (id, name, format) = (backend.pack(w).unwrap(), w.name().to_string(), w.format());
            WeightInfo { id, name, format, rows: w.rows(), cols: w.cols(), bytes: w.bytes() }
        })
        .collect();
    let linear = |x, weight: usize, accumulate, out| {
        let bias = (scene.bias && out == V).then_some(weights[8].id);
        let (weight, rounding) = (weights[weight].id, Rounding::Bf16);
        Op::Linear { x: BufId(x), weight, bias, accumulate, rounding, out: BufId(out) }
    };
    let mut ops = vec![Op::Embedding { table: weights[0].id, out: BufId(HIDDEN_BUF) }];
    for layer in 0..LAYERS as u32 {
        ops.push(Op::RmsNorm { x: BufId(HIDDEN_BUF), weight: weights[1].id, eps: 1e-6, out: BufId(NORMED) });
        ops.extend([(2, Q), (3, K), (4, V)].map(|(weight, out)| linear(NORMED, weight, false, out)));
        if scene.normed {
            let norm = |x, weight: usize, heads: usize, eps| {
                let (weight, heads) = (weights[weight].id, heads as u32);
                Op::HeadNorm { x: BufId(x), weight, heads, eps }
            };
            ops.extend([norm(Q, 6, heads, 1e-6), norm(K, 7, kv_heads, 1e-5)]);
        }
        ops.extend([(Q, heads), (K, kv_heads)].map(|(x, heads)| Op::Rope { x: BufId(x), heads: heads as u32 }));
        ops.push(Op::KvAppend { layer, k: BufId(K), v: BufId(V) });
        let kv_of_head = (0..heads).map(|head| (head * kv_heads / heads) as u16).collect();
        ops.push(Op::Attention { layer, q: BufId(Q), kv_of_head, scale: scene.scale, out: BufId(GIVEN) });
        ops.push(linear(GIVEN, 5, true, HIDDEN_BUF));
        if let Some(buffer) = scene.read {
            let again = if matches!(buffer, K | V) { 9 } else { 8 };
            ops.push(Op::SelectRows { x: BufId(buffer), out: BufId(again) });
        }
    }
    ops.extend([
        Op::SelectRows { x: BufId(HIDDEN_BUF), out: BufId(6) },
        linear(6, if scene.integers { HEAD } else { 0 }, false, 7),
        Op::Sample { logits: BufId(7) },
    ]);
    let buffer = |name: &str, width, rows| Buffer { name: name.into(), width, rows };
    let mut plan = ForwardPlan {
        name: "projected".into(),
        class: "w8a16-free".into(),
        bucket: Bucket { rows: scene.rows, selected: scene.rows },
        buffers: vec![
            buffer("hidden", HIDDEN, RowSpace::All),
            buffer("normed", HIDDEN, RowSpace::All),
            buffer("q", wide, RowSpace::All),
            buffer("k", narrow, RowSpace::All),
            buffer("v", narrow, RowSpace::All),
            buffer("given", wide, RowSpace::All),
            buffer("picked", HIDDEN, RowSpace::Selected),
            buffer("logits", VOCAB, RowSpace::Selected),
            buffer("wide again", wide, RowSpace::Selected),
            buffer("narrow again", narrow, RowSpace::Selected),
        ],
        calls: ops.into_iter().map(|op| OpCall { op, kernel: String::new(), layer: None }).collect(),
        weights: weights.clone(),
        rope: RopeTable {
            inv_freq: (0..size / 2).map(|i| 0.7 / (1 + i) as f64).collect(),
            factor: 1.0,
            style: scene.style,
        },
        kv: KvShape { layers: LAYERS, kv_heads, head_size: size, dtype: DType::BF16 },
    };
    let isa = backend.describe().isa;
    for i in 0..plan.calls.len() {
        let op = &plan.calls[i].op;
        let shape = plan.shape_of(op, scene.rows, 1);
        let takes = |v: &&Variant| v.op == op.name() && !matches!(v.fit(&shape, &isa), Fit::No { .. });
        let wanted = |v: &&Variant| match op.name() {
            OpName::Linear if op.matrix() == Some(weights[HEAD].id) => v.key.contains(".i16."),
            OpName::Linear => v.key.contains(".tiles.") && v.isa == level,
            // Attention is emulated on the widest lanes.
            OpName::Attention => v.key.contains(".tiles.") && (v.isa == Isa::Amx) == (level == Isa::Amx),
            _ => true,
        };
        plan.calls[i].kernel = backend.variants().iter().find(|v| takes(v) && wanted(v)).unwrap().key.clone();
    }
    plan
}

fn scenes() -> Vec<Scene> {
    vec![
        SCENE,
        Scene { normed: false, heads: 3, kv_heads: 1, ..SCENE },
        Scene { size: 32, heads: 5, kv_heads: 5, scale: -0.2, ..SCENE },
        Scene { size: 128, heads: 6, kv_heads: 3, style: RopeStyle::Interleaved, ..SCENE },
        Scene { size: 256, heads: 2, kv_heads: 1, ..SCENE },
    ]
}

fn together_is_one_by_one(level: Isa, scenes: Vec<Scene>) {
    for scene in scenes {
        for threads in [1, 3] {
            let mut fused = World::new(scene, threads, level);
            // The one copy is that of the head.
            assert_eq!(fused.stages(), (LAYERS, 1), "{scene:?}");
            let want = fused.bits();
            for (read, expected) in [(V, (0, 1)), (K, (0, 1)), (Q, (0, 1)), (GIVEN, (LAYERS, 1 + LAYERS))] {
                let mut apart = World::new(Scene { read: Some(read), ..scene }, threads, level);
                assert_eq!(apart.stages(), expected, "{scene:?}, {read} is read again");
                assert!(apart.bits() == want, "{scene:?}, {threads} threads, {read} is read again");
            }
        }
    }
}

#[test]
fn heads_and_attention_in_emulated_tiles_give_the_bits_of_their_calls() {
    together_is_one_by_one(Isa::Portable, scenes());
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_heads_and_attention_give_the_bits_of_their_calls() {
    // Heads of several sets of squares that go through slices together, alike and not.
    let large = Scene { heads: 16, kv_heads: 8, ..SCENE };
    let wide = Scene { size: 128, ..large };
    // The last rows lie otherwise than those before, whose last head waits where their sums go.
    let otherwise = Scene { rows: 566, heads: 9, kv_heads: 3, ..wide };
    let several = [Scene { rows: 150, ..large }, Scene { rows: 310, ..wide }, Scene { rows: 515, ..wide }, otherwise];
    together_is_one_by_one(Isa::Amx, [scenes(), several.into()].concat());
}

#[test]
fn threads_change_no_bit() {
    let want = World::new(SCENE, 1, Isa::Portable).bits();
    for threads in [2, 3, 16] {
        assert!(World::new(SCENE, threads, Isa::Portable).bits() == want, "{threads} threads");
    }
}

#[test]
fn what_does_not_belong_together_stays_apart() {
    for (scene, why) in [
        (Scene { format: Format::BF16, ..SCENE }, "weights stand on the left"),
        (Scene { size: 96, ..SCENE }, "heads that do not end with what is multiplied together"),
        (Scene { bias: true, ..SCENE }, "a bias"),
        (Scene { heads: 3, kv_heads: 2, ..SCENE }, "kv heads with unlike numbers of queries"),
    ] {
        assert_eq!(World::new(scene, 2, Isa::Portable).stages().0, 0, "{why}");
    }
}

#[test]
fn what_runs_together_leaves_queries_and_results_rounded() {
    let rows = [0, 16, 30, 38, SCENE.rows - 1];
    let mut fused = World::new(SCENE, 2, Isa::Portable);
    let launched = fused.apart(&rows);
    let calls: Vec<Range<usize>> = launched.iter().map(|l| l.calls.clone()).collect();
    assert_eq!(calls[..5], [0..1, 1..2, 2..10, 10..11, 11..12], "of {} calls", fused.plan.calls.len());
    let rounded = |values: &[f32]| values.iter().map(|x| bf16::from_f32(*x).to_f32()).collect::<Vec<_>>();
    for (launch, buffer, call) in [(2, Q, 9), (3, GIVEN, 10)] {
        let left = &launched[launch].left;
        assert!(left.len() == 1 && left[0].bf16 && left[0].buffer == BufId(buffer));
        // A buffer that is read again is left in F32.
        let alone = World::new(Scene { read: Some(buffer), ..SCENE }, 2, Isa::Portable).apart(&rows);
        let theirs = alone.iter().find(|l| l.calls.contains(&call)).unwrap();
        let theirs = theirs.left.iter().find(|left| left.buffer == BufId(buffer)).unwrap();
        assert!(!theirs.bf16);
        assert_eq!(left[0].values, rounded(&theirs.values), "buffer {buffer}");
    }
}

/// Stages that run again and again by themselves find numbers where they look for numbers, whoever wrote last in that place.
#[test]
fn parts_in_any_order_work_on_numbers() {
    let scene = Scene { integers: true, ..SCENE };
    let mut world = World::new(scene, 2, Isa::Portable);
    let parts: Vec<Executable> = world
        .backend
        .carried(world.exe)
        .unwrap()
        .into_iter()
        .map(|calls| world.backend.part_alone(world.exe, &calls.collect::<Vec<_>>()).unwrap())
        .collect();
    let (batch, mut out) = (world.steps()[0].clone(), StepOutput::default());
    let want = {
        world.backend.run(world.exe, &batch, &mut out).unwrap();
        out.rows.clone()
    };
    for first in 0..parts.len() {
        for part in parts[first..].iter().chain(&parts[..first]) {
            world.backend.run(*part, &batch, &mut out).unwrap();
            let finite = out.rows.iter().flat_map(|row| &row.logits).all(|x| x.is_finite());
            assert!(finite, "from part {first} on");
        }
        world.backend.run(world.exe, &batch, &mut out).unwrap();
        assert!(out.rows == want, "the step after parts from {first} on");
    }
}
