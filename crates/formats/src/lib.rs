//! Model files: safetensors, GGUF and MLX folders, their block codecs and quantizers.
//!
//! [`open::open`] maps a model and gives its [`config::ModelConfig`] and its weights by [`names::Role`], still packed;
//! [`codec`] turns packed rows into F32 and [`quantize`](mod@quantize) packs them; [`convert`] writes new files.
//! Opening reads headers only, checks every length against the file before it is believed, and refuses what it does
//! not understand.

#![deny(unsafe_code)]

pub mod codec;
pub mod config;
pub mod container;
pub mod convert;
pub mod error;
pub mod fuzz;
pub mod gguf;
mod json;
mod map;
pub mod model_file;
pub mod names;
pub mod open;
pub mod quantize;
mod regular;
pub mod safetensors;

pub use config::{Arch, ModelConfig, Rope, RopeScaling, RopeStyle};
pub use error::FormatError;
pub use gguf::GgufVocab;
pub use model_file::{FileKind, ModelFile, TensorInfo, TokenizerSource};
pub use names::{Part, Role};
pub use open::open;
