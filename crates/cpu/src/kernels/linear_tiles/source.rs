//! Where weights come from: how a layout becomes tiles.

use std::ops::Range;

use super::Weights;
use crate::lanes::Lanes;
use crate::tiled::Side;
use crate::tiles::Tiles;

/// Weights in one layout and format, which become tiles.
pub trait Source {
    /// The side of a product that they stand on.
    const SIDE: Side;

    /// Half `half` of the tile that step `step` of weight rows `n .. n + 16` makes: 8 of its rows. Weight rows past the last
    /// one become whatever is at hand.
    ///
    /// # Safety
    /// Row n and the step are of the weight, which has this format; there is room for a tile at `tile`.
    unsafe fn unpack<T: Tiles>(&self, t: T, n: usize, step: usize, half: usize, tile: *mut u8);

    /// Where steps `steps` of weight rows `n .. n + 16` lie, and of the 16 behind them.
    fn runs(&self, n: usize, steps: Range<usize>) -> [Runs; 2];
}

/// A [`Source`] that is one weight.
pub trait Stored: Source + Sized + 'static {
    /// These weights, when they are in this layout.
    fn of(weights: &Weights) -> Option<Self>;
}

/// Runs of bytes, all of one length.
#[derive(Clone, Copy, Debug)]
pub struct Runs {
    /// The first one.
    pub at: *const u8,
    /// Bytes from one to the next.
    pub next: usize,
    /// How many.
    pub runs: usize,
    /// Bytes of each.
    pub bytes: usize,
}

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Lines that are asked for in some turns, as many in each.
pub(super) struct Ahead {
    runs: [Runs; 2],
    /// How far into the first run we are.
    at: usize,
    each: usize,
}

impl Ahead {
    pub(super) fn new(runs: [Runs; 2], turns: usize) -> Self {
        // A run that does not begin with a line has one line more.
        let lines: usize = runs.iter().map(|r| r.runs * (r.bytes.div_ceil(LINE) + 1)).sum();
        Self { runs, at: 0, each: lines.div_ceil(turns.max(1)) }
    }

    /// Asks for the lines of a turn.
    #[inline(always)]
    pub(super) fn ask<L: Lanes>(&mut self, l: L) {
        for _ in 0..self.each {
            if self.runs[0].runs == 0 {
                if self.runs[1].runs == 0 {
                    return;
                }
                self.runs.swap(0, 1);
            }
            let runs = &mut self.runs[0];
            l.prefetch(runs.at.wrapping_add(self.at));
            if self.at + 1 < runs.bytes {
                self.at = (self.at + LINE).min(runs.bytes - 1);
            } else {
                self.at = 0;
                runs.runs -= 1;
                runs.at = runs.at.wrapping_add(runs.next);
            }
        }
    }
}
