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
use ends::{Done, End, PIECES};
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
            // Where squares end together, the last one has as long as the others take, if their sums are kept so long: no other
            // squares lie differently there before.
            let ends = self.end.squares();
            let lies_alike = |next: &Place| (next.across.len(), next.down.len()) == lies;
            let is_kept = lies.0 + 1 >= 2 * ends && behind.as_ref().is_some_and(lies_alike);
            let within = if is_kept { ends } else { 1 };
            let turns = here.down.len() * slice.steps.len();
            let mut unpacking = Unpacking::new(self, &next, self.unpacked[(i + 1) % 2], turns);
            let mut ahead = Ahead::new(self.weight.runs(after.n, after.steps), turns);
            for (j, square) in here.down.clone().enumerate() {
                let (row, c) = (square * SQUARE, self.sums(&here, j));
                let turns = within * slice.steps.len();
                let between = || {
                    ahead.ask(t.lanes());
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
                    if within == 1 {
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
        let Place { across, down, i } = place;
        if i + 1 < across.len() * self.x.steps.div_ceil(SLICE) {
            return Some(Place { i: i + 1, ..place.clone() });
        }
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

/// Squares that wait for their end, at most: those of the rows of x that go through a slice together, and one before.
const WAITING: usize = DOWN + 1;

/// Squares whose sums are whole, on their way to where they end.
struct Storing<'a, E> {
    end: &'a E,
    /// In a ring, the first one at `first`.
    squares: [Option<Done>; WAITING],
    first: usize,
    waiting: usize,
    /// Pieces of the first one that are stored.
    stored: usize,
    /// Pieces that are due, times the turns that a square has.
    due: usize,
}

impl<'a, E: End> Storing<'a, E> {
    fn new(end: &'a E) -> Self {
        Self { end, squares: [const { None }; WAITING], first: 0, waiting: 0, stored: 0, due: 0 }
    }

    fn begin(&mut self, square: Done) {
        self.squares[(self.first + self.waiting) % WAITING] = Some(square);
        self.waiting += 1;
    }

    /// Stores what is due in a turn, of which a square has `turns`.
    ///
    /// # Safety
    /// That of [`End::store`].
    #[inline(always)]
    unsafe fn go_on<T: Tiles>(&mut self, t: T, turns: usize) {
        if self.waiting == 0 {
            return;
        }
        self.due += PIECES;
        let pieces = self.due / turns;
        self.due %= turns;
        // SAFETY: the caller's promise.
        unsafe { self.store(t, pieces) };
    }

    /// Stores all that waits.
    ///
    /// # Safety
    /// As [`Storing::go_on`].
    #[inline(always)]
    unsafe fn finish<T: Tiles>(&mut self, t: T) {
        while self.waiting > 0 {
            // SAFETY: the caller's promise.
            unsafe { self.store(t, PIECES) };
        }
    }

    /// Stores up to `pieces` pieces of the first square.
    ///
    /// # Safety
    /// As [`Storing::go_on`].
    #[inline(always)]
    unsafe fn store<T: Tiles>(&mut self, t: T, pieces: usize) {
        let Some(square) = &self.squares[self.first] else { return };
        let last = PIECES.min(self.stored + pieces);
        if self.stored < last {
            t.aside(Pieces { end: self.end, square, pieces: self.stored..last });
            self.stored = last;
        }
        if last == PIECES {
            self.squares[self.first] = None;
            (self.first, self.waiting, self.stored) = ((self.first + 1) % WAITING, self.waiting - 1, 0);
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
