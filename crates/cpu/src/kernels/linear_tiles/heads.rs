//! The linears of queries, keys and values, with all that makes these ready for attention: norms and rotations of heads, queries in
//! tiles, keys and values in their pages.
//!
//! math: `q, k, v = x . w^T` as [`linear_tiles`](super), then that of [`heads`](crate::kernels::heads); `q = bf16(q)`
//! shapes: x [T / 16, k / 32] tiles, weights [H * E, k], [K * E, k], [K * E, k], q [T / 16, H * E / 32] tiles
//! layout: weights in panels; q for the left side; see `tare_cpu::kv`
//! precision: as these, and one rounding of q to BF16
//! preconditions: k a multiple of the format's block; E a divisor of 256 and a multiple of 32; H a multiple of K; no bias; any T
//! cost: all weights once for 512 rows of x; 2 T (H + 2 K) E k operations; of the outputs half the bytes are written and none
//!   is read again
//! tolerance: the bits that the calls give one after the other, q rounded
//! wins: wherever the linears run in tiles and attention does
//! loses: BF16 weights, which stand on the left, are left to the calls one by one
//! fallback: the calls one by one
//! evidence: none yet
//! source: none
//!
//! Weight rows are counted kv head by kv head: those of its queries, of its keys, of its values. So every worker has as many heads
//! to normalise as the others. A head ends with its last square, when the sums of the squares before lie in L2.

use std::ops::Range;

use tare_ops::{RopeStyle, Row};

use super::ends::{Done, End};
use super::grid::{Grid, SQUARE};
use super::source::{Runs, Source, Stored};
use super::{ACROSS, PRODUCTS, Weights, multiply};
use crate::kernels::heads::Heads;
use crate::kernels::kv_append::TableView;
use crate::kernels::norm::Norm;
use crate::kernels::rope::{Rope, rotated};
use crate::lanes::{LANES, Lanes};
use crate::pool::Region;
use crate::tiled::{Side, Tiled};
use crate::tiles::{ROW_BYTES, ROWS, Tiles};

/// Elements of a head, at most.
pub const MOST: usize = ACROSS * SQUARE;

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct HeadsTiles {
    /// [T / 16, k / 32]
    pub x: Tiled,
    /// Of queries, keys and values.
    pub weights: [Weights; 3],
    /// What happens to heads. Its rows of q, k and v are not touched.
    pub heads: Heads,
    /// [T / 16, H * E / 32]
    pub q: Tiled,
}

/// Whether heads of `size` elements, `of_q` for the `of_k` of the cache, may end here.
pub fn takes(size: usize, of_q: usize, of_k: usize) -> bool {
    size.is_multiple_of(SQUARE) && size > 0 && MOST.is_multiple_of(size) && of_k > 0 && of_q.is_multiple_of(of_k)
}

impl HeadsTiles {
    /// How a step of `rows` rows is shared out among `workers`.
    pub fn grid(&self, rows: usize, workers: usize) -> Grid {
        Grid::in_runs(self.order().rows(), rows, workers, self.heads.append.head_size)
    }

    fn order(&self) -> HeadOrder {
        let (of_q, of_k) = (self.heads.ropes[0].heads, self.heads.ropes[1].heads);
        HeadOrder { size: self.heads.append.head_size, kv_heads: of_k, shared_by: of_q / of_k }
    }
}

/// Runs one worker's share: call, rows of the step, their tables, where we are, the worker's scratch of
/// [`SCRATCH`](super::SCRATCH) F32.
///
/// # Safety
/// That of [`LinearTilesFn`](super::LinearTilesFn) and of [`HeadsFn`](crate::kernels::heads::HeadsFn).
pub type HeadsTilesFn = unsafe fn(&HeadsTiles, &[Row], &[TableView], Region, *mut f32);

/// The kernel on tiles `T` of weights from `S`.
pub fn kernel<T: Tiles, S: Stored>() -> HeadsTilesFn {
    run::<T, S>
}

/// # Safety
/// That of [`HeadsTilesFn`].
unsafe fn run<T: Tiles, S: Stored>(
    call: &HeadsTiles,
    rows: &[Row],
    tables: &[TableView],
    region: Region,
    scratch: *mut f32,
) {
    let [q, k, v] = &call.weights;
    // As for one linear.
    let (Some(t), Some(q), Some(k), Some(v)) = (T::prove(), S::of(q), S::of(k), S::of(v)) else { return };
    let order = call.order();
    let weight = Three { of: [q, k, v], order };
    let end = Ready { call, order, rows, tables, row: scratch.wrapping_add(PRODUCTS) };
    // SAFETY: the caller's promise.
    unsafe {
        multiply(t, (call.x, weight, &end), call.grid(rows.len(), region.workers), (rows.len(), region), scratch)
    };
}

/// What a head is of: an index into [`HeadsTiles::weights`].
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;

/// The order in which heads come.
#[derive(Clone, Copy)]
struct HeadOrder {
    size: usize,
    kv_heads: usize,
    /// Heads of queries for each of them.
    shared_by: usize,
}

impl HeadOrder {
    /// Weight rows of all.
    fn rows(self) -> usize {
        (self.shared_by + 2) * self.kv_heads * self.size
    }

    /// What the head that weight row `n` belongs to is of, and which of those it is.
    #[inline(always)]
    fn head(self, n: usize) -> (usize, usize) {
        let (head, together) = (n / self.size, self.shared_by + 2);
        let (kv_head, i) = (head / together, head % together);
        match i.checked_sub(self.shared_by) {
            None => (Q, kv_head * self.shared_by + i),
            Some(0) => (K, kv_head),
            Some(_) => (V, kv_head),
        }
    }
}

/// The three weights as one.
struct Three<S> {
    of: [S; 3],
    order: HeadOrder,
}

impl<S> Three<S> {
    /// Where weight row `n` lies.
    #[inline(always)]
    fn row(&self, n: usize) -> (&S, usize) {
        let (of, head) = self.order.head(n);
        (&self.of[of], head * self.order.size + n % self.order.size)
    }
}

impl<S: Source> Source for Three<S> {
    const SIDE: Side = S::SIDE;

    #[inline(always)]
    unsafe fn unpack<T: Tiles>(&self, t: T, n: usize, step: usize, half: usize, tile: *mut u8) {
        let (weight, row) = self.row(n);
        // SAFETY: the caller's promise.
        unsafe { weight.unpack(t, row, step, half, tile) };
    }

    #[inline(always)]
    fn runs(&self, n: usize, steps: Range<usize>) -> [Runs; 2] {
        let (weight, row) = self.row(n);
        weight.runs(row, steps)
    }
}

/// Where heads end.
struct Ready<'a> {
    call: &'a HeadsTiles,
    order: HeadOrder,
    rows: &'a [Row],
    tables: &'a [TableView],
    /// Room for a head, where it leaves the registers.
    row: *mut f32,
}

impl End for Ready<'_> {
    fn weight_rows(&self) -> usize {
        self.order.rows()
    }

    fn squares(&self) -> usize {
        self.order.size / SQUARE
    }

    #[inline(always)]
    unsafe fn store<T: Tiles>(&self, t: T, square: &Done, piece: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.order.size / LANES {
                2 => self.pieces::<T, 2>(t, square, piece),
                4 => self.pieces::<T, 4>(t, square, piece),
                8 => self.pieces::<T, 8>(t, square, piece),
                _ => self.pieces::<T, { MOST / LANES }>(t, square, piece),
            }
        }
    }
}

impl Ready<'_> {
    /// [`End::store`] for heads of N vectors.
    ///
    /// # Safety
    /// That of `End::store`.
    #[inline(always)]
    unsafe fn pieces<T: Tiles, const N: usize>(&self, t: T, square: &Done, piece: usize) {
        let of = self.order.head(square.n);
        for i in 2 * piece..2 * piece + 2 {
            let row = square.rows.start + i;
            if row < square.rows.end {
                // SAFETY: a row of the step; the squares before are of the same head.
                unsafe {
                    let head = sums::<T::L, N>(t.lanes(), square, i);
                    self.head(t, head, of, row);
                }
            }
        }
    }

    /// Makes a head ready, which is head `head` of row `row`: all that happens to it happens in registers.
    ///
    /// # Safety
    /// Nobody else writes what it becomes.
    #[inline(always)]
    unsafe fn head<T: Tiles, const N: usize>(
        &self,
        t: T,
        mut v: [<T::L as Lanes>::V; N],
        (of, head): (usize, usize),
        row: usize,
    ) {
        let (l, heads) = (t.lanes(), &self.call.heads);
        // SAFETY: the caller's promise, and that of `HeadsFn`; N vectors of a head, in the room as well.
        unsafe {
            if of != V {
                if let Some(norms) = &heads.norms {
                    normalise(l, &norms[of], &mut v);
                }
                let rope = &heads.ropes[of];
                if rope.style == RopeStyle::HalfSplit {
                    rotate(l, rope, row, &mut v);
                } else {
                    self.put(l, &v);
                    rope.rotate(l, row, self.row);
                    for (i, v) in v.iter_mut().enumerate() {
                        *v = l.load(self.row.add(i * LANES));
                    }
                }
            }
            if of == Q {
                for (i, two) in v.chunks_exact(2).enumerate() {
                    let to = self.call.q.tile(row, head * N / 2 + i).wrapping_add(row % ROWS * ROW_BYTES);
                    t.store_row(to, two[0], two[1]);
                }
                return;
            }
            self.put(l, &v);
            let [keys, values] = heads.append.places(&self.rows[row], self.tables, head);
            heads.append.store(self.row, if of == K { keys } else { values });
        }
    }

    /// Puts a head into the room.
    ///
    /// # Safety
    /// There is room for N vectors.
    #[inline(always)]
    unsafe fn put<L: Lanes, const N: usize>(&self, l: L, v: &[L::V; N]) {
        for (i, v) in v.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { l.store(self.row.add(i * LANES), *v) };
        }
    }
}

/// Row `i` of the head that ends with `square`.
///
/// # Safety
/// Its sums are there: two rows of 16 in each of its squares.
#[inline(always)]
unsafe fn sums<L: Lanes, const N: usize>(l: L, square: &Done, i: usize) -> [L::V; N] {
    let mut v = [l.splat(0.0); N];
    for (e, v) in v.iter_mut().enumerate() {
        let square = square.before(N / 2 - 1 - e / 2);
        // SAFETY: the caller's promise.
        *v = unsafe { l.load(square.row((i / ROWS, e % 2), i % ROWS)) };
    }
    v
}

/// What [`Norm::vector`] does.
///
/// # Safety
/// The norm has N vectors of weights.
#[inline(always)]
unsafe fn normalise<L: Lanes, const N: usize>(l: L, norm: &Norm, v: &mut [L::V; N]) {
    let mut squares = l.splat(0.0);
    for v in v.iter() {
        squares = l.fma(*v, *v, squares);
    }
    let inv = l.splat(norm.inverse(l.sum(squares)));
    for (i, v) in v.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *v = l.mul(l.mul(*v, inv), unsafe { l.load(norm.weight.as_ptr().add(i * LANES)) });
    }
}

/// What [`Rope::rotate`] does to pairs of halves.
///
/// # Safety
/// The angles of the row are made, for N / 2 vectors.
#[inline(always)]
unsafe fn rotate<L: Lanes, const N: usize>(l: L, rope: &Rope, row: usize, v: &mut [L::V; N]) {
    let (cos, sin) = (rope.angles.cos.row(row), rope.angles.sin.row(row));
    for i in 0..N / 2 {
        // SAFETY: the caller's promise.
        let of = unsafe { (l.load(cos.add(i * LANES)), l.load(sin.add(i * LANES))) };
        (v[i], v[i + N / 2]) = rotated(l, (v[i], v[i + N / 2]), of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_head_comes_once_and_kv_heads_with_their_queries() {
        for (size, kv_heads, shared_by) in [(32, 1, 1), (64, 3, 5), (128, 8, 2), (256, 2, 1)] {
            let order = HeadOrder { size, kv_heads, shared_by };
            let mut found: Vec<(usize, usize)> = (0..order.rows()).step_by(size).map(|n| order.head(n)).collect();
            let together = shared_by + 2;
            assert!(found.chunks(together).enumerate().all(|(kv, heads)| heads[together - 1] == (V, kv)));
            found.sort_unstable();
            let all = |of, heads| (0..heads).map(move |head| (of, head));
            let want: Vec<_> = all(Q, kv_heads * shared_by).chain(all(K, kv_heads)).chain(all(V, kv_heads)).collect();
            assert_eq!(found, want);
            assert_eq!(order.head(size - 1), order.head(0), "a head is {size} rows");
        }
    }

    #[test]
    fn heads_end_with_a_square_and_their_sums_lie_together() {
        for (size, of_q, of_k, want) in [
            (128, 16, 8, true),
            (256, 4, 4, true),
            (96, 4, 2, false),
            (20, 4, 2, false),
            (512, 4, 2, false),
            (64, 9, 2, false),
            (64, 9, 3, true),
        ] {
            assert_eq!(takes(size, of_q, of_k), want, "{size} {of_q} {of_k}");
        }
    }
}
