//! Which launches of a program carry which calls, and where the rows lie that they leave.

use std::ops::Range;

use half::bf16;
use tare_ops::{Batch, BufId, Left, OpError, RowSpace};

use crate::device::{Address, Device};
use crate::layout::{CHUNK, LANES};
use crate::program::stride;
use crate::tiles::depth;

/// Calls that travel together.
#[derive(Clone, Debug)]
pub struct Carried {
    /// By their indices in the plan.
    pub calls: Range<usize>,
    /// Their launches, by their places in the step.
    pub launches: Range<usize>,
    /// What these leave.
    pub(crate) left: Vec<Place>,
}

/// Where the rows of a buffer lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    buffer: BufId,
    space: RowSpace,
    width: usize,
    at: Address,
    /// Whether they are BF16, in the order of columns in which products in tiles read them.
    bf16: bool,
}

impl Place {
    /// Of F32 rows.
    pub(crate) fn f32(buffer: BufId, space: RowSpace, width: usize, at: Address) -> Self {
        Self { buffer, space, width, at, bf16: false }
    }

    /// Of rows that are kept as BF16.
    pub(crate) fn bf16(buffer: BufId, space: RowSpace, width: usize, at: Address) -> Self {
        Self { buffer, space, width, at, bf16: true }
    }

    /// Bytes of a row, and from one row to the next.
    fn sizes(&self) -> (usize, usize) {
        match self.bf16 {
            // What pads the columns is written with them.
            true => (2 * depth(self.width), 2 * depth(self.width)),
            false => (size_of::<f32>() * self.width, size_of::<f32>() * stride(self.width)),
        }
    }

    fn row(&self, t: usize) -> Address {
        self.at.plus(t * self.sizes().1)
    }

    /// Fills the rows `rows` of the step with NaN.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn spoil(&self, device: &mut impl Device, batch: &Batch, rows: &[usize]) -> Result<(), OpError> {
        let places = batch.places(self.space, rows);
        places.into_iter().try_for_each(|t| device.fill(self.row(t), self.sizes().0, 0xff))
    }

    /// The rows `rows` of the step.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn read(&self, device: &mut impl Device, batch: &Batch, rows: &[usize]) -> Result<Left, OpError> {
        let places = batch.places(self.space, rows);
        let mut values = Vec::with_capacity(places.len() * self.width);
        let mut bytes = vec![0; self.sizes().0];
        for t in places {
            device.download(self.row(t), &mut bytes)?;
            match self.bf16 {
                true => values.extend((0..self.width).map(|column| narrow_element(&bytes, column))),
                false => values.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
            }
        }
        Ok(Left { buffer: self.buffer, bf16: self.bf16, values })
    }
}

/// Column `column` of a row of BF16 in the order of `matrix.cuh`: lane `l` of a chunk has columns `16 j + l` side by side.
fn narrow_element(bytes: &[u8], column: usize) -> f32 {
    let (chunk, within) = (column / CHUNK, column % CHUNK);
    let at = chunk * CHUNK + within % LANES * (CHUNK / LANES) + within / LANES;
    bf16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32()
}
