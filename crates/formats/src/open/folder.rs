//! A Hugging Face or MLX folder as a model.

use crate::config::hf::{self, HfConfig, Quantization};
use crate::error::FormatError;
use crate::json::{self, Fields};
use crate::map::map;
use crate::model_file::{Elements, FileKind, ModelFile, TensorInfo, TokenizerSource, check_shape};
use crate::names::Role;
use crate::regular::read;
use crate::safetensors::{self, Entry};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tare_core::{Affine, AffineBits, Blob, DType, Fault, Format, Weight};

/// Longest tokenizer_config.json or chat template that is read.
const TEXT_LIMIT: u64 = 16 << 20;
const INDEX: &str = "model.safetensors.index.json";

/// The weight files of a folder: those of the index, or `model.safetensors`, or the only one there is.
pub(super) fn shards(folder: &Path, found: &[PathBuf]) -> Result<Vec<PathBuf>, FormatError> {
    let index = folder.join(INDEX);
    if index.exists() {
        let map = safetensors::index(&read(&index, safetensors::HEADER_LIMIT as u64)?)?;
        let names: BTreeSet<&String> = map.values().collect();
        return Ok(names.into_iter().map(|n| folder.join(n)).collect());
    }
    let single = folder.join("model.safetensors");
    match found {
        _ if found.contains(&single) => Ok(vec![single]),
        [one] => Ok(vec![one.clone()]),
        many => {
            let found = format!("{} .safetensors files and no {INDEX}", many.len());
            Err(Fault::new("folder", "one model", found).remedy("fetch the index too, or name one file").into())
        }
    }
}

/// A tensor and the bytes of the file that holds it.
struct Stored {
    entry: Entry,
    file: Blob,
}

impl Stored {
    fn bytes(&self) -> Blob {
        self.file.slice(self.entry.range.clone()).expect("the header's ranges lie in the file")
    }
}

/// Opens the model of `files`, whose configuration is in `folder`; the model is named `path`.
pub(super) fn open(path: &Path, folder: &Path, files: Vec<PathBuf>) -> Result<ModelFile, FormatError> {
    let config = folder.join("config.json");
    if !config.exists() {
        let fault = Fault::new("config.json", "a file beside the weights", "none");
        return Err(fault.remedy("fetch the whole model folder").into());
    }
    let HfConfig { model: mut config, quantization } =
        hf::parse(&read(&config, hf::LIMIT as u64)?).map_err(|e| e.within("config.json"))?;
    let generation = folder.join("generation_config.json");
    if generation.exists() {
        config.add_eos(hf::generation_eos(&read(&generation, hf::LIMIT as u64)?)?);
    }
    let (mut stored, bytes_on_disk) = read_shards(&files)?;
    if files.len() > 1 {
        check_index(&folder.join(INDEX), &stored)?;
    }
    let tensors = stored.values().map(|s| info(&s.entry)).collect();
    let loader = Loader { quantization: quantization.as_ref() };
    let mut weights = BTreeMap::new();
    for role in Role::all(&config) {
        let name = role.hugging_face();
        let tensor = stored.remove(&name).ok_or_else(|| super::missing(&name, role, &config))?;
        weights.insert(role, loader.weight(role, role.shape(&config), tensor, &mut stored)?);
    }
    let (ignored, unknown): (Vec<_>, Vec<_>) = stored.into_keys().partition(|n| harmless(n, config.tied_head));
    if let Some(name) = unknown.first() {
        return Err(super::unknown(name, &config));
    }
    loader.check_overrides(&weights)?;
    Ok(ModelFile {
        kind: if quantization.is_some() { FileKind::Mlx } else { FileKind::HuggingFace },
        config,
        path: path.to_path_buf(),
        weights,
        tensors,
        ignored,
        tokenizer: tokenizer(folder),
        chat_template: chat_template(folder)?,
        bytes_on_disk,
        header: None,
    })
}

fn read_shards(files: &[PathBuf]) -> Result<(BTreeMap<String, Stored>, u64), FormatError> {
    let (mut out, mut total) = (BTreeMap::new(), 0);
    for path in files {
        let file = map(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        total += file.len() as u64;
        for entry in safetensors::parse(&file).map_err(|e| e.within(&name))?.entries {
            let key = entry.name.clone();
            if out.insert(key.clone(), Stored { entry, file: file.clone() }).is_some() {
                return Err(Fault::new(key, "one tensor of this name", "it in two files").into());
            }
        }
        // The header has been read.
        file.unload(0..file.len());
    }
    Ok((out, total))
}

/// Every tensor of the index must be in the shards, and the other way round.
fn check_index(index: &Path, stored: &BTreeMap<String, Stored>) -> Result<(), FormatError> {
    let map = safetensors::index(&read(index, safetensors::HEADER_LIMIT as u64)?)?;
    if let Some((name, file)) = map.iter().find(|(n, _)| !stored.contains_key(*n)) {
        return Err(Fault::new(name, format!("data in {file}, as the index says"), "nothing").into());
    }
    match stored.keys().find(|n| !map.contains_key(*n)) {
        Some(name) => Err(Fault::new(name, "an entry in the index", "none").into()),
        None => Ok(()),
    }
}

fn info(e: &Entry) -> TensorInfo {
    let elements = Elements::Plain(e.dtype);
    TensorInfo { name: e.name.clone(), elements, shape: e.shape.clone(), bytes: e.range.len() as u64 }
}

/// Tensors that a model may carry without using them: rotary tables of old exports, and a head beside a tied
/// embedding, which transformers and mlx-lm leave aside too.
fn harmless(name: &str, tied_head: bool) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || (tied_head && name.starts_with("lm_head."))
}

/// Makes weights of stored tensors.
struct Loader<'a> {
    quantization: Option<&'a Quantization>,
}

impl Loader<'_> {
    /// The weight of one role; takes the scales and biases of a packed one out of `stored`.
    fn weight(
        &self,
        role: Role,
        shape: (usize, usize),
        tensor: Stored,
        stored: &mut BTreeMap<String, Stored>,
    ) -> Result<Weight, FormatError> {
        let name = tensor.entry.name.clone();
        if let (false, Some(module)) = (role.is_vector(), name.strip_suffix(".weight"))
            && let Some((bits, group)) = self.packing(module)
        {
            let scales = stored.remove(&format!("{module}.scales"));
            let biases = stored.remove(&format!("{module}.biases"));
            if let Some(scales) = scales {
                let biases = biases.ok_or_else(|| Fault::new(format!("{module}.biases"), "a tensor", "nothing"))?;
                return affine(shape, (bits, group), tensor, [scales, biases]);
            }
            if self.quantization.is_some_and(|q| q.overrides.contains_key(module)) {
                return Err(Fault::new(format!("{module}.scales"), "a tensor, as config.json says", "nothing").into());
            }
        }
        plain(role, shape, &tensor)
    }

    /// Bits and group of a module; `None` when it is plain.
    fn packing(&self, module: &str) -> Option<(AffineBits, u16)> {
        let q = self.quantization?;
        q.overrides.get(module).copied().unwrap_or(Some(q.default))
    }

    /// An override for a module that is not there would be one that was ignored.
    fn check_overrides(&self, weights: &BTreeMap<Role, Weight>) -> Result<(), FormatError> {
        let Some(q) = self.quantization else { return Ok(()) };
        let is_module = |m: &str| weights.values().any(|w| w.name().strip_suffix(".weight") == Some(m));
        match q.overrides.keys().find(|m| !is_module(m)) {
            Some(m) => {
                let fault = Fault::new(format!("quantization.{m}"), "the path of a matrix of this model", "another");
                Err(FormatError::Unsupported(fault.within("config.json")))
            }
            None => Ok(()),
        }
    }
}

fn plain(role: Role, want: (usize, usize), tensor: &Stored) -> Result<Weight, FormatError> {
    let Entry { name, dtype, shape, .. } = &tensor.entry;
    let format = match dtype {
        DType::F32 => Format::F32,
        DType::F16 => Format::F16,
        DType::BF16 => Format::BF16,
        other => {
            let fault = Fault::new(name, "f32, f16 or bf16", other.name());
            return Err(FormatError::Unsupported(fault.remedy("packed words need `quantization` and their scales")));
        }
    };
    let (rows, cols) = match (shape.as_slice(), role.is_vector()) {
        (&[n], true) => (1, n),
        (&[r, c], false) => (r, c),
        (other, vector) => {
            let expected = if vector { "a vector" } else { "a matrix" };
            return Err(Fault::new(name, expected, format!("the shape {other:?}")).into());
        }
    };
    check_shape(name, want, (rows, cols))?;
    Ok(Weight::blocks(name, format, rows, cols, tensor.bytes())?)
}

fn affine(
    (rows, cols): (usize, usize),
    (bits, group): (AffineBits, u16),
    words: Stored,
    [scales, biases]: [Stored; 2],
) -> Result<Weight, FormatError> {
    let expect = |s: &Stored, shape: [usize; 2]| {
        if s.entry.shape == shape {
            return Ok(());
        }
        let place = format!("[{rows}, {cols}] in {} bits, groups of {group}", bits.bits());
        Err(Fault::new(&s.entry.name, format!("{shape:?} ({place})"), format!("{:?}", s.entry.shape)))
    };
    let name = words.entry.name.clone();
    if words.entry.dtype != DType::U32 {
        return Err(Fault::new(name, "words of type u32", words.entry.dtype.name()).into());
    }
    if !cols.is_multiple_of(group as usize) {
        return Err(Fault::new(name, format!("columns in multiples of {group}"), cols.to_string()).into());
    }
    expect(&words, [rows, cols * bits.bits() / 32])?;
    expect(&scales, [rows, cols / group as usize])?;
    expect(&biases, [rows, cols / group as usize])?;
    let scale_dtype = scales.entry.dtype;
    if biases.entry.dtype != scale_dtype {
        return Err(Fault::new(biases.entry.name, scale_dtype.name(), biases.entry.dtype.name()).into());
    }
    let data = Affine { words: words.bytes(), scales: scales.bytes(), biases: biases.bytes(), scale_dtype };
    Ok(Weight::affine(&name, bits, group, (rows, cols), data)?)
}

fn tokenizer(folder: &Path) -> TokenizerSource {
    if folder.join("tokenizer.json").is_file() {
        TokenizerSource::Folder(folder.to_path_buf())
    } else {
        TokenizerSource::None
    }
}

/// `chat_template.jinja`, or `chat_template` of tokenizer_config.json: a text, or a list of named ones of which
/// `default` is taken.
fn chat_template(folder: &Path) -> Result<Option<String>, FormatError> {
    let jinja = folder.join("chat_template.jinja");
    if jinja.exists() {
        let text = String::from_utf8(read(&jinja, TEXT_LIMIT)?)
            .map_err(|_| Fault::new("chat_template.jinja", "UTF-8", "other bytes"))?;
        return Ok(Some(text));
    }
    let path = folder.join("tokenizer_config.json");
    if !path.exists() {
        return Ok(None);
    }
    let map = json::object("tokenizer_config.json", &read(&path, TEXT_LIMIT)?, TEXT_LIMIT as usize)?;
    let fields = Fields::new("", &map);
    let Some(named) = fields.get("chat_template").and_then(serde_json::Value::as_array) else {
        return Ok(fields.text("chat_template")?.map(str::to_owned));
    };
    let default = named.iter().find(|t| t["name"] == "default").and_then(|t| t["template"].as_str());
    Ok(default.map(str::to_owned))
}
