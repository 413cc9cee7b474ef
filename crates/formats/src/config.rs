//! What a decoder looks like: the numbers that Hugging Face keeps in config.json and GGUF in its metadata.

pub mod gguf;
pub mod hf;
pub mod rope;

use tare_core::{AffineBits, Fault};

pub use rope::{Rope, RopeScaling, RopeStyle};

/// Decoder families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// Norm on each query and key head.
    Qwen3,
    /// Biases on query, key and value.
    Qwen2,
    /// Llama 2 and 3, SmolLM2.
    Llama,
    /// Mistral without a sliding window.
    Mistral,
}

impl Arch {
    /// `model_type` in config.json.
    pub const fn model_type(self) -> &'static str {
        match self {
            Arch::Qwen3 => "qwen3",
            Arch::Qwen2 => "qwen2",
            Arch::Llama => "llama",
            Arch::Mistral => "mistral",
        }
    }

    /// `general.architecture` in GGUF, where Mistral models are written as llama.
    pub const fn gguf(self) -> &'static str {
        match self {
            Arch::Mistral => "llama",
            other => other.model_type(),
        }
    }

    /// The entry of `architectures` in config.json.
    pub const fn class(self) -> &'static str {
        match self {
            Arch::Qwen3 => "Qwen3ForCausalLM",
            Arch::Qwen2 => "Qwen2ForCausalLM",
            Arch::Llama => "LlamaForCausalLM",
            Arch::Mistral => "MistralForCausalLM",
        }
    }

    const ALL: [Arch; 4] = [Arch::Qwen3, Arch::Qwen2, Arch::Llama, Arch::Mistral];
}

/// A decoder by its numbers. Letters as in docs/reference/shapes.md.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family.
    pub arch: Arch,
    /// D, width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// H, query heads.
    pub heads: usize,
    /// K, key and value heads; divides H.
    pub kv_heads: usize,
    /// E, size of a head; even. H * E need not be D.
    pub head_size: usize,
    /// F, width of the MLP.
    pub ffn: usize,
    /// V, rows of the embedding.
    pub vocab: usize,
    /// Added to the mean square in every RMS norm.
    pub rms_eps: f32,
    /// Rotary positions.
    pub rope: Rope,
    /// The head is the embedding.
    pub tied_head: bool,
    /// Query, key and value have biases.
    pub qkv_bias: bool,
    /// Each query and key head is normed before RoPE.
    pub qk_norm: bool,
    /// Positions that the file says the model was made for.
    pub max_positions: usize,
    /// Token that starts a text.
    pub bos: Option<u32>,
    /// Tokens that end an answer, in the order of the files that name them.
    pub eos: Vec<u32>,
    /// MLX: bits and group of packed matrices; a matrix may differ (see [`hf::Quantization`]).
    pub quantization: Option<(AffineBits, u16)>,
}

impl ModelConfig {
    /// Checks what every reader must hold to: sizes within the limits below, heads that divide, an even head.
    ///
    /// The limits lie far above every published dense model; they keep products of two sizes below 2^60.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let limits = [
            ("hidden size", self.hidden, 1 << 20),
            ("layers", self.layers, 4096),
            ("heads", self.heads, 4096),
            ("key and value heads", self.kv_heads, 4096),
            ("head size", self.head_size, 4096),
            ("MLP width", self.ffn, 1 << 22),
            ("vocabulary", self.vocab, 1 << 24),
            ("positions", self.max_positions, 1 << 30),
        ];
        for (what, n, most) in limits {
            if n == 0 || n > most {
                return Err(Fault::new(what, format!("1 to {most}"), n.to_string()));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of the {} heads", self.heads);
            return Err(Fault::new("key and value heads", expected, self.kv_heads.to_string()));
        }
        if !self.head_size.is_multiple_of(2) {
            return Err(Fault::new("head size", "an even number", self.head_size.to_string()));
        }
        if !(self.rms_eps.is_finite() && self.rms_eps >= 0.0) {
            return Err(Fault::new("RMS norm epsilon", "a small number", self.rms_eps.to_string()));
        }
        Ok(())
    }

    /// Adds end tokens that are not there yet.
    pub(crate) fn add_eos(&mut self, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            if !self.eos.contains(&id) {
                self.eos.push(id);
            }
        }
    }
}
