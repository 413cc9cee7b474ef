//! Softmax attention over pages, in two passes.
//!
//! math: `s_j = dot(q, k_j) * scale`, `p_j = exp(s_j - max)`, `out = sum_j p_j v_j / sum_j p_j`
//! shapes: q, out [T, H * E]; keys and values of a kv head [page_tokens, E] in each page
//! layout: see `tare_cpu::kv`; scores of up to 8 heads in the worker's scratch
//! precision: F32; scores in 16 lanes, the denominator in 16 lanes over j, values fused for j ascending, one division
//! preconditions: context 1 at least, inside the row's table
//! cost: keys and values of the context once for each row (and run of heads that share them); 4 E flops a head and token
//! tolerance: bit-identical to the reference, for every page size and thread count
//! wins: decode with grouped heads: 16 keys are reduced at once, a page of keys or values is read from memory once
//! loses: prompts, where no product is shared between rows; one sequence on more workers than heads
//! fallback: the same code on an array (`portable`)
//! evidence: none yet
//! source: the two-pass softmax; the order is that of `tare_ops::reference::attention`
//!
//! Workers take (run of heads, row) pairs from a common counter, since contexts differ from row to row.

mod mix;
mod score;
mod soften;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tare_ops::Row;

use super::kv_append::TableView;
use crate::lanes::{Kernel, LANES, Lanes};
use crate::pool::Region;
use crate::rows::Rows;

/// Heads of one kv head that a worker takes together, at most.
pub const TOGETHER: usize = 8;
/// Values that are used for all heads of a run before the next are read: they stay in L1.
const VALUES: usize = 32;
/// Bytes ahead of the keys and values in use that are asked for.
const AHEAD: usize = 4 << 10;

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
    /// Query heads.
    pub heads: usize,
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
    /// This worker's scores: [`TOGETHER`] rows of `score_stride` F32.
    pub scores: *mut f32,
    /// The longest context of the step, rounded up to 16.
    pub score_stride: usize,
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
    let single = call.splits_runs(cache.rows.len(), region.workers);
    let pieces = call.pieces(cache.rows.len(), region.workers);
    loop {
        let i = cache.next.fetch_add(1, Relaxed);
        if i >= pieces {
            return;
        }
        let (n, t) = (i / cache.rows.len(), i % cache.rows.len());
        let (heads, kv_head) = if single { call.run_of(n) } else { call.runs[n].clone() };
        let piece = Piece::<T> { call, cache, t, heads, kv_head, element: PhantomData };
        l.vectorize(piece);
    }
}

impl Attention {
    /// Whether heads are taken one by one: runs are kept together only when there is enough for everybody.
    fn splits_runs(&self, rows: usize, workers: usize) -> bool {
        rows * self.runs.len() < 2 * workers && workers > 1
    }

    /// Pieces of work that `workers` take one after the other when `rows` rows travel through.
    pub fn pieces(&self, rows: usize, workers: usize) -> usize {
        rows * if self.splits_runs(rows, workers) { self.heads } else { self.runs.len() }
    }

    /// Head `head` alone.
    fn run_of(&self, head: usize) -> (Range<usize>, usize) {
        let kv = self.runs.iter().find(|(run, _)| run.contains(&head)).map_or(0, |r| r.1);
        (head..head + 1, kv)
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
    t: usize,
    heads: Range<usize>,
    kv_head: usize,
    element: PhantomData<T>,
}

impl<T: Element> Kernel for Piece<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let row = &self.cache.rows[self.t];
        let table = &self.cache.tables[row.table as usize];
        let (context, page_tokens) = (row.context as usize, table.pool.page_tokens);
        let pages = table.pages().iter().zip((0..context).step_by(page_tokens));
        let run_at = |first: usize| (context - first).min(page_tokens);
        let mut denominators = [0.0; TOGETHER];
        // SAFETY: pages of the table, tokens below the context, heads of the row.
        unsafe {
            for (page, first) in pages.clone() {
                let keys = table.pool.keys(self.call.layer, *page, self.kv_head);
                self.score(l, keys.cast(), first, run_at(first));
            }
            for (i, head) in self.heads.clone().enumerate() {
                denominators[i] = soften::exponentials(l, self.scores(i), context);
                std::ptr::write_bytes(self.out(head), 0, self.call.head_size);
            }
            for (page, first) in pages {
                let values = table.pool.values(self.call.layer, *page, self.kv_head);
                self.mix(l, values.cast(), first, run_at(first));
            }
            for (i, head) in self.heads.clone().enumerate() {
                soften::divide(l, self.out(head), self.call.head_size, denominators[i]);
            }
        }
    }
}

impl<T: Element> Piece<'_, T> {
    /// The scores of the `i`-th head of the run.
    #[inline(always)]
    fn scores(&self, i: usize) -> *mut f32 {
        self.cache.scores.wrapping_add(i * self.cache.score_stride)
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

    /// Scores of tokens `first .. first + n` for every head of the run. keys [n, E]
    ///
    /// # Safety
    /// The keys lie there and the scores have room.
    #[inline(always)]
    unsafe fn score<L: Lanes>(&self, l: L, keys: *const T, first: usize, n: usize) {
        let (size, scale) = (self.call.head_size, self.call.scale);
        for j in (0..n).step_by(LANES) {
            let block = Block { first: keys.wrapping_add(j * size), size, tokens: (n - j).min(LANES), at: first + j };
            let mut i = 0;
            // SAFETY: heads of the run; the block's keys lie there and scores have room for the context.
            unsafe {
                while L::WIDE && i + 2 <= self.heads.len() {
                    score::block::<L, T, 2>(l, &self.several(i), &block, scale);
                    i += 2;
                }
                while i < self.heads.len() {
                    score::block::<L, T, 1>(l, &self.several(i), &block, scale);
                    i += 1;
                }
            }
        }
    }

    /// Adds `p_j v_j` of tokens `first .. first + n` to the output of every head of the run. values [n, E]
    ///
    /// # Safety
    /// The values and their scores lie there.
    #[inline(always)]
    unsafe fn mix<L: Lanes>(&self, l: L, values: *const T, first: usize, n: usize) {
        let size = self.call.head_size;
        for j in (0..n).step_by(VALUES) {
            let block =
                Block { first: values.wrapping_add(j * size), size, tokens: (n - j).min(VALUES), at: first + j };
            let mut i = 0;
            // SAFETY: heads of the run; the block's values and their scores lie there.
            unsafe {
                while L::WIDE && i + 2 <= self.heads.len() {
                    mix::block::<L, T, 2>(l, &self.several(i), &block);
                    i += 2;
                }
                while i < self.heads.len() {
                    mix::block::<L, T, 1>(l, &self.several(i), &block);
                    i += 1;
                }
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

/// Keys or values of some tokens, one after the other.
struct Block<T> {
    first: *const T,
    /// E
    size: usize,
    tokens: usize,
    /// The first token's place in the context.
    at: usize,
}
