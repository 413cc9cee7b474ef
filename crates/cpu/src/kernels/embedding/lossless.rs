//! Rows out of panels of BF16: see [`crate::lossless`].

use super::panels::{Gather, GatherFn};
use crate::coded::{ROWS, UNIT};
use crate::lossless::Panel;
use crate::pool::Region;

/// The kernel.
pub fn kernel() -> GatherFn {
    run
}

/// # Safety
/// That of [`GatherFn`].
unsafe fn run(call: &Gather, tokens: &[u32], region: Region) {
    for t in region.share(tokens.len(), 1) {
        let (token, out) = (tokens[t] as usize, call.out.row(t));
        let panel = Panel::of(&call.table, token);
        for k in 0..call.table.units * UNIT {
            // SAFETY: the table has the token, and row t of out as many columns.
            unsafe { out.add(k).write(f32::from_bits(u32::from(panel.number(token % ROWS, k)) << 16)) };
        }
    }
}
