//! One step of a plan, operator by operator.

use std::collections::BTreeMap;

use tare_core::{Fault, Weight};
use tare_formats::codec::dequantize_row;

use super::kv::{Half, KvPool};
use super::linear::Epilogue;
use super::{attention, blocks, embedding, head_norm, linear, rms_norm, rope, sample, select, swiglu};
use crate::apart::{Launched, Left};
use crate::backend::KvId;
use crate::batch::{Batch, Row, StepOutput, TokenSource};
use crate::class::Rounding;
use crate::op::{BufId, Op, WeightId};
use crate::plan::{ForwardPlan, RowSpace};

/// What the operators of one step read and write.
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) plan: &'a ForwardPlan,
    pub(super) weights: &'a [Weight],
    pub(super) pools: &'a mut BTreeMap<u32, KvPool>,
    pub(super) batch: &'a Batch,
    /// Tokens that the step before gave.
    pub(super) previous: &'a [u32],
    /// One for each buffer of the plan, [rows, width].
    pub(super) buffers: &'a mut [Vec<f32>],
}

impl Step<'_> {
    /// Runs every call in order, and tells `done` after each with its index. The batch has been checked.
    pub(super) fn run(&mut self, out: &mut StepOutput, done: &mut dyn FnMut(usize, &Self)) -> Result<(), Fault> {
        // Whoever reads a buffer that no call of this step has written is found out.
        for buffer in self.buffers.iter_mut() {
            buffer.fill(f32::NAN);
        }
        for (i, call) in self.plan.calls.iter().enumerate() {
            self.call(&call.op, out).map_err(|f| f.within(&call.kernel))?;
            done(i, self);
        }
        Ok(())
    }

    /// What call `i` left of the rows `rows`.
    pub(super) fn left(&self, i: usize, rows: &[usize]) -> Launched {
        let left = self.plan.calls[i].op.writes().map(|buffer| {
            let (width, space) = (self.width(buffer), self.plan.buffer(buffer).rows);
            let of = |t: usize| &self.buffers[buffer.0 as usize][t * width..][..width];
            let values = self.batch.places(space, rows).into_iter().flat_map(of).copied().collect();
            Left { buffer, bf16: false, values }
        });
        Launched { calls: i..i + 1, left: left.into_iter().collect() }
    }

    fn call(&mut self, op: &Op, out: &mut StepOutput) -> Result<(), Fault> {
        match op {
            Op::Embedding { table, out } => self.embedding(*table, *out),
            Op::RmsNorm { x, weight, eps, out } => {
                let w = self.vector(*weight);
                self.map(*x, *out, |_, x, o| rms_norm::rms_norm(x, &w, *eps, o));
            }
            Op::HeadNorm { x, weight, eps, .. } => {
                let w = self.vector(*weight);
                self.each(*x, |_, x| head_norm::head_norm(x, &w, *eps));
            }
            Op::Rope { x, .. } => self.rope(*x),
            Op::Linear { .. } => self.linear(op),
            Op::KvAppend { layer, k, v } => {
                self.append(*layer as usize, Half::Key, *k);
                self.append(*layer as usize, Half::Value, *v);
            }
            Op::Attention { .. } => self.attention(op),
            Op::SwiGlu { gate, up, out } => {
                if gate != out {
                    self.map(*gate, *out, |_, g, o| o.copy_from_slice(g));
                }
                self.map(*up, *out, |_, u, o| swiglu::swiglu(o, u));
            }
            Op::SelectRows { x, out } => {
                let mut to = self.take(*out);
                select::select_rows(&self.batch.rows, &self.buffers[x.0 as usize], self.width(*x), &mut to);
                self.buffers[out.0 as usize] = to;
            }
            Op::Sample { logits } => {
                return sample::sample(self.batch, &self.buffers[logits.0 as usize], self.width(*logits), out);
            }
        }
        Ok(())
    }

    fn embedding(&mut self, table: WeightId, out: BufId) {
        let (table, batch, previous) = (&self.weights[table.0 as usize], self.batch, self.previous);
        self.each(out, |t, o| {
            let token = match batch.rows[t].token {
                TokenSource::Id(id) => id,
                TokenSource::Previous(n) => previous[n as usize],
            };
            embedding::embedding(table, token, o);
        });
    }

    fn rope(&mut self, x: BufId) {
        let (table, batch) = (&self.plan.rope, self.batch);
        let mut cos = vec![0.0; table.inv_freq.len()];
        let mut sin = cos.clone();
        self.each(x, |t, x| {
            rope::angles(table, batch.rows[t].position, &mut cos, &mut sin);
            rope::rotate(x, table.style, &cos, &sin);
        });
    }

    fn linear(&mut self, op: &Op) {
        let Op::Linear { x, weight, bias, accumulate, rounding, out } = op else { return };
        let bias = bias.map(|b| self.vector(b));
        let epilogue = Epilogue { bias: bias.as_deref(), accumulate: *accumulate };
        let mut from = self.buffers[x.0 as usize][..self.rows(*x) * self.width(*x)].to_vec();
        linear::round(*rounding, &mut from);
        let mut to = self.take(*out);
        let product = match rounding {
            Rounding::Int8 => blocks::linear::<i8>,
            Rounding::Int15 => blocks::linear::<i16>,
            Rounding::F32 | Rounding::Bf16 => linear::linear,
        };
        product(&self.weights[weight.0 as usize], &from, epilogue, &mut to);
        self.buffers[out.0 as usize] = to;
    }

    fn append(&mut self, layer: usize, half: Half, from: BufId) {
        let width = self.width(from);
        let x = &self.buffers[from.0 as usize];
        for (row, x) in self.batch.rows.iter().zip(x.chunks_exact(width)) {
            let table = &self.batch.tables[row.table as usize];
            if let Some(pool) = self.pools.get_mut(&table.kv.0) {
                let (page, token) = place(&table.pages, pool.page_tokens(), row.slot as usize);
                pool.store(layer, half, page, token, x);
            }
        }
    }

    fn attention(&mut self, op: &Op) {
        let Op::Attention { layer, q, kv_of_head, scale, out } = op else { return };
        let e = self.plan.kv.head_size;
        let mut to = self.take(*out);
        let mut scores = Vec::new();
        let q = self.buffers[q.0 as usize].chunks_exact(e);
        for (i, (q, out)) in q.zip(to.chunks_exact_mut(e)).take(self.batch.rows.len() * kv_of_head.len()).enumerate() {
            let row = &self.batch.rows[i / kv_of_head.len()];
            let head = kv_of_head[i % kv_of_head.len()] as usize;
            let Some(pool) = self.pool_of(row) else { continue };
            let pages = &self.batch.tables[row.table as usize].pages;
            let tokens = (0..row.context as usize).map(|j| {
                let (page, token) = place(pages, pool.page_tokens(), j);
                let part = |half| &pool.token(*layer as usize, half, page, token)[head * e..][..e];
                (part(Half::Key), part(Half::Value))
            });
            attention::attend(q, *scale, tokens, &mut scores, out);
        }
        self.buffers[out.0 as usize] = to;
    }

    fn pool_of(&self, row: &Row) -> Option<&KvPool> {
        let KvId(id) = self.batch.tables[row.table as usize].kv;
        self.pools.get(&id)
    }

    /// A weight of one row, as F32.
    fn vector(&self, id: WeightId) -> Vec<f32> {
        let w = &self.weights[id.0 as usize];
        let mut v = vec![0.0; w.cols()];
        dequantize_row(w, 0, &mut v);
        v
    }

    fn width(&self, id: BufId) -> usize {
        self.plan.buffer(id).width
    }

    /// Rows of this step in a buffer.
    fn rows(&self, id: BufId) -> usize {
        match self.plan.buffer(id).rows {
            RowSpace::All => self.batch.rows.len(),
            RowSpace::Selected => self.batch.selected(),
        }
    }

    fn take(&mut self, id: BufId) -> Vec<f32> {
        std::mem::take(&mut self.buffers[id.0 as usize])
    }

    /// Changes each row of a buffer.
    fn each(&mut self, id: BufId, mut f: impl FnMut(usize, &mut [f32])) {
        let (rows, width) = (self.rows(id), self.width(id));
        for (t, x) in self.buffers[id.0 as usize].chunks_exact_mut(width).take(rows).enumerate() {
            f(t, x);
        }
    }

    /// Makes each row of `out` from the same row of `x`.
    fn map(&mut self, x: BufId, out: BufId, mut f: impl FnMut(usize, &[f32], &mut [f32])) {
        let (rows, width) = (self.rows(x), self.width(x));
        let mut to = self.take(out);
        let from = self.buffers[x.0 as usize].chunks_exact(width);
        for (t, (x, o)) in from.zip(to.chunks_exact_mut(self.width(out))).take(rows).enumerate() {
            f(t, x, o);
        }
        self.buffers[out.0 as usize] = to;
    }
}

/// Page and place inside it of a token.
fn place(pages: &[u32], page_tokens: usize, token: usize) -> (u32, usize) {
    (pages[token / page_tokens], token % page_tokens)
}
