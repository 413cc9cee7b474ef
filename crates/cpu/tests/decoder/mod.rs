//! A decoder of two layers with made-up weights, for tests that need whole steps on any backend.

use std::sync::Arc;

use tare_core::{Blob, DType, Format, Weight};
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, Executable, Fit, ForwardPlan, KvId, KvShape, Op, OpCall, Order, RopeStyle,
    RopeTable, Rounding, Row, RowSpace, Sampler, SamplingParams, Table, TokenSource, Wants, WeightId, WeightInfo,
};

const VOCAB: usize = 100;
const HIDDEN: usize = 72;
const FFN: usize = 50;
const HEADS: usize = 4;
const HEAD_SIZE: usize = 20;
const LAYERS: u32 = 2;

/// Shape of its cache.
pub(crate) const KV: KvShape =
    KvShape { layers: LAYERS as usize, kv_heads: 2, head_size: HEAD_SIZE, dtype: DType::BF16 };
/// Tokens of a page in [`World`].
pub(crate) const PAGE_TOKENS: usize = 5;
/// Pages in [`World`].
pub(crate) const PAGES: usize = 8;

/// A backend with the model compiled and a pool.
pub(crate) struct World<B> {
    /// The backend.
    pub(crate) backend: B,
    /// The model.
    pub(crate) exe: Executable,
    /// The pool.
    pub(crate) kv: KvId,
}

impl<B: Backend> World<B> {
    /// The model, with activations rounded or not.
    pub(crate) fn new(mut backend: B, rounding: Rounding) -> Self {
        let plan = plan(&mut backend, rounding);
        let exe = backend.compile(&plan).unwrap();
        let kv = backend.alloc_kv(KV, PAGES, PAGE_TOKENS).unwrap();
        Self { backend, exe, kv }
    }

    /// Rows `from .. to` of one sequence; the last one draws a token greedily.
    pub(crate) fn batch(&self, from: u32, to: u32) -> Batch {
        let params = Arc::new(SamplingParams::default());
        let greedy = Sampler { params, seed: 0, index: 0, prompt: Arc::new([]), output: Vec::new(), allowed: None };
        let row = |i| Row {
            token: TokenSource::Id(i * 31 % VOCAB as u32),
            position: i,
            table: 0,
            slot: i,
            context: i + 1,
            wants: if i + 1 == to { Wants::Token(0) } else { Wants::Nothing },
        };
        let tables = vec![Table { kv: self.kv, pages: vec![2, 0, 5, 1, 7, 3] }];
        Batch { rows: (from..to).map(row).collect(), tables, samplers: vec![greedy] }
    }
}

/// A plan under construction.
struct Builder<'a> {
    backend: &'a mut dyn Backend,
    plan: ForwardPlan,
    rounding: Rounding,
    seed: u32,
}

impl Builder<'_> {
    fn buffer(&mut self, name: &str, width: usize, rows: RowSpace) -> BufId {
        self.plan.buffers.push(Buffer { name: name.into(), width, rows });
        BufId(self.plan.buffers.len() as u16 - 1)
    }

    fn weight(&mut self, name: &str, rows: usize, cols: usize) -> WeightId {
        let value = |i: usize| {
            let x = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(self.seed.wrapping_mul(40_503)) >> 8;
            (x as f32 / (1 << 23) as f32 - 1.0) * if rows == 1 { 1.5 } else { 0.4 }
        };
        let bytes = (0..rows * cols).flat_map(|i| value(i).to_le_bytes()).collect();
        let weight = Weight::blocks(name, Format::F32, rows, cols, Blob::from_vec(bytes)).unwrap();
        self.seed += 1;
        let id = self.backend.pack(&weight).unwrap();
        let bytes = weight.bytes();
        self.plan.weights.push(WeightInfo { id, name: name.into(), format: Format::F32, rows, cols, bytes });
        id
    }

    fn call(&mut self, op: Op) {
        let shape = self.plan.shape_of(&op, 1, 1);
        let isa = self.backend.describe().isa;
        let fits = |v: &&tare_ops::Variant| {
            v.op == op.name() && v.order == Order::Reference && !matches!(v.fit(&shape, &isa), Fit::No { .. })
        };
        let kernel = self.backend.variants().iter().find(fits).unwrap().key.clone();
        self.plan.calls.push(OpCall { op, kernel, layer: None });
    }

    fn linear(&mut self, x: BufId, out: BufId, accumulate: bool) {
        let [k, n] = [x, out].map(|b| self.plan.buffer(b).width);
        let weight = self.weight("linear", n, k);
        self.call(Op::Linear { x, weight, bias: None, accumulate, rounding: self.rounding, out });
    }

    fn layer(&mut self, layer: u32, hidden: BufId, [x, q, k, v, a, gate, up]: [BufId; 7]) {
        let norm = |b: &mut Self| {
            let weight = b.weight("norm", 1, HIDDEN);
            b.call(Op::RmsNorm { x: hidden, weight, eps: 1e-6, out: x });
        };
        norm(self);
        [q, k, v].into_iter().for_each(|out| self.linear(x, out, false));
        let weight = self.weight("q_norm", 1, HEAD_SIZE);
        self.call(Op::HeadNorm { x: q, weight, heads: HEADS as u32, eps: 1e-6 });
        if layer > 0 {
            // So that heads run together with their norms in one layer and without in the other.
            let weight = self.weight("k_norm", 1, HEAD_SIZE);
            self.call(Op::HeadNorm { x: k, weight, heads: 2, eps: 1e-5 });
        }
        self.call(Op::Rope { x: q, heads: HEADS as u32 });
        self.call(Op::Rope { x: k, heads: 2 });
        self.call(Op::KvAppend { layer, k, v });
        self.call(Op::Attention { layer, q, kv_of_head: vec![0, 0, 1, 1], scale: 0.35, out: a });
        self.linear(a, hidden, true);
        norm(self);
        [gate, up].into_iter().for_each(|out| self.linear(x, out, false));
        self.call(Op::SwiGlu { gate, up, out: gate });
        self.linear(gate, hidden, true);
    }
}

/// The decoder's plan, its weights packed into `backend`.
pub(crate) fn plan(backend: &mut dyn Backend, rounding: Rounding) -> ForwardPlan {
    let inv_freq = (0..HEAD_SIZE / 2).map(|i| 0.5 / (1 + i) as f64).collect();
    let plan = ForwardPlan {
        name: "decoder".into(),
        class: "f32".into(),
        bucket: Bucket { rows: 24, selected: 4 },
        buffers: Vec::new(),
        weights: Vec::new(),
        rope: RopeTable { inv_freq, factor: 1.0, style: RopeStyle::HalfSplit },
        kv: KV,
        calls: Vec::new(),
    };
    let mut b = Builder { backend, plan, rounding, seed: 1 };
    let (q, kv) = (HEADS * HEAD_SIZE, 2 * HEAD_SIZE);
    let hidden = b.buffer("hidden", HIDDEN, RowSpace::All);
    let buffers = [HIDDEN, q, kv, kv, q, FFN, FFN].map(|w| b.buffer("step", w, RowSpace::All));
    let [last, logits] = [HIDDEN, VOCAB].map(|w| b.buffer("head", w, RowSpace::Selected));
    let table = b.weight("embedding", VOCAB, HIDDEN);
    b.call(Op::Embedding { table, out: hidden });
    for layer in 0..LAYERS {
        b.layer(layer, hidden, buffers);
    }
    b.call(Op::SelectRows { x: hidden, out: last });
    b.linear(last, logits, false);
    b.call(Op::Sample { logits });
    b.plan
}
