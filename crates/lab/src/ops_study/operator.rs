//! One operator of a model's plan alone: its own weights and widths, on inputs that are known.
//!
//! Inputs enter through F32 embedding tables (token t brings row t), results leave as logits, so that any backend can be
//! asked through the public calls alone, and the reference judges the very plan that is timed.

use std::collections::BTreeMap;
use tare_core::{Blob, Fault, Format, Weight};
use tare_formats::Role;
use tare_model::Model;
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, Cost, Executable, Fit, ForwardPlan, KvId, KvShape, Op, OpCall, OpShape,
    Order, Row, RowOutput, RowSpace, StepOutput, Table, TokenSource, Variant, Wants, WeightId, WeightInfo,
};

use crate::LabError;
use crate::floor::{StepRows, call_costs};
use crate::work::mix;

/// Rows of a feed: the most that a study asks for.
pub const MOST_ROWS: usize = 256;
/// Tokens of a page of the operator's cache.
pub(super) const PAGE_TOKENS: usize = 16;
/// Rows of a step that the reference is asked about.
const JUDGED: usize = 4;

/// A call of a model's plan, and how many rows go through it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operator<'a> {
    /// Whose weights.
    pub model: &'a Model,
    /// The plan of the model.
    pub plan: &'a ForwardPlan,
    /// Index of the call.
    pub call: usize,
    /// Rows.
    pub rows: usize,
    /// Tokens in the cache that the last row reads; rows for operators that read none.
    pub context: usize,
}

/// Feeds that a backend holds already: width and number of the input.
pub(super) type Feeds = BTreeMap<(usize, usize), WeightInfo>;

/// An operator made ready on one backend, not yet compiled for a kernel.
#[derive(Debug)]
pub(super) struct Stand {
    /// Feeds, the operator, and the way out.
    pub plan: ForwardPlan,
    /// Index of the operator in it.
    pub call: usize,
    kv: KvId,
    /// Every row wants something, because the operator works on selected rows.
    all_selected: bool,
}

impl Operator<'_> {
    /// The operator.
    pub(super) fn op(&self) -> &Op {
        &self.plan.calls[self.call].op
    }

    /// Its shape.
    pub(super) fn shape(&self) -> OpShape {
        let bucket = Bucket { rows: self.rows, selected: self.rows };
        let plan = ForwardPlan { bucket, ..self.plan.clone() };
        tare_model::planner::op_shape(&plan, self.op(), self.context)
    }

    /// A weight that the plan reads.
    ///
    /// # Errors
    /// When plan or model have none of that handle or name.
    pub(super) fn weight(&self, id: WeightId) -> Result<(&WeightInfo, Weight), LabError> {
        let info = self.plan.weight(id).ok_or_else(|| Fault::new("weight", "a weight of the plan", "none"))?;
        let role = Role::all(self.model.config()).into_iter().find(|r| r.to_string() == info.name);
        let role = role.ok_or_else(|| Fault::new(&info.name, "a weight of the model", "none"))?;
        Ok((info, self.model.weight(role)?))
    }

    /// What it must move and compute, each row with its own context.
    pub(super) fn cost(&self) -> Cost {
        let rows = StepRows { all: self.rows, selected: self.rows, first_slot: self.context - self.rows };
        call_costs(self.plan, rows)[self.call]
    }

    /// Packs what the operator reads and fills its cache.
    ///
    /// # Errors
    /// When the backend refuses, or the operator gives nothing that could be compared.
    pub(super) fn stand(&self, backend: &mut dyn Backend, feeds: &mut Feeds) -> Result<Stand, LabError> {
        let kv_shape = KvShape { layers: 1, ..self.plan.kv };
        let kv = backend.alloc_kv(kv_shape, self.context.div_ceil(PAGE_TOKENS), PAGE_TOKENS)?;
        let plan = ForwardPlan {
            name: format!("{} alone", self.op().name()),
            bucket: Bucket { rows: self.rows, selected: self.rows },
            weights: Vec::new(),
            kv: kv_shape,
            calls: Vec::new(),
            ..self.plan.clone()
        };
        let mut build = Build { of: self, backend, feeds, plan };
        let mut op = self.op().clone();
        build.weights(&mut op)?;
        let (inputs, out) = ends(&op)?;
        for (n, input) in inputs.iter().enumerate() {
            build.feed(n, *input)?;
        }
        if let Op::Attention { layer, .. } = &mut op {
            *layer = 0;
            let width = kv_shape.kv_heads * kv_shape.head_size;
            let [k, v] = [(1, "k"), (2, "v")].map(|(n, name)| (n, build.buffer(name, width, RowSpace::All)));
            build.feed(k.0, k.1)?;
            build.feed(v.0, v.1)?;
            build.call(Op::KvAppend { layer: 0, k: k.1, v: v.1 })?;
            build.fill(kv)?;
        }
        let call = build.plan.calls.len();
        let all_selected = build.plan.buffer(out).rows == RowSpace::Selected;
        build.call(op)?;
        let logits = if all_selected { out } else { build.selected(out)? };
        build.call(Op::Sample { logits })?;
        Ok(Stand { plan: build.plan, call, kv, all_selected })
    }
}

/// What an operator reads besides weights and cache, and what it writes.
fn ends(op: &Op) -> Result<(Vec<BufId>, BufId), Fault> {
    let inputs = match op {
        Op::Embedding { .. } => Vec::new(),
        Op::RmsNorm { x, .. } | Op::HeadNorm { x, .. } | Op::Rope { x, .. } => vec![*x],
        Op::Linear { x, out, accumulate: true, .. } => vec![*x, *out],
        Op::Linear { x, .. } => vec![*x],
        Op::Attention { q, .. } => vec![*q],
        Op::SwiGlu { gate, up, .. } => vec![*gate, *up],
        Op::KvAppend { .. } | Op::SelectRows { .. } | Op::Sample { .. } => {
            return Err(Fault::new(op.name().name(), "an operator with rows to compare", "none"));
        }
    };
    Ok((inputs, *op.output()))
}

struct Build<'a> {
    of: &'a Operator<'a>,
    backend: &'a mut dyn Backend,
    feeds: &'a mut Feeds,
    plan: ForwardPlan,
}

impl Build<'_> {
    fn buffer(&mut self, name: &str, width: usize, rows: RowSpace) -> BufId {
        self.plan.buffers.push(Buffer { name: name.into(), width, rows });
        BufId((self.plan.buffers.len() - 1) as u16)
    }

    /// Appends a call on the first kernel that takes it.
    fn call(&mut self, op: Op) -> Result<(), Fault> {
        let shape = tare_model::planner::op_shape(&self.plan, &op, self.of.context);
        let kernel = takers(&*self.backend, &op, &shape).into_iter().next();
        let kernel = kernel.ok_or_else(|| Fault::new(op.name().name(), "a kernel that takes it", "none"))?;
        self.plan.calls.push(OpCall { op, kernel, layer: None });
        Ok(())
    }

    /// Packs the operator's own weights and puts the new handles in.
    fn weights(&mut self, op: &mut Op) -> Result<(), LabError> {
        match op {
            Op::Embedding { table: w, .. } | Op::RmsNorm { weight: w, .. } | Op::HeadNorm { weight: w, .. } => {
                *w = self.weight(*w)?;
            }
            Op::Linear { weight, bias, .. } => {
                *weight = self.weight(*weight)?;
                *bias = bias.map(|b| self.weight(b)).transpose()?;
            }
            _ => {}
        }
        Ok(())
    }

    fn weight(&mut self, id: WeightId) -> Result<WeightId, LabError> {
        let (info, weight) = self.of.weight(id)?;
        let id = self.backend.pack(&weight)?;
        self.plan.weights.push(WeightInfo { id, ..info.clone() });
        Ok(id)
    }

    /// Brings known values into `input`.
    fn feed(&mut self, n: usize, input: BufId) -> Result<(), LabError> {
        let Buffer { width, rows, .. } = *self.plan.buffer(input);
        if !self.feeds.contains_key(&(width, n)) {
            let name = format!("feed {n} of {width}");
            let value = |i: usize| (mix(n as u64 + 1, i as u64) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            let bytes: Vec<u8> = (0..MOST_ROWS * width).flat_map(|i| value(i).to_le_bytes()).collect();
            let weight = Weight::blocks(&name, Format::F32, MOST_ROWS, width, Blob::from_vec(bytes))?;
            let id = self.backend.pack(&weight)?;
            let bytes = weight.bytes();
            let info = WeightInfo { id, name, format: Format::F32, rows: MOST_ROWS, cols: width, bytes };
            self.feeds.insert((width, n), info);
        }
        let info = self.feeds[&(width, n)].clone();
        let table = info.id;
        self.plan.weights.push(info);
        if rows == RowSpace::All {
            return Ok(self.call(Op::Embedding { table, out: input })?);
        }
        let whole = self.buffer("fed", width, RowSpace::All);
        self.call(Op::Embedding { table, out: whole })?;
        Ok(self.call(Op::SelectRows { x: whole, out: input })?)
    }

    fn selected(&mut self, out: BufId) -> Result<BufId, Fault> {
        let width = self.plan.buffer(out).width;
        let picked = self.buffer("picked", width, RowSpace::Selected);
        self.call(Op::SelectRows { x: out, out: picked })?;
        Ok(picked)
    }

    /// Writes the keys and values of the whole context with the calls so far.
    fn fill(&mut self, kv: KvId) -> Result<(), LabError> {
        let exe = self.backend.compile(&self.plan)?;
        let mut out = StepOutput::default();
        for first in (0..self.of.context).step_by(self.of.rows) {
            let slots: Vec<usize> = (first..(first + self.of.rows).min(self.of.context)).collect();
            let batch = batch(kv, self.of.context, &slots, &[]);
            self.backend.run(exe, &batch, &mut out)?;
        }
        self.backend.release(exe);
        Ok(())
    }
}

/// Keys of the kernels that take `op` and that the class admits, the preferred ones first.
pub(super) fn takers(backend: &dyn Backend, op: &Op, shape: &OpShape) -> Vec<String> {
    let isa = backend.describe().isa;
    let admitted = |order| order == Order::Reference || shape.order == Order::Free;
    let takes = |v: &&Variant| v.op == op.name() && admitted(v.order) && !matches!(v.fit(shape, &isa), Fit::No { .. });
    backend.variants().iter().filter(takes).map(|v| v.key.clone()).collect()
}

/// The token of a slot, and so the row of a feed that it brings.
pub(super) fn token(slot: usize) -> u32 {
    (slot % MOST_ROWS) as u32
}

/// Rows at `slots` of one sequence; those in `wanted` want their logits.
fn batch(kv: KvId, context: usize, slots: &[usize], wanted: &[usize]) -> Batch {
    let row = |slot: &usize| Row {
        token: TokenSource::Id(token(*slot)),
        position: *slot as u32,
        table: 0,
        slot: *slot as u32,
        context: *slot as u32 + 1,
        wants: if wanted.contains(slot) { Wants::Logits } else { Wants::Nothing },
    };
    let pages = (0..context.div_ceil(PAGE_TOKENS) as u32).collect();
    Batch { rows: slots.iter().map(row).collect(), tables: vec![Table { kv, pages }], samplers: Vec::new() }
}

impl Stand {
    /// Compiles the operator on `kernel`.
    ///
    /// # Errors
    /// When the backend refuses.
    pub(super) fn compile(&self, backend: &mut dyn Backend, kernel: &str) -> Result<Executable, LabError> {
        Ok(backend.compile(&self.on(kernel))?)
    }

    /// The plan with the operator on `kernel`.
    pub(super) fn on(&self, kernel: &str) -> ForwardPlan {
        let mut plan = self.plan.clone();
        plan.calls[self.call].kernel = kernel.to_string();
        plan
    }

    /// The rows that are timed.
    pub(super) fn timed(&self, of: &Operator<'_>) -> Batch {
        let slots: Vec<usize> = (of.context - of.rows..of.context).collect();
        let wanted = if self.all_selected { slots.clone() } else { judged(of) };
        batch(self.kv, of.context, &slots, &wanted)
    }

    /// The rows that the reference is asked about, alone: rows do not look at each other.
    pub(super) fn asked(&self, of: &Operator<'_>) -> Batch {
        batch(self.kv, of.context, &judged(of), &judged(of))
    }

    /// The logits of the judged rows among `rows`, in order.
    pub(super) fn outputs(of: &Operator<'_>, batch: &Batch, rows: &[RowOutput]) -> Vec<f32> {
        let judged = judged(of);
        let is_judged = |r: &&RowOutput| judged.contains(&(batch.rows[r.row as usize].slot as usize));
        rows.iter().filter(is_judged).flat_map(|r| r.logits.iter().copied()).collect()
    }
}

/// Slots of rows from the first to the last, evenly spread.
fn judged(of: &Operator<'_>) -> Vec<usize> {
    let first = of.context - of.rows;
    let mut slots: Vec<usize> = (0..JUDGED).map(|i| first + i * (of.rows - 1) / (JUDGED - 1)).collect();
    slots.dedup();
    slots
}
