//! Any model to one GGUF file.

use super::rows::{Order, each_run};
use super::{Meter, Progress, check_source, place, vocab};
use crate::config::{ModelConfig, RopeScaling, RopeStyle, gguf::FACTORS};
use crate::error::FormatError;
use crate::gguf::{PLACEHOLDER, TensorPlan, Value, write};
use crate::model_file::{ModelFile, TokenizerSource};
use crate::names::{Part, Role};
use std::io::{BufWriter, Write};
use std::path::Path;
use tare_core::{DType, Fault, Format, WeightData};

/// Metadata that describes the packing of the file it stands in, and so is never copied.
const OF_THE_FILE: [&str; 3] = ["general.file_type", "general.quantization_version", "general.alignment"];

/// Writes `src` with matrices and the head in these formats; gives bytes and number of tensors.
pub(super) fn convert(
    src: &ModelFile,
    (matrices, head): (Format, Format),
    out: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(u64, usize), FormatError> {
    file_type(head).map_err(|e| e.within("head"))?;
    let file_type = file_type(matrices)?;
    let factors = factors(&src.config)?;
    let roles = Role::all(&src.config);
    let mut plans = Vec::with_capacity(roles.len() + 1);
    for &role in &roles {
        let w = src.weight(role)?;
        let format = match role {
            _ if role.is_vector() => Format::F32,
            _ if is_head(role, &src.config) => head,
            _ => matrices,
        };
        check_source(&w, format)?;
        let shape = if role.is_vector() { vec![w.cols()] } else { vec![w.rows(), w.cols()] };
        plans.push(TensorPlan { name: role.gguf(), format, shape });
    }
    if let Some(f) = &factors {
        plans.push(TensorPlan { name: FACTORS.into(), format: Format::F32, shape: vec![f.len()] });
    }
    let total_bytes = plans.iter().map(TensorPlan::bytes).sum::<Result<u64, Fault>>()?;
    let packed = plans.iter().any(|p| p.format.dtype().is_none());
    let metadata = metadata(src, file_type, packed)?;
    let io = |e| FormatError::io(out, "write", e);
    let mut writer = write(BufWriter::with_capacity(1 << 20, place::create(out)?), &metadata, &plans)?;
    let mut meter = Meter { progress, done: 0, tensors: plans.len(), bytes: 0, total_bytes };
    for (&role, plan) in roles.iter().zip(&plans) {
        let order = order(role, &src.config);
        each_run(&src.weight(role)?, order, (plan.format, DType::F32), &mut |part| match part.data() {
            WeightData::Blocks(bytes) => writer.write(bytes).map_err(io),
            WeightData::Affine(_) => Err(Fault::new(&plan.name, "a GGUF format", "affine groups").into()),
        })?;
        meter.add(&plan.name, plan.bytes()?);
    }
    if let Some(factors) = factors {
        let bytes: Vec<u8> = factors.iter().flat_map(|v| v.to_le_bytes()).collect();
        writer.write(&bytes).map_err(io)?;
        meter.add(FACTORS, bytes.len() as u64);
    }
    let mut file = writer.finish().map_err(io)?;
    file.flush().map_err(io)?;
    file.get_ref().sync_all().map_err(io)?;
    Ok((total_bytes, plans.len()))
}

/// Whether a matrix gives the logits: the head, or the embedding that is tied to it.
fn is_head(role: Role, config: &ModelConfig) -> bool {
    role == if config.tied_head { Role::Embed } else { Role::Head }
}

/// `general.file_type` of llama.cpp (`llama_ftype`): that of most matrices, whatever the head has.
fn file_type(format: Format) -> Result<u32, FormatError> {
    match format {
        Format::F32 => Ok(0),
        Format::F16 => Ok(1),
        Format::Q4_0 => Ok(2),
        Format::Q8_0 => Ok(7),
        Format::Q6K => Ok(18),
        Format::BF16 => Ok(32),
        other => {
            let fault = Fault::new("format", "f32, f16, bf16, q8_0, q4_0 or q6_k for a GGUF file", other.to_string());
            Err(FormatError::Unsupported(fault))
        }
    }
}

/// GGUF's llama has Q and K in pair order; every other source and family stays as it is.
fn order(role: Role, config: &ModelConfig) -> Order {
    let part = match role {
        Role::Layer { part, .. } => part,
        _ => return Order::Same,
    };
    let turned = matches!(part, Part::Q | Part::K | Part::QBias | Part::KBias);
    if turned && config.arch.gguf() == "llama" && config.rope.style == RopeStyle::HalfSplit {
        Order::Pairs { head_size: config.head_size }
    } else {
        Order::Same
    }
}

/// The tensor of frequency factors that stands for Llama 3's scaling (the formula of its reference code, in F64).
fn factors(config: &ModelConfig) -> Result<Option<Vec<f32>>, FormatError> {
    let factors = match &config.rope.scaling {
        RopeScaling::Factors(f) => f.clone(),
        &RopeScaling::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original_positions } => {
            let original = original_positions as f64;
            let one = |i: usize| {
                let inv_freq = config.rope.theta.powf(-2.0 * i as f64 / config.head_size as f64);
                let rotations = original * inv_freq / (2.0 * std::f64::consts::PI);
                let kept = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 / ((1.0 - kept) / factor + kept)) as f32
            };
            (0..config.head_size / 2).map(one).collect()
        }
        _ => return Ok(None),
    };
    if config.arch.gguf() != "llama" {
        let found = config.arch.model_type();
        let fault = Fault::new("rope scaling", "no frequency factors in a GGUF file that is not llama", found);
        return Err(FormatError::Unsupported(fault));
    }
    Ok(Some(factors))
}

fn metadata(src: &ModelFile, file_type: u32, packed: bool) -> Result<Vec<(String, Value)>, FormatError> {
    let mut out = match src.gguf_header() {
        Some(h) => h.metadata.iter().filter(|(k, _)| !OF_THE_FILE.contains(&k.as_str())).cloned().collect(),
        None => described(src)?,
    };
    out.push(("general.file_type".into(), Value::u32(file_type)));
    if packed {
        out.push(("general.quantization_version".into(), Value::u32(2)));
    }
    Ok(out)
}

/// The metadata of a model that comes from elsewhere.
fn described(src: &ModelFile) -> Result<Vec<(String, Value)>, FormatError> {
    let (c, arch) = (&src.config, src.config.arch.gguf());
    let mut out = vec![("general.architecture".to_owned(), Value::text(arch))];
    if let Some(name) = src.path.file_name().and_then(|n| n.to_str()) {
        out.push(("general.name".into(), Value::text(name)));
    }
    let mut put = |name: &str, value| out.push((format!("{arch}.{name}"), value));
    let sizes = [
        ("block_count", c.layers),
        ("context_length", c.max_positions),
        ("embedding_length", c.hidden),
        ("feed_forward_length", c.ffn),
        ("attention.head_count", c.heads),
        ("attention.head_count_kv", c.kv_heads),
        ("attention.key_length", c.head_size),
        ("attention.value_length", c.head_size),
        ("rope.dimension_count", c.head_size),
        ("vocab_size", c.vocab),
    ];
    for (name, n) in sizes {
        put(name, Value::u32(n as u32));
    }
    put("attention.layer_norm_rms_epsilon", Value::f32(c.rms_eps));
    put("rope.freq_base", Value::f32(c.rope.theta as f32));
    match &c.rope.scaling {
        RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Factors(_) => {}
        RopeScaling::Linear { factor } => {
            put("rope.scaling.type", Value::text("linear"));
            put("rope.scaling.factor", Value::f32(*factor as f32));
        }
        &RopeScaling::Yarn { factor, original_positions, attention_factor, beta_fast, beta_slow } => {
            if let Some(a) = attention_factor {
                let fault = Fault::new("attention_factor", "none: GGUF derives it from the factor", a.to_string());
                return Err(FormatError::Unsupported(fault));
            }
            put("rope.scaling.type", Value::text("yarn"));
            put("rope.scaling.factor", Value::f32(factor as f32));
            put("rope.scaling.original_context_length", Value::u32(original_positions as u32));
            put("rope.scaling.yarn_beta_fast", Value::f32(beta_fast as f32));
            put("rope.scaling.yarn_beta_slow", Value::f32(beta_slow as f32));
        }
    }
    // GGUF has three places for end tokens: eos, eot, eom.
    if c.eos.len() > 3 {
        let fault = Fault::new("eos_token_id", "at most three end tokens in a GGUF file", format!("{:?}", c.eos));
        return Err(FormatError::Unsupported(fault));
    }
    let vocab = match src.tokenizer() {
        TokenizerSource::Folder(folder) => vocab::from_folder(folder, c)?,
        TokenizerSource::Gguf(v) => (**v).clone(),
        TokenizerSource::None => {
            out.push((PLACEHOLDER.into(), Value::Bool(true)));
            vocab::byte_level(c)
        }
    };
    out.extend(vocab.metadata());
    if let Some(template) = src.chat_template() {
        out.push(("tokenizer.chat_template".into(), Value::text(template)));
    }
    Ok(out)
}
