//! GGUF: one file with metadata, a vocabulary and tensors (github.com/ggml-org/ggml, docs/gguf.md).

pub mod header;
pub mod value;
pub mod vocab;
pub mod write;

pub use header::{Header, Tensor, parse};
pub use value::{Array, Kind, Value};
pub use vocab::{GgufVocab, PLACEHOLDER};
pub use write::{TensorPlan, write};
