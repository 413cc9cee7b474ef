//! Weights on the device: packed once, read by every step.

use tare_core::{DType, Format, Weight};
use tare_formats::codec::dequantize_row;
use tare_ops::OpError;

use crate::args;
use crate::device::{Address, Device};
use crate::layout::{Layout, chunks, scale_dtype};

/// Bytes of a weight that are packed on the host before they go to the device.
const SLAB_BYTES: usize = 16 << 20;

/// A weight on the device.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// The name in the model.
    pub(crate) name: String,
    /// How the file packs it.
    pub(crate) format: Format,
    /// Output features.
    pub(crate) rows: usize,
    /// Input features.
    pub(crate) cols: usize,
    /// Where its parts lie.
    pub(crate) matrix: args::Matrix,
    /// The same as F32, when it has one row: a norm's weight or a bias.
    pub(crate) vector: Option<Address>,
}

impl Held {
    /// Packs a weight and copies it to the device.
    ///
    /// # Errors
    /// When memory runs out or the device fails.
    pub(crate) fn upload(weight: &Weight, device: &mut impl Device) -> Result<Self, OpError> {
        Ok(Self {
            name: weight.name().to_string(),
            format: weight.format(),
            rows: weight.rows(),
            cols: weight.cols(),
            matrix: matrix(weight, device)?,
            vector: vector(weight, device)?,
        })
    }
}

/// Packs the rows of a matrix slab by slab.
fn matrix(weight: &Weight, device: &mut impl Device) -> Result<args::Matrix, OpError> {
    let layout = Layout::of(weight.format());
    let sizes = layout.sizes(weight);
    let mut at = [Address::NULL; 3];
    for (at, size) in at.iter_mut().zip(sizes).filter(|(_, size)| *size > 0) {
        *at = device.alloc(weight.name(), size)?;
    }
    let row_bytes = sizes[0].checked_div(weight.rows()).unwrap_or(0).max(1);
    let slab = (SLAB_BYTES / row_bytes).max(1);
    let mut ends = at;
    for first in (0..weight.rows()).step_by(slab) {
        let parts = layout.pack(weight, first..(first + slab).min(weight.rows()));
        for (end, part) in ends.iter_mut().zip(&parts).filter(|(_, part)| !part.is_empty()) {
            device.upload(*end, part)?;
            *end = end.plus(part.len());
        }
    }
    Ok(args::Matrix {
        quants: at[0].0,
        scales: at[1].0,
        biases: at[2].0,
        rows: weight.rows() as u32,
        cols: weight.cols() as u32,
        chunks: chunks(weight.cols()) as u32,
        scale_kind: match scale_dtype(weight) {
            DType::F16 => 1,
            DType::BF16 => 2,
            _ => 0,
        },
    })
}

/// The one row of a vector as F32; none for a matrix.
fn vector(weight: &Weight, device: &mut impl Device) -> Result<Option<Address>, OpError> {
    if weight.rows() != 1 || weight.cols() == 0 {
        return Ok(None);
    }
    let mut values = vec![0.0f32; weight.cols()];
    dequantize_row(weight, 0, &mut values);
    // Kernels read 16 bytes at once.
    let at = device.alloc(weight.name(), size_of_val(&values[..]).next_multiple_of(16))?;
    device.upload(at, bytemuck::cast_slice(&values))?;
    Ok(Some(at))
}
