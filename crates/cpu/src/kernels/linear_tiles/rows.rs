//! BF16 weights row by row, as the file has them.

use std::ops::Range;

use super::Weights;
use super::source::{Runs, Source, Stored};
use crate::matrix::Matrix;
use crate::tiled::Side;
use crate::tiles::{ROW_BYTES, ROWS, STEP, Tiles};

/// Bytes of a weight.
const WEIGHT: usize = 2;

/// They are copied, since rows of a power of two bytes would push each other out of L1 while they are used again.
#[derive(Debug)]
pub struct Bf16Rows(Matrix);

impl Stored for Bf16Rows {
    fn of(weights: &Weights) -> Option<Self> {
        match weights {
            Weights::File(matrix) => Some(Self(*matrix)),
            Weights::Panels(_) => None,
        }
    }
}

impl Source for Bf16Rows {
    const SIDE: Side = Side::Left;

    #[inline(always)]
    unsafe fn unpack<T: Tiles>(&self, _: T, n: usize, step: usize, half: usize, tile: *mut u8) {
        let left = (self.0.cols() - step * STEP) * WEIGHT;
        for i in half * ROWS / 2..(half + 1) * ROWS / 2 {
            let (row, place) = (self.0.row(n + i).quants, tile.wrapping_add(i * ROW_BYTES));
            // SAFETY: 32 weights of the row, or those that are left of them; the row of a tile.
            unsafe {
                let weights = if left >= ROW_BYTES {
                    row.add(step * ROW_BYTES).cast::<[u8; ROW_BYTES]>().read_unaligned()
                } else {
                    let mut weights = [0u8; ROW_BYTES];
                    std::ptr::copy_nonoverlapping(row.add(step * ROW_BYTES), weights.as_mut_ptr(), left);
                    weights
                };
                place.cast::<[u8; ROW_BYTES]>().write_unaligned(weights);
            }
        }
    }

    #[inline(always)]
    fn runs(&self, n: usize, steps: Range<usize>) -> [Runs; 2] {
        [n, n + ROWS].map(|n| {
            let left = self.0.rows.saturating_sub(n).min(ROWS);
            let at = self.0.row(n).quants.wrapping_add(steps.start * ROW_BYTES);
            Runs { at, next: self.0.row_bytes(), runs: left, bytes: steps.len() * ROW_BYTES }
        })
    }
}
