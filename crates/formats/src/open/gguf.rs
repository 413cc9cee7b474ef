//! A GGUF file as a model.

use crate::config::{self, ModelConfig};
use crate::error::FormatError;
use crate::gguf::vocab::{Metadata, PLACEHOLDER};
use crate::gguf::{GgufVocab, Header, Tensor, header};
use crate::map::map;
use crate::model_file::{Elements, FileKind, ModelFile, TensorInfo, TokenizerSource, check_shape};
use crate::names::Role;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use tare_core::{Blob, Fault, Weight};

/// Opens `file`; the model is named `path`, which may be the folder that holds it.
pub(super) fn open(path: &Path, file: &Path) -> Result<ModelFile, FormatError> {
    let bytes = map(file)?;
    let header = header::parse(&bytes)?;
    let config = config::gguf::parse(&header, &bytes)?;
    let weights = weights(&header, &config, &bytes)?;
    let placeholder = Metadata(&header).flag(PLACEHOLDER)? == Some(true);
    let vocab = GgufVocab::read(&header)?.filter(|_| !placeholder);
    let chat_template = Metadata(&header).text("tokenizer.chat_template")?.map(str::to_owned);
    // The header has been read.
    bytes.unload(0..bytes.len());
    Ok(ModelFile {
        config,
        kind: FileKind::Gguf { version: header.version },
        path: path.to_path_buf(),
        weights,
        tensors: header.tensors.iter().map(info).collect(),
        ignored: Vec::new(),
        tokenizer: vocab.map_or(TokenizerSource::None, |v| TokenizerSource::Gguf(Box::new(v))),
        chat_template,
        bytes_on_disk: bytes.len() as u64,
        header: Some(header),
    })
}

fn info(t: &Tensor) -> TensorInfo {
    TensorInfo {
        name: t.name.clone(),
        elements: t.format.dtype().map_or(Elements::Packed(t.format), Elements::Plain),
        shape: t.shape.clone(),
        bytes: t.range.len() as u64,
    }
}

/// Gives every tensor its role; a tensor without one and a role without one are faults.
fn weights(header: &Header, config: &ModelConfig, file: &Blob) -> Result<BTreeMap<Role, Weight>, FormatError> {
    let mut tensors: HashMap<&str, &Tensor> = header.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
    tensors.remove(config::gguf::FACTORS);
    let mut out = BTreeMap::new();
    for role in Role::all(config) {
        let name = role.gguf();
        let tensor = tensors.remove(name.as_str()).ok_or_else(|| super::missing(&name, role, config))?;
        let shape = match (tensor.shape.as_slice(), role.is_vector()) {
            (&[n], true) => (1, n),
            (&[r, c], false) => (r, c),
            (other, vector) => {
                let expected = if vector { "a vector" } else { "a matrix" };
                return Err(Fault::new(name, expected, format!("the shape {other:?}")).into());
            }
        };
        check_shape(&name, role.shape(config), shape)?;
        if role.is_vector() && tensor.format.dtype().is_none() {
            return Err(FormatError::Unsupported(Fault::new(name, "f32, f16 or bf16", tensor.format.to_string())));
        }
        let bytes = file.slice(tensor.range.clone()).expect("the header's ranges lie in the file");
        out.insert(role, Weight::blocks(&name, tensor.format, shape.0, shape.1, bytes)?);
    }
    match header.tensors.iter().find(|t| tensors.contains_key(t.name.as_str())) {
        Some(t) => Err(super::unknown(&t.name, config)),
        None => Ok(out),
    }
}
