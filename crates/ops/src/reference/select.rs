//! The rows that something is wanted of.

use crate::batch::{Row, Wants};

/// Indices of the rows that want something, in row order.
pub fn selected(rows: &[Row]) -> impl Iterator<Item = usize> {
    rows.iter().enumerate().filter(|(_, r)| r.wants != Wants::Nothing).map(|(t, _)| t)
}

/// Copies row `t` of `x` for each selected `t`, in order. x [T, D], out [selected, D]
pub fn select_rows(rows: &[Row], x: &[f32], width: usize, out: &mut [f32]) {
    for (t, out) in selected(rows).zip(out.chunks_exact_mut(width)) {
        out.copy_from_slice(&x[t * width..][..width]);
    }
}
