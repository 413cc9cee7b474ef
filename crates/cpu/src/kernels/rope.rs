//! Rotary position embedding, in place.
//!
//! math: each pair `(a, b)` of a head becomes `(a cos - b sin, b cos + a sin)` of its angle at the row's position
//! shapes: x [T, heads * E] in place, cos and sin [T, E / 2]
//! layout: pairs `(i, i + E / 2)` or `(2 i, 2 i + 1)`
//! precision: angles in F64, sine and cosine rounded to F32 once; `fma(a, cos, -(b sin))` and `fma(b, cos, a sin)`
//! preconditions: E even
//! cost: 3 flops an element, and E / 2 sines and cosines a row and step, shared by all layers
//! tolerance: bit-identical to the reference
//! wins: half-split pairs
//! loses: interleaved pairs are rotated one by one
//! fallback: the same code on an array (`portable`)
//! evidence: none yet
//! source: Su et al., arXiv 2104.09864
//!
//! Workers take contiguous runs of (row, head) pairs; of rows when the angles are made.

use tare_ops::reference::rope::angles;
use tare_ops::{RopeStyle, RopeTable, Row};

use crate::lanes::{Kernel, LANES, Lanes};
use crate::pool::Region;
use crate::rows::Rows;

/// Sines and cosines of the rows of a step.
#[derive(Clone, Copy, Debug)]
pub struct Angles {
    /// [T, E / 2]
    pub cos: Rows,
    /// [T, E / 2]
    pub sin: Rows,
}

impl Angles {
    /// Fills this worker's rows.
    ///
    /// # Safety
    /// Both hold a row of E / 2 for each of `rows`; nobody else touches them.
    pub unsafe fn fill(&self, table: &RopeTable, rows: &[Row], region: Region) {
        let pairs = table.inv_freq.len();
        for t in region.share(rows.len(), 1) {
            // SAFETY: row t has `pairs` elements and is this worker's alone.
            let (cos, sin) = unsafe {
                let cos = std::slice::from_raw_parts_mut(self.cos.row(t), pairs);
                (cos, std::slice::from_raw_parts_mut(self.sin.row(t), pairs))
            };
            angles(table, rows[t].position, cos, sin);
        }
    }
}

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Rope {
    /// [T, heads * E]
    pub x: Rows,
    /// Heads of a row.
    pub heads: usize,
    /// Filled earlier in the step.
    pub angles: Angles,
    /// Which elements make a pair.
    pub style: RopeStyle,
}

impl Rope {
    /// Heads that workers share out when `rows` rows travel through.
    pub fn items(&self, rows: usize) -> usize {
        rows * self.heads
    }
}

/// Runs one worker's share: call, rows of the step, where we are.
///
/// # Safety
/// The call's pointers hold `rows` rows and nobody else touches `x`.
pub type RopeFn = unsafe fn(&Rope, usize, Region);

/// The kernel on instruction set `L`.
pub fn kernel<L: Lanes>() -> RopeFn {
    run::<L>
}

/// # Safety
/// That of [`RopeFn`].
unsafe fn run<L: Lanes>(call: &Rope, rows: usize, region: Region) {
    let Some(l) = L::detect() else { return };
    for i in region.share(call.items(rows), 1) {
        l.vectorize(Head { call, t: i / call.heads, head: i % call.heads });
    }
}

/// One head of a row.
pub(super) struct Head<'a> {
    pub(super) call: &'a Rope,
    pub(super) t: usize,
    pub(super) head: usize,
}

impl Kernel for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let x = self.call.x.row(self.t).wrapping_add(self.head * 2 * self.call.angles.cos.width);
        // SAFETY: a head of the row.
        unsafe { self.call.rotate(l, self.t, x) };
    }
}

/// 16 pairs, rotated by the angles of these cosines and sines.
#[inline(always)]
pub(super) fn rotated<L: Lanes>(l: L, (a, b): (L::V, L::V), (cos, sin): (L::V, L::V)) -> (L::V, L::V) {
    let negated = l.sub(l.splat(-0.0), l.mul(b, sin));
    (l.fma(a, cos, negated), l.fma(b, cos, l.mul(a, sin)))
}

impl Rope {
    /// Rotates the head of row `t` at `x`.
    ///
    /// # Safety
    /// A head lies there, and the angles of the row are made.
    #[inline(always)]
    pub(super) unsafe fn rotate<L: Lanes>(&self, l: L, t: usize, x: *mut f32) {
        let pairs = self.angles.cos.width;
        let (cos, sin) = (self.angles.cos.row(t), self.angles.sin.row(t));
        let vectors = if self.style == RopeStyle::HalfSplit { pairs / LANES } else { 0 };
        // SAFETY: the head has 2 * pairs elements, the angles a row of `pairs`.
        unsafe {
            for i in (0..vectors * LANES).step_by(LANES) {
                let (c, s) = (l.load(cos.add(i)), l.load(sin.add(i)));
                let (a, b) = rotated(l, (l.load(x.add(i)), l.load(x.add(i + pairs))), (c, s));
                l.store(x.add(i), a);
                l.store(x.add(i + pairs), b);
            }
            for i in vectors * LANES..pairs {
                let (c, s) = (*cos.add(i), *sin.add(i));
                let (first, second) = match self.style {
                    RopeStyle::HalfSplit => (i, i + pairs),
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                };
                let (a, b) = (*x.add(first), *x.add(second));
                *x.add(first) = a.mul_add(c, -(b * s));
                *x.add(second) = b.mul_add(c, a * s);
            }
        }
    }
}
