//! BF16 weights row by row, as the file has them.

use std::ops::Range;

use super::Weights;
use super::source::{Runs, Source};
use crate::matrix::Matrix;
use crate::tiled::Side;
use crate::tiles::{ROW_BYTES, ROWS, STEP, TILE_BYTES, Tiles};

/// Bytes of a weight.
const WEIGHT: usize = 2;

/// They are copied, since rows of a power of two bytes would push each other out of L1 while they are used again.
#[derive(Debug)]
pub struct Bf16Rows(Matrix);

impl Source for Bf16Rows {
    const SIDE: Side = Side::Left;

    fn of(weights: &Weights) -> Option<Self> {
        match weights {
            Weights::File(matrix) => Some(Self(*matrix)),
            Weights::Panels(_) => None,
        }
    }

    #[inline(always)]
    unsafe fn unpack<T: Tiles>(&self, _: T, n: usize, steps: Range<usize>, to: *mut u8) {
        let whole = (self.0.cols() / STEP).clamp(steps.start, steps.end);
        for i in 0..ROWS {
            let row = self.0.row(n + i).quants;
            let place = |step: usize| to.wrapping_add((step - steps.start) * TILE_BYTES + i * ROW_BYTES);
            for step in steps.start..whole {
                // SAFETY: 32 weights of the row, and the row of a tile.
                unsafe { place(step).cast::<[u8; ROW_BYTES]>().write_unaligned(read(row, step)) };
            }
            for step in whole..steps.end {
                let mut weights = [0u8; ROW_BYTES];
                let left = (self.0.cols() - step * STEP) * WEIGHT;
                // SAFETY: fewer than 32 weights are left in the row; the row of a tile.
                unsafe {
                    std::ptr::copy_nonoverlapping(row.add(step * ROW_BYTES), weights.as_mut_ptr(), left);
                    place(step).cast::<[u8; ROW_BYTES]>().write_unaligned(weights);
                }
            }
        }
    }

    #[inline(always)]
    fn runs(&self, n: usize, steps: Range<usize>) -> Runs {
        let left = self.0.rows.saturating_sub(n).min(2 * ROWS);
        let at = self.0.row(n).quants.wrapping_add(steps.start * ROW_BYTES);
        Runs { at, next: self.0.row_bytes(), runs: left, bytes: steps.len() * ROW_BYTES }
    }
}

/// The 32 weights of a step of a row.
///
/// # Safety
/// They lie there.
#[inline(always)]
unsafe fn read(row: *const u8, step: usize) -> [u8; ROW_BYTES] {
    // SAFETY: the caller's promise.
    unsafe { row.add(step * ROW_BYTES).cast::<[u8; ROW_BYTES]>().read_unaligned() }
}
