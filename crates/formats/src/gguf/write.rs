//! GGUF files to be: the head, from which a [`Writer`](crate::container::Writer) goes on with the data.

use super::header::{DEFAULT_ALIGNMENT, NAME_LIMIT, type_id};
use super::value::{Value, write_string};
use crate::container::Writer;
use crate::error::FormatError;
use std::collections::HashSet;
use std::io::Write;
use tare_core::{Fault, Format};

/// Version that is written; readers of version 2 and 3 differ in byte order alone.
const VERSION: u32 = 3;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlan {
    /// Its name, at most 64 bytes.
    pub name: String,
    /// How it is packed.
    pub format: Format,
    /// Row-major shape, columns last.
    pub shape: Vec<usize>,
}

impl TensorPlan {
    /// Bytes of its data.
    ///
    /// # Errors
    /// When the columns are no multiple of the block or the format is none of GGUF's.
    pub fn bytes(&self) -> Result<u64, Fault> {
        let (&cols, rows) = self.shape.split_last().ok_or_else(|| Fault::new(&self.name, "a dimension", "none"))?;
        let row = self.format.row_bytes(cols).filter(|_| type_id(self.format).is_some()).ok_or_else(|| {
            let expected = format!("a GGUF format and columns in multiples of {}", self.format.block_weights());
            Fault::new(&self.name, expected, format!("{} and {cols}", self.format))
                .remedy("choose bf16, f16 or f32, or an MLX format (w4gN, w8gN), which leaves such a matrix plain")
        })?;
        rows.iter()
            .try_fold(row as u64, |n, &r| n.checked_mul(r as u64))
            .ok_or_else(|| Fault::new(&self.name, "a shape that fits in a file", format!("{:?}", self.shape)))
    }
}

/// Starts a GGUF file: metadata and tensor descriptions are written, the data is expected in the order of `tensors`.
///
/// # Errors
/// When a name is taken twice or too long, a tensor does not fit its format, or `out` fails.
pub fn write<W: Write>(out: W, metadata: &[(String, Value)], tensors: &[TensorPlan]) -> Result<Writer<W>, FormatError> {
    let sizes = tensors.iter().map(TensorPlan::bytes).collect::<Result<Vec<u64>, Fault>>()?;
    let head = head(metadata, tensors, &sizes)?;
    let writer = Writer::new(out, &head, sizes, DEFAULT_ALIGNMENT as u64);
    writer.map_err(|e| FormatError::io("gguf file".as_ref(), "write", e))
}

fn head(metadata: &[(String, Value)], tensors: &[TensorPlan], sizes: &[u64]) -> Result<Vec<u8>, Fault> {
    let mut names = HashSet::new();
    let keys = metadata.iter().map(|(k, _)| k);
    if let Some(twice) = keys.chain(tensors.iter().map(|t| &t.name)).find(|n| !names.insert(n.as_str())) {
        return Err(Fault::new(twice, "distinct names", "it twice"));
    }
    let mut out = b"GGUF".to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        write_string(key, &mut out);
        out.extend(value.kind().id().to_le_bytes());
        value.write(&mut out);
    }
    let mut offset = 0u64;
    for (t, size) in tensors.iter().zip(sizes) {
        if t.name.len() > NAME_LIMIT {
            return Err(Fault::new(&t.name, format!("a name of at most {NAME_LIMIT} bytes"), t.name.len().to_string()));
        }
        write_string(&t.name, &mut out);
        out.extend((t.shape.len() as u32).to_le_bytes());
        t.shape.iter().rev().for_each(|&d| out.extend((d as u64).to_le_bytes()));
        out.extend(type_id(t.format).unwrap_or_default().to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += size.next_multiple_of(DEFAULT_ALIGNMENT as u64);
    }
    Ok(out)
}
