//! RMSNorm of rows, and of the heads of a row.
//!
//! math: `out = (x * inv) * weight`, `inv = 1 / sqrt(dot(x, x) / D + eps)`
//! shapes: rms_norm: x, out [T, D], weight [D]; head_norm: x [T, heads * E] in place, weight [E]
//! layout: rows padded to 32 columns
//! precision: F32; the sum of squares in 16 lanes, then the tree; each other operation rounded
//! preconditions: none
//! cost: 4 flops an element
//! tolerance: bit-identical to the reference
//! wins: everywhere
//! loses: rms_norm of one row uses one worker; fusing it into the linear that follows would hide it
//! fallback: the same code on an array (`portable`)
//! evidence: none yet
//! source: Zhang and Sennrich, arXiv 1910.07467
//!
//! Workers take contiguous runs of (row, head) pairs; a row of rms_norm is one head.

use crate::lanes::{Kernel, LANES, Lanes, sum_of_squares};
use crate::pool::Region;
use crate::rows::Rows;

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// [T, heads * size]
    pub x: Rows,
    /// [T, heads * size]; may be `x`.
    pub out: Rows,
    /// [size]: a vector that the backend holds.
    pub weight: std::ptr::NonNull<f32>,
    /// Vectors of a row that are normalised by themselves.
    pub heads: usize,
    /// Elements of each.
    pub size: usize,
    /// Added under the root.
    pub eps: f32,
}

// SAFETY: `weight` points into a vector of the backend, which is never written after it was made.
unsafe impl Send for Norm {}
// SAFETY: as above.
unsafe impl Sync for Norm {}

impl Norm {
    /// Vectors that workers share out when `rows` rows travel through.
    pub fn items(&self, rows: usize) -> usize {
        rows * self.heads
    }
}

/// Runs one worker's share: call, rows of the step, where we are.
///
/// # Safety
/// The call's pointers hold `rows` rows and nobody else writes `out`.
pub type NormFn = unsafe fn(&Norm, usize, Region);

/// The kernel on instruction set `L`.
pub fn kernel<L: Lanes>() -> NormFn {
    run::<L>
}

/// # Safety
/// That of [`NormFn`].
unsafe fn run<L: Lanes>(call: &Norm, rows: usize, region: Region) {
    let Some(l) = L::detect() else { return };
    for i in region.share(call.items(rows), 1) {
        l.vectorize(Head { call, t: i / call.heads, at: i % call.heads * call.size });
    }
}

/// One vector of a row.
pub(super) struct Head<'a> {
    pub(super) call: &'a Norm,
    pub(super) t: usize,
    pub(super) at: usize,
}

impl Kernel for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let (x, out) = (self.call.x.row(self.t).wrapping_add(self.at), self.call.out.row(self.t).wrapping_add(self.at));
        // SAFETY: a vector of x and of out.
        unsafe { self.call.vector(l, x, out) };
    }
}

impl Norm {
    /// What the elements of a vector are multiplied with first, whose squares have this sum.
    #[inline(always)]
    pub(super) fn inverse(&self, squares: f32) -> f32 {
        1.0 / (squares / self.size as f32 + self.eps).sqrt()
    }

    /// Normalises the vector at `x`.
    ///
    /// # Safety
    /// `size` elements lie at both, which may be the same.
    #[inline(always)]
    pub(super) unsafe fn vector<L: Lanes>(&self, l: L, x: *const f32, out: *mut f32) {
        let (n, weight) = (self.size, self.weight.as_ptr());
        // SAFETY: the caller's promise, and as many weights.
        unsafe {
            let inv = l.splat(self.inverse(sum_of_squares(l, x, n)));
            let whole = n / LANES * LANES;
            for i in (0..whole).step_by(LANES) {
                l.store(out.add(i), l.mul(l.mul(l.load(x.add(i)), inv), l.load(weight.add(i))));
            }
            if whole < n {
                let part = n - whole;
                let v = l.mul(l.load_part(x.add(whole), part, 0.0), inv);
                l.store_part(out.add(whole), part, l.mul(v, l.load_part(weight.add(whole), part, 0.0)));
            }
        }
    }
}
