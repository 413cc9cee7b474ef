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

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tare_ops::Row;

use super::kv_append::TableView;
use crate::lanes::{Kernel, LANES, Lanes, exp};
use crate::pool::Region;
use crate::rows::Rows;

/// Heads of one kv head that a worker takes together, at most.
pub const TOGETHER: usize = 8;
/// Values that are used for all heads of a run before the next are read: they stay in L1.
const VALUES: usize = 32;
/// Bytes ahead of the keys and values in use that are asked for.
const AHEAD: usize = 4 << 10;

/// A call.
#[derive(Debug)]
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

unsafe fn run<L: Lanes, T: Element>(call: &Attention, cache: Cache, region: Region) {
    let Some(l) = L::detect() else { return };
    // Runs of heads are kept together only when there is enough for everybody.
    let single = cache.rows.len() * call.runs.len() < 2 * region.workers && region.workers > 1;
    let pieces = cache.rows.len() * if single { call.heads } else { call.runs.len() };
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
                denominators[i] = soften(l, self.scores(i), context);
                std::ptr::write_bytes(self.out(head), 0, self.call.head_size);
            }
            for (page, first) in pages {
                let values = table.pool.values(self.call.layer, *page, self.kv_head);
                self.mix(l, values.cast(), first, run_at(first));
            }
            for (i, head) in self.heads.clone().enumerate() {
                divide(l, self.out(head), self.call.head_size, denominators[i]);
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

    /// Scores of tokens `first .. first + n` for every head of the run. keys [n, E]
    #[inline(always)]
    unsafe fn score<L: Lanes>(&self, l: L, keys: *const T, first: usize, n: usize) {
        let size = self.call.head_size;
        for j in (0..n).step_by(LANES) {
            let some = (n - j).min(LANES);
            let block = keys.wrapping_add(j * size);
            for (i, head) in self.heads.clone().enumerate() {
                let q = self.call.q.row(self.t).wrapping_add(head * size);
                let mut sums = [l.splat(0.0); LANES];
                // SAFETY: `some` keys lie in the block; scores have room for the context.
                unsafe {
                    for (at, sum) in sums.iter_mut().enumerate().take(some) {
                        let key = block.wrapping_add(at * size);
                        if i == 0 {
                            l.prefetch(key.cast::<u8>().wrapping_add(AHEAD));
                        }
                        *sum = lanes_of_dot(l, q, key, size);
                    }
                    let s = l.mul(l.sum_each(&sums), l.splat(self.call.scale));
                    let to = self.scores(i).add(first + j);
                    if some == LANES { l.store(to, s) } else { l.store_part(to, some, s) }
                }
            }
        }
    }

    /// Adds `p_j v_j` of tokens `first .. first + n` to the output of every head of the run. values [n, E]
    #[inline(always)]
    unsafe fn mix<L: Lanes>(&self, l: L, values: *const T, first: usize, n: usize) {
        let size = self.call.head_size;
        for j in (0..n).step_by(VALUES) {
            let some = (n - j).min(VALUES);
            let block = values.wrapping_add(j * size);
            for (i, head) in self.heads.clone().enumerate() {
                // SAFETY: the context's scores are there, and `some` values in the block.
                unsafe {
                    let p = std::slice::from_raw_parts(self.scores(i).add(first + j), some);
                    let out = self.out(head);
                    let mut e = 0;
                    while e + 4 * LANES <= size {
                        mix_columns::<L, T, 4>(l, p, block.wrapping_add(e), size, out.add(e));
                        e += 4 * LANES;
                    }
                    while e + LANES <= size {
                        mix_columns::<L, T, 1>(l, p, block.wrapping_add(e), size, out.add(e));
                        e += LANES;
                    }
                    if e < size {
                        mix_tail(l, p, block.wrapping_add(e), size, (out.add(e), size - e));
                    }
                }
            }
        }
    }
}

/// The 16 lanes of `dot(q, key)`.
#[inline(always)]
unsafe fn lanes_of_dot<L: Lanes, T: Element>(l: L, q: *const f32, key: *const T, size: usize) -> L::V {
    let mut acc = l.splat(0.0);
    let whole = size / LANES * LANES;
    // SAFETY: both have `size` elements.
    unsafe {
        for e in (0..whole).step_by(LANES) {
            acc = l.fma(l.load(q.add(e)), T::load(l, key.add(e)), acc);
        }
        if whole < size {
            // -0 times +0 added to a lane changes no bit of it.
            let part = size - whole;
            acc = l.fma(l.load_part(q.add(whole), part, -0.0), T::load_part(l, key.add(whole), part), acc);
        }
    }
    acc
}

/// `C` vectors of columns of the output. values: rows of `size`
#[inline(always)]
unsafe fn mix_columns<L: Lanes, T: Element, const C: usize>(
    l: L,
    p: &[f32],
    values: *const T,
    size: usize,
    out: *mut f32,
) {
    let mut acc = [l.splat(0.0); C];
    // SAFETY: the caller has C * 16 columns at `out` and in each of `p.len()` rows.
    unsafe {
        for (c, acc) in acc.iter_mut().enumerate() {
            *acc = l.load(out.add(c * LANES));
        }
        for (j, p) in p.iter().enumerate() {
            let p = l.splat(*p);
            let row = values.wrapping_add(j * size);
            l.prefetch(row.cast::<u8>().wrapping_add(AHEAD));
            for (c, acc) in acc.iter_mut().enumerate() {
                *acc = l.fma(p, T::load(l, row.add(c * LANES)), *acc);
            }
        }
        for (c, acc) in acc.iter().enumerate() {
            l.store(out.add(c * LANES), *acc);
        }
    }
}

/// The last columns, fewer than 16. out: where and how many
#[inline(always)]
unsafe fn mix_tail<L: Lanes, T: Element>(l: L, p: &[f32], values: *const T, size: usize, out: (*mut f32, usize)) {
    // SAFETY: as in `mix_columns`, with `out.1` columns.
    unsafe {
        let mut acc = l.load_part(out.0, out.1, 0.0);
        for (j, p) in p.iter().enumerate() {
            acc = l.fma(l.splat(*p), T::load_part(l, values.wrapping_add(j * size), out.1), acc);
        }
        l.store_part(out.0, out.1, acc);
    }
}

/// Turns scores into `exp(s - max)` and gives their sum. s [n], n > 0
#[inline(always)]
unsafe fn soften<L: Lanes>(l: L, s: *mut f32, n: usize) -> f32 {
    let (whole, part) = (n / LANES * LANES, n % LANES);
    // SAFETY: n scores lie at s.
    unsafe {
        let mut m = l.splat(f32::NEG_INFINITY);
        for j in (0..whole).step_by(LANES) {
            m = l.max(m, l.load(s.add(j)));
        }
        if part > 0 {
            m = l.max(m, l.load_part(s.add(whole), part, f32::NEG_INFINITY));
        }
        let m = l.splat(l.max_lane(m));
        let mut sum = l.splat(0.0);
        for j in (0..whole).step_by(LANES) {
            let p = exp(l, l.sub(l.load(s.add(j)), m));
            l.store(s.add(j), p);
            sum = l.add(sum, p);
        }
        if part > 0 {
            let at = s.add(whole);
            l.store_part(at, part, exp(l, l.sub(l.load_part(at, part, 0.0), m)));
            // -0 added to a lane changes no bit of it.
            sum = l.add(sum, l.load_part(at, part, -0.0));
        }
        l.sum(sum)
    }
}

/// `out / d`. out [n]
#[inline(always)]
unsafe fn divide<L: Lanes>(l: L, out: *mut f32, n: usize, d: f32) {
    let (whole, d) = (n / LANES * LANES, l.splat(d));
    // SAFETY: n elements lie at out.
    unsafe {
        for e in (0..whole).step_by(LANES) {
            l.store(out.add(e), l.div(l.load(out.add(e)), d));
        }
        if whole < n {
            let part = n - whole;
            l.store_part(out.add(whole), part, l.div(l.load_part(out.add(whole), part, 0.0), d));
        }
    }
}
