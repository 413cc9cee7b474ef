//! Few rows: weights are unpacked into registers and used there, each byte once.

use std::marker::PhantomData;
use std::ops::Range;

use super::{GROUP, Linear, finish};
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
        // Each row of weights reads all rows of x: from L1 when they fit, else several rows of weights share what is read.
        let near = together::<L>() * self.call.x.stride * size_of::<f32>() <= L1;
        for n in self.share.step_by(GROUP) {
            for t in (0..self.rows).step_by(together::<L>()) {
                // SAFETY: the contract of `LinearFn`.
                unsafe {
                    match ((self.rows - t).min(together::<L>()), L::WIDE) {
                        (1, true) if F::ALONE => group::<L, F, 1, 1>(l, self.call, n, t),
                        (2, true) if F::ALONE => group::<L, F, 1, 2>(l, self.call, n, t),
                        (3, true) if F::ALONE && near => group::<L, F, 1, 3>(l, self.call, n, t),
                        (4, true) if F::ALONE && near => group::<L, F, 1, 4>(l, self.call, n, t),
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
    let ahead = Ahead::new(call.weight.row_bytes(), R);
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
        let acc = unsafe { dots::<L, F, R, M>(l, &rows, &x, units, ahead) };
        for (r, acc) in acc.iter().enumerate() {
            for (sums, acc) in sums.iter_mut().zip(acc) {
                sums[tile + r] = if F::PAIRED { l.unpaired(*acc) } else { *acc };
            }
        }
    }
    for (m, sums) in sums.iter().enumerate() {
        // SAFETY: row t + m is one of the step.
        unsafe { finish(l, call, t + m, n, sums) };
    }
}

/// Bytes that a tile's rows together are asked for ahead of those in use: the distance from which on decode no longer
/// gains.
const AHEAD: usize = 8 << 10;
/// Bytes that stay in L1 beside weights passing through.
const L1: usize = 32 << 10;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Where the bytes lie that a tile reads [`AHEAD`] bytes after those at some place of a row.
///
/// R rows are read side by side, and the tile below them next: behind the end of a row comes the row R further on, not
/// its neighbour, which is being read already.
#[derive(Clone, Copy)]
struct Ahead {
    /// From a place before `turn`.
    near: usize,
    /// From any other place.
    far: usize,
    turn: usize,
}

impl Ahead {
    fn new(row_bytes: usize, rows: usize) -> Self {
        let row_bytes = row_bytes.max(1);
        let (tiles, rest) = (AHEAD / rows / row_bytes, AHEAD / rows % row_bytes);
        let near = tiles * rows * row_bytes + rest;
        Self { near, far: near + (rows - 1) * row_bytes, turn: row_bytes - rest }
    }

    /// The distance for the byte `at` of a row.
    #[inline(always)]
    fn of(&self, at: usize) -> usize {
        if at < self.turn { self.near } else { self.far }
    }
}

/// 16 values of x from `p` on, in the order in which F unpacks.
///
/// # Safety
/// They lie there.
#[inline(always)]
unsafe fn values<L: Lanes, F: Unpack>(l: L, p: *const f32) -> L::V {
    // SAFETY: the caller's promise.
    let x = unsafe { l.load(p) };
    if F::PAIRED { l.paired(x) } else { x }
}

/// The lanes of R x M dot products over `units` units, in the order in which F unpacks.
///
/// # Safety
/// The rows are in format F and have these units, as have M rows of x.
#[inline(always)]
unsafe fn dots<L: Lanes, F: Unpack, const R: usize, const M: usize>(
    l: L,
    rows: &[PackedRow; R],
    x: &[*const f32; M],
    units: usize,
    ahead: Ahead,
) -> [[L::V; M]; R] {
    let mut acc = [[l.splat(0.0); M]; R];
    let (per_block, bytes) = (rows[0].group_units, F::block_bytes(&rows[0]));
    for block in 0..units / per_block {
        let at = block * bytes;
        let next = at + ahead.of(at);
        // SAFETY: blocks of the row; x is padded to whole units.
        unsafe {
            let mut blocks = [F::block(l, &rows[0], block); R];
            for r in 0..R {
                for line in (0..bytes).step_by(LINE) {
                    l.prefetch(rows[r].quants.wrapping_add(next + line));
                }
                blocks[r] = F::block(l, &rows[r], block);
            }
            for unit in 0..per_block {
                let k = (block * per_block + unit) * UNIT;
                for r in 0..R {
                    let w = F::paired_unit(l, &blocks[r], unit);
                    for (m, acc) in acc[r].iter_mut().enumerate() {
                        let at = x[m].wrapping_add(k);
                        *acc = l.fma(w[0], values::<L, F>(l, at), *acc);
                        *acc = l.fma(w[1], values::<L, F>(l, at.wrapping_add(LANES)), *acc);
                    }
                }
            }
        }
    }
    acc
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in which a tile of `rows` rows reads the bytes of a matrix: place by place, row by row.
    fn reads(row_bytes: usize, rows: usize, tiles: usize) -> Vec<usize> {
        let tile =
            |t: usize| (0..row_bytes).flat_map(move |at| (0..rows).map(move |r| (t * rows + r) * row_bytes + at));
        (0..tiles).flat_map(tile).collect()
    }

    #[test]
    fn what_is_asked_for_is_what_is_read_that_much_later() {
        for (row_bytes, rows) in [(2048, 1), (2048, 4), (6144, 4), (512, 4), (512, 8), (1536, 8), (160, 4), (9000, 2)] {
            let order = reads(row_bytes, rows, 3 + AHEAD / row_bytes / rows);
            let ahead = Ahead::new(row_bytes, rows);
            for i in 0..2 * row_bytes * rows {
                let at = order[i] % row_bytes;
                let later = order[i + AHEAD / rows * rows];
                assert_eq!(order[i] + ahead.of(at), later, "{rows} rows of {row_bytes} bytes, place {i}");
            }
        }
    }
}
