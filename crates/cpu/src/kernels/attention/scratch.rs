//! Working memory of attention, kept from step to step.

use tare_ops::OpError;

use super::{Attention, Method, TOGETHER, columns, spans, tiles};
use crate::kv::out_of_memory;
use crate::lanes::LANES;
use crate::memory::Memory;

/// Room for scores over the longest context, and for what the kernels in any order leave to be joined.
#[derive(Debug)]
pub struct Scratch {
    workers: usize,
    /// Scores of [`TOGETHER`] heads in each slot.
    scores: Memory,
    /// F32 of a head's scores.
    stride: usize,
    /// What each worker keeps for itself.
    own: Memory,
    /// F32 of a worker.
    own_stride: usize,
    /// Parts of contexts: see [`Scratch::part`].
    parts: Memory,
    /// F32 of a part.
    part_stride: usize,
    /// Query heads that there is room for.
    heads: usize,
}

impl Scratch {
    /// None yet, for `workers`.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(workers: usize) -> Result<Self, OpError> {
        Ok(Self {
            workers,
            scores: zeroed(0)?,
            stride: 0,
            own: zeroed(0)?,
            own_stride: 0,
            parts: zeroed(0)?,
            part_stride: 0,
            heads: 0,
        })
    }

    /// Pieces whose scores are kept at once: one for each worker, or all of those that are shared out.
    pub(super) fn slots(workers: usize) -> usize {
        2 * workers
    }

    /// Makes room for a context. It at least doubles, so that a growing sequence seldom causes it.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn grow(&mut self, context: usize) -> Result<(), OpError> {
        let needed = context + 1;
        if needed <= self.stride {
            return Ok(());
        }
        let stride = needed.max(2 * self.stride).next_multiple_of(1024);
        self.scores = zeroed((Self::slots(self.workers) * TOGETHER).saturating_mul(stride))?;
        self.stride = stride;
        Ok(())
    }

    /// Makes room for a call, whatever its rows.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn fit(&mut self, call: &Attention) -> Result<(), OpError> {
        let padded = call.head_size.next_multiple_of(LANES);
        let own = match call.method {
            Method::Ordered => return Ok(()),
            Method::Spans => TOGETHER * padded,
            Method::Columns => columns::room(call.head_size),
            Method::Tiles => tiles::room(call.head_size),
        };
        let part = padded + LANES;
        if own <= self.own_stride && part <= self.part_stride && call.heads() <= self.heads {
            return Ok(());
        }
        let (own, part) = (own.max(self.own_stride), part.max(self.part_stride));
        let heads = call.heads().max(self.heads);
        // Strides belong to memory that is there: where there is none, everything stays as it was.
        let memory = zeroed(self.workers * own)?;
        self.parts = zeroed((spans::WAVE * spans::MOST * heads).saturating_mul(part))?;
        self.own = memory;
        (self.own_stride, self.part_stride, self.heads) = (own, part, heads);
        Ok(())
    }

    /// All of it.
    pub fn memory(&self) -> [&Memory; 3] {
        [&self.scores, &self.own, &self.parts]
    }

    /// The scores of head `i` of the run in `slot`.
    #[inline(always)]
    pub(super) fn scores(&self, slot: usize, i: usize) -> *mut f32 {
        self.scores.as_ptr::<f32>().wrapping_add((slot * TOGETHER + i) * self.stride)
    }

    /// The denominator of head `i` of the run in `slot`, behind its scores.
    #[inline(always)]
    pub(super) fn denominator(&self, slot: usize, i: usize) -> *mut f32 {
        self.scores(slot, i).wrapping_add(self.stride - 1)
    }

    /// What `worker` has for itself: as many F32 as [`Scratch::fit`] made room for, the queries of a run at least.
    #[inline(always)]
    pub(super) fn own(&self, worker: usize) -> *mut f32 {
        self.own.as_ptr::<f32>().wrapping_add(worker * self.own_stride)
    }

    /// What span `span` of a row, the `row`-th of its wave, leaves for `head`: a sum of values, [E] rounded up to 16, then
    /// the largest score and the sum of the weights.
    #[inline(always)]
    pub(super) fn part(&self, row: usize, span: usize, head: usize) -> *mut f32 {
        let at = (row * spans::MOST + span) * self.heads + head;
        self.parts.as_ptr::<f32>().wrapping_add(at * self.part_stride)
    }
}

/// Room for `n` F32.
fn zeroed(n: usize) -> Result<Memory, OpError> {
    let bytes = n.saturating_mul(size_of::<f32>());
    Memory::zeroed(bytes).ok_or_else(|| out_of_memory("working memory of attention", bytes))
}
