//! Activations in integers, in front of the linears that multiply them so.
//!
//! math: for 32 columns with largest size m: 8 bits, `d = m / 127`, `c = round(x * (127 / m))`; 15 bits, of x in BF16, `d = 2^(floor(log2 m) - 13)`, `c = round(x / d)` in two bytes; sums of c, and chains of `d * sum` for biases
//! shapes: x [T, k], codes [T, k / 32] blocks
//! layout: x with rows padded to 32 columns; codes as `crate::codes` lays them out
//! precision: to the nearest integer, ties to even; the chains in F32, fused
//! preconditions: k a multiple of 32
//! cost: none counted
//! tolerance: bit-identical to `tare_ops::reference::int8` and `int16`
//! wins: one pass for all linears that read the same rows
//! loses: a pass over cache and a meeting of the workers that the norm or the gated unit before it could save
//! fallback: the same code without vector instructions (`portable`)
//! evidence: none yet
//! source: blocks of 32 with one scale are ggml's Q8_0; two planes of bytes by our own probe
//!
//! Workers take contiguous runs of four blocks: no group of weights is longer, so that no chain has two writers.

use tare_ops::reference::blocks::BLOCK;
use tare_ops::reference::{int8, int16};

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

/// The kernel on instruction set `L`, for integers in one plane of bytes or in two.
pub fn kernel<L: Lanes, const P: usize>() -> QuantizeFn {
    run::<L, P>
}

/// # Safety
/// That of [`QuantizeFn`].
unsafe fn run<L: Lanes, const P: usize>(call: &Quantize, rows: usize, region: Region) {
    let Some(l) = L::detect() else { return };
    l.vectorize(Share::<P> { call, rows, share: region.share(call.items(rows), 1) });
}

struct Share<'a, const P: usize> {
    call: &'a Quantize,
    rows: usize,
    share: std::ops::Range<usize>,
}

impl<const P: usize> Kernel for Share<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let spans = self.call.spans();
        for i in self.share {
            let (t, first) = (i / spans, i % spans * SPAN);
            let (to, stride) = self.call.out.row::<P>(t, self.rows);
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

/// The blocks of [`int8`] or [`int16`] with their sums, in a form that compilers turn into vectors.
#[inline(always)]
fn quantize<const P: usize>(x: &[f32; BLOCK], before: [f32; 3], at: usize) -> Block<P> {
    let mut most = 0u32;
    for x in x {
        most = most.max(x.to_bits() & 0x7fff_ffff);
    }
    let (most, scale, up) = if P == 1 {
        let most = f32::from_bits(most);
        let zeros = most < int8::LEAST;
        (most, if zeros { 0.0 } else { most / int8::MOST }, if zeros { 0.0 } else { int8::MOST / most })
    } else {
        // Rounding keeps the order of sizes. What is no number stays as it is.
        let most = f32::from_bits(if most < f32::INFINITY.to_bits() { bf16(most) } else { most });
        let exponent = (most.to_bits() >> 23).clamp(14, 254);
        let (d, up) = (f32::from_bits((exponent - 13) << 23), f32::from_bits((254 + 13 - exponent) << 23));
        let scale = if most.is_finite() { d } else { most };
        if most < int16::LEAST { (most, 0.0, 0.0) } else { (most, scale, up) }
    };
    let (mut wide, mut planes) = ([0i32; BLOCK], [[0i8; BLOCK]; P]);
    for i in 0..BLOCK {
        let x = if P == 1 { x[i] } else { f32::from_bits(bf16(x[i].to_bits())) };
        let x = if most.is_finite() { x * up } else { 0.0 };
        wide[i] = (x + ROUNDER).to_bits().cast_signed() - ROUNDER.to_bits().cast_signed();
    }
    for i in 0..BLOCK {
        // Division that rounds towards zero, so that neither byte is -128.
        let high = if P == 1 { wide[i] } else { (wide[i] + (wide[i] >> 31 & 127)) >> 7 };
        planes[0][i] = high as i8;
        if P == 2 {
            planes[P - 1][i] = (wide[i] - (high << 7)) as i8;
        }
    }
    let mut sums = [0; 2];
    for i in 0..BLOCK {
        sums[i / (BLOCK / 2)] += wide[i];
    }
    Block::new(planes, scale, sums, before, at)
}

/// Bits of a finite number, rounded to those that BF16 has: to nearest, ties to even.
#[inline(always)]
const fn bf16(bits: u32) -> u32 {
    (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_the_reference() {
        for seed in 0..278u32 {
            let size = 2f32.powi(seed as i32 - 150);
            let noise = |i: u32| ((i + 32 * seed).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
            let mut x: [f32; BLOCK] = std::array::from_fn(|i| noise(i as u32) * size);
            if seed < 270 {
                // Halves between two codes, which go to the even one.
                (x[3], x[4], x[5], x[6]) = (127.0 * size, 0.5 * size, 1.5 * size, -2.5 * size);
            }
            same(&x);
            // All the digits of BF16, and all the codes around which bytes change.
            let digits = std::array::from_fn(|i| (i as f32 * 8.0 - 124.0) * size / 128.0);
            same(&digits);
        }
        for odd in [f32::INFINITY, f32::NAN, f32::NEG_INFINITY, f32::MAX] {
            let mut x = [1.0; BLOCK];
            x[9] = odd;
            same(&x);
            assert!(!quantize::<2>(&x, [0.0; 3], 0).scale.is_finite());
        }
    }

    fn same(x: &[f32; BLOCK]) {
        let (got, want) = (quantize::<1>(x, [0.0; 3], 0), int8::Block::of(x));
        assert_eq!((got.planes[0], bits(got.scale)), (want.codes, bits(want.scale)), "{x:?}");
        assert_eq!([0, 1].map(|half| got.off_half(32, half)), sums(&want.codes).map(|sum| -32 * sum));
        let (got, want) = (quantize::<2>(x, [0.0; 3], 0), int16::Block::of(x));
        let codes = std::array::from_fn(|i| 128 * i16::from(got.planes[0][i]) + i16::from(got.planes[1][i]));
        assert_eq!((codes, bits(got.scale)), (want.codes, bits(want.scale)), "{x:?}");
        assert!(got.planes.as_flattened().iter().all(|byte| *byte != -128), "{x:?}");
        assert_eq!([0, 1].map(|half| got.off_half(32, half)), sums(&want.codes).map(|sum| -32 * sum));
    }

    /// All that is no number is alike.
    fn bits(x: f32) -> u32 {
        if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
    }

    fn sums<C: Copy + Into<i32>>(codes: &[C; BLOCK]) -> [i32; 2] {
        let sum = |codes: &[C]| codes.iter().map(|c| (*c).into()).sum::<i32>();
        [sum(&codes[..16]), sum(&codes[16..])]
    }
}
