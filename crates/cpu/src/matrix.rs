//! Weights where the file has them: packed bytes that stay mapped, seen through pointers to their rows.

use std::ops::Range;

use tare_core::{AffineBits, DType, Format, Weight, WeightData};
use tare_formats::codec::dequantize_row;

use crate::rows::padded;

/// A weight that the backend holds. The bytes are those given: nothing is copied, so a mapped file stays mapped.
#[derive(Debug)]
pub struct Held {
    weight: Weight,
    /// A weight of one row (a norm's or a bias) as F32, padded with zeros; empty for matrices.
    vector: Vec<f32>,
}

impl Held {
    /// Keeps `weight`.
    pub fn new(weight: &Weight) -> Self {
        let mut vector = Vec::new();
        if weight.rows() == 1 {
            vector.resize(padded(weight.cols()), 0.0);
            dequantize_row(weight, 0, &mut vector[..weight.cols()]);
        }
        Self { weight: weight.clone(), vector }
    }

    /// The weight itself.
    pub fn weight(&self) -> &Weight {
        &self.weight
    }

    /// Its one row as F32; none for a matrix.
    pub fn vector(&self) -> Option<&[f32]> {
        (!self.vector.is_empty()).then_some(&self.vector)
    }

    /// The addresses of its bytes, which steps read.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        let of = |bytes: &[u8]| {
            let Range { start, end } = bytes.as_ptr_range();
            start as usize..end as usize
        };
        match self.weight.data() {
            WeightData::Blocks(bytes) => vec![of(bytes)],
            WeightData::Affine(a) => vec![of(&a.words), of(&a.scales), of(&a.biases)],
        }
    }

    /// Its rows, packed.
    pub fn matrix(&self) -> Matrix {
        let w = &self.weight;
        let (rows, cols) = (w.rows(), w.cols());
        match w.data() {
            WeightData::Blocks(bytes) => Matrix {
                rows,
                first: PackedRow {
                    quants: bytes.as_ptr(),
                    scales: std::ptr::null(),
                    biases: std::ptr::null(),
                    cols,
                    group_units: w.format().block_weights().div_ceil(crate::unpack::UNIT),
                    scale_dtype: DType::F16,
                },
                row_bytes: bytes.len().checked_div(rows).unwrap_or(0),
                scale_row_bytes: 0,
            },
            WeightData::Affine(a) => Matrix {
                rows,
                first: PackedRow {
                    quants: a.words.as_ptr(),
                    scales: a.scales.as_ptr(),
                    biases: a.biases.as_ptr(),
                    cols,
                    group_units: w.format().block_weights() / crate::unpack::UNIT,
                    scale_dtype: a.scale_dtype,
                },
                row_bytes: cols * affine_bits(w.format()).bits() / 8,
                scale_row_bytes: a.scales.len().checked_div(rows).unwrap_or(0),
            },
        }
    }
}

fn affine_bits(format: Format) -> AffineBits {
    match format {
        Format::Affine { bits, .. } => bits,
        _ => AffineBits::Eight,
    }
}

/// Pointers into a [`Held`] weight, which outlives every step that uses them.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Output features.
    pub rows: usize,
    first: PackedRow,
    row_bytes: usize,
    scale_row_bytes: usize,
}

// SAFETY: the bytes behind the pointers are read-only and belong to the backend that owns the executable.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

impl Matrix {
    /// Row `r`; the last one for any `r` past the end, so that tiles need no ragged case.
    #[inline(always)]
    pub fn row(&self, r: usize) -> PackedRow {
        let r = r.min(self.rows - 1);
        // Offsets stay inside the weight's bytes, whose number `Weight` has checked against its shape; a null pointer
        // has an offset of 0.
        PackedRow {
            quants: self.first.quants.wrapping_add(r * self.row_bytes),
            scales: self.first.scales.wrapping_add(r * self.scale_row_bytes),
            biases: self.first.biases.wrapping_add(r * self.scale_row_bytes),
            ..self.first
        }
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.first.cols
    }

    /// Bytes from the quants of one row to those of the next.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }
}

/// One packed row.
#[derive(Clone, Copy, Debug)]
pub struct PackedRow {
    /// Quants, or whole blocks.
    pub quants: *const u8,
    /// Scales of affine groups.
    pub scales: *const u8,
    /// Biases of affine groups.
    pub biases: *const u8,
    /// Weights of the row.
    pub cols: usize,
    /// Runs of 32 weights that a block or group has, 1 at least.
    pub group_units: usize,
    /// F32, F16 or BF16.
    pub scale_dtype: DType,
}
