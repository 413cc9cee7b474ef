//! Few rows: weights are unpacked into registers and used there, each byte once.

use std::marker::PhantomData;
use std::ops::Range;

use super::{AHEAD, GROUP, Linear, finish};
use crate::lanes::{Kernel, LANES, Lanes};
use crate::matrix::PackedRow;
use crate::unpack::{UNIT, Unpack};

/// Rows of x whose sums for a tile of weight rows stay in registers.
const fn together<L: Lanes>() -> usize {
    if L::WIDE { 4 } else { 2 }
}

/// The most rows that this path takes. Weights are unpacked again, out of L1, for every few rows: cheap formats keep
/// ahead of a panel for longer.
pub(super) const fn most<L: Lanes, F: Unpack>() -> usize {
    let again = if L::WIDE { 4 } else { 2 };
    together::<L>() * if F::CHEAP { again } else { 1 }
}

/// Weight rows `share` times all rows of x.
pub(super) struct Few<'a, F> {
    call: &'a Linear,
    rows: usize,
    share: Range<usize>,
    format: PhantomData<F>,
}

impl<'a, F> Few<'a, F> {
    pub(super) fn new(call: &'a Linear, rows: usize, share: Range<usize>) -> Self {
        Self { call, rows, share, format: PhantomData }
    }
}

impl<F: Unpack> Kernel for Few<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for n in self.share.step_by(GROUP) {
            for t in (0..self.rows).step_by(together::<L>()) {
                // SAFETY: the contract of `LinearFn`.
                unsafe {
                    match ((self.rows - t).min(together::<L>()), L::WIDE) {
                        (1, _) => group::<L, F, 4, 1>(l, self.call, n, t),
                        (2, true) => group::<L, F, 4, 2>(l, self.call, n, t),
                        (2, false) => group::<L, F, 2, 2>(l, self.call, n, t),
                        (3, true) => group::<L, F, 4, 3>(l, self.call, n, t),
                        (4, true) => group::<L, F, 4, 4>(l, self.call, n, t),
                        (rows, _) => unreachable!("{rows} rows at once"),
                    }
                }
            }
        }
    }
}

/// Outputs `n .. n + 16` of rows `t .. t + M`, R weight rows at a time.
///
/// # Safety
/// That of [`super::LinearFn`]; the rows are of the step.
#[inline(always)]
unsafe fn group<L: Lanes, F: Unpack, const R: usize, const M: usize>(l: L, call: &Linear, n: usize, t: usize) {
    let units = call.weight.cols().div_ceil(UNIT);
    let mut x = [call.x.row(t).cast_const(); M];
    for (m, x) in x.iter_mut().enumerate() {
        *x = call.x.row(t + m);
    }
    let mut sums = [[l.splat(0.0); GROUP]; M];
    for tile in (0..GROUP).step_by(R) {
        let mut rows = [call.weight.row(n + tile); R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = call.weight.row(n + tile + r);
        }
        // SAFETY: `Matrix::row` gives rows of the weight only.
        let acc = unsafe { dots::<L, F, R, M>(l, &rows, &x, units) };
        for (r, acc) in acc.iter().enumerate() {
            for (sums, acc) in sums.iter_mut().zip(acc) {
                sums[tile + r] = *acc;
            }
        }
    }
    for (m, sums) in sums.iter().enumerate() {
        // SAFETY: row t + m is one of the step.
        unsafe { finish(l, call, t + m, n, sums) };
    }
}

/// The lanes of R x M dot products over `units` units.
///
/// # Safety
/// The rows are in format F and have these units, as have M rows of x.
#[inline(always)]
unsafe fn dots<L: Lanes, F: Unpack, const R: usize, const M: usize>(
    l: L,
    rows: &[PackedRow; R],
    x: &[*const f32; M],
    units: usize,
) -> [[L::V; M]; R] {
    let mut acc = [[l.splat(0.0); M]; R];
    let per_block = rows[0].group_units;
    for block in 0..units / per_block {
        // SAFETY: blocks of the row; x is padded to whole units.
        unsafe {
            let mut blocks = [F::block(l, &rows[0], block); R];
            for r in 0..R {
                l.prefetch(rows[r].quants.wrapping_add(block * F::block_bytes(&rows[r]) + AHEAD));
                blocks[r] = F::block(l, &rows[r], block);
            }
            for unit in 0..per_block {
                let k = (block * per_block + unit) * UNIT;
                for r in 0..R {
                    let w = F::unit(l, &blocks[r], unit);
                    for (m, acc) in acc[r].iter_mut().enumerate() {
                        let at = x[m].wrapping_add(k);
                        *acc = l.fma(w[0], l.load(at), *acc);
                        *acc = l.fma(w[1], l.load(at.wrapping_add(LANES)), *acc);
                    }
                }
            }
        }
    }
    acc
}
