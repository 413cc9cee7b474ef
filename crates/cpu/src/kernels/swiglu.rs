//! The gated unit of the feed-forward block.
//!
//! math: `out = silu(gate) * up`, `silu(x) = x / (1 + e^-x)`
//! shapes: gate, up, out [T, F]; `out` may be `gate`
//! layout: rows padded to 32 columns
//! precision: F32, the exponential of `tare_ops::reference::exp`
//! preconditions: none
//! cost: 5 flops an element by convention (about 20 instructions a vector)
//! tolerance: bit-identical to the reference
//! wins: everywhere
//! loses: a pass over cache, which many rows in tiles save: see [`gated`](super::linear_tiles::gated)
//! fallback: the same code on an array (`portable`)
//! evidence: none yet
//! source: Shazeer, arXiv 2002.05202
//!
//! Workers take contiguous runs of vectors of 16 over all rows.

use crate::lanes::{Kernel, LANES, Lanes, exp};
use crate::pool::Region;
use crate::rows::Rows;

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct SwiGlu {
    /// [T, F]
    pub gate: Rows,
    /// [T, F]
    pub up: Rows,
    /// [T, F]
    pub out: Rows,
}

impl SwiGlu {
    /// Vectors that workers share out when `rows` rows travel through.
    pub fn items(&self, rows: usize) -> usize {
        rows * self.vectors()
    }

    fn vectors(&self) -> usize {
        self.out.width.div_ceil(LANES)
    }
}

/// Runs one worker's share: call, rows of the step, where we are.
///
/// # Safety
/// The call's pointers hold `rows` rows and nobody else writes `out`.
pub type SwiGluFn = unsafe fn(&SwiGlu, usize, Region);

/// The kernel on instruction set `L`.
pub fn kernel<L: Lanes>() -> SwiGluFn {
    run::<L>
}

/// # Safety
/// That of [`SwiGluFn`].
unsafe fn run<L: Lanes>(call: &SwiGlu, rows: usize, region: Region) {
    let Some(l) = L::detect() else { return };
    l.vectorize(Share { call, vectors: call.vectors(), share: region.share(call.items(rows), 1) });
}

/// Sixteen outputs.
#[inline(always)]
pub fn gated<L: Lanes>(l: L, gate: L::V, up: L::V) -> L::V {
    let e = exp(l, l.sub(l.splat(-0.0), gate));
    l.mul(l.div(gate, l.add(l.splat(1.0), e)), up)
}

struct Share<'a> {
    call: &'a SwiGlu,
    vectors: usize,
    share: std::ops::Range<usize>,
}

impl Kernel for Share<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let SwiGlu { gate, up, out } = *self.call;
        for i in self.share {
            let (t, at) = (i / self.vectors, i % self.vectors * LANES);
            // SAFETY: rows are padded to whole vectors; columns past the width are read, never written.
            unsafe {
                let v = gated(l, l.load(gate.row(t).add(at)), l.load(up.row(t).add(at)));
                let to = out.row(t).add(at);
                let left = out.width - at;
                if left >= LANES { l.store(to, v) } else { l.store_part(to, left, v) }
            }
        }
    }
}
