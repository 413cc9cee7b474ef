//! Matrix of BF16 in 12 bits times few rows in BF16, pair by pair of columns.
//!
//! math: `out[t, n] = sum_k bf16(x[t, k]) * w[n, k] (+ bias[n])`, added to `out[t, n]` when accumulating
//! shapes: x [T, k], weight [n, k] in panels of 16 rows, bias [n], out [T, n]
//! layout: panels as `crate::lossless` says; x and out with rows padded to 32 columns
//! precision: weights exactly as the file has them; products exact, sums in F32, in four chains of each row, and that of exceptions; numbers below the least normal one may count as 0
//! preconditions: k a multiple of 32; room for the rows; any n; x finite where a weight is an exception
//! cost: three quarters of the bytes of the weights once for four rows; 2 T n k flops
//! tolerance: limits of `tare_ops::exact`; the same bits for every T and thread count
//! wins: one to four rows: three quarters of what memory has to give, for ten instructions more for 128 weights
//! loses: more rows; weights whose sizes are far apart, whose exceptions are added one by one
//! fallback: none in its plan, which is refused; in others `linear_pairs` on weights as the file has them
//! evidence: 20261201T140925Z-4bb8e29f43eac930
//! source: the idea by DFloat11 (arXiv 2504.11651), see `crate::lossless`
//!
//! Workers take contiguous runs of 16 weight rows, one panel each, so that each output line of 64 bytes has one writer.

use std::ops::Range;

use crate::coded::{ROWS, UNIT};
use crate::epilogue::Epilogue;
use crate::lanes::{LANES, Lanes};
use crate::lossless::{COLUMNS, GROUP_BYTES, PAIR_ROWS, Panel};
use crate::pairs::{self, PairKernel, Pairs};
use crate::panels::Panels;
use crate::pool::Region;
use crate::rows::Rows;

/// Rows of x whose sums stay in registers.
const TOGETHER: usize = 4;
/// Bytes ahead of the weights in use that are asked for.
const AHEAD: usize = 8 << 10;
/// Bytes of a cache line.
const LINE: usize = 64;

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct LinearLossless {
    /// [T, k]
    pub x: Rows,
    /// [n, k]
    pub weight: Panels,
    /// What becomes of the products. out [T, n]
    pub end: Epilogue,
}

/// Runs one worker's share: call, rows of the step, where we are, the worker's scratch of
/// [`SCRATCH`](crate::kernels::SCRATCH) F32.
///
/// # Safety
/// The call's pointers hold `rows` rows; the weight is BF16 in panels; nobody else writes the same shares.
pub type LinearLosslessFn = unsafe fn(&LinearLossless, usize, Region, *mut f32);

/// The kernel on pairs `P`, for steps that [`linear_pairs`](crate::kernels::linear_pairs::takes) has room for.
pub fn kernel<P: Pairs>() -> LinearLosslessFn {
    run::<P>
}

/// # Safety
/// That of [`LinearLosslessFn`].
unsafe fn run<P: Pairs>(call: &LinearLossless, rows: usize, region: Region, scratch: *mut f32) {
    // The registry offers a kernel only where `prove` succeeds, so that this returns at once.
    let Some(p) = P::prove() else { return };
    p.compiled(Share { call, rows, share: region.share(call.weight.rows, ROWS), x: scratch.cast() });
}

/// Weight rows `share` times all rows of x.
struct Share<'a> {
    call: &'a LinearLossless,
    rows: usize,
    share: Range<usize>,
    /// Room for all rows of x in BF16.
    x: *mut u16,
}

impl PairKernel for Share<'_> {
    #[inline(always)]
    fn run<P: Pairs>(self, p: P) {
        if self.share.is_empty() {
            return;
        }
        // SAFETY: the contract of `LinearLosslessFn`; the registry asks whether there is room.
        unsafe {
            pairs::round(p, self.call.x, self.rows, self.x);
            for n in self.share.clone().step_by(ROWS) {
                for t in (0..self.rows).step_by(TOGETHER) {
                    match self.rows - t {
                        1 => self.panel::<P, 1>(p, n, t),
                        2 => self.panel::<P, 2>(p, n, t),
                        3 => self.panel::<P, 3>(p, n, t),
                        _ => self.panel::<P, TOGETHER>(p, n, t),
                    }
                }
            }
        }
    }
}

impl Share<'_> {
    /// Outputs `n .. n + 16` of rows `t .. t + M`.
    ///
    /// # Safety
    /// That of [`LinearLosslessFn`]; the rows are of the step, and in BF16.
    #[inline(always)]
    unsafe fn panel<P: Pairs, const M: usize>(&self, p: P, n: usize, t: usize) {
        let (l, units) = (p.lanes(), self.call.weight.units);
        let panel = Panel::of(&self.call.weight, n);
        let x: [*const u16; M] =
            std::array::from_fn(|m| self.x.cast_const().wrapping_add((t + m) * self.call.x.stride));
        let (table, mut group) = (panel.table(), panel.unit(0));
        let mut acc = [[l.splat(0.0); PAIR_ROWS]; M];
        for k in (0..units * UNIT).step_by(COLUMNS) {
            // Each line right in front of the use of another: several that are asked for together come later.
            for line in (0..GROUP_BYTES).step_by(LINE) {
                l.prefetch(group.wrapping_add(AHEAD + line));
            }
            // SAFETY: a group of the panel, and its columns of each row of x.
            unsafe {
                for (j, row) in l.join(table, group).into_iter().enumerate() {
                    for (acc, x) in acc.iter_mut().zip(x) {
                        acc[j] = p.dot_pair(acc[j], row, x.add(k + 2 * j));
                    }
                }
            }
            group = group.wrapping_add(GROUP_BYTES);
        }
        // SAFETY: the panel is filled, its exceptions are of its rows and of columns of x, and row t + m is one of the step.
        unsafe {
            let exceptions = panel.exceptions(0, units);
            for (m, [a, b, c, d]) in acc.into_iter().enumerate() {
                let mut sum = l.add(l.add(a, b), l.add(c, d));
                if !exceptions.is_empty() {
                    let mut beside = [0.0f32; LANES];
                    for e in exceptions {
                        let x = number(x[m].add(e.column as usize).read());
                        let sum = &mut beside[usize::from(e.row)];
                        *sum = number(e.bits).mul_add(x, *sum);
                    }
                    sum = l.add(sum, l.load(beside.as_ptr()));
                }
                self.call.end.store(l, t + m, n, sum);
            }
        }
    }
}

/// A BF16.
#[inline(always)]
fn number(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
