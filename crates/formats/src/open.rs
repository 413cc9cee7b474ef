//! Opening a model: a Hugging Face or MLX folder, one safetensors file beside its config.json, or a GGUF file.

mod folder;
mod gguf;

use crate::config::ModelConfig;
use crate::error::FormatError;
use crate::model_file::ModelFile;
use crate::names::Role;
use std::path::{Path, PathBuf};
use tare_core::Fault;

/// Opens the model at `path`. Headers are read and checked; the weights are mapped and not read.
///
/// # Errors
/// When nothing that tare reads is there, a file is damaged, or the model needs what tare does not do.
pub fn open(path: &Path) -> Result<ModelFile, FormatError> {
    let meta = std::fs::metadata(path).map_err(|e| FormatError::io(path, "open", e))?;
    let opened = if meta.is_dir() { open_folder(path) } else { open_file(path) };
    opened.map_err(|e| e.within(path.display()))
}

fn open_file(path: &Path) -> Result<ModelFile, FormatError> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("gguf") => gguf::open(path, path),
        Some("safetensors") => {
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            folder::open(path, parent, vec![path.to_path_buf()])
        }
        _ => Err(Fault::new("file", "a .gguf or .safetensors file or a folder", "another name")
            .remedy("rename the file if it is one of these")
            .into()),
    }
}

fn open_folder(path: &Path) -> Result<ModelFile, FormatError> {
    let with = |ext| files_with(path, ext);
    let (tensors, ggufs) = (with("safetensors")?, with("gguf")?);
    match (tensors.as_slice(), ggufs.as_slice()) {
        ([], [one]) => gguf::open(path, one),
        ([], []) => {
            let fault = Fault::new("folder", "config.json with .safetensors files, or one .gguf file", "neither");
            Err(fault.remedy("older .bin and .pth files must be converted to safetensors").into())
        }
        ([], many) => {
            let names: Vec<_> = many.iter().filter_map(|p| p.file_name()).map(|n| n.to_string_lossy()).collect();
            let fault = Fault::new("folder", "one .gguf file", names.join(", "));
            Err(fault.remedy("name the file instead of the folder").into())
        }
        (files, _) => folder::open(path, path, folder::shards(path, files)?),
    }
}

/// Files of `folder` with an extension, sorted.
fn files_with(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, FormatError> {
    let entries = std::fs::read_dir(folder).map_err(|e| FormatError::io(folder, "list", e))?;
    let mut out = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| FormatError::io(folder, "list", e))?.path();
        if path.extension().is_some_and(|e| e == extension) && path.is_file() {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}

/// A weight that the configuration asks for and the files do not have.
fn missing(name: &str, role: Role, config: &ModelConfig) -> FormatError {
    let (rows, cols) = role.shape(config);
    let fault = Fault::new(name, format!("a tensor [{rows}, {cols}]"), "nothing");
    fault.remedy("the download is incomplete, or the configuration is that of another model").into()
}

/// A tensor that a model of this configuration has no use for.
fn unknown(name: &str, config: &ModelConfig) -> FormatError {
    let expected = format!("only tensors of a {} model of {} layers", config.arch.model_type(), config.layers);
    FormatError::Unsupported(Fault::new(name, expected, "a tensor that tare would have to ignore"))
}
