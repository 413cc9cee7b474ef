//! Matrix times many rows, in tiles of BF16.
//!
//! math: `out[t, n] = sum_k bf16(x[t, k]) * bf16(w[n, k]) (+ bias[n])`, added to `out[t, n]` when accumulating
//! shapes: x [T / 16, k / 32] tiles, weight [n, k], bias [n], out [T, n]
//! layout: BF16 weights as the file has them, codes in panels of 16 rows; out with rows padded to 32 columns
//! precision: weights dequantized exactly and rounded to BF16; products and sums as `crate::tiles` says, k ascending
//! preconditions: k a multiple of the format's block; any n, any T
//! cost: the weights once for 512 rows of x; 2 T n k operations
//! tolerance: limits of `tare_ops::exact`, with weights rounded where they are not BF16 already; the same bits for every T, share and thread count
//! wins: five rows and more, wherever there are tiles
//! loses: fewer rows, for which a tile is mostly empty; 32 rows of packed weights, which cost as much to unpack as to multiply
//! fallback: `linear` in the reference's order, on F32 multiply-adds
//! evidence: none yet
//! source: blocking, roles of the operands and prefetching by our own probe
//!
//! The smallest piece of work is a *square*: 32 weight rows times 32 rows of x over 256 columns, two by two tiles of sums. A
//! slice of 256 columns of 32 weight rows, unpacked to tiles, takes 16 KiB and stays in L1 while it meets all rows of x.
//! Slices are the outer loop: sums of 256 weight rows lie in L2 between them, and x is read from there, slice by slice.
//!
//! Which side weights stand on follows from how they lie. A panel has a column of 16 rows side by side, which is a row of B;
//! so x is A. BF16 weights lie row by row, which is A; so x is B, turned once for all linears that read it, and the sums
//! are turned when they are stored: 16 x 16 sums for all of k, where turning weights would cost as much for each 32 columns.

pub mod grid;
mod rows;
mod source;
mod unpack;

use std::ops::Range;

use crate::epilogue::Epilogue;
use crate::lanes::{LANES, Lanes};
use crate::matrix::Matrix;
use crate::panels::Panels;
use crate::pool::Region;
use crate::tiled::{Side, Tiled};
use crate::tiles::{Operand, Product, ROWS, Sums, TILE_BYTES, TileKernel, Tiles};
use grid::{Grid, SQUARE};
pub use rows::Bf16Rows;
use source::Ahead;
pub use source::Source;
pub use unpack::InPanels;

/// Steps of 32 columns of a slice: a multiple of every block.
const SLICE: usize = 8;
/// Squares of weight rows whose sums are kept between slices.
const ACROSS: usize = 8;
/// Squares of rows of x that go through a slice together.
const DOWN: usize = 16;
/// Bytes of the sums of a square.
const SUMS: usize = 4 * TILE_BYTES;
/// Bytes of the slice of 32 weight rows.
const UNPACKED: usize = 2 * SLICE * TILE_BYTES;

/// F32 that [`LinearTilesFn`] needs as scratch.
pub const SCRATCH: usize = (UNPACKED + ACROSS * DOWN * SUMS) / size_of::<f32>();

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct LinearTiles {
    /// [T / 16, k / 32]
    pub x: Tiled,
    /// [n, k]
    pub weight: Weights,
    /// What becomes of the products. out [T, n]
    pub end: Epilogue,
}

/// Weights in the layout that a kernel reads.
#[derive(Clone, Copy, Debug)]
pub enum Weights {
    /// As the file has them.
    File(Matrix),
    /// In panels.
    Panels(Panels),
}

impl LinearTiles {
    /// How a step of `rows` rows is shared out among `workers`.
    pub fn grid(&self, rows: usize, workers: usize) -> Grid {
        Grid::of(self.end.out.width, rows, workers)
    }
}

/// Runs one worker's share: call, rows of the step, where we are, the worker's scratch of [`SCRATCH`] F32.
///
/// # Safety
/// The call's pointers hold `rows` rows; the weight has the format and the layout of the kernel; nobody else writes the same
/// shares.
pub type LinearTilesFn = unsafe fn(&LinearTiles, usize, Region, *mut f32);

/// The kernel on tiles `T` of weights from `S`.
pub fn kernel<T: Tiles, S: Source>() -> LinearTilesFn {
    run::<T, S>
}

/// # Safety
/// That of [`LinearTilesFn`].
unsafe fn run<T: Tiles, S: Source>(call: &LinearTiles, rows: usize, region: Region, scratch: *mut f32) {
    // The registry offers a kernel only where `prove` succeeds, and compiling a plan gives the weight in the kernel's layout.
    let (Some(t), Some(weight)) = (T::prove(), S::of(&call.weight)) else { return };
    let (across, down) = call.grid(rows, region.workers).share(region.worker);
    if !across.is_empty() && !down.is_empty() {
        let unpacked = scratch.cast::<u8>();
        let sums = scratch.wrapping_byte_add(UNPACKED);
        t.compiled(Share { call, weight, rows, across, down, unpacked, sums });
    }
}

/// Weight rows and rows of x, counted in squares.
struct Share<'a, S> {
    call: &'a LinearTiles,
    weight: S,
    rows: usize,
    across: Range<usize>,
    down: Range<usize>,
    /// Two rows of tiles of a slice.
    unpacked: *mut u8,
    /// [DOWN, ACROSS] squares
    sums: *mut f32,
}

impl<S: Source> TileKernel for Share<'_, S> {
    #[inline(always)]
    fn run<T: Tiles>(self, t: T) {
        for first in self.down.clone().step_by(DOWN) {
            let down = first..(first + DOWN).min(self.down.end);
            for first in self.across.clone().step_by(ACROSS) {
                let across = first..(first + ACROSS).min(self.across.end);
                // SAFETY: the contract of `LinearTilesFn`.
                unsafe {
                    for slice in (0..self.call.x.steps).step_by(SLICE) {
                        self.slice(t, &across, &down, slice);
                    }
                    self.finish(t, across, down.clone());
                }
            }
        }
    }
}

impl<S: Source> Share<'_, S> {
    /// Adds the products over the slice that begins at step `slice` to the sums.
    ///
    /// # Safety
    /// That of [`LinearTilesFn`]; the squares are of the share.
    #[inline(always)]
    unsafe fn slice<T: Tiles>(&self, t: T, across: &Range<usize>, down: &Range<usize>, slice: usize) {
        let steps = |slice: usize| slice..(slice + SLICE).min(self.call.x.steps).max(slice);
        for square in across.clone() {
            let (n, here) = (square * SQUARE, steps(slice));
            // SAFETY: weight rows of the call, and room for two rows of tiles.
            unsafe {
                for i in 0..self.weights(n) {
                    self.weight.unpack(t, n + i * ROWS, here.clone(), self.unpacked.add(i * UNPACKED / 2));
                }
            }
            // What comes next: the weight rows below, or the first ones of the next slice.
            let (next, then) =
                if square + 1 < across.end { (square + 1, here.clone()) } else { (across.start, steps(slice + SLICE)) };
            let mut ahead = Ahead::new(self.weight.runs(next * SQUARE, then), down.len());
            for (i, t_square) in down.clone().enumerate() {
                ahead.ask(t.lanes());
                let c = self.sums(i, square - across.start);
                // SAFETY: the slice is unpacked, x has these rows of tiles, the sums are this worker's.
                unsafe { self.square(t, (n, t_square * SQUARE), here.clone(), c) };
            }
        }
    }

    /// One square: weight rows from `n` on, rows of x from `row` on.
    ///
    /// # Safety
    /// The weights are unpacked, x has the rows, and C holds its sums so far.
    #[inline(always)]
    unsafe fn square<T: Tiles>(&self, t: T, (n, row): (usize, usize), steps: Range<usize>, c: *mut f32) {
        let x = Operand::packed(self.call.x.tile(row, steps.start), self.call.x.row_bytes());
        let weights = Operand::packed(self.unpacked, UNPACKED / 2);
        let (a, b, r, s) = match S::SIDE {
            Side::Left => (weights, x, self.weights(n), self.tokens(row)),
            Side::Right => (x, weights, self.tokens(row), self.weights(n)),
        };
        let p = Product { a, b, c: Sums::packed(c), steps: steps.len(), add: usize::from(steps.start > 0) };
        // SAFETY: the caller's promise.
        unsafe {
            match (r, s) {
                (2, 2) => t.multiply::<2, 2>(&p),
                (2, _) => t.multiply::<2, 1>(&p),
                (_, 2) => t.multiply::<1, 2>(&p),
                _ => t.multiply::<1, 1>(&p),
            }
        }
    }

    /// Stores the sums of these squares as outputs.
    ///
    /// # Safety
    /// That of [`LinearTilesFn`]; the squares are of the share, and their sums are whole.
    #[inline(always)]
    unsafe fn finish<T: Tiles>(&self, t: T, across: Range<usize>, down: Range<usize>) {
        let l = t.lanes();
        for (i, row) in down.enumerate().map(|(i, square)| (i, square * SQUARE)) {
            for (j, n) in across.clone().enumerate().map(|(j, square)| (j, square * SQUARE)) {
                let c = self.sums(i, j);
                for (down, right) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let tile = c.wrapping_byte_add((2 * down + right) * TILE_BYTES);
                    let (n, row) = match S::SIDE {
                        Side::Left => (n + down * ROWS, row + right * ROWS),
                        Side::Right => (n + right * ROWS, row + down * ROWS),
                    };
                    if n >= self.call.end.out.width || row >= self.rows {
                        continue;
                    }
                    let mut sums = [l.splat(0.0); LANES];
                    // SAFETY: a tile has 16 rows of 16 sums; row and n are of the outputs.
                    unsafe {
                        for (i, sums) in sums.iter_mut().enumerate() {
                            *sums = l.load(tile.add(i * LANES));
                        }
                        if S::SIDE == Side::Left {
                            sums = l.transposed(&sums);
                        }
                        for (row, sums) in (row..self.rows).zip(sums) {
                            self.call.end.store(l, row, n, sums);
                        }
                    }
                }
            }
        }
    }

    /// The sums of square [i, j].
    #[inline(always)]
    fn sums(&self, i: usize, j: usize) -> *mut f32 {
        self.sums.wrapping_byte_add((i * ACROSS + j) * SUMS)
    }

    /// Tiles of weight rows of the square that begins at row `n` of the weight.
    #[inline(always)]
    fn weights(&self, n: usize) -> usize {
        if self.call.end.out.width - n > ROWS { 2 } else { 1 }
    }

    /// Tiles of rows of x of the square that begins at row `row` of the step.
    #[inline(always)]
    fn tokens(&self, row: usize) -> usize {
        if self.rows - row > ROWS { 2 } else { 1 }
    }
}
