//! The decoder's numbers in the metadata of a GGUF file.
//!
//! Keys under the architecture's name describe the arithmetic, so all of them must be known: one that is not is
//! refused by name. Keys of other groups (`general.*`, `tokenizer.*`, `quantize.*`...) describe the file.

use super::rope::{DEFAULT_THETA, Rope, RopeScaling, RopeStyle};
use super::{Arch, ModelConfig};
use crate::codec::plain;
use crate::error::FormatError;
use crate::gguf::header::Header;
use crate::gguf::value::Value;
use crate::gguf::vocab::{Metadata, token_count};
use tare_core::{Fault, Format};

/// Keys (below the architecture's name) that are read, and those that say nothing about inference.
const KNOWN: [&str; 21] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "attention.causal",
    "tensor_data_layout",
    "vocab_size",
];

/// Keys that ask for something else unless they hold this number.
const NEUTRAL: [(&str, f64); 7] = [
    ("attention.sliding_window", 0.0),
    ("expert_count", 0.0),
    ("expert_used_count", 0.0),
    ("rope.scaling.attn_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
];

/// Reads the configuration of `file`, whose head is `header`. What only the tensors tell (tied head, biases, frequency
/// factors) is looked up in them; of the data, only the frequency factors are read.
///
/// # Errors
/// When a key is missing, has the wrong type or range, or asks for arithmetic that tare does not do.
pub fn parse(header: &Header, file: &[u8]) -> Result<ModelConfig, FormatError> {
    let m = Metadata(header);
    if m.integer("split.count", u64::MAX)?.is_some_and(|n| n > 1) {
        let fault = m.fault("split.count", "1: the whole model in one file");
        return Err(FormatError::Unsupported(fault.remedy("merge the parts, for example with gguf-split --merge")));
    }
    let arch = arch(&m)?;
    let keys = Keys { m: &m, arch, file };
    keys.refuse()?;
    let config = model(&keys)?;
    config.check()?;
    Ok(config)
}

fn arch(m: &Metadata<'_>) -> Result<Arch, FormatError> {
    let key = "general.architecture";
    let name = m.text(key)?.ok_or_else(|| m.fault(key, "the name of an architecture"))?;
    [Arch::Llama, Arch::Qwen2, Arch::Qwen3].into_iter().find(|a| a.gguf() == name).ok_or_else(|| {
        let fault = m.fault(key, "llama, qwen2 or qwen3");
        FormatError::Unsupported(fault.remedy("tare runs dense decoders of these families"))
    })
}

/// Keys below the architecture's name.
struct Keys<'a> {
    m: &'a Metadata<'a>,
    arch: Arch,
    file: &'a [u8],
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch.gguf())
    }

    fn size(&self, name: &str) -> Result<Option<usize>, Fault> {
        Ok(self.m.integer(&self.key(name), u64::from(u32::MAX))?.map(|n| n as usize))
    }

    fn need(&self, name: &str) -> Result<usize, Fault> {
        self.size(name)?.ok_or_else(|| self.m.fault(&self.key(name), "a positive integer"))
    }

    fn positive(&self, name: &str) -> Result<Option<f64>, Fault> {
        match self.m.number(&self.key(name))? {
            Some(v) if v <= 0.0 => Err(self.m.fault(&self.key(name), "a number above 0")),
            v => Ok(v),
        }
    }

    fn refuse(&self) -> Result<(), FormatError> {
        let prefix = format!("{}.", self.arch.gguf());
        for (key, value) in &self.m.0.metadata {
            let Some(name) = key.strip_prefix(&prefix) else { continue };
            let neutral = NEUTRAL.iter().find(|(n, _)| *n == name);
            let fits = match (value, neutral) {
                (_, None) => KNOWN.contains(&name),
                (Value::Float(_, v), Some((_, want))) => v == want,
                (v, Some((_, want))) => v.as_u64().is_some_and(|v| v as f64 == *want),
            };
            if !fits {
                let expected = neutral.map_or_else(
                    || "no key that may change the arithmetic and that tare does not know".into(),
                    |(_, want)| format!("{want} or no such key"),
                );
                return Err(FormatError::Unsupported(self.m.fault(key, expected)));
            }
        }
        if self.m.flag(&self.key("attention.causal"))? == Some(false) {
            return Err(FormatError::Unsupported(self.m.fault(&self.key("attention.causal"), "true")));
        }
        Ok(())
    }
}

fn model(k: &Keys<'_>) -> Result<ModelConfig, FormatError> {
    let header = k.m.0;
    let has = |name: &str| header.tensors.iter().any(|t| t.name == name);
    let hidden = k.need("embedding_length")?;
    let heads = k.need("attention.head_count")?;
    let head_size = match k.size("attention.key_length")? {
        Some(n) => n,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(k.m.fault(&k.key("embedding_length"), "a multiple of the heads").into()),
    };
    for name in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        if k.size(name)?.is_some_and(|n| n != head_size) {
            return Err(FormatError::Unsupported(k.m.fault(&k.key(name), format!("{head_size}, the size of a head"))));
        }
    }
    let eps_key = k.key("attention.layer_norm_rms_epsilon");
    let eps = k.m.number(&eps_key)?.ok_or_else(|| k.m.fault(&eps_key, "a small number"))?;
    let max_positions = k.need("context_length")?;
    let vocab = vocabulary(k)?;
    let token = |name: &str| k.m.token(&format!("tokenizer.ggml.{name}_token_id"), vocab);
    let mut config = ModelConfig {
        arch: k.arch,
        hidden,
        layers: k.need("block_count")?,
        heads,
        kv_heads: k.size("attention.head_count_kv")?.unwrap_or(heads),
        head_size,
        ffn: k.need("feed_forward_length")?,
        vocab,
        rms_eps: eps as f32,
        rope: rope(k, head_size, max_positions)?,
        tied_head: !has("output.weight"),
        qkv_bias: k.arch == Arch::Qwen2 || has("blk.0.attn_q.bias"),
        qk_norm: k.arch == Arch::Qwen3,
        max_positions,
        bos: token("bos")?,
        eos: Vec::new(),
        quantization: None,
    };
    config.add_eos([token("eos")?, token("eot")?, token("eom")?].into_iter().flatten());
    Ok(config)
}

/// Rows of the embedding, which the vocabulary and `vocab_size` must agree with.
fn vocabulary(k: &Keys<'_>) -> Result<usize, FormatError> {
    let name = "token_embd.weight";
    let embed = k.m.0.tensors.iter().find(|t| t.name == name);
    let shape = embed.map(|t| t.shape.as_slice()).unwrap_or_default();
    let &[rows, _] = shape else {
        return Err(Fault::new(name, "a matrix", format!("the shape {shape:?}")).into());
    };
    if k.size("vocab_size")?.is_some_and(|n| n != rows) {
        return Err(k.m.fault(&k.key("vocab_size"), format!("{rows}, the rows of {name}")).into());
    }
    match token_count(k.m.0)? {
        Some(n) if n != rows => {
            Err(k.m.fault("tokenizer.ggml.tokens", format!("{rows} tokens, the rows of {name}")).into())
        }
        _ => Ok(rows),
    }
}

fn rope(k: &Keys<'_>, head_size: usize, max_positions: usize) -> Result<Rope, FormatError> {
    let theta = k.positive("rope.freq_base")?.unwrap_or(DEFAULT_THETA);
    let style = if k.arch == Arch::Llama { RopeStyle::Interleaved } else { RopeStyle::HalfSplit };
    let scaling = scaling(k, max_positions)?;
    let scaling = match (factors(k, head_size)?, scaling) {
        (None, scaling) => scaling,
        (Some(factors), RopeScaling::None) => RopeScaling::Factors(factors),
        (Some(_), _) => {
            let fault = Fault::new(FACTORS, "no second scaling of positions", "rope.scaling.* too");
            return Err(FormatError::Unsupported(fault));
        }
    };
    Ok(Rope { theta, style, scaling })
}

/// Keys that only YaRN reads.
const OF_YARN: [&str; 3] =
    ["rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"];

/// The scaling of positions. As in llama.cpp (`llama_model::load_hparams`), a factor without a type is linear, and
/// `rope.scale_linear` is the older name of `rope.scaling.factor`. What would then be read by nothing is refused.
fn scaling(k: &Keys<'_>, max_positions: usize) -> Result<RopeScaling, FormatError> {
    let refuse = |name: &str, expected: String, remedy: &str| {
        Err(FormatError::Unsupported(k.m.fault(&k.key(name), expected).remedy(remedy)))
    };
    let type_key = k.key("rope.scaling.type");
    let kind = k.m.text(&type_key)?;
    if kind != Some("yarn")
        && let Some(name) = OF_YARN.into_iter().find(|n| k.m.0.get(&k.key(n)).is_some())
    {
        let remedy = format!("set {type_key} to `yarn` if the model was made with YaRN, else remove the key");
        return refuse(name, format!("no such key unless {type_key} is `yarn`"), &remedy);
    }
    let (new, old) = (k.positive("rope.scaling.factor")?, k.positive("rope.scale_linear")?);
    if let (Some(new), Some(old)) = (new, old)
        && new != old
    {
        let expected = format!("{new}, as in {}", k.key("rope.scaling.factor"));
        return refuse("rope.scale_linear", expected, "remove the wrong one of the two keys");
    }
    let factor = new.or(old);
    let named = if new.is_some() { "rope.scaling.factor" } else { "rope.scale_linear" };
    match (kind, factor) {
        (None, None | Some(1.0)) | (Some("none"), None | Some(1.0)) => Ok(RopeScaling::None),
        (None | Some("linear"), Some(factor)) => Ok(RopeScaling::Linear { factor }),
        (Some("none"), Some(_)) => {
            let remedy = format!("set {type_key} to what the model was made with, or remove the factor");
            refuse(named, format!("1 or no such key, since {type_key} is `none`"), &remedy)
        }
        (Some("linear"), None) => Err(k.m.fault(&k.key("rope.scaling.factor"), "a number above 0").into()),
        (Some("yarn"), factor) => yarn(k, factor, max_positions),
        (Some(_), _) => Err(FormatError::Unsupported(k.m.fault(&type_key, "none, linear or yarn"))),
    }
}

fn yarn(k: &Keys<'_>, factor: Option<f64>, max_positions: usize) -> Result<RopeScaling, FormatError> {
    let original = "rope.scaling.original_context_length";
    let original_positions = k.size(original)?.unwrap_or(max_positions);
    if original_positions == 0 {
        return Err(k.m.fault(&k.key(original), "a count of positions").into());
    }
    let beta_fast = k.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0);
    let beta_slow = k.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0);
    if beta_fast < beta_slow {
        return Err(k.m.fault(&k.key("rope.scaling.yarn_beta_fast"), format!("at least {beta_slow}")).into());
    }
    let factor = factor.ok_or_else(|| k.m.fault(&k.key("rope.scaling.factor"), "a number above 0"))?;
    Ok(RopeScaling::Yarn { factor, original_positions, attention_factor: None, beta_fast, beta_slow })
}

/// The frequency factors, if the file has them: E/2 F32 numbers above 0. As in llama.cpp, only llama has them.
fn factors(k: &Keys<'_>, head_size: usize) -> Result<Option<Vec<f32>>, FormatError> {
    let Some(t) = k.m.0.tensors.iter().find(|t| t.name == FACTORS) else { return Ok(None) };
    if k.arch != Arch::Llama {
        let expected = format!("only tensors of a {} model", k.arch.gguf());
        let fault = Fault::new(FACTORS, expected, "a tensor that tare would have to ignore");
        return Err(FormatError::Unsupported(fault.remedy("convert the model again from its original folder")));
    }
    if t.shape != [head_size / 2] || t.format != Format::F32 {
        let found = format!("{} {:?}", t.format, t.shape);
        return Err(Fault::new(FACTORS, format!("f32 [{}]", head_size / 2), found).into());
    }
    let mut values = vec![0.0; head_size / 2];
    plain::f32(&k.file[t.range.clone()], &mut values);
    match values.iter().find(|v| !(v.is_finite() && **v > 0.0)) {
        Some(v) => Err(Fault::new(FACTORS, "numbers above 0", v.to_string()).into()),
        None => Ok(Some(values)),
    }
}

/// The tensor of frequency factors.
pub const FACTORS: &str = "rope_freqs.weight";
