//! The two linears in front of the gated unit and the unit, in tiles: what it gives is BF16 in tiles, for the linear that
//! follows.
//!
//! math: `out[t, f] = bf16(silu(x[t] . gate[f]) * (x[t] . up[f]))`, products as [`linear_tiles`](super), the unit as [`swiglu`](crate::kernels::swiglu)
//! shapes: x [T / 16, k / 32] tiles, gate, up [F, k], out [T / 16, F / 32] tiles
//! layout: gate and up in the same layout; out for the side on which x stands
//! precision: sums and unit in F32, one rounding to BF16
//! preconditions: k a multiple of the format's block; F a multiple of 16 where x stands left, else any; any T
//! cost: both weights once for 512 rows of x; 4 T F k operations; outputs a quarter of the bytes of two linears
//! tolerance: the bits that the two linears, the unit and the rounding give one after the other
//! wins: wherever the linears run in tiles and only linears in tiles read what the unit gives
//! loses: nothing known
//! fallback: the calls one by one
//! evidence: 20261201T032318Z-aa7100db0753ba4d
//! source: none
//!
//! A square has 16 rows of gate and the same 16 of up: the tiles of both sums lie beside or below each other.

use std::ops::Range;

use super::ends::{Done, End, PIECES};
use super::grid::{Grid, SQUARE};
use super::source::{Runs, Source, Stored};
use super::{Weights, multiply};
use crate::kernels::swiglu::gated;
use crate::lanes::Lanes;
use crate::pool::Region;
use crate::tiled::{Side, Tiled};
use crate::tiles::{ROW_BYTES, ROWS, STEP, Tiles};

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct GatedTiles {
    /// [T / 16, k / 32]
    pub x: Tiled,
    /// [F, k] each.
    pub gate: Weights,
    /// As `gate`.
    pub up: Weights,
    /// What the unit gives.
    pub end: Units,
}

/// Where outputs of the unit go.
#[derive(Clone, Copy, Debug)]
pub struct Units {
    /// [T / 16, F / 32]
    pub out: Tiled,
    /// F
    pub width: usize,
}

impl GatedTiles {
    /// How a step of `rows` rows is shared out among `workers`.
    pub fn grid(&self, rows: usize, workers: usize) -> Grid {
        Grid::of(self.end.weight_rows(), rows, workers)
    }
}

/// Runs one worker's share: call, rows of the step, where we are, the worker's scratch of [`SCRATCH`](super::SCRATCH) F32.
///
/// # Safety
/// That of [`LinearTilesFn`](super::LinearTilesFn).
pub type GatedTilesFn = unsafe fn(&GatedTiles, usize, Region, *mut f32);

/// The kernel on tiles `T` of weights from `S`.
pub fn kernel<T: Tiles, S: Stored>() -> GatedTilesFn {
    run::<T, S>
}

/// # Safety
/// That of [`GatedTilesFn`].
unsafe fn run<T: Tiles, S: Stored>(call: &GatedTiles, rows: usize, region: Region, scratch: *mut f32) {
    // As for one linear.
    let (Some(t), Some(gate), Some(up)) = (T::prove(), S::of(&call.gate), S::of(&call.up)) else { return };
    let grid = call.grid(rows, region.workers);
    // SAFETY: the caller's promise.
    unsafe { multiply(t, (call.x, Pair { gate, up }, &call.end), grid, (rows, region), scratch) };
}

/// 16 rows of gate, the same 16 of up, and so on.
struct Pair<S> {
    gate: S,
    up: S,
}

impl<S: Source> Source for Pair<S> {
    const SIDE: Side = S::SIDE;

    #[inline(always)]
    unsafe fn unpack<T: Tiles>(&self, t: T, n: usize, step: usize, half: usize, tile: *mut u8) {
        let weight = if (n / ROWS).is_multiple_of(2) { &self.gate } else { &self.up };
        // SAFETY: the caller's promise.
        unsafe { weight.unpack(t, n / SQUARE * ROWS, step, half, tile) };
    }

    #[inline(always)]
    fn runs(&self, n: usize, steps: Range<usize>) -> [Runs; 2] {
        let of = |weight: &S| weight.runs(n / SQUARE * ROWS, steps.clone())[0];
        [of(&self.gate), of(&self.up)]
    }
}

impl Units {
    /// Whether the outputs from `f` on are the last ones and fill the first half of their tile: the other half is 0.
    #[inline(always)]
    fn ends_in_half_a_tile(&self, f: usize) -> bool {
        f.is_multiple_of(STEP) && f + ROWS >= self.width
    }
}

impl End for Units {
    fn weight_rows(&self) -> usize {
        2 * self.width.next_multiple_of(ROWS)
    }

    #[inline(always)]
    unsafe fn store<T: Tiles>(&self, t: T, square: &Done, piece: usize) {
        let (l, f) = (t.lanes(), square.n / 2);
        if square.side == Side::Right {
            for i in 2 * piece..2 * piece + 2 {
                let row = square.rows.start + i;
                if row < square.rows.end {
                    let down = i / ROWS;
                    // SAFETY: rows of 16 sums; half a row of a tile of this row and these columns.
                    unsafe {
                        let v = units(l, square, [(down, 0), (down, 1)], i % ROWS);
                        let to = self.out.element(row, f).cast();
                        if self.ends_in_half_a_tile(f) {
                            t.store_row(to, v, l.splat(0.0));
                        } else {
                            t.store_half_row(to, v);
                        }
                    }
                }
            }
            return;
        }
        // Pairs of outputs below each other are what a row of B has beside each other.
        const PAIRS: usize = PIECES / 2;
        let (right, i) = (piece / PAIRS, 2 * (piece % PAIRS));
        let row = square.rows.start + right * ROWS;
        if row < square.rows.end {
            let of = [(0, right), (1, right)];
            let to = self.out.tile(row, f / STEP).wrapping_add((f % STEP + i) / 2 * ROW_BYTES);
            // SAFETY: rows of 16 sums; a row of a tile of these rows and columns.
            unsafe {
                let pair = [units(l, square, of, i), units(l, square, of, i + 1)];
                // Columns past the last one are 0.
                let zero = l.splat(0.0);
                let even = if f + i < self.width { pair[0] } else { zero };
                let odd = if f + i + 1 < self.width { pair[1] } else { zero };
                t.store_pairs(to, even, odd);
                if self.ends_in_half_a_tile(f) {
                    t.store_pairs(to.add(ROWS / 2 * ROW_BYTES), zero, zero);
                }
            }
        }
    }
}

/// The outputs that row `i` of the tiles of gate and up makes.
///
/// # Safety
/// The tiles are there.
#[inline(always)]
unsafe fn units<L: Lanes>(l: L, square: &Done, [gate, up]: [(usize, usize); 2], i: usize) -> L::V {
    // SAFETY: the caller's promise: 16 sums each.
    unsafe { gated(l, l.load(square.row(gate, i)), l.load(square.row(up, i))) }
}
