//! Attention of a few rows, in any order: the context of a row is cut into spans, and what they leave is joined.
//!
//! math: of span i: `m_i = max s_j`, `l_i = sum exp(s_j - m_i)`, `o_i = sum exp(s_j - m_i) v_j`; then with `m = max m_i` and
//!   `w_i = exp(m_i - m)`: `out = sum w_i o_i / sum w_i l_i`
//! shapes: q, out [T, H * E]; keys and values of a kv head [page_tokens, E] in each page
//! layout: see `tare_cpu::kv`; the elements of a head in the order of [`Element::two`]; spans in [`Scratch::part`]
//! precision: F32; scores in 16 lanes, values fused for j ascending inside a span, spans ascending
//! preconditions: context 1 at least, inside the row's table
//! cost: keys and values of the context once for each row and run of heads; 4 E flops a head and token
//! tolerance: that of `tare_ops::exact::attention`; the bits of a row follow from its context alone, not from pages, threads
//!   or other rows
//! wins: decode: one row fills every worker, two elements are unpacked by two instructions, sums stay in registers
//! loses: many rows of one sequence, which share no product; contexts below a span on many workers
//! fallback: the same code on an array (`portable`)
//! evidence: none yet
//! source: the running softmax of Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), joined as in
//!   "Flash-Decoding" (Dao and others, 2023)
//!
//! Workers take (row, span, run of heads) units, as many tokens each, in that order. They meet once before spans are
//! joined, unless no row has two, and between waves of rows.

mod mix;
mod score;

use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;
use tare_ops::reference::linear::round_bf16;

use super::pages::{Element, Half, Pages};
use super::{Attention, AttentionFn, Cache, soften, units};
use crate::lanes::{Kernel, LANES, Lanes, exp};
use crate::pool::Region;
use crate::tiled::Tiled;

/// Rows whose spans are kept at once.
pub(super) const WAVE: usize = 16;
/// Spans that a row has at most.
pub(super) const MOST: usize = 32;
/// Tokens of the shortest span: whole pages of the usual sizes.
const SHORTEST: usize = 64;
/// Elements that [`Element::two`] deals out together.
const DEALT: usize = 2 * LANES;

/// Tokens of a span of a row that sees `context`.
fn span_of(context: usize) -> usize {
    context.div_ceil(MOST).next_power_of_two().max(SHORTEST)
}

/// The kernel for pool elements `T` on instruction set `L`.
pub fn kernel<L: Lanes, T: Element>() -> AttentionFn {
    run::<L, T>
}

/// # Safety
/// That of [`AttentionFn`].
unsafe fn run<L: Lanes, T: Element>(call: &Attention, cache: Cache, region: Region) {
    let Some(l) = L::detect() else { return };
    // SAFETY: the caller's promise.
    unsafe { take::<L, T>(l, call, (cache, region), false, 0..cache.rows.len()) };
}

/// Does this worker's share of the rows that tiles leave: see [`units::alone`]. Their queries are rounded to BF16 first
/// where those in tiles are.
///
/// # Safety
/// That of [`AttentionFn`].
pub(super) unsafe fn take_alone<L: Lanes, T: Element>(
    l: L,
    call: &Attention,
    (cache, region): (Cache, Region),
    rounded: bool,
) {
    // SAFETY: the caller's promise.
    unsafe { take::<L, T>(l, call, (cache, region), rounded, units::alone(call, cache.rows)) };
}

/// Does this worker's share of `rows`.
///
/// # Safety
/// That of [`AttentionFn`]; all workers take the same rows.
unsafe fn take<L: Lanes, T: Element>(
    l: L,
    call: &Attention,
    (cache, region): (Cache, Region),
    rounded: bool,
    rows: impl Iterator<Item = usize>,
) {
    let (rows_of, element) = ([0; WAVE], PhantomData);
    let mut wave = Wave::<T> { call, cache, region, rounded, rows: rows_of, gathered: 0, again: false, element };
    for t in rows {
        wave.rows[wave.gathered] = t;
        wave.gathered += 1;
        if wave.gathered == WAVE {
            // SAFETY: the caller's promise.
            unsafe { wave.end(l) };
        }
    }
    // SAFETY: as above.
    unsafe { wave.end(l) };
}

/// Rows gathered until their spans fill what there is room for.
struct Wave<'a, T> {
    call: &'a Attention,
    cache: Cache<'a>,
    region: Region<'a>,
    /// Whether queries are rounded to BF16.
    rounded: bool,
    rows: [usize; WAVE],
    gathered: usize,
    /// Whether others may still be at a wave before, in the same memory.
    again: bool,
    element: PhantomData<T>,
}

impl<T: Element> Wave<'_, T> {
    /// Does this worker's share of what was gathered.
    ///
    /// # Safety
    /// As [`take`].
    unsafe fn end<L: Lanes>(&mut self, l: L) {
        let rows = self.rows;
        let rows = &rows[..std::mem::take(&mut self.gathered)];
        if rows.is_empty() {
            return;
        }
        if std::mem::replace(&mut self.again, true) {
            self.region.barrier();
        }
        let total: usize = rows.iter().map(|t| self.context(*t) * self.call.runs.len()).sum();
        let mut before = 0;
        for (slot, &t) in rows.iter().enumerate() {
            let (context, span) = (self.context(t), span_of(self.context(t)));
            for i in 0..context.div_ceil(span) {
                let tokens = i * span..((i + 1) * span).min(context);
                for run in 0..self.call.runs.len() {
                    // Whoever has the share of the tokens in which its first one lies.
                    let mine = |w: usize| total * w <= before * self.region.workers;
                    if mine(self.region.worker) && !mine(self.region.worker + 1) {
                        l.vectorize(Unit { wave: self, slot, t, run, span: i, tokens: tokens.clone() });
                    }
                    before += tokens.len();
                }
            }
        }
        let several = |t: usize| self.context(t) > span_of(self.context(t));
        if !rows.iter().any(|t| several(*t)) {
            return;
        }
        self.region.barrier();
        let heads = self.call.heads();
        for n in self.region.share(rows.len() * heads, 1) {
            let (slot, head) = (n / heads, n % heads);
            if several(rows[slot]) {
                l.vectorize(Join { wave: self, slot, t: rows[slot], head });
            }
        }
    }

    /// Tokens that row `t` sees.
    #[inline(always)]
    fn context(&self, t: usize) -> usize {
        self.cache.rows[t].context as usize
    }
}

/// A span of a row for the heads of a run.
struct Unit<'a, T> {
    wave: &'a Wave<'a, T>,
    slot: usize,
    t: usize,
    run: usize,
    span: usize,
    tokens: Range<usize>,
}

impl<T: Element> Kernel for Unit<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Wave { call, cache, region, rounded, .. } = self.wave;
        let (heads, kv_head) = &call.runs[self.run];
        let size = call.head_size;
        let table = &cache.tables[cache.rows[self.t].table as usize];
        let pages = Pages { table, layer: call.layer, kv_head: *kv_head, size };
        let q = |i: usize| cache.scratch.own(region.worker).wrapping_add(i * size.next_multiple_of(LANES));
        // SAFETY: a unit of the step, which nobody else does; the scratch has room for it.
        unsafe {
            for (i, head) in heads.clone().enumerate() {
                match call.tiled.q {
                    Some(tiled) => deal_tiles::<T>(&tiled, (self.t, head * size), q(i), size),
                    None => deal::<T>(call.q.row(self.t).add(head * size), q(i), size),
                }
                if *rounded {
                    round(q(i), size);
                }
            }
            let scores = |i: usize| cache.scratch.scores(region.worker, i);
            let part = |i: usize| cache.scratch.part(self.slot, self.span, heads.start + i);
            let values = pages.place::<T>(Half::Values, self.tokens.start);
            let mut at = self.tokens.start;
            while at < self.tokens.end {
                let mut keys = pages.block(Half::Keys, at, LANES, self.tokens.end, values);
                let to = at - self.tokens.start;
                at += keys.tokens;
                let mut i = 0;
                while L::WIDE && i + 2 <= heads.len() {
                    let to = [scores(i).add(to), scores(i + 1).add(to)];
                    score::block::<L, T, 2>(l, [q(i), q(i + 1)], &keys, call.scale, to);
                    keys.ahead = std::ptr::null();
                    i += 2;
                }
                while i < heads.len() {
                    score::block::<L, T, 1>(l, [q(i)], &keys, call.scale, [scores(i).add(to)]);
                    keys.ahead = std::ptr::null();
                    i += 1;
                }
            }
            for i in 0..heads.len() {
                let (most, sum) = soften::exponentials(l, scores(i), self.tokens.len());
                let behind = part(i).add(size.next_multiple_of(LANES));
                *behind = most;
                *behind.add(1) = sum;
            }
            // What comes after these values, if the next unit is this worker's too: the keys of the next run of heads.
            let next = call.runs.get(self.run + 1).map_or(std::ptr::null(), |(_, kv_head)| {
                Pages { kv_head: *kv_head, ..pages }.place::<T>(Half::Keys, self.tokens.start)
            });
            let mut i = 0;
            let mut mix = mix::Mix { pages, tokens: self.tokens.clone(), next, far: true };
            while L::WIDE && i + 2 <= heads.len() {
                mix.all::<L, 2>(l, [scores(i), scores(i + 1)], [part(i), part(i + 1)]);
                i += 2;
            }
            while i < heads.len() {
                mix.all::<L, 1>(l, [scores(i)], [part(i)]);
                i += 1;
            }
            if self.tokens.len() == self.wave.context(self.t) {
                for head in heads.clone() {
                    join(l, self.wave, (self.slot, self.t, head), q(0));
                }
            }
        }
    }
}

/// The spans of a row to its output, for one head.
struct Join<'a, T> {
    wave: &'a Wave<'a, T>,
    slot: usize,
    t: usize,
    head: usize,
}

impl<T: Element> Kernel for Join<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let room = self.wave.cache.scratch.own(self.wave.region.worker);
        // SAFETY: the spans of the wave are done; this head of the row is joined by nobody else.
        unsafe { join(l, self.wave, (self.slot, self.t, self.head), room) };
    }
}

/// Joins the spans of row `t`, which is `slot` of its wave, for `head`. room [2, E rounded up to 16]
///
/// # Safety
/// The spans are there, and nobody else uses the room or writes this output.
#[inline(always)]
unsafe fn join<L: Lanes, T: Element>(l: L, wave: &Wave<'_, T>, (slot, t, head): (usize, usize, usize), room: *mut f32) {
    let (size, context) = (wave.call.head_size, wave.context(t));
    let padded = size.next_multiple_of(LANES);
    let spans = context.div_ceil(span_of(context));
    // SAFETY: the caller's promise.
    unsafe {
        let part = |i: usize| wave.cache.scratch.part(slot, i, head);
        let mut most = f32::MIN;
        for i in 0..spans {
            most = most.max(*part(i).add(padded));
        }
        let mut weights = [0.0f32; MOST];
        let mut sum = 0.0;
        for (i, weight) in weights.iter_mut().enumerate().take(spans) {
            *weight = l.max_lane(exp(l, l.splat(*part(i).add(padded) - most)));
            sum += *weight * *part(i).add(padded + 1);
        }
        for e in (0..padded).step_by(LANES) {
            let mut acc = l.splat(0.0);
            for (i, weight) in weights.iter().enumerate().take(spans) {
                acc = l.fma(l.splat(*weight), l.load(part(i).add(e)), acc);
            }
            l.store(room.add(e), l.div(acc, l.splat(sum)));
        }
        let Some(tiled) = wave.call.tiled.out else {
            return gather::<T>(room, wave.call.out.row(t).add(head * size), size);
        };
        let row = room.add(padded);
        gather::<T>(room, row, size);
        for e in 0..size {
            *tiled.element(t, head * size + e) = in_a_tile(*row.add(e));
        }
    }
}

/// The elements of a query in the order in which those of a key come: pairs of vectors as [`Element::two`] gives them, then
/// what is left, filled up with +0. from [size], to [size rounded up to 16]
///
/// # Safety
/// They lie there.
#[inline(always)]
unsafe fn deal<T: Element>(from: *const f32, to: *mut f32, size: usize) {
    let whole = size / DEALT * DEALT;
    // SAFETY: the caller's promise.
    unsafe {
        for e in (0..whole).step_by(DEALT) {
            for i in 0..DEALT {
                *to.add(e + T::deal(i)) = *from.add(e + i);
            }
        }
        for e in whole..size {
            *to.add(e) = *from.add(e);
        }
        for e in size..size.next_multiple_of(LANES) {
            *to.add(e) = 0.0;
        }
    }
}

/// The same out of tiles, of the elements of row `t` from column `at` on. to [size rounded up to 16]
///
/// # Safety
/// They lie there, and size is a multiple of 32.
#[inline(always)]
unsafe fn deal_tiles<T: Element>(from: &Tiled, (t, at): (usize, usize), to: *mut f32, size: usize) {
    for e in (0..size).step_by(DEALT) {
        for i in 0..DEALT {
            // SAFETY: the caller's promise.
            unsafe { *to.add(e + T::deal(i)) = bf16::from_bits(*from.element(t, at + e + i)).to_f32() };
        }
    }
}

/// A number as it is rounded when rows are laid out in tiles: those below the least normal one become 0.
#[inline(always)]
fn in_a_tile(x: f32) -> u16 {
    let x = if x.abs() < f32::MIN_POSITIVE { 0f32.copysign(x) } else { x };
    bf16::from_f32(x).to_bits()
}

/// Rounds to BF16. q [size]
///
/// # Safety
/// They lie there.
#[inline(always)]
unsafe fn round(q: *mut f32, size: usize) {
    for e in 0..size {
        // SAFETY: the caller's promise.
        unsafe { *q.add(e) = round_bf16(*q.add(e)) };
    }
}

/// What [`deal`] does, undone. from [size rounded up to 16], to [size]
///
/// # Safety
/// They lie there.
#[inline(always)]
unsafe fn gather<T: Element>(from: *const f32, to: *mut f32, size: usize) {
    let whole = size / DEALT * DEALT;
    // SAFETY: the caller's promise.
    unsafe {
        for e in (0..whole).step_by(DEALT) {
            for i in 0..DEALT {
                *to.add(e + i) = *from.add(e + T::deal(i));
            }
        }
        for e in whole..size {
            *to.add(e) = *from.add(e);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_as_many_spans_as_there_is_room_for() {
        for context in (1..5000).chain([8191, 8192, 8193, 40_960, 131_072, 1_000_000]) {
            let span = span_of(context);
            assert!(context.div_ceil(span) <= MOST, "{context}");
            assert!(
                span == SHORTEST || context.div_ceil(span) > MOST / 2,
                "{context}: spans no longer than they must be"
            );
        }
    }
}
