//! A tile at work: its queries, what they have gathered so far, and the block of keys and values in turn.

use super::KEYS;
use crate::kernels::attention::pages::{Element, Half, Pages, up_to_16};
use crate::kernels::attention::units::Queries;
use crate::lanes::{LANES, Lanes, exp};

/// Keys, or columns of values, that are multiplied with all queries at once: as many as there are registers for.
const WIDE: usize = 8;
/// The same where registers are few.
const NARROW: usize = 4;
/// Rows of numbers that a tile keeps for its queries: context, largest score, sum, and the factor of the block.
pub(super) const STATE: usize = 4;

/// A tile of Q vectors of queries. Every row of numbers below has one for each of them.
pub(super) struct Block<const Q: usize> {
    /// E
    size: usize,
    /// E, rounded up to 16.
    padded: usize,
    /// [E rounded up, queries], scaled.
    q: *mut f32,
    /// [E rounded up, queries]
    out: *mut f32,
    /// [KEYS, queries]: scores, then weights.
    scores: *mut f32,
    /// [queries]: tokens that a query sees.
    context: *mut f32,
    /// [queries]: the largest score so far.
    most: *mut f32,
    /// [queries]: the sum of the weights so far.
    sum: *mut f32,
    /// [queries]: what this block's largest score makes of what was gathered before.
    factor: *mut f32,
    /// [KEYS, E]
    keys: *mut f32,
    /// [E rounded up / 16, KEYS, 16]
    values: *mut f32,
    /// The first key's place in the context.
    first: usize,
    /// Keys of the block.
    tokens: usize,
    /// Tokens that every query sees.
    all_see: usize,
    /// Tokens that some query sees.
    one_sees: usize,
}

impl<const Q: usize> Block<Q> {
    /// Queries, or numbers of a row.
    const WIDTH: usize = Q * LANES;

    /// A tile without queries, in `room`: [`super::room`] F32.
    ///
    /// # Safety
    /// Nobody else uses the room.
    #[inline(always)]
    pub(super) unsafe fn new(room: *mut f32, size: usize) -> Self {
        let (w, padded) = (Self::WIDTH, size.next_multiple_of(LANES));
        let mut at = 0;
        let mut take = |n: usize| {
            at += n;
            room.wrapping_add(at - n)
        };
        let (q, out, scores) = (take(padded * w), take(padded * w), take(KEYS * w));
        let [context, most, sum, factor] = [take(w), take(w), take(w), take(w)];
        let (keys, values) = (take(KEYS * padded), take(KEYS * padded));
        // SAFETY: inside the room.
        unsafe {
            std::ptr::write_bytes(out, 0, padded * w);
            std::ptr::write_bytes(sum, 0, w);
            for i in 0..w {
                // Not below the least number, so that scores of minus infinity have a distance from it.
                *most.add(i) = f32::MIN;
            }
        }
        let (first, tokens, all_see, one_sees) = (0, 0, usize::MAX, 0);
        Self {
            size,
            padded,
            q,
            out,
            scores,
            context,
            most,
            sum,
            factor,
            keys,
            values,
            first,
            tokens,
            all_see,
            one_sees,
        }
    }

    /// Tokens that some query sees.
    #[inline(always)]
    pub(super) fn end(&self) -> usize {
        self.one_sees
    }

    /// Takes the queries in, times `scale`. Columns without one have zeros and see everything.
    ///
    /// # Safety
    /// The queries lie there.
    #[inline(always)]
    pub(super) unsafe fn begin<L: Lanes>(&mut self, l: L, all: &Queries, scale: f32) {
        for i in 0..all.len() {
            self.all_see = self.all_see.min(all.context(i));
            self.one_sees = self.one_sees.max(all.context(i));
        }
        // SAFETY: the caller's promise; inside the room.
        unsafe {
            for i in 0..Self::WIDTH {
                let context = if i < all.len() { all.context(i) } else { self.one_sees };
                // Exact: contexts are far below 2^24.
                *self.context.add(i) = context as f32;
            }
            for column in (0..Self::WIDTH).step_by(LANES) {
                for e in (0..self.size).step_by(LANES) {
                    let mut square = [l.splat(0.0); LANES];
                    for (i, row) in square.iter_mut().enumerate() {
                        if column + i < all.len() {
                            let q = up_to_16(l, all.query(column + i).add(e), self.size - e);
                            *row = l.mul(q, l.splat(scale));
                        }
                    }
                    for (i, row) in l.transposed(&square).iter().enumerate() {
                        l.store(self.q.add((e + i) * Self::WIDTH + column), *row);
                    }
                }
            }
        }
    }

    /// Takes the keys from token `first` on as F32, zeros behind the last.
    ///
    /// # Safety
    /// They lie in the pages.
    #[inline(always)]
    pub(super) unsafe fn keys<L: Lanes, T: Element>(&mut self, l: L, pages: &Pages, first: usize) {
        self.first = first;
        self.tokens = KEYS.min(self.one_sees - first);
        let mut j = 0;
        // SAFETY: the caller's promise.
        unsafe {
            while j < self.tokens {
                let run = pages.block::<T>(Half::Keys, first + j, KEYS - j, first + self.tokens, std::ptr::null());
                for i in 0..run.tokens {
                    let (from, to) = (run.first.add(i * self.size), self.keys.add((j + i) * self.padded));
                    for e in (0..self.size).step_by(LANES) {
                        l.store(to.add(e), up_to_16::<L, T>(l, from.add(e), self.size - e));
                    }
                }
                j += run.tokens;
            }
            let behind = self.tokens.next_multiple_of(WIDE) - self.tokens;
            std::ptr::write_bytes(self.keys.add(self.tokens * self.padded), 0, behind * self.padded);
        }
    }

    /// Takes the values of the same tokens.
    ///
    /// # Safety
    /// They lie in the pages.
    #[inline(always)]
    pub(super) unsafe fn values<L: Lanes, T: Element>(&mut self, l: L, pages: &Pages) {
        let mut j = 0;
        // SAFETY: the caller's promise.
        unsafe {
            while j < self.tokens {
                let (at, end) = (self.first + j, self.first + self.tokens);
                let run = pages.block::<T>(Half::Values, at, KEYS - j, end, std::ptr::null());
                for i in 0..run.tokens {
                    let (from, to) = (run.first.add(i * self.size), self.values.add((j + i) * LANES));
                    for e in (0..self.size).step_by(LANES) {
                        l.store(to.add(e * KEYS), up_to_16::<L, T>(l, from.add(e), self.size - e));
                    }
                }
                j += run.tokens;
            }
        }
    }

    /// The scores of the block.
    ///
    /// # Safety
    /// Its keys are there.
    #[inline(always)]
    pub(super) unsafe fn score<L: Lanes>(&self, l: L) {
        // SAFETY: the caller's promise.
        unsafe {
            if L::WIDE {
                for j in (0..self.tokens).step_by(WIDE) {
                    self.dots::<L, Q, WIDE>(l, j, 0);
                }
            } else {
                for j in (0..self.tokens).step_by(NARROW) {
                    for vector in 0..Q {
                        self.dots::<L, 1, NARROW>(l, j, vector * LANES);
                    }
                }
            }
        }
    }

    /// Scores of J keys from the `j`-th on, for C vectors of queries from `column` on.
    ///
    /// # Safety
    /// As [`Block::score`].
    #[inline(always)]
    unsafe fn dots<L: Lanes, const C: usize, const J: usize>(&self, l: L, j: usize, column: usize) {
        let mut acc = [[l.splat(0.0); C]; J];
        // SAFETY: the caller's promise.
        unsafe {
            let keys = self.keys.add(j * self.padded);
            for e in 0..self.size {
                let from = self.q.add(e * Self::WIDTH + column);
                let mut q = [l.splat(0.0); C];
                for (c, q) in q.iter_mut().enumerate() {
                    *q = l.load(from.add(c * LANES));
                }
                for (i, acc) in acc.iter_mut().enumerate() {
                    let k = l.splat(*keys.add(i * self.padded + e));
                    for (acc, q) in acc.iter_mut().zip(q) {
                        *acc = l.fma(k, q, *acc);
                    }
                }
            }
            for (i, acc) in acc.iter().enumerate() {
                for (c, acc) in acc.iter().enumerate() {
                    l.store(self.scores.add((j + i) * Self::WIDTH + column + c * LANES), *acc);
                }
            }
        }
    }

    /// Scores to weights, and what they mean for what was gathered before.
    ///
    /// # Safety
    /// The scores are there.
    #[inline(always)]
    pub(super) unsafe fn soften<L: Lanes>(&self, l: L) {
        for column in (0..Self::WIDTH).step_by(LANES) {
            // SAFETY: the caller's promise.
            unsafe {
                let scores = self.scores.add(column);
                let before = l.load(self.most.add(column));
                let mut most = before;
                if self.all_see < self.first + self.tokens {
                    let context = l.load(self.context.add(column));
                    for j in 0..self.tokens {
                        let at = scores.add(j * Self::WIDTH);
                        let token = l.splat((self.first + j) as f32);
                        let s = l.if_less(token, context, l.load(at), l.splat(f32::NEG_INFINITY));
                        l.store(at, s);
                        most = l.max(most, s);
                    }
                } else {
                    for j in 0..self.tokens {
                        most = l.max(most, l.load(scores.add(j * Self::WIDTH)));
                    }
                }
                let mut sum = l.splat(0.0);
                for j in 0..self.tokens {
                    let at = scores.add(j * Self::WIDTH);
                    let p = exp(l, l.sub(l.load(at), most));
                    l.store(at, p);
                    sum = l.add(sum, p);
                }
                let factor = exp(l, l.sub(before, most));
                l.store(self.factor.add(column), factor);
                l.store(self.most.add(column), most);
                l.store(self.sum.add(column), l.fma(l.load(self.sum.add(column)), factor, sum));
            }
        }
    }

    /// Gathers the values of the block by their weights.
    ///
    /// # Safety
    /// Both are there.
    #[inline(always)]
    pub(super) unsafe fn mix<L: Lanes>(&self, l: L) {
        // SAFETY: the caller's promise.
        unsafe {
            if L::WIDE {
                for e in (0..self.size).step_by(WIDE) {
                    self.gather::<L, Q, WIDE>(l, e, 0);
                }
            } else {
                for e in (0..self.size).step_by(NARROW) {
                    for vector in 0..Q {
                        self.gather::<L, 1, NARROW>(l, e, vector * LANES);
                    }
                }
            }
        }
    }

    /// The same for J columns of values from `e` on, which do not leave their 16, and C vectors of queries.
    ///
    /// # Safety
    /// As [`Block::mix`].
    #[inline(always)]
    unsafe fn gather<L: Lanes, const C: usize, const J: usize>(&self, l: L, e: usize, column: usize) {
        let mut acc = [[l.splat(0.0); C]; J];
        // SAFETY: the caller's promise.
        unsafe {
            let out = self.out.add(e * Self::WIDTH + column);
            for c in 0..C {
                let factor = l.load(self.factor.add(column + c * LANES));
                for (i, acc) in acc.iter_mut().enumerate() {
                    acc[c] = l.mul(l.load(out.add(i * Self::WIDTH + c * LANES)), factor);
                }
            }
            let values = self.values.add(e / LANES * LANES * KEYS + e % LANES);
            for j in 0..self.tokens {
                let from = self.scores.add(j * Self::WIDTH + column);
                let mut p = [l.splat(0.0); C];
                for (c, p) in p.iter_mut().enumerate() {
                    *p = l.load(from.add(c * LANES));
                }
                for (i, acc) in acc.iter_mut().enumerate() {
                    let v = l.splat(*values.add(j * LANES + i));
                    for (acc, p) in acc.iter_mut().zip(p) {
                        *acc = l.fma(v, p, *acc);
                    }
                }
            }
            for (i, acc) in acc.iter().enumerate() {
                for (c, acc) in acc.iter().enumerate() {
                    l.store(out.add(i * Self::WIDTH + c * LANES), *acc);
                }
            }
        }
    }

    /// Gives every query what it has gathered.
    ///
    /// # Safety
    /// All blocks are done, and the results may be written.
    #[inline(always)]
    pub(super) unsafe fn finish<L: Lanes>(&self, l: L, all: &Queries) {
        // SAFETY: the caller's promise.
        unsafe { all.give(l, self.out, self.sum, Self::WIDTH) };
    }
}
