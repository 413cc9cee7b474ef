//! A tile of attention at work: its queries, what they have gathered so far, and the block of keys and values in turn.

use half::bf16;

use super::KEYS;
use crate::kernels::attention::pages::{Half, Pages, up_to_16};
use crate::kernels::attention::units::Queries;
use crate::lanes::{LANES, Lanes, exp};
use crate::tiles::{Operand, Product, ROW_BYTES, ROWS, STEP, Sums, TILE_BYTES, Tiles};

/// Rows of numbers that a tile keeps for its queries: context, largest score, and sum.
pub(super) const STATE: usize = 3;
/// Steps of a product over the keys of a block.
const STEPS: usize = KEYS / STEP;

/// A tile of Q vectors of queries, an even number. Every row of numbers below has one for each of them.
pub(super) struct Block<const Q: usize> {
    /// E
    size: usize,
    /// E, rounded up to 32.
    padded: usize,
    scale: f32,
    /// [Q, E rounded up / 32] tiles of B.
    q: *mut u8,
    /// [E rounded up, queries]
    out: *mut f32,
    /// [KEYS, queries]
    scores: *mut f32,
    /// [Q, KEYS / 32] tiles of B.
    weights: *mut u8,
    /// [queries]: tokens that a query sees.
    context: *mut f32,
    /// [queries]: the largest score so far.
    most: *mut f32,
    /// [queries]: the sum of the weights so far.
    sum: *mut f32,
    /// [KEYS, E rounded up] in BF16, for keys that are no rows of A where they lie.
    keys: *mut u8,
    /// 16 keys each.
    key_tiles: [*const u8; KEYS / ROWS],
    /// [E rounded up, KEYS] in BF16.
    values: *mut u8,
    /// The first key's place in the context.
    first: usize,
    /// Keys of the block.
    tokens: usize,
    /// Tokens that every query of a vector sees, and tokens that some query of it sees.
    seen: [(usize, usize); Q],
}

impl<const Q: usize> Block<Q> {
    /// Queries, or numbers of a row.
    const WIDTH: usize = Q * LANES;
    /// Bytes of a row.
    const ROW: usize = Self::WIDTH * size_of::<f32>();

    /// A tile without queries, in `room`: [`super::room`] F32.
    ///
    /// # Safety
    /// Nobody else uses the room.
    #[inline(always)]
    pub(super) unsafe fn new(room: *mut f32, size: usize, scale: f32) -> Self {
        let (w, padded) = (Self::WIDTH, size.next_multiple_of(STEP));
        let mut at = 0;
        let mut take = |n: usize| {
            at += n;
            room.wrapping_add(at - n)
        };
        let (q, out) = (take(padded * w / 2), take(padded * w));
        let (scores, weights) = (take(KEYS * w), take(KEYS * w / 2));
        let [context, most, sum] = [take(w), take(w), take(w)];
        let (keys, values) = (take(KEYS * padded / 2), take(KEYS * padded / 2));
        // SAFETY: inside the room.
        unsafe {
            std::ptr::write_bytes(out, 0, padded * w);
            std::ptr::write_bytes(sum, 0, w);
            // What pads keys and values stays.
            std::ptr::write_bytes(keys, 0, KEYS * padded / 2);
            std::ptr::write_bytes(values, 0, KEYS * padded / 2);
            for i in 0..w {
                // Not below the least number, so that scores of minus infinity have a distance from it.
                *most.add(i) = f32::MIN;
            }
        }
        Self {
            size,
            padded,
            scale,
            q: q.cast(),
            out,
            scores,
            weights: weights.cast(),
            context,
            most,
            sum,
            keys: keys.cast(),
            key_tiles: [std::ptr::null(); KEYS / ROWS],
            values: values.cast(),
            first: 0,
            tokens: 0,
            seen: [(0, 0); Q],
        }
    }

    /// Tokens that some query sees.
    #[inline(always)]
    pub(super) fn end(&self) -> usize {
        self.seen.iter().fold(0, |most, seen| most.max(seen.1))
    }

    /// Whether some query of vector `c` sees the block.
    #[inline(always)]
    fn sees(&self, c: usize) -> bool {
        self.first < self.seen[c].1
    }

    /// Takes the queries in. Columns without one have zeros and see what the last one sees; vectors without one see nothing,
    /// and are left out.
    ///
    /// # Safety
    /// The queries lie there.
    #[inline(always)]
    pub(super) unsafe fn begin<T: Tiles>(&mut self, t: T, all: &Queries) {
        let (l, steps) = (t.lanes(), self.padded / STEP);
        // SAFETY: the caller's promise; inside the room.
        unsafe {
            for c in 0..all.len().div_ceil(LANES) {
                self.seen[c] = (usize::MAX, 0);
                for i in c * LANES..(c + 1) * LANES {
                    let context = all.context(i.min(all.len() - 1));
                    // Exact: contexts are far below 2^24.
                    *self.context.add(i) = context as f32;
                    let (least, most) = self.seen[c];
                    self.seen[c] = (least.min(context), most.max(context));
                }
                for s in 0..steps {
                    let mut square = [l.splat(0.0); LANES];
                    for (i, row) in square.iter_mut().enumerate() {
                        if c * LANES + i < all.len() {
                            let (q, e, mut pairs) = (all.query(c * LANES + i), s * STEP, [0.0f32; LANES]);
                            let low = up_to_16(l, q.wrapping_add(e), self.size.saturating_sub(e));
                            let high = up_to_16(l, q.wrapping_add(e + LANES), self.size.saturating_sub(e + LANES));
                            t.store_row(pairs.as_mut_ptr().cast(), low, high);
                            *row = l.load(pairs.as_ptr());
                        }
                    }
                    let tile = self.q.add((c * steps + s) * TILE_BYTES);
                    for (i, row) in l.transposed(&square).iter().enumerate() {
                        l.store(tile.add(i * ROW_BYTES).cast(), *row);
                    }
                }
            }
        }
    }

    /// Takes the keys from token `first` on, a multiple of 16. Where tiles are whole in their pages they are used as they lie;
    /// else they are copied, and those of the block before stay behind the last, or zeros. What lies behind the last one
    /// makes scores that nobody reads.
    ///
    /// # Safety
    /// They lie in the pages.
    #[inline(always)]
    pub(super) unsafe fn keys(&mut self, pages: &Pages, first: usize) {
        self.first = first;
        self.tokens = KEYS.min(self.end() - first);
        let in_place = self.size == self.padded && pages.table.pool.page_tokens.is_multiple_of(ROWS);
        for tile in 0..self.tokens.div_ceil(ROWS) {
            let of_tile = tile * ROWS..self.tokens.min((tile + 1) * ROWS);
            if in_place {
                self.key_tiles[tile] = pages.place::<bf16>(Half::Keys, first + of_tile.start).cast();
                continue;
            }
            let row = self.padded * size_of::<bf16>();
            self.key_tiles[tile] = self.keys.wrapping_add(of_tile.start * row);
            for j in of_tile {
                // SAFETY: the caller's promise; inside the room.
                unsafe {
                    let to = self.keys.add(j * row).cast::<bf16>();
                    std::ptr::copy_nonoverlapping(pages.place::<bf16>(Half::Keys, first + j), to, self.size);
                }
            }
        }
    }

    /// The scores of the block.
    ///
    /// # Safety
    /// Its keys are there.
    #[inline(always)]
    pub(super) unsafe fn score<T: Tiles>(&self, t: T) {
        let (row, steps) = (self.padded * size_of::<bf16>(), self.padded / STEP);
        for c in (0..Q).step_by(2).filter(|c| self.sees(*c) || self.sees(c + 1)) {
            for j in (0..self.tokens.div_ceil(ROWS)).step_by(2) {
                let two = self.tokens > (j + 1) * ROWS;
                let (at, below) = (self.key_tiles[j], self.key_tiles[if two { j + 1 } else { j }]);
                // Pages lie anywhere: the distance may be a negative number, which wraps around.
                let second = (below as usize).wrapping_sub(at as usize);
                let a = Operand { at, row, step: ROW_BYTES, second, passing: false };
                let b = Operand::packed(self.q.wrapping_add(c * steps * TILE_BYTES), steps * TILE_BYTES);
                let sums = Sums {
                    at: self.scores.wrapping_add(j * ROWS * Self::WIDTH + c * LANES),
                    row: Self::ROW,
                    down: ROWS * Self::ROW,
                    right: ROW_BYTES,
                };
                let tiles = (if two { 2 } else { 1 }, 2);
                let product = Product { a, b, c: sums, tiles, steps, add: false };
                // SAFETY: the caller's promise; everything is inside the room, or in the pages.
                unsafe { t.multiply(&product, || ()) };
            }
        }
    }

    /// Scores to weights, and what was gathered before to what it is beside them.
    ///
    /// # Safety
    /// The scores are there.
    #[inline(always)]
    pub(super) unsafe fn soften<T: Tiles>(&self, t: T) {
        for c in 0..Q {
            // SAFETY: the caller's promise; inside the room.
            unsafe {
                if self.sees(c) {
                    self.soften_vector(t, c);
                } else {
                    std::ptr::write_bytes(self.weights.add(c * STEPS * TILE_BYTES), 0, STEPS * TILE_BYTES);
                }
            }
        }
    }

    /// The same for the queries of vector `c`.
    ///
    /// # Safety
    /// As [`Block::soften`].
    #[inline(always)]
    unsafe fn soften_vector<T: Tiles>(&self, t: T, c: usize) {
        let (l, column) = (t.lanes(), c * LANES);
        let scale = l.splat(self.scale);
        // SAFETY: the caller's promise.
        unsafe {
            let scores = self.scores.add(column);
            let before = l.load(self.most.add(column));
            let mut most = before;
            if self.seen[c].0 < self.first + self.tokens {
                let context = l.load(self.context.add(column));
                for j in 0..self.tokens {
                    let at = scores.add(j * Self::WIDTH);
                    let token = l.splat((self.first + j) as f32);
                    let s = l.if_less(token, context, l.mul(l.load(at), scale), l.splat(f32::NEG_INFINITY));
                    l.store(at, s);
                    most = l.max(most, s);
                }
            } else {
                for j in 0..self.tokens {
                    let at = scores.add(j * Self::WIDTH);
                    let s = l.mul(l.load(at), scale);
                    l.store(at, s);
                    most = l.max(most, s);
                }
            }
            let mut sums = [l.splat(0.0); 2];
            for j in (0..self.tokens.next_multiple_of(STEP)).step_by(2) {
                let mut p = [l.splat(0.0); 2];
                for i in 0..2 {
                    if j + i < self.tokens {
                        p[i] = exp(l, l.sub(l.load(scores.add((j + i) * Self::WIDTH)), most));
                        sums[i] = l.add(sums[i], p[i]);
                    }
                }
                let tile = self.weights.add((c * STEPS + j / STEP) * TILE_BYTES);
                t.store_pairs(tile.add(j % STEP / 2 * ROW_BYTES), p[0], p[1]);
            }
            let factor = exp(l, l.sub(before, most));
            l.store(self.most.add(column), most);
            let sum = l.fma(l.load(self.sum.add(column)), factor, l.add(sums[0], sums[1]));
            l.store(self.sum.add(column), sum);
            if l.max_lane(l.if_less(before, most, l.splat(1.0), l.splat(0.0))) > 0.0 {
                for e in 0..self.size {
                    let at = self.out.add(e * Self::WIDTH + column);
                    l.store(at, l.mul(l.load(at), factor));
                }
            }
        }
    }

    /// Takes the values of the same tokens, zeros behind the last.
    ///
    /// # Safety
    /// They lie in the pages.
    #[inline(always)]
    pub(super) unsafe fn values<T: Tiles>(&mut self, t: T, pages: &Pages) {
        let l = t.lanes();
        let mut rows = [std::ptr::null::<bf16>(); KEYS];
        for (j, row) in rows.iter_mut().enumerate().take(self.tokens) {
            *row = pages.place(Half::Values, self.first + j);
        }
        for (s, rows) in rows.chunks_exact(STEP).enumerate().take(self.tokens.div_ceil(STEP)) {
            for e in (0..self.size).step_by(LANES) {
                let mut square = [l.splat(0.0); LANES];
                for (i, pair) in square.iter_mut().enumerate() {
                    let (mut two, mut pairs) = ([l.splat(0.0); 2], [0.0f32; LANES]);
                    for (v, row) in two.iter_mut().zip(&rows[2 * i..]) {
                        if !row.is_null() {
                            // SAFETY: the caller's promise.
                            *v = unsafe { up_to_16(l, row.wrapping_add(e), self.size - e) };
                        }
                    }
                    // SAFETY: room for a row.
                    unsafe {
                        t.store_pairs(pairs.as_mut_ptr().cast(), two[0], two[1]);
                        *pair = l.load(pairs.as_ptr());
                    }
                }
                for (i, row) in l.transposed(&square).iter().enumerate() {
                    // SAFETY: inside the room.
                    unsafe { l.store(self.values.add((e + i) * STEPS * ROW_BYTES + s * ROW_BYTES).cast(), *row) };
                }
            }
        }
    }

    /// Gathers the values of the block by their weights.
    ///
    /// # Safety
    /// Both are there.
    #[inline(always)]
    pub(super) unsafe fn mix<T: Tiles>(&self, t: T) {
        let row = STEPS * ROW_BYTES;
        for c in (0..Q).step_by(2).filter(|c| self.sees(*c) || self.sees(c + 1)) {
            for e in (0..self.size).step_by(2 * ROWS) {
                let a = Operand {
                    at: self.values.wrapping_add(e * row),
                    row,
                    step: ROW_BYTES,
                    second: ROWS * row,
                    passing: false,
                };
                let b = Operand::packed(self.weights.wrapping_add(c * STEPS * TILE_BYTES), STEPS * TILE_BYTES);
                let sums = Sums {
                    at: self.out.wrapping_add(e * Self::WIDTH + c * LANES),
                    row: Self::ROW,
                    down: ROWS * Self::ROW,
                    right: ROW_BYTES,
                };
                let tiles = (if self.size - e > ROWS { 2 } else { 1 }, 2);
                let product = Product { a, b, c: sums, tiles, steps: self.tokens.div_ceil(STEP), add: true };
                // SAFETY: the caller's promise; everything is inside the room.
                unsafe { t.multiply(&product, || ()) };
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
