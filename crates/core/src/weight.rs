//! A matrix as a file holds it: its shape, its format and its bytes.

use std::ops::Range;

use crate::{AffineBits, Blob, DType, Fault, Format};

/// A matrix (or vector, with one row) of weights, still packed.
///
/// Row-major, [rows, cols]: `y[r] = sum_c w[r, c] * x[c]`. The constructors check that the bytes are exactly as many
/// as the shape needs, so that readers of the bytes may rely on it.
#[derive(Clone, Debug)]
pub struct Weight {
    name: String,
    format: Format,
    rows: usize,
    cols: usize,
    data: WeightData,
}

/// The bytes of a [`Weight`].
#[derive(Clone, Debug)]
pub enum WeightData {
    /// One run of bytes: plain elements or blocks, row after row.
    Blocks(Blob),
    /// The three tensors of the affine format.
    Affine(Affine),
}

/// The tensors of an affine matrix. `w[r, c] = scales[r, c / G] * q[r, c] + biases[r, c / G]`.
#[derive(Clone, Debug)]
pub struct Affine {
    /// [rows, cols * bits / 32] little-endian u32; the first weight is in the lowest bits.
    pub words: Blob,
    /// [rows, cols / group] elements of `scale_dtype`.
    pub scales: Blob,
    /// [rows, cols / group] elements of `scale_dtype`.
    pub biases: Blob,
    /// F32, F16 or BF16.
    pub scale_dtype: DType,
}

impl Weight {
    /// A matrix in a plain or block format.
    ///
    /// # Errors
    /// When `format` is affine, `cols` is no multiple of the block, or the number of bytes is not that of the shape.
    pub fn blocks(name: &str, format: Format, rows: usize, cols: usize, bytes: Blob) -> Result<Self, Fault> {
        if matches!(format, Format::Affine { .. }) {
            return Err(Fault::new(name, "a plain or block format", format.to_string()));
        }
        let want = expected_bytes(name, format, rows, cols)?;
        check_len(name, "bytes", want, bytes.len())?;
        Ok(Self { name: name.into(), format, rows, cols, data: WeightData::Blocks(bytes) })
    }

    /// A matrix in the affine format.
    ///
    /// # Errors
    /// When a group or the scale type is unknown, `cols` is no multiple of the group, or a tensor has the wrong size.
    pub fn affine(
        name: &str,
        bits: AffineBits,
        group: u16,
        (rows, cols): (usize, usize),
        data: Affine,
    ) -> Result<Self, Fault> {
        if ![32, 64, 128].contains(&group) {
            return Err(Fault::new(name, "a group of 32, 64 or 128", group.to_string()));
        }
        if !matches!(data.scale_dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(Fault::new(name, "scales in f32, f16 or bf16", data.scale_dtype.name()));
        }
        let format = Format::Affine { bits, group };
        expected_bytes(name, format, rows, cols)?;
        check_len(name, "bytes of words", rows * (cols * bits.bits() / 8), data.words.len())?;
        let scale_bytes = rows * (cols / group as usize) * data.scale_dtype.bytes();
        check_len(name, "bytes of scales", scale_bytes, data.scales.len())?;
        check_len(name, "bytes of biases", scale_bytes, data.biases.len())?;
        Ok(Self { name: name.into(), format, rows, cols, data: WeightData::Affine(data) })
    }

    /// The name the file gives it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it is packed.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Its bytes.
    pub fn data(&self) -> &WeightData {
        &self.data
    }

    /// Bytes of all its parts.
    pub fn bytes(&self) -> usize {
        match &self.data {
            WeightData::Blocks(b) => b.len(),
            WeightData::Affine(a) => a.words.len() + a.scales.len() + a.biases.len(),
        }
    }

    /// Its parts: each [rows, ...], row after row.
    pub fn parts(&self) -> Vec<&Blob> {
        match &self.data {
            WeightData::Blocks(b) => vec![b],
            WeightData::Affine(a) => vec![&a.words, &a.scales, &a.biases],
        }
    }

    /// Makes the bytes, if they have to be made: clones from now on are kept as this weight is.
    pub fn look(&self) {
        self.parts().into_iter().for_each(|part| _ = part.first());
    }

    /// Gives back the memory of these rows where their bytes can be had again: see [`Blob::unload`].
    pub fn unload(&self, rows: Range<usize>) {
        for part in self.parts() {
            let row = part.len().checked_div(self.rows).unwrap_or(0);
            part.unload(rows.start * row..rows.end * row);
        }
    }
}

fn expected_bytes(name: &str, format: Format, rows: usize, cols: usize) -> Result<usize, Fault> {
    let Some(row) = format.row_bytes(cols) else {
        let block = format.block_weights();
        return Err(Fault::new(name, format!("columns in multiples of {block} ({format})"), cols.to_string()));
    };
    row.checked_mul(rows).ok_or_else(|| Fault::new(name, "a shape that fits in memory", format!("[{rows}, {cols}]")))
}

fn check_len(name: &str, what: &str, want: usize, got: usize) -> Result<(), Fault> {
    if want == got { Ok(()) } else { Err(Fault::new(name, format!("{want} {what}"), got.to_string())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_must_match_the_shape() {
        let w = |rows, cols, n| Weight::blocks("w", Format::Q4_0, rows, cols, Blob::from_vec(vec![0; n]));
        assert!(w(2, 64, 72).is_ok());
        assert!(w(2, 64, 71).is_err());
        assert!(w(2, 33, 72).is_err());
        assert!(w(usize::MAX, 64, 72).is_err(), "an overflowing shape must not wrap around");
    }
}
