//! Matrix times many rows, in tiles of BF16.
//!
//! math: `out[t, n] = sum_k bf16(x[t, k]) * bf16(w[n, k]) (+ bias[n])`, added to `out[t, n]` when accumulating
//! shapes: x [T / 16, k / 32] tiles, weight [n, k], bias [n], out [T, n]
//! layout: BF16 weights as the file has them, codes in panels of 16 rows; out with rows padded to 32 columns
//! precision: weights dequantized exactly and rounded to BF16; products and sums as `crate::tiles` says, k ascending
//! preconditions: k a multiple of the format's block; any n, any T
//! cost: the weights once for 512 rows of x; sums through L2 once for 512 columns; 2 T n k operations
//! tolerance: limits of `tare_ops::exact`, with weights rounded where they are not BF16 already; the same bits for every T, share and thread count
//! wins: five rows and more, wherever there are tiles
//! loses: fewer rows, for which a tile is mostly empty; 32 rows of packed weights, which cost more to unpack than to multiply
//! fallback: `linear` in the reference's order, on F32 multiply-adds
//! evidence: 20261201T032318Z-aa7100db0753ba4d
//! source: blocking, roles of the operands and prefetching by our own probe
//!
//! The smallest piece of work is a *square*: 32 weight rows times 32 rows of x over 512 columns, two by two tiles of sums. A
//! slice of 512 columns of 32 weight rows, unpacked to tiles, takes 32 KiB and is read again for every 32 rows of x, which
//! pass by with a hint not to push it out of L1.
//! Slices are the outer loop: sums of 256 weight rows and more lie in L2 between them, and x is read from there, slice by slice.
//! While a slice is multiplied, the next one is unpacked between the products, a piece after each step, and the one after
//! that is asked for from memory; of the last columns, the sums of a square are stored while the next ones are multiplied, and
//! the sums that are needed next come nearer. So tile units and vector units work at the same time, and neither waits for memory.
//!
//! Which side weights stand on follows from how they lie. A panel has a column of 16 rows side by side, which is a row of B;
//! so x is A. BF16 weights lie row by row, which is A; so x is B, turned once for all linears that read it, and the sums
//! are turned when they are stored: 16 x 16 sums for all of k, where turning weights would cost as much for each 32 columns.

mod between;
pub mod ends;
pub mod gated;
pub mod grid;
pub mod heads;
mod lossless;
mod rows;
mod source;
mod unpack;

use std::ops::Range;

use crate::epilogue::Epilogue;
use crate::matrix::Matrix;
use crate::panels::Panels;
use crate::pool::Region;
use crate::tiled::{Side, Tiled};
use crate::tiles::{Operand, Product, ROWS, Sums, TILE_BYTES, TileKernel, Tiles};
use between::{Nearer, Storing, Unpacking};
use ends::{Done, End};
use grid::{Grid, SQUARE};
pub use lossless::Bf16Panels;
pub use rows::Bf16Rows;
use source::Ahead;
pub use source::{Source, Stored};
pub use unpack::InPanels;

/// Steps of 32 columns of a slice: a multiple of every block.
const SLICE: usize = 16;
/// Squares of weight rows whose sums are kept between slices, beside as many of rows of x as go through a slice.
const ACROSS: usize = 8;
/// Squares of rows of x that go through a slice together, at most.
const DOWN: usize = 16;
/// Parts of the time of a square.
const QUARTERS: usize = 4;
/// Bytes of the sums of a square.
const SUMS: usize = 4 * TILE_BYTES;
/// Bytes of the slice of 32 weight rows.
const UNPACKED: usize = 2 * SLICE * TILE_BYTES;

/// F32 of slices and sums.
const PRODUCTS: usize = (2 * UNPACKED + ACROSS * DOWN * SUMS) / size_of::<f32>();
/// F32 that [`LinearTilesFn`] and its like need as scratch.
pub const SCRATCH: usize = PRODUCTS + heads::MOST;

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
pub fn kernel<T: Tiles, S: Stored>() -> LinearTilesFn {
    run::<T, S>
}

/// # Safety
/// That of [`LinearTilesFn`].
unsafe fn run<T: Tiles, S: Stored>(call: &LinearTiles, rows: usize, region: Region, scratch: *mut f32) {
    // The registry offers a kernel only where `prove` succeeds, and compiling a plan gives the weight in the kernel's layout.
    let (Some(t), Some(weight)) = (T::prove(), S::of(&call.weight)) else { return };
    // SAFETY: the caller's promise.
    unsafe { multiply(t, (call.x, weight, &call.end), call.grid(rows, region.workers), (rows, region), scratch) };
}

/// Multiplies x with a weight, one worker's share, and lets the products end.
///
/// # Safety
/// That of [`LinearTilesFn`].
unsafe fn multiply<T: Tiles, S: Source, E: End>(
    t: T,
    (x, weight, end): (Tiled, S, &E),
    grid: Grid,
    (rows, region): (usize, Region),
    scratch: *mut f32,
) {
    let (across, down) = grid.share(region.worker);
    if !across.is_empty() && !down.is_empty() {
        let first = scratch.cast::<u8>();
        let (unpacked, sums) = ([first, first.wrapping_add(UNPACKED)], scratch.wrapping_byte_add(2 * UNPACKED));
        t.compiled(Share { x, weight, end, rows, across, down, unpacked, sums });
    }
}

/// Weight rows and rows of x, counted in squares.
struct Share<'a, S, E> {
    x: Tiled,
    weight: S,
    end: &'a E,
    rows: usize,
    across: Range<usize>,
    down: Range<usize>,
    /// Two rows of tiles of the slice that is multiplied and of the one that is unpacked, in turn.
    unpacked: [*mut u8; 2],
    /// Of [DOWN, ACROSS] squares, or of fewer rows of x and more weight rows.
    sums: *mut f32,
}

impl<S: Source, E: End> TileKernel for Share<'_, S, E> {
    #[inline(always)]
    fn run<T: Tiles>(self, t: T) {
        // SAFETY: the contract of `LinearTilesFn`.
        unsafe { self.products(t) };
    }
}

/// Squares that go through slices together, and the slice that is theirs: the weight rows of all squares, then the next
/// columns.
#[derive(Clone, Debug)]
struct Place {
    across: Range<usize>,
    down: Range<usize>,
    /// Slices before this one.
    i: usize,
}

/// Steps of 32 weight rows from `n` on; none behind the last slice.
#[derive(Clone, Debug)]
struct Slice {
    n: usize,
    steps: Range<usize>,
}

impl<S: Source, E: End> Share<'_, S, E> {
    /// Computes the sums of all squares, slice by slice, and lets them end.
    ///
    /// # Safety
    /// That of [`LinearTilesFn`].
    #[inline(always)]
    unsafe fn products<T: Tiles>(&self, t: T) {
        let first = self.place(self.across.start, self.down.start);
        let mut place = Some(first.clone());
        for slice in [self.slice(Some(&first)), self.slice(self.after(&first).as_ref())] {
            Ahead::new(self.weight.runs(slice.n, slice.steps), 1).ask(t.lanes());
        }
        let mut unpacking = Unpacking::new(self, &self.slice(Some(&first)), self.unpacked[0], 1);
        // SAFETY: the slice is of the weight, and there is room for it.
        unsafe { unpacking.go_on(t) };
        let mut storing = Storing::new(self.end);
        let (mut i, mut lay) = (0, (first.across.len(), first.down.len()));
        while let Some(here) = place {
            let behind = self.after(&here);
            let (slice, next) = (self.slice(Some(&here)), self.slice(behind.as_ref()));
            let after = self.slice(behind.as_ref().and_then(|behind| self.after(behind)).as_ref());
            let lies = (here.across.len(), here.down.len());
            if here.i == 0 && (here.down.len() == 1 || lies != lay) {
                // Where few squares were together, or others than now, what is stored lies where the next sums go.
                // SAFETY: as below.
                unsafe { storing.finish(t) };
            }
            lay = lies;
            // Squares are stored while others are multiplied, as long as their sums are kept: no other squares lie differently there
            // before. Where some end together, the last one has as long as the others take. Where each ends by itself, all that
            // end with the last slice have until the same squares end the first slice behind it: not quite two turns each. The last
            // ones of all have nothing behind them.
            let ends = self.end.squares();
            let lies_alike = |next: &Place| (next.across.len(), next.down.len()) == lies;
            let is_kept = lies.0 + 1 >= 2 * ends && behind.as_ref().is_some_and(lies_alike);
            let is_last = slice.steps.end == self.x.steps && !self.next(&here).as_ref().is_some_and(lies_alike);
            let has_more = self.x.steps > SLICE && lies.1 > 1 && !is_last;
            let within = match (is_kept, ends) {
                (true, 1) if has_more => 2 * QUARTERS - 1,
                (true, ends) => ends * QUARTERS,
                (false, _) => QUARTERS,
            };
            let turns = here.down.len() * slice.steps.len();
            let mut unpacking = Unpacking::new(self, &next, self.unpacked[(i + 1) % 2], turns);
            let mut ahead = Ahead::new(self.weight.runs(after.n, after.steps), turns);
            for (j, square) in here.down.clone().enumerate() {
                let (row, c) = (square * SQUARE, self.sums(&here, j));
                let mut nearer = Nearer::new(self.sums_after(&here, behind.as_ref(), j), slice.steps.len());
                let turns = within * slice.steps.len() / QUARTERS;
                if storing.is_in_the_way(c) {
                    // SAFETY: as below.
                    unsafe { storing.finish(t) };
                }
                let between = || {
                    ahead.ask(t.lanes());
                    nearer.ask(t.lanes());
                    // SAFETY: as above; the products read the other slice and add to other sums.
                    unsafe {
                        unpacking.go_on(t);
                        storing.go_on(t, turns);
                    }
                };
                // SAFETY: the slice is unpacked, x has these rows of tiles, the sums are this worker's; those of the square
                // before are whole.
                unsafe {
                    self.square(t, &slice, row, self.unpacked[i % 2], c, between);
                    if within == QUARTERS {
                        storing.finish(t);
                    }
                }
                if slice.steps.end == self.x.steps && (slice.n / SQUARE + 1).is_multiple_of(ends) {
                    storing.begin(Done { side: S::SIDE, sums: c, n: slice.n, rows: row..self.rows.min(row + SQUARE) });
                }
            }
            i += 1;
            place = behind;
        }
        // SAFETY: the last square.
        unsafe { storing.finish(t) };
    }

    /// The first slice of the squares from these on: fewer rows of x leave room for the sums of more weight rows.
    #[inline(always)]
    fn place(&self, across: usize, down: usize) -> Place {
        let down = down..(down + DOWN).min(self.down.end);
        let wide = ACROSS * (DOWN / down.len());
        Place { across: across..(across + wide).min(self.across.end), down, i: 0 }
    }

    /// What follows; nothing behind the last slice.
    #[inline(always)]
    fn after(&self, place: &Place) -> Option<Place> {
        let Place { across, i, .. } = place;
        if i + 1 < across.len() * self.x.steps.div_ceil(SLICE) {
            return Some(Place { i: i + 1, ..place.clone() });
        }
        self.next(place)
    }

    /// The first slice of the squares that follow those of a place; nothing behind the last ones.
    #[inline(always)]
    fn next(&self, place: &Place) -> Option<Place> {
        let Place { across, down, .. } = place;
        if across.end < self.across.end {
            return Some(self.place(across.end, down.start));
        }
        (down.end < self.down.end).then(|| self.place(self.across.start, down.end))
    }

    /// The slice of a place.
    #[inline(always)]
    fn slice(&self, place: Option<&Place>) -> Slice {
        let Some(Place { across, i, .. }) = place else { return Slice { n: 0, steps: 0..0 } };
        let from = i / across.len() * SLICE;
        let n = (across.start + i % across.len()) * SQUARE;
        Slice { n, steps: from..(from + SLICE).min(self.x.steps) }
    }

    /// The sums that are needed behind those of square `j` down of a place.
    #[inline(always)]
    fn sums_after(&self, here: &Place, behind: Option<&Place>, j: usize) -> *const f32 {
        if j + 1 < here.down.len() { self.sums(here, j + 1) } else { self.sums(behind.unwrap_or(here), 0) }
    }

    /// The sums of square `j` down of a place: those of squares across lie behind each other.
    #[inline(always)]
    fn sums(&self, place: &Place, j: usize) -> *mut f32 {
        let across = place.across.len();
        self.sums.wrapping_byte_add((j * across + place.i % across) * SUMS)
    }

    /// One square: rows of x from `row` on.
    ///
    /// # Safety
    /// The slice lies unpacked there, x has the rows, and C holds its sums so far.
    #[inline(always)]
    unsafe fn square<T: Tiles>(
        &self,
        t: T,
        slice: &Slice,
        row: usize,
        unpacked: *const u8,
        c: *mut f32,
        between: impl FnMut(),
    ) {
        let Slice { n, steps } = slice;
        let x = Operand::packed(self.x.tile(row, steps.start), self.x.row_bytes()).passing();
        let weights = Operand::packed(unpacked, UNPACKED / 2);
        let (a, b, tiles) = match S::SIDE {
            Side::Left => (weights, x, (self.weights(*n), self.tokens(row))),
            Side::Right => (x, weights, (self.tokens(row), self.weights(*n))),
        };
        let p = Product { a, b, c: Sums::packed(c), tiles, steps: steps.len(), add: steps.start > 0 };
        // SAFETY: the caller's promise.
        unsafe { t.multiply(&p, between) };
    }

    /// Tiles of weight rows of the square that begins at row `n` of the weight.
    #[inline(always)]
    fn weights(&self, n: usize) -> usize {
        if self.end.weight_rows() - n > ROWS { 2 } else { 1 }
    }

    /// Tiles of rows of x of the square that begins at row `row` of the step.
    #[inline(always)]
    fn tokens(&self, row: usize) -> usize {
        if self.rows - row > ROWS { 2 } else { 1 }
    }
}

#[cfg(test)]
mod tests;
