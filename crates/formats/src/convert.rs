//! From one file to another: `tare quantize`.
//!
//! Tensors stream through in runs of rows, so memory stays small beside the model. The result is written under a
//! temporary name and renamed when it is complete; something that is already there is never replaced.

mod gguf;
mod mlx;
mod place;
mod rows;
mod vocab;

use crate::error::FormatError;
use crate::model_file::ModelFile;
use crate::quantize::encoder;
use std::path::{Path, PathBuf};
use tare_core::digest::sha256_hex;
use tare_core::{AffineBits, Fault, Format, Weight};

pub use vocab::{byte_level, from_folder};

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An MLX folder with affine matrices.
    Mlx {
        /// Bits of a weight.
        bits: AffineBits,
        /// Weights of a group: 32, 64 or 128.
        group: u16,
    },
    /// A GGUF file with matrices in F32, F16, BF16, Q8_0, Q4_0 or Q6_K; vectors stay F32.
    Gguf {
        /// Format of the matrices.
        matrices: Format,
        /// Format of the output head, which a tied embedding is. llama-quantize keeps it in Q6_K where the others are
        /// Q4_0, and in Q8_0 where its columns are no multiples of 256.
        head: Format,
    },
}

impl Target {
    /// A GGUF file with every matrix in `format`.
    pub const fn gguf(format: Format) -> Self {
        Self::Gguf { matrices: format, head: format }
    }

    /// What tells files of this build from those of one that writes the same model otherwise: 12 hexadecimal digits. A file
    /// that is kept for later is kept under it.
    ///
    /// # Errors
    /// When tare does not write a format of the target.
    pub fn version(self) -> Result<String, Fault> {
        let formats = match self {
            Self::Mlx { bits, group } => vec![Format::Affine { bits, group }],
            Self::Gguf { matrices, head } => vec![matrices, head],
        };
        let encoders = formats.into_iter().map(encoder).collect::<Result<Vec<_>, _>>()?;
        Ok(sha256_hex(format!("{LAYOUT} {}", encoders.join(" ")).as_bytes())[..12].to_string())
    }
}

/// Of what stands around the packed values: raised when the same model is laid out or described otherwise than before.
const LAYOUT: u32 = 1;

/// How far a conversion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The tensor just written.
    pub name: &'a str,
    /// Tensors written.
    pub done: usize,
    /// Tensors of the model.
    pub tensors: usize,
    /// Bytes of tensor data written.
    pub bytes: u64,
    /// Bytes of tensor data in all.
    pub total_bytes: u64,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The file or folder.
    pub path: PathBuf,
    /// Bytes of tensor data.
    pub bytes: u64,
    /// Tensors.
    pub tensors: usize,
}

/// Writes `src` as `target` at `out`: a file for GGUF, a folder for MLX.
///
/// # Errors
/// When `out` exists, the target cannot hold the model, packed weights would be packed again, or writing fails.
pub fn convert(
    src: &ModelFile,
    target: Target,
    out: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Converted, FormatError> {
    let place = place::Place::new(out)?;
    let (bytes, tensors) = match target {
        Target::Gguf { matrices, head } => gguf::convert(src, (matrices, head), place.temporary(), progress)?,
        Target::Mlx { bits, group } => mlx::convert(src, (bits, group), place.temporary(), progress)?,
    };
    place.commit()?;
    Ok(Converted { path: out.to_path_buf(), bytes, tensors })
}

/// Refuses to pack what is already packed: the losses would add up unseen.
fn check_source(w: &Weight, target: Format) -> Result<(), FormatError> {
    let packed = |f: Format| f.dtype().is_none();
    if packed(w.format()) && packed(target) && w.format() != target {
        let expected = format!("f32, f16 or bf16 to make {target} of");
        let fault = Fault::new(w.name(), expected, w.format().to_string());
        return Err(FormatError::Unsupported(fault.remedy("start from the unquantised model")));
    }
    Ok(())
}

/// Counts tensors and bytes, and tells.
struct Meter<'a> {
    progress: &'a mut dyn FnMut(Progress<'_>),
    done: usize,
    tensors: usize,
    bytes: u64,
    total_bytes: u64,
}

impl Meter<'_> {
    fn add(&mut self, name: &str, bytes: u64) {
        self.done += 1;
        self.bytes += bytes;
        let &mut Self { done, tensors, bytes, total_bytes, .. } = self;
        (self.progress)(Progress { name, done, tensors, bytes, total_bytes });
    }
}
