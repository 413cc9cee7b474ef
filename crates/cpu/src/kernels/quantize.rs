//! Activations in 8 bits, in front of the linears that multiply them so.
//!
//! math: for 32 columns with largest size m: `d = m / 127`, `c = round(x * (127 / m))`; sums of c, and chains of `d * sum` for biases
//! shapes: x [T, k], codes [T, k / 32] blocks
//! layout: x with rows padded to 32 columns; codes as `crate::codes` lays them out, one cache line a block
//! precision: to the nearest integer, ties to even; the chains in F32, fused
//! preconditions: k a multiple of 32
//! cost: none counted
//! tolerance: bit-identical to `tare_ops::reference::int8`
//! wins: one pass for all linears that read the same rows
//! loses: a pass over cache and a meeting of the workers that the norm or the gated unit before it could save
//! fallback: the same code without vector instructions (`portable`)
//! evidence: none yet
//! source: blocks of 32 with one scale are ggml's Q8_0
//!
//! Workers take contiguous runs of four blocks: no group of weights is longer, so that no chain has two writers.

use tare_ops::reference::int8::{BLOCK, LEAST, MOST};

use crate::codes::{Block, Codes, SPAN};
use crate::lanes::{Kernel, Lanes};
use crate::pool::Region;
use crate::rows::Rows;

/// A stage in front of the linears that read `x`.
#[derive(Clone, Copy, Debug)]
pub struct Quantize {
    /// [T, k]
    pub x: Rows,
    /// [T, k / 32]
    pub out: Codes,
}

impl Quantize {
    /// Runs of blocks that workers share out when `rows` rows travel through.
    pub fn items(&self, rows: usize) -> usize {
        rows * self.spans()
    }

    fn spans(&self) -> usize {
        self.out.blocks.div_ceil(SPAN)
    }
}

/// Runs one worker's share: call, rows of the step, where we are.
///
/// # Safety
/// The call's pointers hold `rows` rows and nobody else writes `out`.
pub type QuantizeFn = unsafe fn(&Quantize, usize, Region);

/// The kernel on instruction set `L`.
pub fn kernel<L: Lanes>() -> QuantizeFn {
    run::<L>
}

/// # Safety
/// That of [`QuantizeFn`].
unsafe fn run<L: Lanes>(call: &Quantize, rows: usize, region: Region) {
    let Some(l) = L::detect() else { return };
    l.vectorize(Share { call, rows, share: region.share(call.items(rows), 1) });
}

struct Share<'a> {
    call: &'a Quantize,
    rows: usize,
    share: std::ops::Range<usize>,
}

impl Kernel for Share<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let spans = self.call.spans();
        for i in self.share {
            let (t, first) = (i / spans, i % spans * SPAN);
            let (to, stride) = self.call.out.row(t, self.rows);
            let x = self.call.x.row(t).cast_const();
            let mut offsets = [0.0; 3];
            for j in first..(first + SPAN).min(self.call.out.blocks) {
                // SAFETY: block j of row t of x, and of the codes.
                unsafe {
                    let block = quantize(&*x.add(j * BLOCK).cast::<[f32; BLOCK]>(), offsets, j % SPAN);
                    offsets = block.offsets;
                    to.add(j * stride).write(block);
                }
            }
        }
    }
}

/// 1.5 * 2^23: numbers below 2^22 that are added to it are rounded to integers, which are the low bits of the sum.
const ROUNDER: f32 = 12_582_912.0;

/// [`tare_ops::reference::int8::Block::of`] with its sums, in a form that compilers turn into vectors.
#[inline(always)]
fn quantize(x: &[f32; BLOCK], before: [f32; 3], at: usize) -> Block {
    let mut most = 0u32;
    for x in x {
        most = most.max(x.to_bits() & 0x7fff_ffff);
    }
    let most = f32::from_bits(most);
    let (scale, up) = if most < LEAST { (0.0, 0.0) } else { (most / MOST, MOST / most) };
    let (mut codes, mut wide) = ([0i8; BLOCK], [0i32; BLOCK]);
    for i in 0..BLOCK {
        let code = (x[i] * up + ROUNDER).to_bits() as u8 as i8;
        (codes[i], wide[i]) = (code, i32::from(code));
    }
    let mut sums = [0; 2];
    for i in 0..BLOCK {
        sums[i / (BLOCK / 2)] += wide[i];
    }
    Block::new(codes, scale, sums, before, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_ops::reference::int8;

    #[test]
    fn blocks_are_those_of_the_reference() {
        for seed in 0..200u32 {
            let size = 2f32.powi(seed as i32 - 140);
            let noise = |i: u32| ((i + 32 * seed).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
            let mut x: [f32; BLOCK] = std::array::from_fn(|i| noise(i as u32) * size);
            // Halves between two codes, which go to the even one.
            (x[3], x[4], x[5], x[6]) = (127.0 * size, 0.5 * size, 1.5 * size, -2.5 * size);
            let (got, want) = (quantize(&x, [0.0; 3], 0), int8::Block::of(&x));
            assert_eq!((got.codes, got.scale.to_bits()), (want.codes, want.scale.to_bits()), "{size:e}");
            let sum = |codes: &[i8]| codes.iter().map(|c| i32::from(*c)).sum::<i32>();
            assert_eq!(got.half_sums, [sum(&want.codes[..16]), sum(&want.codes[16..])]);
        }
        let mut x = [1.0; BLOCK];
        x[9] = f32::INFINITY;
        assert!(!quantize(&x, [0.0; 3], 0).scale.is_finite());
    }
}
