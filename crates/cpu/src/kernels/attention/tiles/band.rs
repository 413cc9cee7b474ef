//! Bands of 32 queries: their scores, weights, and what they have gathered.

use super::turned::Turned;
use super::{BAND, QUERIES, SPAN, TILE};
use crate::kernels::attention::pages::up_to_16;
use crate::kernels::attention::units::Queries;
use crate::lanes::{LANES, Lanes, rough_exp2};
use crate::tiles::{Operand, Product, ROW_BYTES, ROWS, STEP, Sums, TILE_BYTES, TileKernel, Tiles};

/// Sums of weights that are too large: they are scaled down, with everything beside them.
const LIMIT: f32 = 4096.0;
/// Powers of two that they are scaled down by, at the least.
const RAISE: f32 = 12.0;
/// F32 of the scores of a band and a span.
const SCORES: usize = SPAN / STEP * 4 * TILE;
/// Lifts up to this size are added to products that were not rounded before. Beyond it the lift, which comes of a rounded product,
/// is too far from the product itself: from 2^31 on by more than the largest exponent of F32.
const NEAR: f32 = 1_048_576.0;
/// Turns in which a band's queries are asked for, while the one before is at work.
const TURNS: usize = 8;
/// Tokens of a step.
static PLACES: [f32; STEP] = {
    let mut places = [0.0; STEP];
    let mut i = 0;
    while i < STEP {
        places[i] = i as f32;
        i += 1;
    }
    places
};

/// The bands of a tile, in the room of a worker. Rows of numbers for a query are found by [`row`].
#[derive(Clone, Copy)]
pub(super) struct Bands {
    /// E
    size: usize,
    /// E, rounded up to 32.
    pub(super) padded: usize,
    /// Makes scores exponents of two.
    factor: f32,
    /// What queries are multiplied by, so that the factor is not negative.
    sign: f32,
    /// Bands behind each other; see [`Band`].
    first: *mut f32,
    /// Of a band and the keys of a span: [SPAN / 32, 32, 32], two by two tiles of C each.
    scores: *mut f32,
    /// Of two bands: see [`Bands::weights`].
    weights: *mut u8,
}

/// Where the numbers of a band lie.
#[derive(Clone, Copy)]
struct Band {
    /// [2, E rounded up / 32] tiles of A.
    q: *mut u8,
    /// [E rounded up / 32, 32, 32]: two by two tiles of C each. Columns as [`Turned`] has those of values.
    out: *mut f32,
    /// [32, 16]: parts of the sum of the weights so far.
    sums: *mut f32,
    /// [32]: what is added to scores of base two.
    lifts: *mut f32,
    /// [32]: tokens that a query sees. Exact: contexts are far below 2^24.
    contexts: *mut f32,
}

/// Where row `r` of 32 begins in two by two tiles of C, in F32; its second half lies [`TILE`] further on.
#[inline(always)]
const fn row(r: usize) -> usize {
    r / ROWS * 2 * TILE + r % ROWS * LANES
}

impl Bands {
    /// F32 of the room that they need.
    pub(super) const fn room(padded: usize) -> usize {
        QUERIES[0].div_ceil(BAND) * Self::band_room(padded) + SCORES + BAND * SPAN
    }

    /// The same of one.
    const fn band_room(padded: usize) -> usize {
        BAND * (padded / 2 + padded + LANES + 2)
    }

    /// None yet, in `room`.
    #[inline(always)]
    pub(super) fn new(room: *mut f32, size: usize, scale: f32) -> Self {
        let padded = size.next_multiple_of(STEP);
        let scores = room.wrapping_add(QUERIES[0].div_ceil(BAND) * Self::band_room(padded));
        // Above 0, so that what is masked stays minus infinity.
        let factor = (scale.abs() * std::f32::consts::LOG2_E).max(f32::MIN_POSITIVE);
        let weights = scores.wrapping_add(SCORES).cast();
        Self { size, padded, factor, sign: 1f32.copysign(scale), first: room, scores, weights }
    }

    #[inline(always)]
    fn band(&self, b: usize) -> Band {
        let mut at = b * Self::band_room(self.padded);
        let mut take = |n: usize| {
            at += n;
            self.first.wrapping_add(at - n)
        };
        let (q, out, sums) = (take(BAND * self.padded / 2), take(BAND * self.padded), take(BAND * LANES));
        Band { q: q.cast(), out, sums, lifts: take(BAND), contexts: take(BAND) }
    }

    /// Takes in the queries of band `b`. Where there is none it has zeros and sees what the last one sees.
    ///
    /// # Safety
    /// The queries lie there; inside the room, which nobody else uses.
    #[inline(always)]
    pub(super) unsafe fn begin<T: Tiles>(&self, t: T, all: &Queries, b: usize) {
        let (l, band, steps) = (t.lanes(), self.band(b), self.padded / STEP);
        let sign = l.splat(self.sign);
        // SAFETY: the caller's promise.
        unsafe {
            for r in 0..BAND {
                let i = b * BAND + r;
                *band.contexts.add(r) = all.context(i.min(all.len() - 1)) as f32;
                l.store(band.sums.add(r * LANES), l.splat(0.0));
                for s in 0..steps {
                    let mut halves = [l.splat(0.0); 2];
                    if let Some(q) = all.query_in_tiles(i.min(all.len() - 1), s * STEP) {
                        if i < all.len() {
                            halves = [l.mul(l.bf16s(q), sign), l.mul(l.bf16s(q.add(ROW_BYTES / 2)), sign)];
                        }
                    } else if i < all.len() {
                        for (half, e) in halves.iter_mut().zip([s * STEP, s * STEP + LANES]) {
                            let q = up_to_16(l, all.query(i).wrapping_add(e), self.size.saturating_sub(e));
                            *half = l.mul(q, sign);
                        }
                    }
                    let tile = band.q.add((r / ROWS * steps + s) * TILE_BYTES);
                    t.store_row(tile.add(r % ROWS * ROW_BYTES), halves[0], halves[1]);
                }
            }
        }
    }

    /// Asks for some of the queries of band `b`, if it has any, which come from far: for all of them in [`TURNS`] turns.
    #[inline(always)]
    pub(super) fn ask<L: Lanes>(&self, l: L, all: &Queries, b: usize, turn: usize) {
        if turn < TURNS {
            let from = b * BAND + turn * (BAND / TURNS);
            for i in from..all.len().min(from + BAND / TURNS) {
                if all.query_in_tiles(i, 0).is_some() {
                    for e in (0..self.size).step_by(STEP) {
                        all.query_in_tiles(i, e).into_iter().for_each(|q| l.prefetch(q));
                    }
                    continue;
                }
                let q = all.query(i);
                (0..self.size).step_by(LANES).for_each(|e| l.prefetch(q.wrapping_add(e).cast()));
            }
        }
    }

    /// Tokens that some query of band `b` sees.
    ///
    /// # Safety
    /// It has begun.
    #[inline(always)]
    pub(super) unsafe fn end<L: Lanes>(&self, l: L, b: usize) -> usize {
        let contexts = self.band(b).contexts;
        // SAFETY: 32 numbers.
        unsafe { l.max_lane(l.max(l.load(contexts), l.load(contexts.add(LANES)))) as usize }
    }

    /// Gathers the values of the span from token `span` on for band `b`, by its weights, and gives every query its result where these
    /// keys were the last. What is `softening` goes on meanwhile.
    ///
    /// # Safety
    /// Values are turned and weights are there; the results may be written.
    #[inline(always)]
    pub(super) unsafe fn gather<T: Tiles>(
        &self,
        t: T,
        all: &Queries,
        turned: &Turned,
        (b, span): (usize, usize),
        mut softening: Option<&mut Softening>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let (band, end) = (self.band(b), self.end(t.lanes(), b));
            let steps = (end.min(span + SPAN) - span).div_ceil(STEP);
            let turns = steps * self.padded / STEP;
            let rows = softening.as_ref().map_or(0, |softening| softening.left().div_ceil(turns));
            for e in (0..self.padded).step_by(STEP) {
                let product = Product {
                    a: Operand::packed(self.weights(b), SPAN / STEP * TILE_BYTES),
                    b: turned.values(e),
                    c: Sums::packed(band.out.wrapping_add(e / STEP * 4 * TILE)),
                    tiles: (2, 2),
                    steps,
                    add: span > 0,
                };
                match &mut softening {
                    Some(softening) => t.multiply(&product, || softening.go_on(t, rows)),
                    None => t.multiply(&product, || ()),
                }
            }
            if end <= span + SPAN {
                self.give(t, all, b);
            }
        }
    }

    /// Weights of band `b`: [2, SPAN / 32] tiles of A.
    #[inline(always)]
    fn weights(&self, b: usize) -> *mut u8 {
        self.weights.wrapping_add(b % 2 * BAND * SPAN * size_of::<u16>())
    }

    /// Gives every query of band `b` what it has gathered, divided by the sum of the weights.
    ///
    /// # Safety
    /// All keys are done, and the results may be written.
    #[inline(always)]
    unsafe fn give<T: Tiles>(&self, t: T, all: &Queries, b: usize) {
        let (l, band) = (t.lanes(), self.band(b));
        for r in 0..BAND.min(all.len() - b * BAND) {
            // SAFETY: the caller's promise.
            unsafe {
                let share = l.splat(1.0 / l.sum(l.load(band.sums.add(r * LANES))));
                for e in (0..self.size).step_by(STEP) {
                    let from = band.out.add(e / STEP * 4 * TILE + row(r));
                    let (even, odd) = (l.mul(l.load(from), share), l.mul(l.load(from.add(TILE)), share));
                    let (low, high) = l.in_turn(even, odd);
                    if let Some(to) = all.out_in_tiles(b * BAND + r, e) {
                        t.store_row(to, low, high);
                        continue;
                    }
                    let (to, n) = (all.out(b * BAND + r).add(e), self.size - e);
                    if n < LANES {
                        l.store_part(to, n, low);
                        continue;
                    }
                    l.store(to, low);
                    match n - LANES {
                        0 => (),
                        n @ 1..LANES => l.store_part(to.add(LANES), n, high),
                        _ => l.store(to.add(LANES), high),
                    }
                }
            }
        }
    }
}

/// Scores of a band and the keys of a span on their way to weights.
#[derive(Clone, Copy)]
pub(super) struct Softening {
    bands: Bands,
    b: usize,
    /// The first token of the span.
    span: usize,
    /// Rows of 32 scores that are there: 32 for each 32 keys.
    scored: usize,
    /// Rows that are done.
    done: usize,
}

impl Softening {
    /// No scores yet.
    #[inline(always)]
    pub(super) fn new(bands: Bands, b: usize, span: usize) -> Self {
        Self { bands, b, span, scored: 0, done: 0 }
    }

    /// Makes the scores of the 32 keys from token `first` on, which follow those before.
    ///
    /// # Safety
    /// The band has begun, the keys are turned, and the room is used by nobody else.
    #[inline(always)]
    pub(super) unsafe fn score<T: Tiles>(&mut self, t: T, turned: &Turned, first: usize) {
        let (band, steps) = (self.bands.band(self.b), self.bands.padded / STEP);
        let product = Product {
            a: Operand::packed(band.q, steps * TILE_BYTES),
            b: turned.keys(first % SPAN),
            c: Sums::packed(self.bands.scores.wrapping_add(first % SPAN / STEP * 4 * TILE)),
            tiles: (2, 2),
            steps,
            add: false,
        };
        // Half of the rows; the others while values are gathered.
        let rows = BAND / 2;
        // SAFETY: the caller's promise.
        unsafe { t.multiply(&product, || self.go_on(t, rows.div_ceil(steps))) };
        self.scored += BAND;
    }

    /// Rows that are left.
    #[inline(always)]
    const fn left(&self) -> usize {
        self.scored - self.done
    }

    /// Does the next `n` rows, or those that are there.
    ///
    /// # Safety
    /// Nobody else uses the room.
    #[inline(always)]
    unsafe fn go_on<T: Tiles>(&mut self, t: T, n: usize) {
        let to = self.scored.min(self.done + n);
        if self.done < to {
            t.aside(Rows { of: self, to });
            self.done = to;
        }
    }

    /// Does the rows that are left.
    ///
    /// # Safety
    /// As [`Softening::go_on`].
    #[inline(always)]
    pub(super) unsafe fn finish<T: Tiles>(&mut self, t: T) {
        // SAFETY: the caller's promise.
        unsafe { self.go_on(t, self.scored) };
    }

    /// Where row `r` of the 32 scores of the keys from token `first` on lies.
    #[inline(always)]
    fn scores(&self, r: usize, first: usize) -> *mut f32 {
        self.bands.scores.wrapping_add(first % SPAN / STEP * 4 * TILE + row(r))
    }

    /// Where the weights of row `r` for the 32 keys from token `first` on go.
    #[inline(always)]
    fn weights(&self, r: usize, first: usize) -> *mut u8 {
        let tile = r / ROWS * (SPAN / STEP) + first % SPAN / STEP;
        self.bands.weights(self.b).wrapping_add(tile * TILE_BYTES + r % ROWS * ROW_BYTES)
    }
}

/// What makes `score` at most 1, as a whole power of two: not infinite, so that scores of minus infinity have a distance from it.
#[inline(always)]
fn lift(score: f32) -> f32 {
    -score.ceil().clamp(f32::MIN, f32::MAX)
}

/// Weights of scores: `2^(factor s + lift)`.
#[inline(always)]
fn powers<L: Lanes>(l: L, s: [L::V; 2], factor: f32, lift: f32) -> [L::V; 2] {
    let (factor, add) = (l.splat(factor), l.splat(lift));
    // No closures: only what is taken into this function has its instructions.
    let x = if lift.abs() < NEAR {
        [l.fma(s[0], factor, add), l.fma(s[1], factor, add)]
    } else {
        [l.add(l.mul(s[0], factor), add), l.add(l.mul(s[1], factor), add)]
    };
    [rough_exp2(l, x[0]), rough_exp2(l, x[1])]
}

/// Rows of a [`Softening`] up to one, whose caller has promised what [`Softening::go_on`] asks.
struct Rows<'a> {
    of: &'a Softening,
    to: usize,
}

impl TileKernel for Rows<'_> {
    #[inline(always)]
    fn run<T: Tiles>(self, t: T) {
        let (l, of) = (t.lanes(), self.of);
        let (bands, band) = (&of.bands, of.bands.band(of.b));
        for i in of.done..self.to {
            let (r, token) = (i % BAND, of.span + i / BAND * STEP);
            let (first, end) = (token as f32, (token + STEP) as f32);
            // SAFETY: the caller's promise.
            unsafe {
                let scores = of.scores(r, token);
                let mut s = [l.load(scores), l.load(scores.add(TILE))];
                let context = *band.contexts.add(r);
                if context < end {
                    for (s, places) in s.iter_mut().zip([0, LANES]) {
                        let at = l.add(l.load(PLACES.as_ptr().add(places)), l.splat(first));
                        *s = l.if_less(at, l.splat(context), *s, l.splat(f32::NEG_INFINITY));
                    }
                }
                if token == 0 {
                    *band.lifts.add(r) = lift(l.max_lane(l.max(s[0], s[1])) * bands.factor);
                }
                let p = powers(l, s, bands.factor, *band.lifts.add(r));
                let sums = l.add(l.load(band.sums.add(r * LANES)), l.add(p[0], p[1]));
                if l.any_less(l.splat(LIMIT), sums) {
                    l.store(scores, s[0]);
                    l.store(scores.add(TILE), s[1]);
                    t.aside(Raise { of, r, token });
                    continue;
                }
                l.store(band.sums.add(r * LANES), sums);
                t.store_row(of.weights(r, token), p[0], p[1]);
            }
        }
    }
}

/// A row whose sum would become too large: everything that it has gathered is scaled down first. Its scores are as [`Rows`] has
/// left them.
struct Raise<'a> {
    of: &'a Softening,
    r: usize,
    /// The first of its 32 keys.
    token: usize,
}

impl TileKernel for Raise<'_> {
    #[inline(always)]
    fn run<T: Tiles>(self, t: T) {
        let (l, of, r, token) = (t.lanes(), self.of, self.r, self.token);
        let (bands, band) = (&of.bands, of.bands.band(of.b));
        // SAFETY: the promise of the caller of `Softening::go_on`.
        unsafe {
            let scores = of.scores(r, token);
            let s = [l.load(scores), l.load(scores.add(TILE))];
            let before = *band.lifts.add(r);
            let after = lift(l.max_lane(l.max(s[0], s[1])) * bands.factor).min(before - RAISE);
            *band.lifts.add(r) = after;
            let scale = l.times_power(l.splat(1.0), l.splat(after - before));
            for e in (0..bands.padded).step_by(STEP) {
                let out = band.out.add(e / STEP * 4 * TILE + row(r));
                l.store(out, l.mul(l.load(out), scale));
                l.store(out.add(TILE), l.mul(l.load(out.add(TILE)), scale));
            }
            for first in (of.span..token).step_by(STEP) {
                let at = of.weights(r, first);
                let (low, high) = (l.bf16s(at), l.bf16s(at.add(ROW_BYTES / 2)));
                t.store_row(at, l.mul(low, scale), l.mul(high, scale));
            }
            let p = powers(l, s, bands.factor, after);
            let sums = band.sums.add(r * LANES);
            l.store(sums, l.fma(l.load(sums), scale, l.add(p[0], p[1])));
            t.store_row(of.weights(r, token), p[0], p[1]);
        }
    }
}
