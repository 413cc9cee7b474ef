//! What runs between the products: weights on their way into tiles, sums on their way to where they end, and into L1.

use std::ops::Range;

use super::ends::{Done, End, PIECES};
use super::source::{LINE, Source};
use super::{ACROSS, DOWN, SUMS, Share, Slice, UNPACKED};
use crate::lanes::Lanes;
use crate::tiles::{ROWS, TILE_BYTES, TileKernel, Tiles};

/// The sums of a square on their way into L1, some lines in each of some turns.
pub(super) struct Nearer {
    at: *const u8,
    /// Lines that are left, and those of a turn.
    left: usize,
    each: usize,
}

impl Nearer {
    pub(super) fn new(sums: *const f32, turns: usize) -> Self {
        Self { at: sums.cast(), left: SUMS / LINE, each: (SUMS / LINE).div_ceil(turns) }
    }

    /// Asks for the lines of a turn.
    #[inline(always)]
    pub(super) fn ask<L: Lanes>(&mut self, l: L) {
        for _ in 0..self.each.min(self.left) {
            l.prefetch_nearest(self.at);
            self.at = self.at.wrapping_add(LINE);
        }
        self.left = self.left.saturating_sub(self.each);
    }
}

/// Squares that wait for their end, at most: of those that end one after the other in nearly twice the time, half.
const WAITING: usize = ACROSS * DOWN / 2;

/// Squares whose sums are whole, on their way to where they end.
pub(super) struct Storing<'a, E> {
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
    pub(super) fn new(end: &'a E) -> Self {
        Self { end, squares: [const { None }; WAITING], first: 0, waiting: 0, stored: 0, due: 0 }
    }

    pub(super) fn begin(&mut self, square: Done) {
        self.squares[(self.first + self.waiting) % WAITING] = Some(square);
        self.waiting += 1;
    }

    /// Whether the first square that waits, which will be the first to be overwritten, has its sums here, or those of the squares that
    /// end with it; or no more can wait.
    pub(super) fn is_in_the_way(&self, sums: *const f32) -> bool {
        let has = |first: &Done| (first.before(self.end.squares() - 1).sums..=first.sums).contains(&sums);
        self.waiting == WAITING || self.squares[self.first].as_ref().is_some_and(has)
    }

    /// Stores what is due in a turn, of which a square has `turns`.
    ///
    /// # Safety
    /// That of [`End::store`].
    #[inline(always)]
    pub(super) unsafe fn go_on<T: Tiles>(&mut self, t: T, turns: usize) {
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
    pub(super) unsafe fn finish<T: Tiles>(&mut self, t: T) {
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
pub(super) struct Unpacking<'a, S> {
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
    pub(super) fn new<E: End>(share: &'a Share<S, E>, slice: &Slice, to: *mut u8, turns: usize) -> Self {
        let halves = 2 * share.weights(slice.n) * slice.steps.len();
        Self { weight: &share.weight, slice: slice.clone(), to, done: 0, halves, due: 0, turns }
    }

    /// Unpacks what is due in a turn: in the last one, all that is left.
    ///
    /// # Safety
    /// The slice is of the weight, and there is room for it where it goes.
    #[inline(always)]
    pub(super) unsafe fn go_on<T: Tiles>(&mut self, t: T) {
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
