//! The weights of a backend: where the file has them, as packed bytes that stay mapped and are seen through pointers to
//! their rows, or in panels.

use std::ops::Range;

use tare_core::{AffineBits, DType, Fault, Format, Weight, WeightData};
use tare_formats::codec::dequantize_row;
use tare_ops::{WeightId, WeightInfo};

use crate::panels::Packed;
use crate::rows::padded;

/// A weight that the backend holds. The bytes are those given: nothing is copied, so a mapped file stays mapped, and what is
/// made when it is looked at is not made before a program reads it. Linears with activations in integers read a copy in
/// panels, and where nobody else reads it, the bytes given are let go.
#[derive(Debug)]
pub struct Held {
    info: WeightInfo,
    file: Option<Weight>,
    panels: Option<Packed>,
    /// A weight of one row (a norm's or a bias) as F32, padded with zeros; empty for matrices.
    vector: Vec<f32>,
}

/// The bytes behind the pointers of an executable, kept for as long as it lives.
#[derive(Clone, Debug)]
pub enum Kept {
    /// As the file has them.
    File(Weight),
    /// In panels.
    Panels(Packed),
}

impl Kept {
    /// The addresses of its bytes.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        match self {
            Self::File(weight) => file_ranges(weight),
            Self::Panels(packed) => vec![packed.range()],
        }
    }
}

/// The addresses of the bytes of `weight`, unless they would have to be made first.
fn file_ranges(weight: &Weight) -> Vec<Range<usize>> {
    let of = |bytes: &[u8]| {
        let Range { start, end } = bytes.as_ptr_range();
        start as usize..end as usize
    };
    weight.parts().into_iter().filter_map(|part| part.there().map(of)).collect()
}

impl Held {
    /// Keeps `weight` under the handle `id`.
    pub fn new(id: WeightId, weight: &Weight) -> Self {
        let mut vector = Vec::new();
        if weight.rows() == 1 {
            vector.resize(padded(weight.cols()), 0.0);
            dequantize_row(weight, 0, &mut vector[..weight.cols()]);
            weight.unload(0..1);
        }
        let info = WeightInfo {
            id,
            name: weight.name().to_string(),
            format: weight.format(),
            rows: weight.rows(),
            cols: weight.cols(),
            bytes: weight.bytes(),
        };
        Self { info, file: Some(weight.clone()), panels: None, vector }
    }

    /// What it is.
    pub fn info(&self) -> &WeightInfo {
        &self.info
    }

    /// Its one row as F32; none for a matrix.
    pub fn vector(&self) -> Option<&[f32]> {
        (!self.vector.is_empty()).then_some(&self.vector)
    }

    /// The addresses of its bytes, in every layout that it is held in.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        let file = self.file.iter().flat_map(file_ranges);
        file.chain(self.panels.as_ref().map(Packed::range)).collect()
    }

    /// As the file has it.
    ///
    /// # Errors
    /// When it was let go.
    pub fn file(&self) -> Result<&Weight, Fault> {
        self.file.as_ref().ok_or_else(|| {
            let expected = "its bytes as the file has them, which this kernel reads";
            Fault::new(&self.info.name, expected, "panels alone, as an earlier plan reads it")
                .remedy("pack the weight again")
        })
    }

    /// In panels, if it is.
    pub fn panels(&self) -> Option<&Packed> {
        self.panels.as_ref()
    }

    /// Takes its panels, which have been filled.
    pub fn take_panels(&mut self, panels: Packed) {
        self.panels = Some(panels);
    }

    /// Lets the bytes go that were given, where there are panels.
    pub fn let_file_go(&mut self) {
        if self.panels.is_some() {
            self.file = None;
        }
    }
}

fn affine_bits(format: Format) -> AffineBits {
    match format {
        Format::Affine { bits, .. } => bits,
        _ => AffineBits::Eight,
    }
}

/// Pointers into a weight as the file has it, which outlives every step that uses them.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Output features.
    pub rows: usize,
    first: PackedRow,
    row_bytes: usize,
    scale_row_bytes: usize,
}

// SAFETY: the bytes behind the pointers are read-only and are kept by the executable.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

impl Matrix {
    /// The rows of `w`, packed.
    pub fn of(w: &Weight) -> Self {
        let (rows, cols) = (w.rows(), w.cols());
        match w.data() {
            WeightData::Blocks(bytes) => Self {
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
            WeightData::Affine(a) => Self {
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
