//! Matrix times rows, in every weight format.
//!
//! math: `out[t, n] = sum_k x[t, k] * w[n, k] (+ bias[n])`, added to `out[t, n]` when accumulating
//! shapes: x [T, k], weight [n, k] packed, bias [n], out [T, n]
//! layout: weight rows as the file has them; x and out with rows padded to 32 columns of +0
//! precision: weights dequantized exactly (each operation rounded to F32 as ggml and MLX round it), products fused, sums in F32; 16 lanes with k ascending, then the tree of `tare_ops::reference::lanes`
//! preconditions: k a multiple of the format's block; any n, any T
//! cost: n * row bytes of weights once for few rows, once per 96 rows else; 2 T n k flops
//! tolerance: bit-identical to the reference, for every T, tile and thread count
//! wins: few rows (unpacked in registers, again for every four rows) and prompts (a panel of 16 weight rows unpacked once for 96 rows)
//! loses: q5_k and q6_k at one to 16 rows, whose unpacking outweighs the products; f32 prompts copy a panel for nothing
//! fallback: the same code on an array (`portable`)
//! evidence: none yet
//! source: register tiling after Goto and van de Geijn (2008); 16-value tables by `vpermps`, rows side by side and prefetch distance by our own probe
//!
//! Workers take contiguous runs of 16 weight rows, so that each output line of 64 bytes has one writer.

mod few;
mod many;

use crate::epilogue::Epilogue;
use crate::lanes::{LANES, Lanes};
use crate::matrix::Matrix;
use crate::pool::Region;
use crate::rows::Rows;
use crate::unpack::Unpack;

/// Weight rows that are finished together, and so the smallest share of a worker: one vector of outputs.
pub const GROUP: usize = LANES;

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// [T, k]
    pub x: Rows,
    /// [n, k]
    pub weight: Matrix,
    /// What becomes of the products. out [T, n]
    pub end: Epilogue,
}

/// Runs one worker's share: call, rows of the step, where we are, the worker's scratch of
/// [`kernels::SCRATCH`](crate::kernels::SCRATCH) F32.
///
/// # Safety
/// The call's pointers hold `rows` rows; the weight has the format of the kernel; nobody else writes the same shares.
pub type LinearFn = unsafe fn(&Linear, usize, Region, *mut f32);

/// F32 that the kernels of this file need of the scratch.
pub const SCRATCH: usize = many::SCRATCH;

/// The kernel of format `F` on instruction set `L`; none when this processor does not have it.
pub fn kernel<L: Lanes, F: Unpack>() -> LinearFn {
    run::<L, F>
}

/// # Safety
/// That of [`LinearFn`].
unsafe fn run<L: Lanes, F: Unpack>(call: &Linear, rows: usize, region: Region, scratch: *mut f32) {
    // The registry offers a kernel only where `detect` succeeds, so that this returns at once.
    let Some(l) = L::detect() else { return };
    let share = region.share(call.weight.rows, GROUP);
    if rows <= few::most::<L, F>() {
        l.vectorize(few::Few::<F>::new(call, rows, share));
    } else {
        l.vectorize(many::Many::<F>::new(call, rows, share, scratch));
    }
}

/// Stores outputs `n .. n + 16` of row `t` from the lanes of their sums.
///
/// # Safety
/// Row t exists and n is an output of the call.
#[inline(always)]
unsafe fn finish<L: Lanes>(l: L, call: &Linear, t: usize, n: usize, lanes: &[L::V; GROUP]) {
    // SAFETY: the caller's promise; groups are multiples of 16.
    unsafe { call.end.store(l, t, n, l.sum_each(lanes)) };
}
