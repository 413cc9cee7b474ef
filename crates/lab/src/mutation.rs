//! Planted faults: proof that the gate can fail.
//!
//! A fault is planted by wrapping the backend. Plans, batches and weights are data, so every fault of SYSTEM.md row
//! B8 is a small change to one of them, and the engine, the scheduler and the kernels that run are the very ones that
//! are timed. A mutated run that passes the gate is a hole in the gate.

use tare_core::{Affine, Blob, Fault, Format, Weight, WeightData};
use tare_ops::{Backend, Batch, BufId, Executable, ForwardPlan, Launched, Op, OpError, StepOutput, Wants, WeightId};

/// One planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Decode rows are rotated as if one token later. (Shifting every row alike would change nothing: rotary scores
    /// depend on differences.)
    PositionOffByOne,
    /// The first and the last page of a sequence trade places once it decodes. (Full pages may trade places without
    /// harm, since attention does not depend on the order of keys; the last one is written and only partly filled.)
    PageSwapped,
    /// The first page of a sequence is replaced by the second once it decodes.
    PageSkipped,
    /// The first row of every later prefill chunk does not see itself.
    MaskOffByOne,
    /// A decode row stores its key and value one slot too early, so that it reads what the slot held before.
    StaleKvSlot,
    /// The scales of one group of columns of one projection are those of the next group.
    ScaleGroupShifted,
    /// One group of columns of one projection has scale (and bias) zero.
    ScaleGroupZeroed,
    /// Query heads of one layer read the kv head beside theirs.
    WrongKvHead,
    /// One layer's attention output replaces the residual stream instead of being added.
    ResidualDropped,
    /// The last layer's MLP is left out.
    LastMlpDropped,
    /// The last output feature of the last layer's MLP is never written.
    TailRowUnwritten,
    /// The last prompt row is pruned with the others: the head sees the row before it.
    OneRowPrunedTooMany,
}

impl Mutation {
    /// Every fault.
    pub const ALL: [Mutation; 12] = [
        Mutation::PositionOffByOne,
        Mutation::PageSwapped,
        Mutation::PageSkipped,
        Mutation::MaskOffByOne,
        Mutation::StaleKvSlot,
        Mutation::ScaleGroupShifted,
        Mutation::ScaleGroupZeroed,
        Mutation::WrongKvHead,
        Mutation::ResidualDropped,
        Mutation::LastMlpDropped,
        Mutation::TailRowUnwritten,
        Mutation::OneRowPrunedTooMany,
    ];

    /// Its name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Mutation::PositionOffByOne => "position-off-by-one",
            Mutation::PageSwapped => "page-swapped",
            Mutation::PageSkipped => "page-skipped",
            Mutation::MaskOffByOne => "mask-off-by-one",
            Mutation::StaleKvSlot => "stale-kv-slot",
            Mutation::ScaleGroupShifted => "scale-group-shifted",
            Mutation::ScaleGroupZeroed => "scale-group-zeroed",
            Mutation::WrongKvHead => "wrong-kv-head",
            Mutation::ResidualDropped => "residual-dropped",
            Mutation::LastMlpDropped => "last-mlp-dropped",
            Mutation::TailRowUnwritten => "tail-row-unwritten",
            Mutation::OneRowPrunedTooMany => "one-row-pruned-too-many",
        }
    }
}

/// A backend in which one fault is planted.
#[derive(Debug)]
pub struct Mutant<B> {
    inner: B,
    mutation: Mutation,
    /// Tokens of the prompt: rows at later slots are decode rows.
    prompt_tokens: u32,
    /// The weights to spoil, by name.
    spoiled: String,
    /// Whether the fault was planted anywhere: a fault that never applied proves nothing.
    planted: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

/// Tells whether a fault was really planted, after the backend has gone into an engine.
#[derive(Clone, Debug)]
pub struct Planted(std::sync::Arc<std::sync::atomic::AtomicBool>);

impl Planted {
    /// Whether the fault changed anything that ran.
    pub fn get(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl<B: Backend> Mutant<B> {
    /// Plants `mutation` into `inner` for a request of `prompt_tokens` tokens. `spoiled` is the name, as the model
    /// gives it, of the weight that the faults in weights change.
    pub fn new(inner: B, mutation: Mutation, prompt_tokens: u32, spoiled: &str) -> (Self, Planted) {
        let planted = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = Planted(std::sync::Arc::clone(&planted));
        (Self { inner, mutation, prompt_tokens, spoiled: spoiled.to_string(), planted }, flag)
    }

    fn mark(&self) {
        self.planted.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    fn mutate_plan(&self, plan: &ForwardPlan) -> ForwardPlan {
        let mut plan = plan.clone();
        let last = plan.kv.layers as u32 - 1;
        let hidden = plan.calls.iter().find_map(|c| match c.op {
            Op::Embedding { out, .. } => Some(out),
            _ => None,
        });
        match self.mutation {
            Mutation::WrongKvHead => {
                let kv_heads = plan.kv.kv_heads as u16;
                for call in &mut plan.calls {
                    if let Op::Attention { layer: 0, kv_of_head, .. } = &mut call.op {
                        kv_of_head.iter_mut().for_each(|h| *h = (*h + 1) % kv_heads);
                        self.planted.store(kv_heads > 1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            }
            Mutation::ResidualDropped => {
                if let Some(call) = plan.calls.iter_mut().find(|c| accumulates_into(&c.op, hidden)) {
                    if let Op::Linear { accumulate, .. } = &mut call.op {
                        *accumulate = false;
                    }
                    self.mark();
                }
            }
            Mutation::LastMlpDropped => {
                let before = plan.calls.len();
                let down = plan.calls.iter().rposition(|c| c.layer == Some(last) && accumulates_into(&c.op, hidden));
                if let Some(i) = down {
                    plan.calls.remove(i);
                }
                if plan.calls.len() < before {
                    self.mark();
                }
            }
            _ => {}
        }
        plan
    }

    fn mutate_batch(&self, batch: &Batch) -> Batch {
        let mut batch = batch.clone();
        let decodes = |slot: u32| slot >= self.prompt_tokens;
        match self.mutation {
            Mutation::PositionOffByOne => {
                for r in batch.rows.iter_mut().filter(|r| decodes(r.slot)) {
                    r.position += 1;
                    self.mark();
                }
            }
            Mutation::PageSwapped | Mutation::PageSkipped if batch.rows.iter().any(|r| decodes(r.slot)) => {
                for t in batch.tables.iter_mut().filter(|t| t.pages.len() > 2) {
                    let last = t.pages.len() - 1;
                    match self.mutation {
                        Mutation::PageSwapped => t.pages.swap(0, last),
                        _ => t.pages[0] = t.pages[1],
                    }
                    self.mark();
                }
            }
            Mutation::MaskOffByOne => {
                if let Some(r) = batch.rows.first_mut().filter(|r| r.slot > 0 && !decodes(r.slot)) {
                    r.context -= 1;
                    self.mark();
                }
            }
            Mutation::StaleKvSlot => {
                for r in batch.rows.iter_mut().filter(|r| decodes(r.slot)) {
                    r.slot -= 1;
                    self.mark();
                }
            }
            Mutation::OneRowPrunedTooMany => {
                let at = batch.rows.iter().position(|r| r.slot + 1 == self.prompt_tokens && r.wants != Wants::Nothing);
                if let Some(i) = at.filter(|i| *i > 0) {
                    batch.rows[i - 1].wants = batch.rows[i].wants;
                    batch.rows[i].wants = Wants::Nothing;
                    self.mark();
                }
            }
            _ => {}
        }
        batch
    }

    fn mutate_weight(&self, w: &Weight) -> Result<Weight, Fault> {
        if w.name() != self.spoiled {
            return Ok(w.clone());
        }
        let changed = match self.mutation {
            Mutation::ScaleGroupShifted => change_scales(w, GroupFault::Shifted)?,
            Mutation::ScaleGroupZeroed => change_scales(w, GroupFault::Zeroed)?,
            Mutation::TailRowUnwritten => zero_last_row(w)?,
            _ => return Ok(w.clone()),
        };
        self.mark();
        Ok(changed)
    }
}

fn accumulates_into(op: &Op, hidden: Option<BufId>) -> bool {
    matches!(op, Op::Linear { accumulate: true, out, .. } if Some(*out) == hidden)
}

#[derive(Clone, Copy)]
enum GroupFault {
    Shifted,
    Zeroed,
}

/// `w` with what holds its scales put through `edit`, which is told the bytes of a scale: affine scales and biases, or
/// whole blocks, in which the scale travels with its weights. Formats without groups have a block of one weight: there
/// 32 columns stand for a group.
fn edited(w: &Weight, edit: impl Fn(&mut [u8], usize)) -> Result<Weight, Fault> {
    let change = |b: &Blob, scale: usize| {
        let mut v = b.to_vec();
        edit(&mut v, scale);
        Blob::from_vec(v)
    };
    match w.data() {
        WeightData::Affine(a) => {
            let Format::Affine { bits, group } = w.format() else {
                return Err(Fault::new(w.name(), "an affine format", w.format().to_string()));
            };
            let scale = a.scale_dtype.bytes();
            let data = Affine {
                words: a.words.clone(),
                scales: change(&a.scales, scale),
                biases: change(&a.biases, scale),
                scale_dtype: a.scale_dtype,
            };
            Weight::affine(w.name(), bits, group, (w.rows(), w.cols()), data)
        }
        WeightData::Blocks(b) => {
            let columns = if w.format().block_weights() == 1 { 32 } else { 1 };
            let blocks = change(b, columns * w.format().block_bytes());
            Weight::blocks(w.name(), w.format(), w.rows(), w.cols(), blocks)
        }
    }
}

/// Spoils the scales of the first group of every row.
fn change_scales(w: &Weight, fault: GroupFault) -> Result<Weight, Fault> {
    edited(w, |bytes, scale| {
        let row = bytes.len() / w.rows();
        let scale = scale.min(row / 2);
        bytes.chunks_exact_mut(row).for_each(|r| match fault {
            GroupFault::Shifted => r.copy_within(scale..2 * scale, 0),
            GroupFault::Zeroed => r[..scale].fill(0),
        });
    })
}

/// A row of zeros adds nothing to the residual stream: what an accumulating kernel leaves when it stops a row early.
fn zero_last_row(w: &Weight) -> Result<Weight, Fault> {
    edited(w, |bytes, _| {
        let start = bytes.len() - bytes.len() / w.rows();
        bytes[start..].fill(0);
    })
}

impl<B: Backend> Backend for Mutant<B> {
    tare_ops::hand_on!(
        this => this.inner;
        describe, variants, device_bytes, alloc_kv, free_kv, copy_kv, read_kv, write_kv, rest, benched, pages, release
    );

    fn pack(&mut self, weight: &Weight) -> Result<WeightId, OpError> {
        let w = self.mutate_weight(weight)?;
        self.inner.pack(&w)
    }
    fn compile(&mut self, plan: &ForwardPlan) -> Result<Executable, OpError> {
        let plan = self.mutate_plan(plan);
        self.inner.compile(&plan)
    }
    fn run(&mut self, exe: Executable, batch: &Batch, out: &mut StepOutput) -> Result<(), OpError> {
        self.inner.run(exe, &self.mutate_batch(batch), out)
    }
    fn run_apart(
        &mut self,
        exe: Executable,
        batch: &Batch,
        rows: &[usize],
        out: &mut StepOutput,
        launched: &mut Vec<Launched>,
    ) -> Result<(), OpError> {
        self.inner.run_apart(exe, &self.mutate_batch(batch), rows, out, launched)
    }
}
