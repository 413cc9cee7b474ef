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
//! Slices are the outer loop: sums of 256 weight rows lie in L2 between them, and x is read from there, slice by slice.
//! While a slice is multiplied, the next one is unpacked between the products, a piece after each step, and the one after
//! that is asked for from memory; of the last columns, the sums of a square are stored while the next one is multiplied. So tile
//! units and vector units work at the same time, and neither waits for memory.
//!
//! Which side weights stand on follows from how they lie. A panel has a column of 16 rows side by side, which is a row of B;
//! so x is A. BF16 weights lie row by row, which is A; so x is B, turned once for all linears that read it, and the sums
//! are turned when they are stored: 16 x 16 sums for all of k, where turning weights would cost as much for each 32 columns.

pub mod ends;
pub mod gated;
pub mod grid;
pub mod heads;
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
use ends::{Done, End, PIECES};
use grid::{Grid, SQUARE};
pub use rows::Bf16Rows;
use source::Ahead;
pub use source::{Source, Stored};
pub use unpack::InPanels;

/// Steps of 32 columns of a slice: a multiple of every block.
const SLICE: usize = 16;
/// Squares of weight rows whose sums are kept between slices.
const ACROSS: usize = 8;
/// Squares of rows of x that go through a slice together.
const DOWN: usize = 16;
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
    /// [DOWN, ACROSS] squares
    sums: *mut f32,
}

impl<S: Source, E: End> TileKernel for Share<'_, S, E> {
    #[inline(always)]
    fn run<T: Tiles>(self, t: T) {
        for first in self.down.clone().step_by(DOWN) {
            let down = first..(first + DOWN).min(self.down.end);
            for first in self.across.clone().step_by(ACROSS) {
                let across = first..(first + ACROSS).min(self.across.end);
                // SAFETY: the contract of `LinearTilesFn`.
                unsafe { self.products(t, &across, &down) };
            }
        }
    }
}

/// Steps of 32 weight rows from `n` on; none behind the last slice.
#[derive(Clone, Debug)]
struct Slice {
    n: usize,
    steps: Range<usize>,
}

impl<S: Source, E: End> Share<'_, S, E> {
    /// Computes the sums of squares of the share, slice by slice, and stores them.
    ///
    /// # Safety
    /// That of [`LinearTilesFn`]; the squares are of the share.
    #[inline(always)]
    unsafe fn products<T: Tiles>(&self, t: T, across: &Range<usize>, down: &Range<usize>) {
        let (first, second) = (self.slice(across, 0), self.slice(across, 1));
        let mut unpacking = Unpacking::new(self, &first, self.unpacked[0], 1);
        let mut ahead = Ahead::new(self.weight.runs(second.n, second.steps), 1);
        ahead.ask(t.lanes());
        // SAFETY: the slice is of the weight, and there is room for it.
        unsafe { unpacking.go_on(t) };
        let slices = across.len() * self.x.steps.div_ceil(SLICE);
        let mut storing = Storing { end: self.end, square: None, stored: PIECES };
        for i in 0..slices {
            let (here, next, after) = (self.slice(across, i), self.slice(across, i + 1), self.slice(across, i + 2));
            let turns = down.len() * here.steps.len();
            let mut unpacking = Unpacking::new(self, &next, self.unpacked[(i + 1) % 2], turns);
            let mut ahead = Ahead::new(self.weight.runs(after.n, after.steps), turns);
            for (j, square) in down.clone().enumerate() {
                let (row, c) = (square * SQUARE, self.sums(j, i % across.len()));
                let each = PIECES.div_ceil(here.steps.len());
                let between = || {
                    ahead.ask(t.lanes());
                    // SAFETY: as above; the products read the other slice and add to other sums.
                    unsafe {
                        unpacking.go_on(t);
                        storing.go_on(t, each);
                    }
                };
                // SAFETY: the slice is unpacked, x has these rows of tiles, the sums are this worker's; those of the square
                // before are whole.
                unsafe {
                    self.square(t, &here, row, self.unpacked[i % 2], c, between);
                    storing.go_on(t, PIECES);
                }
                if here.steps.end == self.x.steps {
                    storing.begin(Done { side: S::SIDE, sums: c, n: here.n, rows: row..self.rows.min(row + SQUARE) });
                }
            }
        }
        // SAFETY: the last square.
        unsafe { storing.go_on(t, PIECES) };
    }

    /// Slice `i` of those that these squares go through: the weight rows of all squares, then the next columns.
    #[inline(always)]
    fn slice(&self, across: &Range<usize>, i: usize) -> Slice {
        let (from, end) = (i / across.len() * SLICE, self.x.steps);
        Slice { n: (across.start + i % across.len()) * SQUARE, steps: from.min(end)..(from + SLICE).min(end) }
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

    /// The sums of square [i, j].
    #[inline(always)]
    fn sums(&self, i: usize, j: usize) -> *mut f32 {
        self.sums.wrapping_byte_add((i * ACROSS + j) * SUMS)
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

/// A square whose sums are whole, on their way to where they end.
struct Storing<'a, E> {
    end: &'a E,
    square: Option<Done>,
    /// Pieces that are stored.
    stored: usize,
}

impl<E: End> Storing<'_, E> {
    fn begin(&mut self, square: Done) {
        (self.square, self.stored) = (Some(square), 0);
    }

    /// Stores up to `pieces` more.
    ///
    /// # Safety
    /// That of [`End::store`].
    #[inline(always)]
    unsafe fn go_on<T: Tiles>(&mut self, t: T, pieces: usize) {
        let Some(square) = &self.square else { return };
        let last = PIECES.min(self.stored + pieces);
        if self.stored < last {
            t.aside(Pieces { end: self.end, square, pieces: self.stored..last });
            self.stored = last;
        }
    }
}

/// Pieces to be stored: the arguments of [`End::store`], which are as it asks.
struct Pieces<'a, E> {
    end: &'a E,
    square: &'a Done,
    pieces: Range<usize>,
}

impl<E: End> TileKernel for Pieces<'_, E> {
    #[inline(always)]
    fn run<T: Tiles>(self, t: T) {
        for piece in self.pieces {
            // SAFETY: `Storing::go_on` makes them, whose caller has promised it.
            unsafe { self.end.store(t, self.square, piece) };
        }
    }
}

/// A slice on its way into tiles, some halves of tiles in each of some turns.
struct Unpacking<'a, S> {
    weight: &'a S,
    slice: Slice,
    to: *mut u8,
    /// Halves that are done, and all there are.
    done: usize,
    halves: usize,
    /// Halves that are due, times `turns`.
    due: usize,
    turns: usize,
}

impl<'a, S: Source> Unpacking<'a, S> {
    #[inline(always)]
    fn new<E: End>(share: &'a Share<S, E>, slice: &Slice, to: *mut u8, turns: usize) -> Self {
        let halves = 2 * share.weights(slice.n) * slice.steps.len();
        Self { weight: &share.weight, slice: slice.clone(), to, done: 0, halves, due: 0, turns }
    }

    /// Unpacks what is due in a turn: in the last one, all that is left.
    ///
    /// # Safety
    /// The slice is of the weight, and there is room for it where it goes.
    #[inline(always)]
    unsafe fn go_on<T: Tiles>(&mut self, t: T) {
        self.due += self.halves;
        while self.due >= self.turns {
            self.due -= self.turns;
            let (tile, half) = (self.done / 2, self.done % 2);
            let (i, step) = (tile / self.slice.steps.len(), tile % self.slice.steps.len());
            let to = self.to.wrapping_add(i * UNPACKED / 2 + step * TILE_BYTES);
            let (n, step) = (self.slice.n + i * ROWS, self.slice.steps.start + step);
            t.aside(Half { weight: self.weight, n, step, half, to });
            self.done += 1;
        }
    }
}

/// Half a tile to be unpacked: the arguments of [`Source::unpack`], which are as it asks.
struct Half<'a, S> {
    weight: &'a S,
    n: usize,
    step: usize,
    half: usize,
    to: *mut u8,
}

impl<S: Source> TileKernel for Half<'_, S> {
    #[inline(always)]
    fn run<T: Tiles>(self, t: T) {
        // SAFETY: `Unpacking::go_on` makes them, whose caller has promised it.
        unsafe { self.weight.unpack(t, self.n, self.step, self.half, self.to) };
    }
}
