//! Matrix times rows with activations in integers of 8 or 15 bits, in every format of weights in codes.
//!
//! math: that of `tare_ops::reference::blocks`: integer sums of codes in a block of 32 columns, F32 over blocks and groups; `(+ bias[n])`, added to `out[t, n]` when accumulating
//! shapes: x [T, k / 32] blocks in one or two planes of bytes, weight [n, k] in panels of 16 rows, bias [n], out [T, n]
//! layout: panels as `crate::coded` says: a register has four codes of each of 16 rows, so that a sum over columns needs no step across lanes
//! precision: products and sums of integers exact in 32 bits, those of 15-bit integers rounded to F32; F32 chains over groups, fused, in the reference's order
//! preconditions: k a multiple of the format's block; any n, any T
//! cost: the panels once for 64 rows of x; 2 T n k operations, each plane by itself
//! tolerance: bit-identical to the reference, for every T, width and thread count
//! wins: few rows, where weights are read as they come and unpacking is two operations for 128 nibbles; many rows on a host without tiles; two planes over F32 products, whose weights are unpacked into four times the registers
//! loses: two planes to one, at more than two rows; q6_k, whose sixteen scales a super-block are multiplied out for every row of a panel; one row of a narrow matrix, whose last panel is mostly empty
//! fallback: the same code on AVX2 (`vpmaddubsw`) and on an array (`portable`)
//! evidence: none yet
//! source: rows in lanes, two planes and the prefetch distance by our own probe
//!
//! Workers take contiguous runs of 16 weight rows, one panel each, so that each output line of 64 bytes has one writer.

pub mod tiles;

use std::marker::PhantomData;
use std::ops::Range;

use crate::coded::{Coded, ROWS, Scales, UNIT};
use crate::codes::{Block, Codes, TILE};
use crate::dots::{DotKernel, Dots};
use crate::epilogue::Epilogue;
use crate::lanes::Lanes;
use crate::panels::Panels;
use crate::pool::Region;

/// Bytes ahead of the codes in use that are asked for. From 4 to 20 KB it makes no difference, below it does.
const AHEAD: usize = 4 << 10;

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct LinearInt {
    /// [T, k / 32]
    pub x: Codes,
    /// [n, k]
    pub weight: Panels,
    /// What becomes of the products. out [T, n]
    pub end: Epilogue,
}

/// Runs one worker's share: call, rows of the step, where we are.
///
/// # Safety
/// The call's pointers hold `rows` rows; the weight has the format of the kernel; nobody else writes the same shares.
pub type LinearIntFn = unsafe fn(&LinearInt, usize, Region);

/// The kernel of format `F` on instruction set `D`, for activations in `P` planes.
pub fn kernel<D: Dots, F: Coded, const P: usize>() -> LinearIntFn {
    run::<D, F, P>
}

/// # Safety
/// That of [`LinearIntFn`].
unsafe fn run<D: Dots, F: Coded, const P: usize>(call: &LinearInt, rows: usize, region: Region) {
    // The registry offers a kernel only where `prove` succeeds, so that this returns at once.
    let Some(d) = D::prove() else { return };
    d.compiled(Share::<F, P> { call, rows, share: region.share(call.weight.rows, ROWS), format: PhantomData });
}

/// Weight rows `share` times all rows of x.
struct Share<'a, F, const P: usize> {
    call: &'a LinearInt,
    rows: usize,
    share: Range<usize>,
    format: PhantomData<F>,
}

impl<F: Coded, const P: usize> DotKernel for Share<'_, F, P> {
    #[inline(always)]
    fn run<D: Dots>(self, d: D) {
        let last = self.call.weight.panel(self.share.end.next_multiple_of(ROWS));
        for tile in (0..self.rows).step_by(TILE) {
            for n in self.share.clone().step_by(ROWS) {
                let mut t = tile;
                let end = (tile + TILE).min(self.rows);
                while t < end {
                    let place = Place { call: self.call, rows: self.rows, t, n, last };
                    // SAFETY: the contract of `LinearIntFn`.
                    t += unsafe {
                        match end - t {
                            8.. if D::WIDE && P == 1 => place.panel::<D, F, P, 8>(d),
                            4.. if D::WIDE => place.panel::<D, F, P, 4>(d),
                            2.. => place.panel::<D, F, P, 2>(d),
                            _ => place.panel::<D, F, P, 1>(d),
                        }
                    };
                }
            }
        }
    }
}

/// Rows of x from `t` on, and the panel of weight rows from `n` on.
struct Place<'a> {
    call: &'a LinearInt,
    rows: usize,
    t: usize,
    n: usize,
    /// The end of what this worker reads of the weight.
    last: *const u8,
}

impl Place<'_> {
    /// Outputs `n .. n + 16` of rows `t .. t + M`. Gives M.
    ///
    /// # Safety
    /// That of [`LinearIntFn`]; the rows are of one tile of the step.
    #[inline(always)]
    unsafe fn panel<D: Dots, F: Coded, const P: usize, const M: usize>(&self, d: D) -> usize {
        let (l, weight) = (d.lanes(), &self.call.weight);
        let (x, stride) = self.call.x.row::<P>(self.t, self.rows);
        let panel = weight.panel(self.n);
        let mut acc = [l.splat(0.0); M];
        for first in (0..weight.units).step_by(F::UNITS) {
            let block = panel.wrapping_add(first / F::UNITS * weight.block_bytes);
            let x = x.cast_const().wrapping_add(first * stride);
            // SAFETY: a block of the panel, and the units of x that it goes with, as far as both reach.
            unsafe { self.block::<D, F, P, M>(d, block, (x, stride), weight.units - first, &mut acc) };
        }
        for (m, acc) in acc.iter().enumerate() {
            // SAFETY: row t + m is one of the step, n an output.
            unsafe { self.call.end.store(l, self.t + m, self.n, *acc) };
        }
        M
    }

    /// Asks for the bytes that come some way behind `bytes` at `from`, where this worker reads them.
    #[inline(always)]
    fn ask<L: Lanes>(&self, l: L, from: *const u8, bytes: usize) {
        let first = from.wrapping_add(AHEAD);
        if first.wrapping_add(bytes) <= self.last {
            for line in (0..bytes).step_by(64) {
                l.prefetch(first.wrapping_add(line));
            }
        }
    }

    /// Adds what a block of at most `left` units gives.
    ///
    /// # Safety
    /// The block lies there, as do M blocks of x for each of its units, `stride` from one unit to the next.
    #[inline(always)]
    unsafe fn block<D: Dots, F: Coded, const P: usize, const M: usize>(
        &self,
        d: D,
        block: *const u8,
        (x, stride): (*const Block<P>, usize),
        left: usize,
        acc: &mut [<D::L as Lanes>::V; M],
    ) {
        let (l, dtype) = (d.lanes(), self.call.weight.dtype);
        let scales = block.wrapping_add(F::UNITS * F::UNIT_BYTES);
        let mut u = [l.splat(0.0); M];
        self.ask(l, scales, self.call.weight.block_bytes - F::UNITS * F::UNIT_BYTES);
        for unit in 0..F::UNITS {
            if unit >= left {
                break;
            }
            let codes = block.wrapping_add(unit * F::UNIT_BYTES);
            let x = x.wrapping_add(unit * stride);
            // A few lines at a time, between products: those of a whole block at once wait for each other.
            self.ask(l, codes, F::UNIT_BYTES);
            // SAFETY: the caller's promise.
            unsafe {
                if F::GROUP < UNIT {
                    for half in 0..2 {
                        let sums = sums::<D, F, P, M>(d, codes, x, 2 * half..2 * half + 2);
                        let (scale, _) = F::Scales::of(l, scales, 2 * unit + half, dtype);
                        for m in 0..M {
                            let block = &*x.add(m);
                            let product = l.mul(l.splat(block.scale), d.to_f32(sums[m]));
                            acc[m] = l.fma(scale, product, acc[m]);
                        }
                    }
                    continue;
                }
                let sums = sums::<D, F, P, M>(d, codes, x, 0..4);
                for m in 0..M {
                    let block = &*x.add(m);
                    u[m] = l.fma(l.splat(block.scale), d.to_f32(sums[m]), u[m]);
                }
                if ((unit + 1) * UNIT).is_multiple_of(F::GROUP) {
                    let (scale, bias) = F::Scales::of(l, scales, unit * UNIT / F::GROUP, dtype);
                    for m in 0..M {
                        acc[m] = l.fma(scale, u[m], acc[m]);
                        if F::Scales::CENTER.is_none() {
                            let block = &*x.add(m);
                            acc[m] = l.fma(bias, l.splat(block.offsets[F::GROUP / UNIT / 2]), acc[m]);
                        }
                        u[m] = l.splat(0.0);
                    }
                }
            }
        }
    }
}

/// Sums of M rows of x over `runs` of a unit, all four or one half of them: of 16 weight rows, their center taken off.
///
/// # Safety
/// The codes of a unit lie at `codes`, M blocks at `x`.
#[inline(always)]
unsafe fn sums<D: Dots, F: Coded, const P: usize, const M: usize>(
    d: D,
    codes: *const u8,
    x: *const Block<P>,
    runs: Range<usize>,
) -> [D::I; M] {
    let center = F::Scales::CENTER.unwrap_or(0) - if F::BITS == 8 { D::WIDE_CENTER } else { 0 };
    let mut planes = [[d.splat(0); P]; M];
    // SAFETY: the caller's promise.
    unsafe {
        if center != 0 {
            for (m, planes) in planes.iter_mut().enumerate() {
                let block = &*x.add(m);
                let [low, up] = block.half_sums;
                let of_x = if runs.len() == 4 {
                    low + up
                } else if runs.start == 0 {
                    low
                } else {
                    up
                };
                planes[P - 1] = d.splat(-center * of_x);
            }
        }
        for run in runs {
            let codes = F::codes(d, codes, run);
            for (m, sums) in planes.iter_mut().enumerate() {
                let block = &*x.add(m);
                for (sum, plane) in sums.iter_mut().zip(&block.planes) {
                    let four = plane.as_ptr().add(8 * run).cast::<i32>();
                    if F::BITS == 8 {
                        *sum = d.dot_wide(*sum, codes[0], four.read_unaligned());
                        *sum = d.dot_wide(*sum, codes[1], four.add(1).read_unaligned());
                    } else {
                        *sum = d.dot(*sum, codes[0], four.read_unaligned());
                        *sum = d.dot(*sum, codes[1], four.add(1).read_unaligned());
                    }
                }
            }
        }
    }
    planes.map(|planes| if P == 2 { d.join(planes[0], planes[1]) } else { planes[0] })
}
