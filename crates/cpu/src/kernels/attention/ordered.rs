//! Softmax attention over pages, in two passes.
//!
//! math: `s_j = dot(q, k_j) * scale`, `p_j = exp(s_j - max)`, `out = sum_j p_j v_j / sum_j p_j`
//! shapes: q, out [T, H * E]; keys and values of a kv head [page_tokens, E] in each page
//! layout: see `tare_cpu::kv`; scores of up to 8 heads of a run in [`Scratch`]
//! precision: F32; scores in 16 lanes, the denominator in 16 lanes over j, values fused for j ascending, one division
//! preconditions: context 1 at least, inside the row's table
//! cost: keys and values of the context once for each row (and run of heads that share them); 4 E flops a head and token
//! tolerance: bit-identical to the reference, for every page size and thread count
//! wins: decode with grouped heads: 16 keys are reduced at once, a page of keys or values is read from memory once
//! loses: prompts, where no product is shared between rows; a few tokens of context on many workers, which meet twice
//! fallback: the same code on an array (`portable`)
//! evidence: none yet
//! source: the two-pass softmax; the order is that of `tare_ops::reference::attention`
//!
//! Workers take (run of heads, row) pieces from a common counter, since contexts differ from row to row. Where there are
//! too few pieces to go round, they share each of them out: see [`split`].

mod mix;
mod score;
mod split;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use tare_ops::Row;

use super::pages::{Element, Half, Pages};
use super::scratch::Scratch;
use super::{Attention, AttentionFn, Cache, soften};
use crate::lanes::{Kernel, LANES, Lanes};
use crate::pool::Region;

/// Values that are used for all heads of a run before the next are read: they stay in L1.
const VALUES: usize = 32;
/// The shortest context whose pieces are worth sharing out.
const SHARED_FROM: usize = 64;

impl Attention {
    /// Pieces of work of `rows` rows: each is a run of heads of one of them.
    pub fn pieces(&self, rows: usize) -> usize {
        rows * self.runs.len()
    }

    /// Whether `workers` share the pieces of `rows` rows out among them, the longest context being `context`: when each
    /// would have one or two, and some more than others.
    pub fn shared_out(&self, rows: usize, context: usize, workers: usize) -> bool {
        let pieces = self.pieces(rows);
        pieces <= Scratch::slots(workers) && !pieces.is_multiple_of(workers) && context >= SHARED_FROM
    }
}

/// The kernel for pool elements `T` on instruction set `L`.
pub fn kernel<L: Lanes, T: Element>() -> AttentionFn {
    run::<L, T>
}

/// # Safety
/// That of [`AttentionFn`].
unsafe fn run<L: Lanes, T: Element>(call: &Attention, cache: Cache, region: Region) {
    let Some(l) = L::detect() else { return };
    let rows = cache.rows.len();
    let longest = cache.rows.iter().map(|r| r.context as usize).max().unwrap_or(0);
    if call.shared_out(rows, longest, region.workers) {
        // SAFETY: the caller's promise.
        return unsafe { split::run::<L, T>(l, call, cache, region) };
    }
    loop {
        let i = cache.next.fetch_add(1, Relaxed);
        if i >= call.pieces(rows) {
            return;
        }
        l.vectorize(Piece::<T>::new(call, cache, i, region.worker));
    }
}

/// One row and a run of heads that share a kv head.
struct Piece<'a, T> {
    call: &'a Attention,
    cache: Cache<'a>,
    row: &'a Row,
    t: usize,
    heads: Range<usize>,
    kv_head: usize,
    /// Where its scores are.
    slot: usize,
    element: PhantomData<T>,
}

/// A whole piece by one worker.
impl<T: Element> Kernel for Piece<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        // SAFETY: the piece is one of the step.
        unsafe {
            self.score(l, 0..self.context());
            for i in 0..self.heads.len() {
                self.soften(l, i);
            }
            self.mix(l, 0..self.call.head_size);
        }
    }
}

impl<'a, T: Element> Piece<'a, T> {
    /// Piece `i` of the step, rows before runs, with its scores in `slot`.
    fn new(call: &'a Attention, cache: Cache<'a>, i: usize, slot: usize) -> Self {
        let (n, t) = (i / cache.rows.len(), i % cache.rows.len());
        let (heads, kv_head) = call.runs[n].clone();
        Self { call, cache, row: &cache.rows[t], t, heads, kv_head, slot, element: PhantomData }
    }

    /// Tokens that the row sees.
    #[inline(always)]
    fn context(&self) -> usize {
        self.row.context as usize
    }

    /// The scores of the `i`-th head of the run.
    #[inline(always)]
    fn scores(&self, i: usize) -> *mut f32 {
        self.cache.scratch.scores(self.slot, i)
    }

    /// The denominator of the `i`-th head of the run, behind its scores.
    #[inline(always)]
    fn denominator(&self, i: usize) -> *mut f32 {
        self.cache.scratch.denominator(self.slot, i)
    }

    /// Where the output of `head` goes.
    #[inline(always)]
    fn out(&self, head: usize) -> *mut f32 {
        self.call.out.row(self.t).wrapping_add(head * self.call.head_size)
    }

    /// What H heads from the `i`-th of the run on read and write.
    #[inline(always)]
    fn several<const H: usize>(&self, i: usize) -> Heads<H> {
        let size = self.call.head_size;
        let mut heads =
            Heads { q: [std::ptr::null(); H], scores: [std::ptr::null_mut(); H], out: [std::ptr::null_mut(); H] };
        for h in 0..H {
            let head = self.heads.start + i + h;
            heads.q[h] = self.call.q.row(self.t).wrapping_add(head * size);
            heads.scores[h] = self.scores(i + h);
            heads.out[h] = self.out(head);
        }
        heads
    }

    /// Where its keys and values lie.
    #[inline(always)]
    fn pages(&self) -> Pages<'a> {
        let table = &self.cache.tables[self.row.table as usize];
        Pages { table, layer: self.call.layer, kv_head: self.kv_head, size: self.call.head_size }
    }

    /// The scores of `tokens` for every head of the run.
    ///
    /// # Safety
    /// The tokens are in the context.
    #[inline(always)]
    unsafe fn score<L: Lanes>(&self, l: L, tokens: Range<usize>) {
        let (pages, scale, mut at) = (self.pages(), self.call.scale, tokens.start);
        // The values follow the last key.
        let last = tokens.end == self.context();
        let after = if last { pages.place(Half::Values, 0) } else { std::ptr::null::<T>() };
        while at < tokens.end {
            let mut i = 0;
            // SAFETY: heads of the run; the block's keys lie there and scores have room for the context.
            unsafe {
                let mut block = pages.block(Half::Keys, at, LANES, tokens.end, after);
                at += block.tokens;
                while L::WIDE && i + 2 <= self.heads.len() {
                    score::block::<L, T, 2>(l, &self.several(i), &block, scale);
                    block.ahead = std::ptr::null();
                    i += 2;
                }
                while i < self.heads.len() {
                    score::block::<L, T, 1>(l, &self.several(i), &block, scale);
                    block.ahead = std::ptr::null();
                    i += 1;
                }
            }
        }
    }

    /// The scores of the `i`-th head of the run to probabilities before the division.
    ///
    /// # Safety
    /// All its scores are there.
    #[inline(always)]
    unsafe fn soften<L: Lanes>(&self, l: L, i: usize) {
        // SAFETY: the caller's promise; the denominator has its place.
        unsafe { *self.denominator(i) = soften::exponentials(l, self.scores(i), self.context()).1 };
    }

    /// Columns `columns` of the outputs of every head of the run.
    ///
    /// # Safety
    /// The probabilities and denominators are there, and nobody else writes these columns.
    #[inline(always)]
    unsafe fn mix<L: Lanes>(&self, l: L, columns: Range<usize>) {
        // SAFETY: heads of the run, columns of a head; the block's values lie there.
        unsafe {
            for head in self.heads.clone() {
                std::ptr::write_bytes(self.out(head).add(columns.start), 0, columns.len());
            }
            let (pages, mut at) = (self.pages(), 0);
            while at < self.context() {
                let mut block = pages.block::<T>(Half::Values, at, VALUES, self.context(), std::ptr::null());
                at += block.tokens;
                let mut i = 0;
                while L::WIDE && i + 2 <= self.heads.len() {
                    mix::block::<L, T, 2>(l, &self.several(i), &block, &columns);
                    block.ahead = std::ptr::null();
                    i += 2;
                }
                while i < self.heads.len() {
                    mix::block::<L, T, 1>(l, &self.several(i), &block, &columns);
                    block.ahead = std::ptr::null();
                    i += 1;
                }
            }
            for (i, head) in self.heads.clone().enumerate() {
                let out = self.out(head).add(columns.start);
                soften::divide(l, out, columns.len(), *self.denominator(i));
            }
        }
    }
}

/// What H heads read and write.
struct Heads<const H: usize> {
    /// [E] each
    q: [*const f32; H],
    /// [context] each
    scores: [*mut f32; H],
    /// [E] each
    out: [*mut f32; H],
}
