//! The arithmetic of a model: what it holds, what a token costs, which classes and contexts it can have.
//!
//! Nothing here reads a weight. Everything derives from shapes and formats, so that it can be checked by hand.

use serde::Serialize;
use std::collections::BTreeMap;
use tare_core::Format;
use tare_formats::config::RopeScaling;
use tare_formats::{ModelConfig, Role, TokenizerSource};

use crate::classes::{self, ClassFit, is_multiplied};
use crate::limits::{ContextLimit, Memory, Sizes, context_limit};
use crate::{Description, Model, ModelError, planner};

/// What the caller brings: the class and limit a person asked for, and the host's memory.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Class asked for; none takes the model's own.
    pub class: Option<&'a str>,
    /// Context asked for, in tokens.
    pub configured: Option<u64>,
    /// The host's memory.
    pub memory: Memory,
}

/// All that `tare inspect` knows.
#[derive(Clone, Debug, Serialize)]
pub struct Inspect {
    /// Name, kind, format, bytes.
    pub model: Description,
    /// The decoder's numbers.
    pub shape: Shape,
    /// Numbers in all tensors; a tied head counts once.
    pub parameters: u64,
    /// What one decoded token costs.
    pub token: TokenCost,
    /// The class that the limits were computed for.
    pub class: &'static str,
    /// Every class and whether the model can run in it.
    pub classes: Vec<ClassFit>,
    /// How long a context may be.
    pub context: ContextLimit,
    /// What a model usually brings and this one does not.
    pub missing: Vec<Missing>,
    /// Tensors of the files that no step reads.
    pub ignored: Vec<String>,
    /// Totals by format, the one with most weights first.
    pub formats: Vec<FormatTotal>,
    /// Format of the output head, or of the embedding that is one.
    pub head_format: Format,
    /// Every tensor in the order in which a step uses them.
    pub tensors: Vec<TensorLine>,
}

/// The decoder's numbers. Letters as in docs/reference/shapes.md.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// L
    pub layers: usize,
    /// D
    pub hidden: usize,
    /// H
    pub heads: usize,
    /// K
    pub kv_heads: usize,
    /// E
    pub head_size: usize,
    /// F
    pub ffn: usize,
    /// V
    pub vocab: usize,
    /// Added under the root of every norm.
    pub rms_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How they are changed for longer contexts.
    pub rope_scaling: String,
    /// The head is the embedding.
    pub tied_head: bool,
    /// Query, key and value have biases.
    pub qkv_bias: bool,
    /// Query and key heads are normed.
    pub qk_norm: bool,
    /// Positions that the model was made for.
    pub trained_positions: usize,
    /// Token that starts a text.
    pub bos: Option<u32>,
    /// Tokens that end an answer.
    pub eos: Vec<u32>,
}

/// What a step of one row must stream and compute; attention over the context comes on top.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenCost {
    /// Weights that are multiplied with: all projections and the head. Of the embedding only one row is read, and
    /// norms are vectors: neither is counted.
    pub streamed_weights: u64,
    /// Two operations for each streamed weight.
    pub flops: u64,
    /// Bytes of the streamed weights as they are packed in the file, scales included.
    pub streamed_bytes: u64,
    /// What they would be in BF16.
    pub streamed_bytes_bf16: u64,
    /// Bits of a streamed weight in the file, scales included.
    pub bits_per_weight: f64,
    /// Bytes that the token leaves in the KV cache, in [`Inspect::class`].
    pub kv_bytes: u64,
}

/// Something that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// `tokenizer`, `chat template`...
    pub what: &'static str,
    /// What cannot be done without it.
    pub consequence: &'static str,
}

/// All tensors of one format.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FormatTotal {
    /// The format.
    pub format: Format,
    /// How many tensors.
    pub tensors: usize,
    /// How many numbers.
    pub weights: u64,
    /// Bytes, scales included.
    pub bytes: u64,
    /// Bits of a number, scales included.
    pub bits_per_weight: f64,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorLine {
    /// Its name in the file.
    pub name: String,
    /// How it is packed.
    pub format: Format,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Bytes, scales included.
    pub bytes: u64,
    /// Whether a decoded token streams all of it.
    pub streamed: bool,
}

impl Inspect {
    /// Inspects `model`.
    ///
    /// # Errors
    /// When a weight is missing, or the class asked for does not suit the model.
    pub fn of(model: &Model, question: &Question<'_>) -> Result<Self, ModelError> {
        let config = model.config();
        let class = classes::choose(model, question.class)?;
        let description = model.describe()?;
        let tensors = model.tensors()?;
        let head = if config.tied_head { Role::Embed } else { Role::Head };
        let head_format = tensors.iter().find(|t| t.role == head).map_or(description.format, |t| t.format);
        let tensors: Vec<TensorLine> = tensors
            .into_iter()
            .map(|t| TensorLine {
                streamed: is_multiplied(t.role, config),
                bytes: t.bytes as u64,
                name: t.name,
                format: t.format,
                rows: t.rows,
                cols: t.cols,
            })
            .collect();
        let kv_bytes = planner::kv_shape(config, class).token_bytes() as u64;
        let sizes = Sizes {
            weight_bytes: description.bytes,
            kv_bytes_per_token: kv_bytes,
            trained: config.max_positions as u64,
        };
        Ok(Self {
            shape: shape(config),
            parameters: tensors.iter().map(TensorLine::weights).sum(),
            token: token_cost(&tensors, kv_bytes),
            class: class.name,
            classes: classes::fits(model)?,
            context: context_limit(sizes, question.configured, &question.memory),
            missing: missing(model),
            ignored: model.file().map(|f| f.ignored().to_vec()).unwrap_or_default(),
            formats: totals(&tensors),
            head_format,
            model: description,
            tensors,
        })
    }
}

impl TensorLine {
    /// How many numbers it holds.
    pub fn weights(&self) -> u64 {
        self.rows as u64 * self.cols as u64
    }
}

fn token_cost(tensors: &[TensorLine], kv_bytes: u64) -> TokenCost {
    let streamed = || tensors.iter().filter(|t| t.streamed);
    let weights: u64 = streamed().map(TensorLine::weights).sum();
    let bytes: u64 = streamed().map(|t| t.bytes).sum();
    TokenCost {
        streamed_weights: weights,
        flops: 2 * weights,
        streamed_bytes: bytes,
        streamed_bytes_bf16: 2 * weights,
        bits_per_weight: bytes as f64 * 8.0 / weights as f64,
        kv_bytes,
    }
}

fn totals(tensors: &[TensorLine]) -> Vec<FormatTotal> {
    let mut by_format: BTreeMap<Format, (usize, u64, u64)> = BTreeMap::new();
    for t in tensors {
        let (n, weights, bytes) = by_format.entry(t.format).or_default();
        (*n, *weights, *bytes) = (*n + 1, *weights + t.weights(), *bytes + t.bytes);
    }
    let mut out: Vec<FormatTotal> = by_format
        .into_iter()
        .map(|(format, (tensors, weights, bytes))| FormatTotal {
            format,
            tensors,
            weights,
            bytes,
            bits_per_weight: bytes as f64 * 8.0 / weights as f64,
        })
        .collect();
    out.sort_by_key(|t| std::cmp::Reverse(t.weights));
    out
}

fn missing(model: &Model) -> Vec<Missing> {
    let mut out = Vec::new();
    if *model.tokenizer() == TokenizerSource::None {
        out.push(Missing { what: "tokenizer", consequence: "token ids in, token ids out; no text" });
    }
    if model.chat_template().is_none() {
        out.push(Missing { what: "chat template", consequence: "no chat: prompts are completed as they are" });
    }
    if model.config().eos.is_empty() {
        out.push(Missing { what: "end token", consequence: "an answer ends only at its length limit or a stop text" });
    }
    out
}

fn shape(c: &ModelConfig) -> Shape {
    Shape {
        layers: c.layers,
        hidden: c.hidden,
        heads: c.heads,
        kv_heads: c.kv_heads,
        head_size: c.head_size,
        ffn: c.ffn,
        vocab: c.vocab,
        rms_eps: c.rms_eps,
        rope_theta: c.rope.theta,
        rope_scaling: scaling(&c.rope.scaling),
        tied_head: c.tied_head,
        qkv_bias: c.qkv_bias,
        qk_norm: c.qk_norm,
        trained_positions: c.max_positions,
        bos: c.bos,
        eos: c.eos.clone(),
    }
}

fn scaling(s: &RopeScaling) -> String {
    match s {
        RopeScaling::None => "none".into(),
        RopeScaling::Linear { factor } => format!("linear, factor {factor}"),
        RopeScaling::Llama3 { factor, original_positions, .. } => {
            format!("llama3, factor {factor} over {original_positions} positions")
        }
        RopeScaling::Yarn { factor, original_positions, .. } => {
            format!("yarn, factor {factor} over {original_positions} positions")
        }
        RopeScaling::Factors(f) => format!("{} factors from the file", f.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_core::Reading;

    fn inspect(spec: &str) -> Inspect {
        let memory =
            Memory { usable_bytes: Reading::Available(64 << 30), source: "a test".into(), reserve_bytes: 8 << 30 };
        let question = Question { class: None, configured: None, memory };
        Inspect::of(&Model::open(spec).unwrap(), &question).unwrap()
    }

    /// The published arithmetic of Qwen3 4B.
    #[test]
    fn qwen3_4b_by_hand() {
        let i = inspect("synthetic:qwen3-4b");
        let attention = 2560 * 4096 + 2 * 2560 * 1024 + 4096 * 2560;
        let by_hand = 36 * (attention + 3 * 2560 * 9728) + 151_936 * 2560;
        assert_eq!(i.token.streamed_weights, by_hand);
        assert_eq!(i.token.streamed_weights, 4_022_272_000);
        assert_eq!(i.token.flops, 8_044_544_000);
        assert_eq!(i.token.streamed_bytes_bf16, 8_044_544_000);
        assert_eq!(i.head_format, i.model.format);
        assert_eq!(i.token.bits_per_weight, 4.25);
        assert_eq!(i.token.streamed_bytes, 4_022_272_000 / 32 * 17);
        assert_eq!(i.token.kv_bytes, 147_456);
        assert_eq!((i.class, i.shape.trained_positions), ("w4a15", 40_960));
        assert_eq!(i.parameters - i.token.streamed_weights, 36 * (2 * 2560 + 2 * 128) + 2560, "the norms");
    }

    #[test]
    fn an_untied_embedding_is_held_but_not_streamed() {
        let i = inspect("synthetic:qwen3-8b");
        let vectors = 36 * (2 * 4096 + 2 * 128) + 4096;
        assert_eq!(i.parameters - i.token.streamed_weights, 151_936 * 4096 + vectors);
        assert_eq!(i.parameters, 8_190_735_360, "the published count");
    }

    #[test]
    fn classes_say_why_not() {
        let i = inspect("synthetic:qwen3-tiny?format=bf16");
        let verdict = |name| i.classes.iter().find(|c| c.class == name).unwrap();
        assert!(verdict("bf16").default);
        assert_eq!(verdict("f32").kv_bytes_per_token, Reading::Available(4 * 2 * 2 * 64 * 4));
        let why = verdict("w4a16").kv_bytes_per_token.to_string();
        assert!(why.contains("does not compute with bf16"), "{why}");
        assert_eq!(i.missing.iter().map(|m| m.what).collect::<Vec<_>>(), ["tokenizer", "chat template", "end token"]);
    }
}
