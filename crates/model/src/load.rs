//! Opening a model by name, and what can be asked of it without reading its weights.

use serde::Serialize;
use std::path::Path;
use std::sync::OnceLock;
use tare_core::digest::{Hasher, sha256_hex};
use tare_core::{Format, Weight, WeightData};
use tare_formats::open::open;
use tare_formats::{ModelConfig, ModelFile, Role, TokenizerSource};

use crate::synthetic::{self, Synthetic};
use crate::{ModelError, classes};

/// Bytes that a digest reads before it unloads them.
const DIGESTED: usize = 4 << 20;

/// A model whose weights can be had by role: files on disk, or weights made from a seed.
#[derive(Debug)]
pub struct Model {
    spec: String,
    source: Source,
    /// Digest of a file's weights, once somebody asked: files of gigabytes are read once.
    digest: OnceLock<String>,
}

#[derive(Debug)]
enum Source {
    File(Box<ModelFile>),
    Synthetic(Synthetic),
}

/// A tensor of a model, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// What it is for.
    pub role: Role,
    /// Its name in the file.
    pub name: String,
    /// How it is packed.
    pub format: Format,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Bytes, scales included.
    pub bytes: usize,
}

impl TensorInfo {
    /// How many numbers it holds.
    pub fn weights(&self) -> u64 {
        self.rows as u64 * self.cols as u64
    }
}

/// What a model is, for people and records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Description {
    /// What was opened: a path, or a synthetic name written out in full.
    pub spec: String,
    /// Short name: the last part of the path, or the shape's.
    pub name: String,
    /// Family: `qwen3`.
    pub arch: &'static str,
    /// `hugging face`, `mlx`, `gguf v3`, `synthetic`.
    pub kind: String,
    /// Format of most of the weights that steps multiply with.
    pub format: Format,
    /// Bytes of the files; for a synthetic model those of its weights.
    pub bytes: u64,
}

impl Description {
    /// What a record calls the model: a synthetic one by its specification, a file by its name. Never a path, which
    /// means nothing elsewhere; digests say what the weights are.
    pub fn label(&self) -> &str {
        if self.spec.starts_with(synthetic::SCHEME) { &self.spec } else { &self.name }
    }
}

impl Model {
    /// Opens `spec`: a file or folder, or `synthetic:NAME[?format=F&seed=N]` (see [`crate::synthetic`]).
    ///
    /// Weights are neither read nor made here.
    ///
    /// # Errors
    /// When nothing is there, it is damaged, or it needs what tare does not do.
    pub fn open(spec: &str) -> Result<Self, ModelError> {
        if let Some(rest) = spec.strip_prefix(synthetic::SCHEME) {
            let made = Synthetic::parse(rest)?;
            return Ok(Self { spec: made.spec(), source: Source::Synthetic(made), digest: OnceLock::new() });
        }
        let source = Source::File(Box::new(open(Path::new(spec))?));
        Ok(Self { spec: spec.into(), source, digest: OnceLock::new() })
    }

    /// The decoder's numbers.
    pub fn config(&self) -> &ModelConfig {
        match &self.source {
            Source::File(f) => &f.config,
            Source::Synthetic(s) => s.config(),
        }
    }

    /// One weight, still packed. The matrices of a synthetic model are made when somebody looks at their bytes and are kept
    /// by who has looked alone. A tied head is the embedding.
    ///
    /// # Errors
    /// When the model has no such weight.
    pub fn weight(&self, role: Role) -> Result<Weight, ModelError> {
        match &self.source {
            Source::File(f) => Ok(f.weight(role)?),
            Source::Synthetic(s) => Ok(s.weight(role)?),
        }
    }

    /// Every weight without its bytes, in the order in which a step uses them. A tied head is not listed again.
    ///
    /// # Errors
    /// When the files lack a weight.
    pub fn tensors(&self) -> Result<Vec<TensorInfo>, ModelError> {
        Role::all(self.config()).into_iter().map(|role| self.tensor(role)).collect()
    }

    fn tensor(&self, role: Role) -> Result<TensorInfo, ModelError> {
        match &self.source {
            Source::Synthetic(s) => Ok(s.tensor(role)),
            Source::File(f) => {
                let w = f.weight(role)?;
                let (rows, cols, bytes) = (w.rows(), w.cols(), w.bytes());
                Ok(TensorInfo { role, name: w.name().into(), format: w.format(), rows, cols, bytes })
            }
        }
    }

    /// The file behind it; none for a synthetic model.
    pub fn file(&self) -> Option<&ModelFile> {
        match &self.source {
            Source::File(f) => Some(f),
            Source::Synthetic(_) => None,
        }
    }

    /// Where the vocabulary is.
    pub fn tokenizer(&self) -> &TokenizerSource {
        self.file().map_or(&TokenizerSource::None, ModelFile::tokenizer)
    }

    /// The model's chat template (Jinja).
    pub fn chat_template(&self) -> Option<&str> {
        self.file().and_then(ModelFile::chat_template)
    }

    /// What it is.
    ///
    /// # Errors
    /// When the files lack a weight.
    pub fn describe(&self) -> Result<Description, ModelError> {
        let format = classes::commonest(&classes::multiplied_formats(self)?);
        let (name, kind, bytes) = match &self.source {
            Source::File(f) => (file_name(&f.path), f.kind.to_string(), f.bytes_on_disk()),
            Source::Synthetic(s) => {
                (s.name().into(), "synthetic".into(), self.tensors()?.iter().map(|t| t.bytes as u64).sum())
            }
        };
        Ok(Description { spec: self.spec.clone(), name, arch: self.config().arch.model_type(), kind, format, bytes })
    }

    /// SHA-256 that stands for the values of the weights, whatever file they are in.
    ///
    /// For files it runs over role, format, shape and bytes of every weight in role order, and so reads all of them.
    /// For a synthetic model it is that of the written-out spec and [`synthetic::GENERATOR`], which fix every byte.
    ///
    /// # Errors
    /// When the files lack a weight.
    pub fn values_digest(&self) -> Result<String, ModelError> {
        match &self.source {
            Source::Synthetic(s) => Ok(sha256_hex(format!("{} {}", synthetic::GENERATOR, s.spec()).as_bytes())),
            Source::File(_) => match self.digest.get() {
                Some(known) => Ok(known.clone()),
                None => {
                    let digest = self.bytes_digest()?;
                    Ok(self.digest.get_or_init(|| digest).clone())
                }
            },
        }
    }

    /// Takes `digest` for what [`Model::values_digest`] would find in the files, which it then need not read: for who has
    /// seen to it that they are the files of before.
    pub fn trust_values_digest(&self, digest: String) {
        self.digest.get_or_init(|| digest);
    }

    /// The digest over the bytes themselves, for files and synthetic models alike.
    ///
    /// # Errors
    /// When the files lack a weight.
    pub fn bytes_digest(&self) -> Result<String, ModelError> {
        let mut digest = Hasher::new();
        for role in Role::all(self.config()) {
            let w = self.weight(role)?;
            digest.update(format!("{role} {} [{}, {}]", w.format(), w.rows(), w.cols()).as_bytes());
            if let WeightData::Affine(a) = w.data() {
                digest.update(a.scale_dtype.name().as_bytes());
            }
            for part in w.parts() {
                // Piece by piece, so that a file leaves no trace in the memory of the process.
                for (i, piece) in part.chunks(DIGESTED).enumerate() {
                    digest.update(piece);
                    part.unload(i * DIGESTED..(i + 1) * DIGESTED);
                }
            }
        }
        Ok(digest.finish())
    }
}

/// The last part of `path`, or all of it where it has none.
fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}
