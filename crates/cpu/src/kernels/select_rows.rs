//! The rows that something is wanted of, gathered.
//!
//! math: `out[i] = x[selected[i]]`
//! shapes: x [T, D], out [selected, D]
//! layout: rows padded to 32 columns
//! precision: exact
//! preconditions: none
//! cost: none counted
//! tolerance: exact
//! wins: the head runs on these rows alone
//! loses: nowhere known
//! fallback: none: a copy
//! evidence: none yet
//! source: none
//!
//! Workers take contiguous runs of selected rows.

use crate::pool::Region;
use crate::rows::Rows;

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct SelectRows {
    /// [T, D]
    pub x: Rows,
    /// [selected, D]
    pub out: Rows,
}

impl SelectRows {
    /// Runs one worker's share; `selected` are the rows in order.
    ///
    /// # Safety
    /// `x` holds every selected row, `out` one for each, and nobody else writes `out`.
    pub unsafe fn run(&self, selected: &[u32], region: Region) {
        for i in region.share(selected.len(), 1) {
            let (from, to) = (self.x.row(selected[i] as usize), self.out.row(i));
            // SAFETY: rows of two different buffers of one width.
            unsafe { std::ptr::copy_nonoverlapping(from, to, self.x.width) };
        }
    }
}
