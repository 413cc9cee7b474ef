//! Activations rounded to BF16 before a linear of class `bf16`.
//!
//! math: `out = bf16(x)`, nearest, ties to even, kept as F32
//! shapes: x, out [T, k]
//! layout: rows padded to 32 columns
//! precision: one rounding
//! preconditions: none
//! cost: none counted
//! tolerance: bit-identical to the reference
//! wins: one pass for all linears that read the same rows
//! loses: a pass over cache that a BF16 dot product would not need
//! fallback: none: plain Rust, which compilers vectorise
//! evidence: none yet
//! source: none
//!
//! Workers take contiguous runs of rows.

use tare_ops::reference::linear::round_bf16;

use crate::pool::Region;
use crate::rows::Rows;

/// A stage in front of the linears that read `x`.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// [T, k]
    pub x: Rows,
    /// [T, k]
    pub out: Rows,
}

impl Round {
    /// Runs one worker's share.
    ///
    /// # Safety
    /// Both hold `rows` rows and nobody else writes `out`.
    pub unsafe fn run(&self, rows: usize, region: Region) {
        for t in region.share(rows, 1) {
            // SAFETY: row t of two different buffers.
            let (x, out) = unsafe {
                let x = std::slice::from_raw_parts(self.x.row(t), self.x.width);
                (x, std::slice::from_raw_parts_mut(self.out.row(t), self.x.width))
            };
            for (o, x) in out.iter_mut().zip(x) {
                *o = round_bf16(*x);
            }
        }
    }
}
