//! An open model: its numbers, its weights by role, its tensors by name, its vocabulary.

use crate::config::ModelConfig;
use crate::error::FormatError;
use crate::gguf::{GgufVocab, Header};
use crate::names::Role;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use tare_core::{DType, Fault, Format, Weight};

/// What kind of file a model came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// config.json and safetensors.
    HuggingFace,
    /// The same with MLX's packed matrices.
    Mlx,
    /// One GGUF file.
    Gguf {
        /// 2 or 3.
        version: u32,
    },
    /// No file: weights made in memory.
    Synthetic,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileKind::HuggingFace => f.write_str("hugging face"),
            FileKind::Mlx => f.write_str("mlx"),
            FileKind::Gguf { version } => write!(f, "gguf v{version}"),
            FileKind::Synthetic => f.write_str("synthetic"),
        }
    }
}

/// What the elements of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Plain elements.
    Plain(DType),
    /// Packed weights.
    Packed(Format),
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Elements::Plain(d) => d.fmt(f),
            Elements::Packed(p) => p.fmt(f),
        }
    }
}

/// One tensor as the file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// What its elements are.
    pub elements: Elements,
    /// Row-major shape, columns last.
    pub shape: Vec<usize>,
    /// Bytes of its data.
    pub bytes: u64,
}

/// Where the vocabulary of a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerSource {
    /// A folder with tokenizer.json, and tokenizer_config.json where there is one.
    Folder(PathBuf),
    /// The vocabulary that was inside the GGUF file.
    Gguf(Box<GgufVocab>),
    /// There is none: token ids in, logits out.
    None,
}

/// An open model. Weights are ranges of the mapped files; cloning one copies no bytes.
#[derive(Debug)]
pub struct ModelFile {
    /// The decoder's numbers.
    pub config: ModelConfig,
    /// Kind of file.
    pub kind: FileKind,
    /// The file or folder that was opened; empty for a synthetic model.
    pub path: PathBuf,
    pub(crate) weights: BTreeMap<Role, Weight>,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) ignored: Vec<String>,
    pub(crate) tokenizer: TokenizerSource,
    pub(crate) chat_template: Option<String>,
    pub(crate) bytes_on_disk: u64,
    pub(crate) header: Option<Header>,
}

impl ModelFile {
    /// A model whose weights were made in memory, without a vocabulary.
    ///
    /// # Errors
    /// When the configuration is out of bounds, or a weight is missing, has no place or has another shape.
    pub fn from_weights(config: ModelConfig, weights: BTreeMap<Role, Weight>) -> Result<Self, FormatError> {
        config.check()?;
        let roles = Role::all(&config);
        for role in &roles {
            let weight = weights.get(role).ok_or_else(|| Fault::new(role.to_string(), "a weight", "nothing"))?;
            check_shape(weight.name(), role.shape(&config), (weight.rows(), weight.cols()))?;
        }
        if let Some(role) = weights.keys().find(|r| !roles.contains(r)) {
            return Err(Fault::new(role.to_string(), "no such weight in a model of this configuration", "one").into());
        }
        let tensors = weights.values().map(|w| TensorInfo {
            name: w.name().to_owned(),
            elements: w.format().dtype().map_or(Elements::Packed(w.format()), Elements::Plain),
            shape: vec![w.rows(), w.cols()],
            bytes: w.bytes() as u64,
        });
        Ok(Self {
            tensors: tensors.collect(),
            config,
            kind: FileKind::Synthetic,
            path: PathBuf::new(),
            weights,
            ignored: Vec::new(),
            tokenizer: TokenizerSource::None,
            chat_template: None,
            bytes_on_disk: 0,
            header: None,
        })
    }

    /// The weight of `role`, still packed. A tied head is the embedding.
    ///
    /// # Errors
    /// When a model of this configuration has no such weight.
    pub fn weight(&self, role: Role) -> Result<Weight, FormatError> {
        let found = if role == Role::Head && self.config.tied_head { Role::Embed } else { role };
        self.weights.get(&found).cloned().ok_or_else(|| {
            let expected =
                format!("a weight of a {} model of {} layers", self.config.arch.model_type(), self.config.layers);
            Fault::new(role.to_string(), expected, "no such weight").into()
        })
    }

    /// Whether [`ModelFile::weight`] gives one for `role`.
    pub fn has(&self, role: Role) -> bool {
        (role == Role::Head && self.config.tied_head) || self.weights.contains_key(&role)
    }

    /// All tensors of the files, used or not.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// Names of tensors that are there and not used: a head stored beside a tied embedding, rotary tables.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Where the vocabulary is.
    pub fn tokenizer(&self) -> &TokenizerSource {
        &self.tokenizer
    }

    /// The model's chat template (Jinja).
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Bytes of the files with the weights.
    pub fn bytes_on_disk(&self) -> u64 {
        self.bytes_on_disk
    }

    /// The metadata of a GGUF file.
    pub fn gguf_header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

/// Holds the shape of a tensor against that of the configuration.
pub(crate) fn check_shape(name: &str, want: (usize, usize), got: (usize, usize)) -> Result<(), Fault> {
    if want == got {
        return Ok(());
    }
    Err(Fault::new(name, format!("[{}, {}] by the configuration", want.0, want.1), format!("[{}, {}]", got.0, got.1))
        .remedy("the configuration and the weights are not of one model"))
}
