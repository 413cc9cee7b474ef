//! Matrix of BF16 times few rows in BF16, pair by pair as both lie in memory.
//!
//! math: `out[t, n] = sum_k bf16(x[t, k]) * w[n, k] (+ bias[n])`, added to `out[t, n]` when accumulating
//! shapes: x [T, k], weight [n, k], bias [n], out [T, n]
//! layout: weight rows as the file has them; x and out with rows padded to 32 columns
//! precision: products exact, sums in F32, in four chains of 16 lanes; numbers below the least normal one may count as 0
//! preconditions: [`takes`] the rows; any n
//! cost: n * row bytes of weights once for four rows; 2 T n k flops
//! tolerance: limits of `tare_ops::exact`; the same bits for every T and thread count
//! wins: one to four rows: two instructions for 64 bytes of weights, so that more of them are on their way from memory at a time
//! loses: more rows, where F32 multiply-adds are twice as many a cycle on Intel's cores, and tiles far more
//! fallback: `linear` in the reference's order, on F32 multiply-adds
//! evidence: none yet
//! source: none
//!
//! Workers take contiguous runs of 16 weight rows, so that each output line of 64 bytes has one writer.

use std::ops::Range;

use crate::kernels::SCRATCH;
use crate::kernels::linear::{GROUP, Linear, LinearFn};
use crate::lanes::Lanes;
use crate::pairs::{self, PAIRS, PairKernel, Pairs};
use crate::pool::Region;
use crate::rows::padded;

/// Rows of x whose sums for a weight row stay in registers.
const TOGETHER: usize = 4;
/// Chains of a sum.
const CHAINS: usize = 4;
/// Bytes ahead of the weights in use that are asked for.
const AHEAD: usize = 8 << 10;

/// Whether there is room for `rows` rows of `k` columns.
pub const fn takes(rows: usize, k: usize) -> bool {
    rows.saturating_mul(padded(k)) <= SCRATCH * size_of::<f32>() / size_of::<u16>()
}

/// The kernel on pairs `P`, for steps that it [`takes`].
pub fn kernel<P: Pairs>() -> LinearFn {
    run::<P>
}

/// # Safety
/// That of [`LinearFn`].
unsafe fn run<P: Pairs>(call: &Linear, rows: usize, region: Region, scratch: *mut f32) {
    // The registry offers a kernel only where `prove` succeeds, so that this returns at once.
    let Some(p) = P::prove() else { return };
    p.compiled(Share { call, rows, share: region.share(call.weight.rows, GROUP), x: scratch.cast() });
}

/// Weight rows `share` times all rows of x.
struct Share<'a> {
    call: &'a Linear,
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
        // SAFETY: the contract of `LinearFn`; the registry asks `takes`.
        unsafe {
            pairs::round(p, self.call.x, self.rows, self.x);
            for n in self.share.clone().step_by(GROUP) {
                for t in (0..self.rows).step_by(TOGETHER) {
                    match self.rows - t {
                        1 => self.group::<P, 1>(p, n, t),
                        2 => self.group::<P, 2>(p, n, t),
                        3 => self.group::<P, 3>(p, n, t),
                        _ => self.group::<P, TOGETHER>(p, n, t),
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
    /// That of [`LinearFn`]; the rows are of the step, and in BF16.
    #[inline(always)]
    unsafe fn group<P: Pairs, const M: usize>(&self, p: P, n: usize, t: usize) {
        let l = p.lanes();
        let mut sums = [[l.splat(0.0); GROUP]; M];
        for r in 0..GROUP {
            // SAFETY: `Matrix::row` gives rows of the weight only.
            let chains = unsafe { self.chains::<P, M>(p, self.call.weight.row(n + r).quants, t) };
            for (sums, [a, b, c, d]) in sums.iter_mut().zip(chains) {
                sums[r] = l.add(l.add(a, b), l.add(c, d));
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            // SAFETY: row t + m is one of the step.
            unsafe { self.call.end.store(l, t + m, n, l.sum_each(sums)) };
        }
    }

    /// The chains of a weight row with rows `t .. t + M`. Each line is asked for right in front of the use of another: several
    /// that are asked for together come later.
    ///
    /// # Safety
    /// The row lies there, and the rows of x are of the step.
    #[inline(always)]
    unsafe fn chains<P: Pairs, const M: usize>(
        &self,
        p: P,
        row: *const u8,
        t: usize,
    ) -> [[<P::L as Lanes>::V; CHAINS]; M] {
        let (l, cols, stride) = (p.lanes(), self.call.weight.cols(), self.call.x.stride);
        let (w, x) = (row.cast::<u16>(), self.x.cast_const().wrapping_add(t * stride));
        let mut acc = [[l.splat(0.0); CHAINS]; M];
        let whole = cols / PAIRS;
        // SAFETY: 32 weights from each k on, and as many columns of each row of x.
        unsafe {
            let mut k = 0;
            for _ in 0..whole / CHAINS {
                for chain in 0..CHAINS {
                    l.prefetch(w.wrapping_add(k).cast::<u8>().wrapping_add(AHEAD));
                    for (m, acc) in acc.iter_mut().enumerate() {
                        acc[chain] = p.dot(acc[chain], w.add(k), x.add(m * stride + k));
                    }
                    k += PAIRS;
                }
            }
            for chain in 0..CHAINS {
                if chain < whole % CHAINS {
                    for (m, acc) in acc.iter_mut().enumerate() {
                        acc[chain] = p.dot(acc[chain], w.add(k), x.add(m * stride + k));
                    }
                    k += PAIRS;
                }
            }
            if k < cols {
                let mut last = [0u16; PAIRS];
                std::ptr::copy_nonoverlapping(w.add(k), last.as_mut_ptr(), cols - k);
                for (m, acc) in acc.iter_mut().enumerate() {
                    acc[0] = p.dot(acc[0], last.as_ptr(), x.add(m * stride + k));
                }
            }
        }
        acc
    }
}
