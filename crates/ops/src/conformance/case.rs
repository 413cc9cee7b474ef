//! One case, and how a plan around the call under test is put together.

use std::sync::Arc;

use tare_core::{DType, Format, Weight};

use super::values::f32_weight;
use crate::backend::KvId;
use crate::batch::{Batch, Row, TokenSource, Wants};
use crate::op::{BufId, Op, OpName, WeightId};
use crate::plan::{Bucket, Buffer, ForwardPlan, KvShape, OpCall, RopeStyle, RopeTable, RowSpace, WeightInfo};
use crate::reference::kv::KvPool;
use crate::variant::{OpShape, Variant};

/// A plan with one call under test, and everything that it reads.
#[derive(Clone, Debug)]
pub struct Case {
    /// Unique: `linear.q4_0.t3_n7_k64_bias`.
    pub name: String,
    /// The calls, without kernels; weight `n` is [`Case::weights`]`[n]`.
    pub plan: ForwardPlan,
    /// Index of the call under test in the plan.
    pub call: usize,
    /// What the plan reads.
    pub weights: Vec<Weight>,
    /// The cache before the step, when the plan has one: NaN where no token may be read.
    pub cache: Option<KvPool>,
    /// The step. Its tables name pool 0, which stands for that of the case.
    pub batch: Batch,
}

impl Case {
    /// The operator under test.
    pub fn op(&self) -> OpName {
        self.plan.calls[self.call].op.name()
    }

    /// The format of the matrix under test, if it reads one.
    pub fn format(&self) -> Option<Format> {
        let matrix = self.plan.calls[self.call].op.matrix();
        matrix.and_then(|w| self.plan.weight(w)).map(|w| w.format)
    }

    /// Whether some kernel among `variants` does to activations what the call under test asks for.
    pub fn is_offered(&self, variants: &[Variant]) -> bool {
        let rounding = self.shape(self.call).rounding;
        variants.iter().any(|v| v.op == self.op() && v.rounds(rounding))
    }

    /// The shape of call `n` in this case, at the full bucket.
    pub fn shape(&self, n: usize) -> OpShape {
        let op = &self.plan.calls[n].op;
        let space = self.plan.buffer(*op.output()).rows;
        let rows = if space == RowSpace::All { self.plan.bucket.rows } else { self.plan.bucket.selected };
        let context = self.batch.rows.iter().map(|r| r.context as usize).max().unwrap_or(0);
        self.plan.shape_of(op, rows, context)
    }
}

/// A case under construction: inputs first, then the call under test, then [`Draft::finish`].
#[derive(Debug)]
pub(super) struct Draft {
    case: Case,
    rows: usize,
}

impl Draft {
    /// A case of `rows` rows, each of which wants its logits; row `t` carries token `t` at position `t`.
    pub(super) fn new(name: String, rows: usize) -> Self {
        let row =
            |t| Row { token: TokenSource::Id(t), position: t, table: 0, slot: t, context: t + 1, wants: Wants::Logits };
        let plan = ForwardPlan {
            name: format!("conformance.{name}"),
            class: "f32".into(),
            bucket: Bucket { rows, selected: rows },
            buffers: Vec::new(),
            weights: Vec::new(),
            rope: RopeTable { inv_freq: Vec::new(), factor: 1.0, style: RopeStyle::HalfSplit },
            kv: KvShape { layers: 1, kv_heads: 1, head_size: 1, dtype: DType::F32 },
            calls: Vec::new(),
        };
        let batch = Batch { rows: (0..rows as u32).map(row).collect(), ..Batch::default() };
        Self { case: Case { name, plan, call: 0, weights: Vec::new(), cache: None, batch }, rows }
    }

    /// The plan, for what a case changes of it.
    pub(super) fn plan(&mut self) -> &mut ForwardPlan {
        &mut self.case.plan
    }

    /// The step, for what a case changes of it.
    pub(super) fn batch(&mut self) -> &mut Batch {
        &mut self.case.batch
    }

    /// A buffer that no call has written yet.
    pub(super) fn buffer(&mut self, name: &str, width: usize, rows: RowSpace) -> BufId {
        let buffers = &mut self.case.plan.buffers;
        buffers.push(Buffer { name: name.into(), width, rows });
        BufId(buffers.len() as u16 - 1)
    }

    /// A weight of the plan.
    pub(super) fn weight(&mut self, weight: Weight) -> WeightId {
        let id = WeightId(self.case.weights.len() as u32);
        self.case.plan.weights.push(WeightInfo {
            id,
            name: weight.name().into(),
            format: weight.format(),
            rows: weight.rows(),
            cols: weight.cols(),
            bytes: weight.bytes(),
        });
        self.case.weights.push(weight);
        id
    }

    /// A buffer that holds `values`. [rows, width]
    pub(super) fn input(&mut self, name: &str, values: &[f32]) -> BufId {
        let width = values.len() / self.rows;
        let table = self.weight(f32_weight(name, width, values));
        let out = self.buffer(name, width, RowSpace::All);
        self.call(Op::Embedding { table, out });
        out
    }

    /// A buffer full of NaN, for an output that must be overwritten.
    pub(super) fn poisoned(&mut self, name: &str, width: usize) -> BufId {
        self.input(name, &vec![f32::NAN; self.rows * width])
    }

    /// A call that is not under test.
    pub(super) fn call(&mut self, op: Op) {
        self.case.plan.calls.push(OpCall { op, kernel: String::new(), layer: None });
    }

    /// The call under test.
    pub(super) fn test(&mut self, op: Op) {
        self.case.call = self.case.plan.calls.len();
        self.call(op);
    }

    /// The cache before the step: every table of the batch is of this pool.
    pub(super) fn cache(&mut self, pool: KvPool) {
        self.case.plan.kv = pool.shape();
        self.case.cache = Some(pool);
    }

    /// Adds what carries `result` out of the backend.
    pub(super) fn finish(mut self, result: BufId) -> Case {
        let buffer = self.case.plan.buffer(result).clone();
        let logits = match buffer.rows {
            RowSpace::Selected => result,
            RowSpace::All => {
                let out = self.buffer("selected", buffer.width, RowSpace::Selected);
                self.call(Op::SelectRows { x: result, out });
                out
            }
        };
        self.call(Op::Sample { logits });
        self.case
    }

    /// A case whose last call is already the one that gives the output.
    pub(super) fn done(self) -> Case {
        self.case
    }
}

/// Pool 0, which a run replaces by the pool that it allocates.
pub(super) const POOL: KvId = KvId(0);

/// Every token allowed but those of `banned`.
pub(super) fn mask(vocab: usize, banned: impl Fn(usize) -> bool) -> Arc<[u32]> {
    let bit = |id: usize| u32::from(id < vocab && !banned(id)) << (id % 32);
    (0..vocab.div_ceil(32)).map(|w| (32 * w..32 * w + 32).map(bit).sum()).collect()
}
