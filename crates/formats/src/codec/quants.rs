//! Packed weights before they become numbers: a code for each, and a scale for each group of them. For arithmetic on
//! integers, and for layouts of its own.
//!
//! With a center `w = (q - center) * scale`, else `w = q * scale + bias`: the bits of [`super::dequantize_row`].

use tare_core::{Format, Weight, WeightData};

use super::{affine, ggml, kquant, row_of};

/// How a format codes its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coding {
    /// Weights that share a scale: 16, 32, 64 or 128.
    pub group: usize,
    /// What is taken off a code; none where groups have a bias instead.
    pub center: Option<u8>,
}

impl Coding {
    /// That of `format`; none for plain elements, which have no codes.
    pub const fn of(format: Format) -> Option<Self> {
        let (group, center) = match format {
            Format::F32 | Format::F16 | Format::BF16 => return None,
            Format::Q8_0 => (32, Some(128)),
            Format::Q4_0 => (32, Some(8)),
            Format::Q5_0 => (32, Some(16)),
            Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => (32, None),
            Format::Q6K => (16, Some(32)),
            Format::Affine { group, .. } => (group as usize, None),
        };
        Some(Self { group, center })
    }
}

/// The codes of row `row`, each below 2^bits: signed bytes of Q8_0 are raised by their center. [cols]
///
/// # Panics
/// When there is no such row, `out` has another length, or the format has no [`Coding`].
pub fn codes_row(w: &Weight, row: usize, out: &mut [u8]) {
    assert_eq!(out.len(), w.cols(), "a row of `{}` has {} columns", w.name(), w.cols());
    match (w.data(), w.format()) {
        (WeightData::Affine(a), Format::Affine { bits, group }) => {
            affine::codes(&affine::Row::of(a, bits, group as usize, w.cols(), row), out);
        }
        (WeightData::Blocks(bytes), format) => block_codes(format, row_of(bytes, w.rows(), row), out),
        (WeightData::Affine(_), format) => unreachable!("`Weight` never holds affine tensors as {format}"),
    }
}

fn block_codes(format: Format, bytes: &[u8], out: &mut [u8]) {
    match format {
        Format::Q8_0 => each(bytes, out, |b: &[u8; 34]| std::array::from_fn::<u8, 32, _>(|j| b[2 + j] ^ 0x80)),
        Format::Q4_0 => each(bytes, out, ggml::q4_0_codes),
        Format::Q4_1 => each(bytes, out, ggml::q4_1_codes),
        Format::Q5_0 => each(bytes, out, ggml::q5_0_codes),
        Format::Q5_1 => each(bytes, out, ggml::q5_1_codes),
        Format::Q4K => each(bytes, out, kquant::q4_k_codes),
        Format::Q5K => each(bytes, out, kquant::q5_k_codes),
        Format::Q6K => each(bytes, out, kquant::q6_k_codes),
        Format::F32 | Format::F16 | Format::BF16 => panic!("{format} has no codes"),
        Format::Affine { .. } => unreachable!("`Weight` never holds {format} as blocks"),
    }
}

/// Codes of blocks of B bytes and W weights.
fn each<const B: usize, const W: usize>(bytes: &[u8], out: &mut [u8], codes: impl Fn(&[u8; B]) -> [u8; W]) {
    for (block, out) in bytes.as_chunks::<B>().0.iter().zip(out.as_chunks_mut::<W>().0) {
        *out = codes(block);
    }
}

/// The scales of row `row`, and its biases where the format has no center (`biases` is left alone where it has one).
/// [cols / group]
///
/// # Panics
/// When there is no such row, a slice is too short, or the format has no [`Coding`].
pub fn scales_row(w: &Weight, row: usize, scales: &mut [f32], biases: &mut [f32]) {
    match (w.data(), w.format()) {
        (WeightData::Affine(a), Format::Affine { bits, group }) => {
            let r = affine::Row::of(a, bits, group as usize, w.cols(), row);
            for g in 0..w.cols() / group as usize {
                (scales[g], biases[g]) = r.scale_and_bias(g);
            }
        }
        (WeightData::Blocks(bytes), format) => {
            for (i, b) in row_of(bytes, w.rows(), row).chunks_exact(format.block_bytes()).enumerate() {
                match format {
                    Format::Q8_0 | Format::Q4_0 | Format::Q5_0 => scales[i] = ggml::half_at(b, 0),
                    Format::Q4_1 | Format::Q5_1 => {
                        (scales[i], biases[i]) = (ggml::half_at(b, 0), ggml::half_at(b, 2));
                    }
                    Format::Q4K | Format::Q5K => {
                        let (d, dmin) = (ggml::half_at(b, 0), ggml::half_at(b, 2));
                        for j in 0..8 {
                            let (sc, m) = kquant::scale_and_min(b, j);
                            (scales[8 * i + j], biases[8 * i + j]) = (d * f32::from(sc), -(dmin * f32::from(m)));
                        }
                    }
                    Format::Q6K => {
                        let d = ggml::half_at(b, 208);
                        (0..16).for_each(|g| scales[16 * i + g] = d * f32::from(kquant::q6_k_scale(b, g)));
                    }
                    Format::F32 | Format::F16 | Format::BF16 => panic!("{format} has no scales"),
                    Format::Affine { .. } => unreachable!("`Weight` never holds {format} as blocks"),
                }
            }
        }
        (WeightData::Affine(_), format) => unreachable!("`Weight` never holds affine tensors as {format}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::dequantize_row;
    use tare_core::{Affine, Blob, DType};

    /// Bytes that look random; as scales they are finite, since no F16 or BF16 is made of 0xff.
    fn bytes(n: usize) -> Vec<u8> {
        let mix = |i: usize| (i as u32).wrapping_mul(2_654_435_761).rotate_left(9) ^ 0x5bd1_e995;
        (0..n).map(|i| (mix(i) >> 16) as u8 & 0xbb).collect()
    }

    fn weight(format: Format, rows: usize, cols: usize) -> Weight {
        let Format::Affine { bits, group } = format else {
            let n = rows * format.row_bytes(cols).unwrap();
            return Weight::blocks("w", format, rows, cols, Blob::from_vec(bytes(n))).unwrap();
        };
        let scales = rows * cols / group as usize * 2;
        let data = Affine {
            words: Blob::from_vec(bytes(rows * cols * bits.bits() / 8)),
            scales: Blob::from_vec(bytes(scales)),
            biases: Blob::from_vec(bytes(scales + 7)[7..].to_vec()),
            scale_dtype: DType::F16,
        };
        Weight::affine("w", bits, group, (rows, cols), data).unwrap()
    }

    #[test]
    fn codes_and_scales_are_the_weights() {
        let (rows, cols) = (3, 512);
        for format in Format::ALL {
            let Some(coding) = Coding::of(format) else { continue };
            let w = weight(format, rows, cols);
            for row in 0..rows {
                let mut want = vec![0.0; cols];
                dequantize_row(&w, row, &mut want);
                let (mut codes, groups) = (vec![0; cols], cols / coding.group);
                let (mut scales, mut biases) = (vec![f32::NAN; groups], vec![f32::NAN; groups]);
                codes_row(&w, row, &mut codes);
                scales_row(&w, row, &mut scales, &mut biases);
                for (k, (want, q)) in want.iter().zip(codes).enumerate() {
                    assert!(u32::from(q) < 1 << format.value_bits(), "{format}: code {q}");
                    let (q, g) = (f32::from(q), k / coding.group);
                    let got = coding.center.map_or(q * scales[g] + biases[g], |c| (q - f32::from(c)) * scales[g]);
                    assert_eq!(got.to_bits(), want.to_bits(), "{format} [{row}, {k}]: {got} is not {want}");
                }
            }
        }
    }
}
