//! Few rows: weights are unpacked into registers and used there, each byte once.

use std::marker::PhantomData;
use std::ops::Range;

use super::{AHEAD, GROUP, Linear, finish};
use crate::lanes::{Kernel, LANES, Lanes};
use crate::matrix::PackedRow;
use crate::rows::Rows;
use crate::unpack::{UNIT, Unpack};

/// The most rows that this path takes: their sums for a tile of weight rows stay in registers.
pub(super) const fn most<L: Lanes>() -> usize {
    if L::WIDE { 4 } else { 2 }
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
        // SAFETY: the contract of `LinearFn`.
        unsafe {
            match (self.rows, L::WIDE) {
                (1, _) => groups::<L, F, 4, 1>(l, self.call, self.share),
                (2, true) => groups::<L, F, 4, 2>(l, self.call, self.share),
                (2, false) => groups::<L, F, 2, 2>(l, self.call, self.share),
                (3, true) => groups::<L, F, 4, 3>(l, self.call, self.share),
                (4, true) => groups::<L, F, 4, 4>(l, self.call, self.share),
                _ => {}
            }
        }
    }
}

/// R weight rows at a time, M rows of x.
#[inline(always)]
unsafe fn groups<L: Lanes, F: Unpack, const R: usize, const M: usize>(l: L, call: &Linear, share: Range<usize>) {
    let units = call.weight.cols().div_ceil(UNIT);
    for n in share.step_by(GROUP) {
        let mut sums = [[l.splat(0.0); GROUP]; M];
        for tile in (0..GROUP).step_by(R) {
            let mut rows = [call.weight.row(n + tile); R];
            for (r, row) in rows.iter_mut().enumerate() {
                *row = call.weight.row(n + tile + r);
            }
            // SAFETY: `Matrix::row` gives rows of the weight only.
            let acc = unsafe { dots::<L, F, R, M>(l, &rows, call.x, units) };
            for r in 0..R {
                for m in 0..M {
                    sums[m][tile + r] = acc[r][m];
                }
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            // SAFETY: there are M rows.
            unsafe { finish(l, call, m, n, sums) };
        }
    }
}

/// The lanes of R x M dot products over `units` units.
#[inline(always)]
unsafe fn dots<L: Lanes, F: Unpack, const R: usize, const M: usize>(
    l: L,
    rows: &[PackedRow; R],
    x: Rows,
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
                        let at = x.row(m).wrapping_add(k);
                        *acc = l.fma(w[0], l.load(at), *acc);
                        *acc = l.fma(w[1], l.load(at.wrapping_add(LANES)), *acc);
                    }
                }
            }
        }
    }
    acc
}
