//! Softmax attention over pages, in two passes.
//!
//! math: `s_j = dot(q, k_j) * scale`, `p_j = exp(s_j - max)`, `out = sum_j p_j v_j / sum_j p_j`
//! shapes: q, out [T, H * E]; keys and values of a kv head [page_tokens, E] in each page
//! layout: see `tare_cpu::kv`; scores of up to 8 heads of a run in [`Scores`]
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
mod soften;
mod split;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tare_ops::{OpError, Row};

use super::kv_append::TableView;
use crate::kv::out_of_memory;
use crate::lanes::{Kernel, LANES, Lanes};
use crate::memory::Memory;
use crate::pool::Region;
use crate::rows::Rows;

/// Heads of one kv head that a worker takes together, at most.
pub const TOGETHER: usize = 8;
/// Values that are used for all heads of a run before the next are read: they stay in L1.
const VALUES: usize = 32;
/// Bytes ahead of the keys and values in use that are asked for, wherever their page lies.
const AHEAD: usize = 4 << 10;
/// Bytes of a cache line.
const LINE: usize = 64;
/// The shortest context whose pieces are worth sharing out.
const SHARED_FROM: usize = 64;

/// A call.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Decoder layer.
    pub layer: usize,
    /// [T, H * E]
    pub q: Rows,
    /// [T, H * E]
    pub out: Rows,
    /// Elements of a head.
    pub head_size: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Runs of consecutive query heads with the kv head they share, each of [`TOGETHER`] at most.
    pub runs: Vec<(Range<usize>, usize)>,
}

impl Attention {
    /// The runs of `kv_of_head`.
    pub fn runs_of(kv_of_head: &[u16]) -> Vec<(Range<usize>, usize)> {
        let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
        for (head, kv) in kv_of_head.iter().map(|kv| usize::from(*kv)).enumerate() {
            match runs.last_mut() {
                Some((run, of)) if *of == kv && run.len() < TOGETHER => run.end = head + 1,
                _ => runs.push((head..head + 1, kv)),
            }
        }
        runs
    }

    /// Pieces of work of `rows` rows: each is a run of heads of one of them.
    pub fn pieces(&self, rows: usize) -> usize {
        rows * self.runs.len()
    }

    /// Whether `workers` share the pieces of `rows` rows out among them, the longest context being `context`: when each
    /// would have one or two, and some more than others.
    pub fn shared_out(&self, rows: usize, context: usize, workers: usize) -> bool {
        let pieces = self.pieces(rows);
        pieces <= Scores::slots(workers) && !pieces.is_multiple_of(workers) && context >= SHARED_FROM
    }
}

/// Working memory of a step: for each slot, scores of [`TOGETHER`] heads over the longest context.
#[derive(Debug)]
pub struct Scores {
    memory: Memory,
    slots: usize,
    /// F32 of a head.
    stride: usize,
}

impl Scores {
    /// None yet, for `workers`.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(workers: usize) -> Result<Self, OpError> {
        let memory = Memory::zeroed(0).ok_or_else(|| out_of_memory("attention scores", 0))?;
        Ok(Self { memory, slots: Self::slots(workers), stride: 0 })
    }

    /// Pieces whose scores are kept at once: one for each worker, or all of those that are shared out.
    fn slots(workers: usize) -> usize {
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
        let bytes = self.slots.saturating_mul(TOGETHER * size_of::<f32>()).saturating_mul(stride);
        self.memory = Memory::zeroed(bytes).ok_or_else(|| out_of_memory("attention scores", bytes))?;
        self.stride = stride;
        Ok(())
    }

    /// Its bytes.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The scores of head `i` of the run in `slot`; the last of the row's F32 is for the denominator.
    #[inline(always)]
    fn of(&self, slot: usize, i: usize) -> *mut f32 {
        self.memory.as_ptr::<f32>().wrapping_add((slot * TOGETHER + i) * self.stride)
    }
}

/// What the calls of a step share.
#[derive(Clone, Copy, Debug)]
pub struct Cache<'a> {
    /// Rows of the step.
    pub rows: &'a [Row],
    /// Their tables.
    pub tables: &'a [TableView],
    /// The next piece of work of this call, 0 at first.
    pub next: &'a AtomicUsize,
    /// Room for scores of the longest context.
    pub scores: &'a Scores,
}

/// Runs pieces of a call until none is left.
///
/// # Safety
/// The rows have been checked against the tables, q and out hold them, the scores have room, nobody writes the cache.
pub type AttentionFn = unsafe fn(&Attention, Cache, Region);

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

/// An element of a pool.
pub trait Element: 'static {
    /// 16 elements as F32.
    ///
    /// # Safety
    /// They lie at `p`.
    unsafe fn load<L: Lanes>(l: L, p: *const Self) -> L::V;
    /// The first `n < 16` elements, +0 in the other lanes.
    ///
    /// # Safety
    /// They lie at `p`.
    unsafe fn load_part<L: Lanes>(l: L, p: *const Self, n: usize) -> L::V;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, p: *const f32) -> L::V {
        // SAFETY: the caller's promise.
        unsafe { l.load(p) }
    }
    #[inline(always)]
    unsafe fn load_part<L: Lanes>(l: L, p: *const f32, n: usize) -> L::V {
        // SAFETY: the caller's promise.
        unsafe { l.load_part(p, n, 0.0) }
    }
}

impl Element for half::bf16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, p: *const half::bf16) -> L::V {
        // SAFETY: the caller's promise.
        unsafe { l.bf16s(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_part<L: Lanes>(l: L, p: *const half::bf16, n: usize) -> L::V {
        let mut whole = [half::bf16::ZERO; LANES];
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(p, whole.as_mut_ptr(), n);
            l.bf16s(whole.as_ptr().cast())
        }
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
        self.cache.scores.of(self.slot, i)
    }

    /// The denominator of the `i`-th head of the run, behind its scores.
    #[inline(always)]
    fn denominator(&self, i: usize) -> *mut f32 {
        self.scores(i).wrapping_add(self.cache.scores.stride - 1)
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

    /// Where a token's keys or values lie.
    #[inline(always)]
    fn place(&self, half: Half, token: usize) -> *const T {
        let table = &self.cache.tables[self.row.table as usize];
        let (n, inside) = (token / table.pool.page_tokens, token % table.pool.page_tokens);
        let (layer, page) = (self.call.layer, table.pages()[n]);
        let first = match half {
            Half::Keys => table.pool.keys(layer, page, self.kv_head),
            Half::Values => table.pool.values(layer, page, self.kv_head),
        };
        first.cast_const().cast::<T>().wrapping_add(inside * self.call.head_size)
    }

    /// Up to `most` tokens from `at` on, before `end` and in one page, and the place of what follows [`AHEAD`] bytes
    /// later, in whatever page: further tokens, and values behind the last key. `at < end`, `end` is in the context.
    #[inline(always)]
    fn block(&self, half: Half, at: usize, most: usize, end: usize) -> Block<T> {
        let (size, context) = (self.call.head_size, self.context());
        let page_tokens = self.cache.tables[self.row.table as usize].pool.page_tokens;
        let later = at + (AHEAD / (size * size_of::<T>())).max(1);
        let ahead = match half {
            _ if later < end => self.place(half, later),
            Half::Keys if end == context && later < 2 * context => self.place(Half::Values, later - context),
            _ => std::ptr::null(),
        };
        let tokens = most.min(page_tokens - at % page_tokens).min(end - at);
        let elsewhere = later >= end || later / page_tokens != at / page_tokens;
        Block { first: self.place(half, at), ahead, elsewhere, size, tokens, at }
    }

    /// The scores of `tokens` for every head of the run.
    ///
    /// # Safety
    /// The tokens are in the context.
    #[inline(always)]
    unsafe fn score<L: Lanes>(&self, l: L, tokens: Range<usize>) {
        let (scale, mut at) = (self.call.scale, tokens.start);
        while at < tokens.end {
            let mut i = 0;
            // SAFETY: heads of the run; the block's keys lie there and scores have room for the context.
            unsafe {
                let mut block = self.block(Half::Keys, at, LANES, tokens.end);
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
        unsafe { *self.denominator(i) = soften::exponentials(l, self.scores(i), self.context()) };
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
            let mut at = 0;
            while at < self.context() {
                let mut block = self.block(Half::Values, at, VALUES, self.context());
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

/// Which half of a page.
#[derive(Clone, Copy)]
enum Half {
    Keys,
    Values,
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

/// Keys or values of some tokens, one after the other.
struct Block<T> {
    first: *const T,
    /// As many elements that will be read later, to be asked for; null for none.
    ahead: *const T,
    /// Whether those lie in another page.
    elsewhere: bool,
    /// E
    size: usize,
    tokens: usize,
    /// The first token's place in the context.
    at: usize,
}

impl<T> Block<T> {
    /// Asks for what follows elements `from .. from + n` of the block: for every line in another page, for the first one
    /// in the same, where the processor finds the stream by itself.
    #[inline(always)]
    fn ask<L: Lanes>(&self, l: L, from: usize, n: usize) {
        if !self.ahead.is_null() {
            let first = self.ahead.wrapping_add(from).cast::<u8>();
            l.prefetch(first);
            if self.elsewhere {
                for at in (LINE..n * size_of::<T>()).step_by(LINE) {
                    l.prefetch(first.wrapping_add(at));
                }
            }
        }
    }
}
