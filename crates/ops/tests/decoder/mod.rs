//! A decoder of two layers with random weights, for tests that need a whole model behind a backend.

use tare_core::{Blob, DType, Format, Weight};
use tare_ops::{
    Backend, Bucket, BufId, Buffer, Executable, ForwardPlan, KvShape, Op, OpCall, ReferenceBackend, RopeStyle,
    RopeTable, Rounding, RowSpace, WeightId, WeightInfo,
};

/// Vocabulary of the model.
pub(crate) const VOCAB: usize = 19;
const HIDDEN: usize = 24;
const FFN: usize = 20;
const HEADS: usize = 3;
const HEAD_SIZE: usize = 8;
const LAYERS: u32 = 2;

/// Shape of its cache.
pub(crate) const KV: KvShape =
    KvShape { layers: LAYERS as usize, kv_heads: 1, head_size: HEAD_SIZE, dtype: DType::BF16 };

/// Rows and selected rows that the compiled plan takes.
pub(crate) const BUCKET: Bucket = Bucket { rows: 12, selected: 6 };

/// A plan under construction.
struct Builder<'a> {
    backend: &'a mut ReferenceBackend,
    plan: ForwardPlan,
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
            (x as f32 / (1 << 23) as f32 - 1.0) * if rows == 1 { 1.5 } else { 0.7 }
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
        let kernel = format!("{}.f32.reference", op.name());
        self.plan.calls.push(OpCall { op, kernel, layer: None });
    }

    fn linear(&mut self, x: BufId, out: BufId, accumulate: bool) {
        let [k, n] = [x, out].map(|b| self.plan.buffer(b).width);
        let weight = self.weight("linear", n, k);
        self.call(Op::Linear { x, weight, bias: None, accumulate, rounding: Rounding::F32, out });
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
        self.call(Op::Rope { x: q, heads: HEADS as u32 });
        self.call(Op::Rope { x: k, heads: 1 });
        self.call(Op::KvAppend { layer, k, v });
        self.call(Op::Attention { layer, q, kv_of_head: vec![0; HEADS], scale: 0.35, out: a });
        self.linear(a, hidden, true);
        norm(self);
        [gate, up].into_iter().for_each(|out| self.linear(x, out, false));
        self.call(Op::SwiGlu { gate, up, out: gate });
        self.linear(gate, hidden, true);
    }
}

/// The plan of the model, its weights packed in `backend`.
pub(crate) fn plan(backend: &mut ReferenceBackend) -> ForwardPlan {
    let inv_freq = (0..HEAD_SIZE / 2).map(|i| 0.5 / (1 + i) as f64).collect();
    let plan = ForwardPlan {
        name: "decoder".into(),
        class: "f32".into(),
        bucket: BUCKET,
        buffers: Vec::new(),
        weights: Vec::new(),
        rope: RopeTable { inv_freq, factor: 1.0, style: RopeStyle::HalfSplit },
        kv: KV,
        calls: Vec::new(),
    };
    let mut b = Builder { backend, plan, seed: 1 };
    let widths = [HIDDEN, HEADS * HEAD_SIZE, HEAD_SIZE, HEAD_SIZE, HEADS * HEAD_SIZE, FFN, FFN];
    let hidden = b.buffer("hidden", HIDDEN, RowSpace::All);
    let buffers = widths.map(|w| b.buffer("step", w, RowSpace::All));
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

/// A backend with the model compiled.
pub(crate) fn model() -> (ReferenceBackend, Executable) {
    let mut backend = ReferenceBackend::new();
    let plan = plan(&mut backend);
    let exe = backend.compile(&plan).unwrap();
    (backend, exe)
}
