//! What hostile bytes can reach: one function a parser, called by the fuzz targets and by the test over the corpus.
//!
//! They return nothing; a panic, an endless loop or an allocation out of proportion is the finding.

use crate::config::{self, hf};
use crate::gguf::{GgufVocab, header};
use crate::safetensors;
use tare_core::Blob;

/// A GGUF file: header, configuration, vocabulary.
pub fn gguf(bytes: &[u8]) {
    let file = Blob::from_vec(bytes.to_vec());
    if let Ok(header) = header::parse(&file) {
        let _ = config::gguf::parse(&header, &file);
        let _ = GgufVocab::read(&header);
    }
}

/// A safetensors file, and the same bytes as an index of shards.
pub fn safetensors_header(bytes: &[u8]) {
    let _ = safetensors::parse(bytes);
    let _ = safetensors::index(bytes);
}

/// config.json, and the same bytes as generation_config.json.
pub fn config(bytes: &[u8]) {
    let _ = hf::parse(bytes);
    let _ = hf::generation_eos(bytes);
}
