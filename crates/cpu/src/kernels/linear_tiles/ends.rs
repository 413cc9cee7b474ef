//! What becomes of the sums of a square, piece by piece.

use std::ops::Range;

use super::SUMS;
use super::grid::SQUARE;
use crate::epilogue::Epilogue;
use crate::lanes::{LANES, Lanes};
use crate::tiled::Side;
use crate::tiles::{ROWS, TILE_BYTES, Tiles};

/// Pieces in which the sums of a square are stored: two rows of 32 sums each, where they lie as outputs do.
pub const PIECES: usize = SQUARE / 2;

/// Rows whose outputs, which sums are added to, are asked for ahead of them: they come from far.
const AHEAD: usize = 8;

/// A square whose sums are whole.
#[derive(Clone, Debug)]
pub struct Done {
    /// The side of the product on which the weights were: rows of the sums are weight rows (left), or rows of x.
    pub side: Side,
    /// Two by two tiles, those beside each other first.
    pub sums: *const f32,
    /// The first of its 32 weight rows.
    pub n: usize,
    /// Its rows of x, 32 at most.
    pub rows: Range<usize>,
}

impl Done {
    /// Row `i` of the tile `down` from the top and `right` from the left.
    #[inline(always)]
    pub fn row(&self, (down, right): (usize, usize), i: usize) -> *const f32 {
        self.sums.wrapping_byte_add((2 * down + right) * TILE_BYTES).wrapping_add(i * LANES)
    }

    /// The square of the same rows of x that many squares of weight rows before: its sums are kept until those of as many
    /// squares as are multiplied together are whole.
    #[inline(always)]
    pub fn before(&self, squares: usize) -> Self {
        let (sums, n) = (self.sums.wrapping_byte_sub(squares * SUMS), self.n - squares * SQUARE);
        Self { sums, n, ..self.clone() }
    }
}

/// Where products end.
pub trait End {
    /// Weight rows there are, counted as [`Source`](super::Source) counts them.
    fn weight_rows(&self) -> usize;

    /// Squares of weight rows that end together: the last one is stored, with the sums of those before it.
    fn squares(&self) -> usize {
        1
    }

    /// Stores piece `piece` of [`PIECES`].
    ///
    /// # Safety
    /// The sums are there; rows of x and weight rows are those of the call, and nobody else writes what they become.
    unsafe fn store<T: Tiles>(&self, t: T, square: &Done, piece: usize);
}

impl End for Epilogue {
    fn weight_rows(&self) -> usize {
        self.out.width
    }

    #[inline(always)]
    unsafe fn store<T: Tiles>(&self, t: T, square: &Done, piece: usize) {
        let l = t.lanes();
        if square.side == Side::Right {
            for i in 2 * piece..2 * piece + 2 {
                let row = square.rows.start + i;
                for (right, n) in [square.n, square.n + ROWS].into_iter().enumerate() {
                    if row < square.rows.end && n < self.out.width {
                        if self.accumulate && row + AHEAD < square.rows.end {
                            l.prefetch_nearest(self.out.row(row + AHEAD).wrapping_add(n).cast());
                        }
                        // SAFETY: a row of 16 sums; row and n are of the outputs.
                        unsafe { self.store(l, row, n, l.load(square.row((i / ROWS, right), i % ROWS))) };
                    }
                }
            }
            return;
        }
        // A tile at a time is turned: a quarter of the pieces has one.
        const TURNED: usize = PIECES / 4;
        let (tile, n) = (piece / TURNED, square.n + piece / TURNED / 2 * ROWS);
        if !piece.is_multiple_of(TURNED) || n >= self.out.width {
            return;
        }
        let mut sums = [l.splat(0.0); LANES];
        // SAFETY: a tile has 16 rows of 16 sums; rows and n are of the outputs.
        unsafe {
            for (i, sums) in sums.iter_mut().enumerate() {
                *sums = l.load(square.row((tile / 2, tile % 2), i));
            }
            let rows = (square.rows.start + tile % 2 * ROWS..square.rows.end).take(ROWS);
            for (row, sums) in rows.zip(&l.transposed(&sums)) {
                self.store(l, row, n, *sums);
            }
        }
    }
}
