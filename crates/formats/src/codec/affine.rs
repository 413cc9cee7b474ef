//! MLX's affine groups: `w = scale * q + bias`, quants in little-endian u32 words, the first in the lowest bits.

use super::plain;
use tare_core::{Affine, AffineBits, DType};

/// The tensors of one row of an affine matrix.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// `cols * bits / 8` bytes. A little-endian word has its first weight in its first byte, so bytes can be read
    /// one by one.
    pub quants: &'a [u8],
    /// `cols / group` scales of `scale_dtype`.
    pub scales: &'a [u8],
    /// `cols / group` biases of `scale_dtype`.
    pub biases: &'a [u8],
    /// F32, F16 or BF16.
    pub scale_dtype: DType,
    /// Bits of a quant.
    pub bits: AffineBits,
    /// Weights that share a scale and a bias.
    pub group: usize,
}

impl<'a> Row<'a> {
    /// Row `row` of `a`, a matrix of `cols` columns.
    pub fn of(a: &'a Affine, bits: AffineBits, group: usize, cols: usize, row: usize) -> Self {
        let quants = cols * bits.bits() / 8;
        let scales = cols / group * a.scale_dtype.bytes();
        Self {
            quants: &a.words[row * quants..(row + 1) * quants],
            scales: &a.scales[row * scales..(row + 1) * scales],
            biases: &a.biases[row * scales..(row + 1) * scales],
            scale_dtype: a.scale_dtype,
            bits,
            group,
        }
    }

    /// Scale and bias of group `g`.
    pub fn scale_and_bias(&self, g: usize) -> (f32, f32) {
        (element(self.scales, self.scale_dtype, g), element(self.biases, self.scale_dtype, g))
    }
}

fn element(bytes: &[u8], dtype: DType, at: usize) -> f32 {
    let size = dtype.bytes();
    let mut out = [0.0];
    let read = match dtype {
        DType::F16 => plain::f16,
        DType::BF16 => plain::bf16,
        _ => plain::f32,
    };
    read(&bytes[at * size..(at + 1) * size], &mut out);
    out[0]
}

/// The codes of one row: 0 to 15, or 0 to 255.
pub fn codes(row: &Row, out: &mut [u8]) {
    match row.bits {
        AffineBits::Four => {
            for (pair, &q) in out.as_chunks_mut::<2>().0.iter_mut().zip(row.quants) {
                *pair = [q & 15, q >> 4];
            }
        }
        AffineBits::Eight => out.copy_from_slice(row.quants),
    }
}

/// Dequantizes one row: two roundings a weight, one of the product and one of the sum.
pub fn row(row: &Row, out: &mut [f32]) {
    let group_bytes = row.group * row.bits.bits() / 8;
    let groups = out.chunks_exact_mut(row.group).zip(row.quants.chunks_exact(group_bytes));
    for (g, (values, quants)) in groups.enumerate() {
        let (s, b) = row.scale_and_bias(g);
        match row.bits {
            AffineBits::Four => {
                for (pair, &q) in values.as_chunks_mut::<2>().0.iter_mut().zip(quants) {
                    *pair = [s * f32::from(q & 15) + b, s * f32::from(q >> 4) + b];
                }
            }
            AffineBits::Eight => {
                for (v, &q) in values.iter_mut().zip(quants) {
                    *v = s * f32::from(q) + b;
                }
            }
        }
    }
}
