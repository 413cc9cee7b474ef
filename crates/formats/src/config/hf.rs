//! config.json and generation_config.json of Hugging Face and MLX folders.
//!
//! Fields that change the arithmetic are understood or refused. A field that nobody here knows passes only when it
//! is null or false, or when nothing in its name speaks of the arithmetic (see [`SUSPECT`]).

use super::{Arch, ModelConfig, rope};
use crate::error::FormatError;
use crate::json::{self, Fields};
use std::collections::BTreeMap;
use tare_core::{AffineBits, Fault};

/// Longest config.json that is read.
pub const LIMIT: usize = 1 << 20;

/// config.json, read.
#[derive(Clone, Debug, PartialEq)]
pub struct HfConfig {
    /// The decoder.
    pub model: ModelConfig,
    /// MLX packing, when the folder has it.
    pub quantization: Option<Quantization>,
}

/// How an MLX folder packs its matrices.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// Bits and group of matrices that `overrides` does not name.
    pub default: (AffineBits, u16),
    /// Module path (`model.layers.0.mlp.up_proj`) to its own bits and group, or `None` for a plain matrix.
    pub overrides: BTreeMap<String, Option<(AffineBits, u16)>>,
}

/// Fields that are read below.
const UNDERSTOOD: [&str; 33] = [
    "architectures",
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "tie_word_embeddings",
    "attention_bias",
    "qkv_bias",
    "mlp_bias",
    "hidden_act",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "quantization",
    "quantization_config",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "partial_rotary_factor",
    "rope_interleaved",
    "num_experts",
    "num_local_experts",
    "is_decoder",
    "is_encoder_decoder",
];

/// Fields that say nothing about inference, though their names may sound so.
const HARMLESS: [&str; 13] = [
    "attention_dropout",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "embd_pdrop",
    "hidden_dropout",
    "initializer_range",
    "output_attentions",
    "output_hidden_states",
    "pretraining_tp",
    "is_llama_config",
    "chunk_size_feed_forward",
    "pad_token_id",
];

/// Parts of a name that speak of the arithmetic: an unknown field with one of them is refused unless null or false.
const SUSPECT: [&str; 27] = [
    "act",
    "alibi",
    "attention",
    "attn",
    "auto_map",
    "bias",
    "cap",
    "clip",
    "embed",
    "expert",
    "head",
    "hidden",
    "layer",
    "logit",
    "lora",
    "mlp",
    "moe",
    "multiplier",
    "norm",
    "position",
    "proj",
    "residual",
    "rope",
    "rotary",
    "scal",
    "sink",
    "window",
];

/// Reads config.json.
///
/// # Errors
/// When a field is missing, has the wrong type or range, or asks for arithmetic that tare does not do.
pub fn parse(bytes: &[u8]) -> Result<HfConfig, FormatError> {
    let map = json::object("config.json", bytes, LIMIT)?;
    let fields = Fields::new("", &map);
    let arch = arch(fields)?;
    refuse(fields, arch)?;
    let model = model(fields, arch)?;
    model.check()?;
    let quantization = quantization(fields)?;
    let model = ModelConfig { quantization: quantization.as_ref().map(|q| q.default), ..model };
    Ok(HfConfig { model, quantization })
}

fn arch(fields: Fields<'_>) -> Result<Arch, FormatError> {
    let name = fields.need("model_type", "a model type", fields.text("model_type")?)?;
    let Some(arch) = Arch::ALL.into_iter().find(|a| a.model_type() == name) else {
        let fault = fields.fault("model_type", "qwen3, qwen2, llama or mistral");
        return Err(FormatError::Unsupported(fault.remedy("tare runs dense decoders of these families")));
    };
    if let Some(classes) = fields.get("architectures") {
        let one = classes.as_array().and_then(|a| if a.len() == 1 { a[0].as_str() } else { None });
        if one != Some(arch.class()) {
            let expected = format!("[\"{}\"] for model_type {name}", arch.class());
            return Err(FormatError::Unsupported(fields.fault("architectures", expected)));
        }
    }
    Ok(arch)
}

/// Refuses fields that ask for something tare does not do.
fn refuse(fields: Fields<'_>, arch: Arch) -> Result<(), FormatError> {
    let unsupported = |field: &str, expected: &str| Err(FormatError::Unsupported(fields.fault(field, expected)));
    if fields.text("hidden_act")?.is_some_and(|a| a != "silu") {
        return unsupported("hidden_act", "silu");
    }
    for field in ["mlp_bias", "rope_interleaved", "is_encoder_decoder"] {
        if fields.flag(field)? == Some(true) {
            return unsupported(field, "false");
        }
    }
    if fields.number("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
        return unsupported("partial_rotary_factor", "1 (whole heads turn)");
    }
    for field in ["num_experts", "num_local_experts"] {
        if fields.integer(field, u64::MAX)?.is_some_and(|n| n != 0) {
            return unsupported(field, "0 (a dense model)");
        }
    }
    window(fields, arch)?;
    if let Some(types) = fields.get("layer_types") {
        let full = |v: &serde_json::Value| v.as_str() == Some("full_attention");
        if !types.as_array().is_some_and(|a| a.iter().all(full)) {
            return unsupported("layer_types", "full_attention in every layer");
        }
    }
    for field in fields.names() {
        let lower = field.to_ascii_lowercase();
        let known = UNDERSTOOD.contains(&field) || HARMLESS.contains(&field);
        let off = fields.get(field).and_then(serde_json::Value::as_bool) == Some(false);
        if !known && !off && SUSPECT.iter().any(|s| lower.contains(s)) {
            return unsupported(field, "no field that may change the arithmetic and that tare does not know");
        }
    }
    Ok(())
}

/// Window of the Hugging Face classes of Mistral, Qwen2 and Qwen3 when config.json has no `sliding_window`.
const DEFAULT_WINDOW: u64 = 4096;

/// Refuses a sliding window that some position would feel. A window of W tokens counts the newest one, so it changes
/// nothing in a model of at most W positions, and no context is longer than the model's positions.
fn window(fields: Fields<'_>, arch: Arch) -> Result<(), FormatError> {
    // Qwen configurations keep the size of a window that they do not use; in the others the size alone switches it on,
    // and Mistral's class reads no switch at all.
    let switch = fields.flag("use_sliding_window")?;
    let on = match arch {
        Arch::Qwen2 | Arch::Qwen3 => switch.unwrap_or(false),
        Arch::Llama => switch.unwrap_or(true),
        Arch::Mistral => true,
    };
    if !on {
        return Ok(());
    }
    let missing = !fields.has("sliding_window") && arch != Arch::Llama;
    let size = if missing { Some(DEFAULT_WINDOW) } else { fields.integer("sliding_window", u64::MAX)? };
    let positions = fields.integer("max_position_embeddings", u64::MAX)?.unwrap_or(u64::MAX);
    if size.is_none_or(|n| n == 0 || n >= positions) {
        return Ok(());
    }
    let whole = "null: attention to the whole context";
    let fault = if missing {
        let found = format!("no such field, which means a window of {DEFAULT_WINDOW} in a {} model", arch.model_type());
        Fault::new("sliding_window", whole, found)
            .remedy("write \"sliding_window\": null into config.json when the model has no window")
    } else {
        fields.fault("sliding_window", whole).remedy("tare runs models without a sliding window")
    };
    Err(FormatError::Unsupported(fault))
}

fn model(fields: Fields<'_>, arch: Arch) -> Result<ModelConfig, FormatError> {
    let size = |field| fields.integer(field, u64::from(u32::MAX)).map(|n| n.map(|n| n as usize));
    let need = |field| fields.need(field, "a positive integer", size(field)?);
    let hidden = need("hidden_size")?;
    let heads = need("num_attention_heads")?;
    let kv_heads = match (size("num_key_value_heads")?, arch) {
        (None, Arch::Llama) => heads,
        (n, _) => fields.need("num_key_value_heads", "a positive integer", n)?,
    };
    let head_size = match (size("head_dim")?, arch) {
        (Some(n), _) => n,
        (None, Arch::Qwen3) => need("head_dim")?,
        (None, _) if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        (None, _) => return Err(fields.fault("hidden_size", "a multiple of num_attention_heads").into()),
    };
    let eps = fields.need("rms_norm_eps", "a small number", fields.number("rms_norm_eps")?)?;
    let max_positions = need("max_position_embeddings")?;
    Ok(ModelConfig {
        arch,
        hidden,
        layers: need("num_hidden_layers")?,
        heads,
        kv_heads,
        head_size,
        ffn: need("intermediate_size")?,
        vocab: need("vocab_size")?,
        rms_eps: eps as f32,
        rope: rope::hugging_face(fields, max_positions)?,
        tied_head: fields.flag("tie_word_embeddings")?.unwrap_or(false),
        qkv_bias: qkv_bias(fields, arch)?,
        qk_norm: arch == Arch::Qwen3,
        max_positions,
        bos: ids(fields, "bos_token_id")?.first().copied(),
        eos: ids(fields, "eos_token_id")?,
        quantization: None,
    })
}

/// Qwen2 always has the three biases; elsewhere `attention_bias` asks for them. A bias on the output projection,
/// which some classes add with it, is refused later, as a tensor that has no role.
fn qkv_bias(fields: Fields<'_>, arch: Arch) -> Result<bool, FormatError> {
    let mut asked = false;
    for field in ["attention_bias", "qkv_bias"] {
        let flag = fields.flag(field)?;
        if arch == Arch::Qwen2 && flag == Some(false) {
            return Err(FormatError::Unsupported(fields.fault(field, "true or nothing in a qwen2 model")));
        }
        asked |= flag == Some(true);
    }
    Ok(asked || arch == Arch::Qwen2)
}

/// One token id, a list of them, or nothing.
fn ids(fields: Fields<'_>, field: &str) -> Result<Vec<u32>, Fault> {
    let Some(v) = fields.get(field) else { return Ok(Vec::new()) };
    let list = v.as_array().map_or(std::slice::from_ref(v), Vec::as_slice);
    let id = |v: &serde_json::Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    list.iter().map(id).collect::<Option<Vec<u32>>>().ok_or_else(|| fields.fault(field, "a token id or a list of them"))
}

/// The end tokens of generation_config.json.
///
/// # Errors
/// When it is no JSON object or `eos_token_id` is no id and no list of ids.
pub fn generation_eos(bytes: &[u8]) -> Result<Vec<u32>, FormatError> {
    let map = json::object("generation_config.json", bytes, LIMIT)?;
    Ok(ids(Fields::new("", &map), "eos_token_id")?)
}

/// MLX writes `quantization` and, for the hub, the same again as `quantization_config`.
fn quantization(fields: Fields<'_>) -> Result<Option<Quantization>, FormatError> {
    let read = |name| fields.object(name).map_err(FormatError::from)?.map(packing).transpose();
    match (read("quantization")?, read("quantization_config")?) {
        (Some(a), Some(b)) if a != b => Err(fields.fault("quantization_config", "the same as quantization").into()),
        (a, b) => Ok(a.or(b)),
    }
}

fn packing(fields: Fields<'_>) -> Result<Quantization, FormatError> {
    if fields.get("quant_method").is_some() {
        let fault = fields.fault("quant_method", "no such field: MLX's affine packing has `bits` and `group_size`");
        return Err(FormatError::Unsupported(fault.remedy("use the unquantised, MLX or GGUF form of this model")));
    }
    let default = bits_and_group(fields)?;
    let mut overrides = BTreeMap::new();
    for name in fields.names().filter(|n| !["bits", "group_size", "mode"].contains(n)) {
        let own = match fields.get(name).and_then(serde_json::Value::as_bool) {
            Some(false) => None,
            Some(true) => Some(default),
            None => Some(bits_and_group(fields.need(name, "an object or false", fields.object(name)?)?)?),
        };
        overrides.insert(name.to_owned(), own);
    }
    Ok(Quantization { default, overrides })
}

fn bits_and_group(fields: Fields<'_>) -> Result<(AffineBits, u16), FormatError> {
    if fields.text("mode")?.is_some_and(|m| m != "affine") {
        return Err(FormatError::Unsupported(fields.fault("mode", "affine")));
    }
    let bits = match fields.integer("bits", 64)? {
        Some(4) => AffineBits::Four,
        Some(8) => AffineBits::Eight,
        _ => return Err(FormatError::Unsupported(fields.fault("bits", "4 or 8"))),
    };
    match fields.integer("group_size", 1 << 16)? {
        Some(n @ (32 | 64 | 128)) => Ok((bits, n as u16)),
        _ => Err(FormatError::Unsupported(fields.fault("group_size", "32, 64 or 128"))),
    }
}
