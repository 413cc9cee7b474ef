//! Packed weights to F32, one family of formats a file.
//!
//! All arithmetic is binary32 with one rounding an operation, in the order that ggml and MLX use, so that the values
//! are bit-equal to theirs.

pub mod affine;
pub mod ggml;
pub mod kquant;
pub mod plain;
pub mod quants;

use tare_core::{Format, Weight, WeightData};

/// Dequantizes row `row` of `w` into `out`, which holds `w.cols()` values.
///
/// # Panics
/// When `row` is not a row of `w` or `out` has another length: both are mistakes of the caller, not of the file.
pub fn dequantize_row(w: &Weight, row: usize, out: &mut [f32]) {
    assert!(row < w.rows(), "row {row} of a matrix of {} rows", w.rows());
    assert_eq!(out.len(), w.cols(), "a row of `{}` has {} columns", w.name(), w.cols());
    match (w.data(), w.format()) {
        (WeightData::Affine(a), Format::Affine { bits, group }) => {
            affine::row(&affine::Row::of(a, bits, group as usize, w.cols(), row), out);
        }
        (WeightData::Blocks(bytes), format) => block_row(format, row_of(bytes, w.rows(), row), out),
        (WeightData::Affine(_), format) => unreachable!("`Weight` never holds affine tensors as {format}"),
    }
}

/// All rows of `w`, row-major: `w.rows() * w.cols()` values.
pub fn dequantize(w: &Weight) -> Vec<f32> {
    let mut out = vec![0.0; w.rows() * w.cols()];
    if w.cols() > 0 {
        for (r, row) in out.chunks_exact_mut(w.cols()).enumerate() {
            dequantize_row(w, r, row);
        }
    }
    out
}

/// Row `row` of `rows` rows of equally many bytes.
fn row_of(bytes: &[u8], rows: usize, row: usize) -> &[u8] {
    let len = bytes.len() / rows;
    &bytes[row * len..(row + 1) * len]
}

/// One row of a plain or block format.
fn block_row(format: Format, bytes: &[u8], out: &mut [f32]) {
    match format {
        Format::F32 => plain::f32(bytes, out),
        Format::F16 => plain::f16(bytes, out),
        Format::BF16 => plain::bf16(bytes, out),
        Format::Q8_0 => each(bytes, out, ggml::q8_0),
        Format::Q4_0 => each(bytes, out, ggml::q4_0),
        Format::Q4_1 => each(bytes, out, ggml::q4_1),
        Format::Q5_0 => each(bytes, out, ggml::q5_0),
        Format::Q5_1 => each(bytes, out, ggml::q5_1),
        Format::Q4K => each(bytes, out, kquant::q4_k),
        Format::Q5K => each(bytes, out, kquant::q5_k),
        Format::Q6K => each(bytes, out, kquant::q6_k),
        Format::Affine { .. } => unreachable!("`Weight` never holds {format} as blocks"),
    }
}

/// Runs `block` over blocks of B bytes and W weights.
fn each<const B: usize, const W: usize>(bytes: &[u8], out: &mut [f32], block: impl Fn(&[u8; B], &mut [f32; W])) {
    let (blocks, _) = bytes.as_chunks::<B>();
    let (outs, _) = out.as_chunks_mut::<W>();
    for (b, o) in blocks.iter().zip(outs) {
        block(b, o);
    }
}
