//! Matrix times vector, row by row of the weight.

use std::ops::Range;

use half::bf16;
use tare_core::Weight;
use tare_formats::codec::dequantize_row;

use super::lanes;
use crate::class::Rounding;

/// What happens to a product before it is stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added to the product. [n]
    pub bias: Option<&'a [f32]>,
    /// Add to what `out` holds instead of replacing it.
    pub accumulate: bool,
}

impl Epilogue<'_> {
    /// Stores the product of output feature `n`: `dot (+ bias)`, then `out + that` when accumulating.
    pub fn store(&self, n: usize, dot: f32, out: &mut f32) {
        let value = self.bias.map_or(dot, |b| dot + b[n]);
        *out = if self.accumulate { *out + value } else { value };
    }
}

/// `out[t, n] = dot(x[t], w[n])`, each row of the weight dequantized exactly. x [T, k], weight [n, k], out [T, n]
///
/// `x` has been [rounded](round) already. A row of the weight serves all T rows before the next one is read.
pub fn linear(weight: &Weight, x: &[f32], epilogue: Epilogue<'_>, out: &mut [f32]) {
    outputs(weight, 0..weight.rows(), x, epilogue, out);
}

/// The output features `of` of [`linear`] alone. out [T, of.len()]
pub fn outputs(weight: &Weight, of: Range<usize>, x: &[f32], epilogue: Epilogue<'_>, out: &mut [f32]) {
    let (k, n, first) = (weight.cols(), of.len().max(1), of.start);
    let mut w = vec![0.0; k];
    for i in of {
        dequantize_row(weight, i, &mut w);
        for (x, out) in x.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
            epilogue.store(i, lanes::dot(x, &w), &mut out[i - first]);
        }
    }
}

/// What the arithmetic class does to activations before they are multiplied, in place. Integers are left to
/// [`blocks::linear`](super::blocks::linear).
pub fn round(rounding: Rounding, x: &mut [f32]) {
    if rounding == Rounding::Bf16 {
        for x in x {
            *x = round_bf16(*x);
        }
    }
}

/// To BF16 and back: nearest, ties to even; NaN stays NaN.
pub fn round_bf16(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_core::{Blob, Format};

    fn run(x: &[f32], epilogue: Epilogue<'_>, out: f32) -> Vec<f32> {
        let bytes = [1.0f32, 2.0, 3.0, -1.0, 0.5, 4.0].iter().flat_map(|w| w.to_le_bytes()).collect();
        let weight = Weight::blocks("w", Format::F32, 2, 3, Blob::from_vec(bytes)).unwrap();
        let mut out = vec![out; x.len() / 3 * 2];
        linear(&weight, x, epilogue, &mut out);
        out
    }

    #[test]
    fn bias_and_accumulation() {
        let x = [1.0, 10.0, 100.0, 0.0, 0.0, 1.0];
        assert_eq!(run(&x, Epilogue::default(), f32::NAN), [321.0, 404.0, 3.0, 4.0]);
        let bias = Some(&[0.5, -4.0][..]);
        assert_eq!(run(&x, Epilogue { bias, accumulate: false }, f32::NAN), [321.5, 400.0, 3.5, 0.0]);
        assert_eq!(run(&x, Epilogue { bias, accumulate: true }, 1000.0), [1321.5, 1400.0, 1003.5, 1000.0]);
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        let unit = 2f32.powi(-7);
        let mut x = [1.0 + unit / 2.0, 1.0 + unit * 1.5, 1.0 + unit * 0.51, -1.0 - unit * 0.49];
        round(Rounding::F32, &mut x);
        assert_eq!(x[0], 1.0 + unit / 2.0);
        round(Rounding::Bf16, &mut x);
        assert_eq!(x, [1.0, 1.0 + 2.0 * unit, 1.0 + unit, -1.0]);
    }
}
