//! Many rows: a panel of 16 weight rows is unpacked once and multiplied with up to 96 rows of x.
//!
//! The panel is cut into slices of 256 columns (16 KiB, which stays in L1). The 16-lane sums of all products of a
//! panel are kept in memory between slices, so that each sum still runs over k in one ascending order.

use std::marker::PhantomData;
use std::ops::Range;

use super::{GROUP, Linear, finish};
use crate::lanes::{Kernel, LANES, Lanes};
use crate::unpack::{UNIT, Unpack};

/// Columns of a slice: a multiple of every format's block.
const SLICE: usize = 256;
/// Rows of x that share an unpacked panel.
const BLOCK: usize = 96;
/// The panel, and the sums of a panel with a block.
pub(super) const SCRATCH: usize = GROUP * SLICE + BLOCK * GROUP * LANES;

/// Weight rows `share` times all rows of x.
pub(super) struct Many<'a, F> {
    call: &'a Linear,
    rows: usize,
    share: Range<usize>,
    panel: *mut f32,
    sums: *mut f32,
    format: PhantomData<F>,
}

impl<'a, F> Many<'a, F> {
    /// `scratch` holds [`SCRATCH`] F32.
    pub(super) fn new(call: &'a Linear, rows: usize, share: Range<usize>, scratch: *mut f32) -> Self {
        let sums = scratch.wrapping_add(GROUP * SLICE);
        Self { call, rows, share, panel: scratch, sums, format: PhantomData }
    }
}

impl<F: Unpack> Kernel for Many<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for first in (0..self.rows).step_by(BLOCK) {
            let block = first..(first + BLOCK).min(self.rows);
            for n in self.share.clone().step_by(GROUP) {
                // SAFETY: the contract of `LinearFn`.
                unsafe { self.panel_times_block(l, n, block.clone()) };
            }
        }
    }
}

impl<F: Unpack> Many<'_, F> {
    /// Outputs `n .. n + 16` of the rows in `block`.
    ///
    /// # Safety
    /// That of [`super::LinearFn`]; the block is of its rows.
    #[inline(always)]
    unsafe fn panel_times_block<L: Lanes>(&self, l: L, n: usize, block: Range<usize>) {
        let units = self.call.weight.cols().div_ceil(UNIT);
        // SAFETY: `sums` has room for 96 x 16 x 16 F32, slices end inside x's padded rows.
        unsafe {
            for i in 0..block.len() * GROUP {
                l.store(self.sums.add(i * LANES), l.splat(0.0));
            }
            for first in (0..units).step_by(SLICE / UNIT) {
                let slice = first..(first + SLICE / UNIT).min(units);
                self.unpack(l, n, slice.clone());
                self.multiply(l, slice, block.clone());
            }
            for (m, t) in block.enumerate() {
                let sums = self.sums.add(m * GROUP * LANES);
                let mut lanes = [l.splat(0.0); GROUP];
                for (r, lanes) in lanes.iter_mut().enumerate() {
                    *lanes = l.load(sums.add(r * LANES));
                }
                finish(l, self.call, t, n, &lanes);
            }
        }
    }

    /// Units `slice` of weight rows `n .. n + 16` into the panel [16, 256].
    ///
    /// # Safety
    /// The slice is one of the weight, whole blocks, and n one of its rows.
    #[inline(always)]
    unsafe fn unpack<L: Lanes>(&self, l: L, n: usize, slice: Range<usize>) {
        for r in 0..GROUP {
            let row = self.call.weight.row(n + r);
            let per_block = row.group_units;
            let to = self.panel.wrapping_add(r * SLICE);
            for block in slice.start / per_block..slice.end / per_block {
                // SAFETY: blocks of the row; a slice is a whole number of them and fits the panel.
                unsafe {
                    let bytes = F::block_bytes(&row);
                    l.prefetch(row.quants.wrapping_add(block * bytes + SLICE / UNIT / per_block * bytes));
                    let b = F::block(l, &row, block);
                    for unit in 0..per_block {
                        let w = F::unit(l, &b, unit);
                        let at = to.add((block * per_block + unit - slice.start) * UNIT);
                        l.store(at, w[0]);
                        l.store(at.add(LANES), w[1]);
                    }
                }
            }
        }
    }

    /// Adds the products of the panel with columns `slice` of the rows in `block` to the sums.
    ///
    /// # Safety
    /// The panel holds the slice and the sums the block.
    #[inline(always)]
    unsafe fn multiply<L: Lanes>(&self, l: L, slice: Range<usize>, block: Range<usize>) {
        let mut t = block.start;
        while t < block.end {
            let left = block.end - t;
            // SAFETY: tiles stay inside the block.
            t += unsafe {
                match left {
                    6.. if L::WIDE => self.tiles::<L, 4, 6>(l, &slice, t, block.start),
                    4.. if L::WIDE => self.tiles::<L, 4, 4>(l, &slice, t, block.start),
                    2.. if L::WIDE => self.tiles::<L, 4, 2>(l, &slice, t, block.start),
                    2.. => self.tiles::<L, 2, 2>(l, &slice, t, block.start),
                    _ => self.tiles::<L, 4, 1>(l, &slice, t, block.start),
                }
            };
        }
    }

    /// All 16 weight rows, R at a time, with rows `t .. t + M` of x. Gives M.
    ///
    /// # Safety
    /// As [`Many::multiply`], with M rows from t.
    #[inline(always)]
    unsafe fn tiles<L: Lanes, const R: usize, const M: usize>(
        &self,
        l: L,
        slice: &Range<usize>,
        t: usize,
        first: usize,
    ) -> usize {
        let mut x = [self.call.x.row(t).wrapping_add(slice.start * UNIT).cast_const(); M];
        for (m, x) in x.iter_mut().enumerate() {
            *x = self.call.x.row(t + m).wrapping_add(slice.start * UNIT);
        }
        for r in (0..GROUP).step_by(R) {
            let panel = self.panel.wrapping_add(r * SLICE).cast_const();
            let sums = self.sums.wrapping_add(((t - first) * GROUP + r) * LANES);
            // SAFETY: the panel has 16 rows, the sums M x 16 vectors from here.
            unsafe { tile::<L, R, M>(l, panel, &x, slice.len() * UNIT / LANES, sums) };
        }
        M
    }
}

/// R x M sums of 16 lanes, `steps` vectors of columns further. sums [M, 16, 16 lanes], panel [R, 256]
///
/// # Safety
/// All hold what their shapes say.
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize, const M: usize>(
    l: L,
    panel: *const f32,
    x: &[*const f32; M],
    steps: usize,
    sums: *mut f32,
) {
    let mut acc = [[l.splat(0.0); R]; M];
    // SAFETY: the caller's promise.
    unsafe {
        for (m, acc) in acc.iter_mut().enumerate() {
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = l.load(sums.add((m * GROUP + r) * LANES));
            }
        }
        for k in 0..steps {
            let mut w = [l.splat(0.0); R];
            for (r, w) in w.iter_mut().enumerate() {
                *w = l.load(panel.add(r * SLICE + k * LANES));
            }
            for m in 0..M {
                let x = l.load(x[m].add(k * LANES));
                for r in 0..R {
                    acc[m][r] = l.fma(w[r], x, acc[m][r]);
                }
            }
        }
        for (m, acc) in acc.iter().enumerate() {
            for (r, acc) in acc.iter().enumerate() {
                l.store(sums.add((m * GROUP + r) * LANES), *acc);
            }
        }
    }
}
