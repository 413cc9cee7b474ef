//! Rotary positions: base, order of a head's dimensions, scaling; and how config.json writes them.

use crate::error::FormatError;
use crate::json::{Fields, kind};
use tare_core::Fault;

/// Rotary positions of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// `inv_freq[i] = theta^(-2i / E)`.
    pub theta: f64,
    /// Which dimensions turn together.
    pub style: RopeStyle,
    /// How frequencies are changed for longer contexts.
    pub scaling: RopeScaling,
}

/// Order of the dimensions of one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Dimension i turns with i + E/2 (Hugging Face, GGUF qwen2 and qwen3).
    HalfSplit,
    /// Dimension 2i turns with 2i + 1 (GGUF llama, whose Q and K rows are permuted to suit).
    Interleaved,
}

/// Change of the rotary frequencies.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// None.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// Above 0.
        factor: f64,
    },
    /// Llama 3: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// Above 0.
        factor: f64,
        /// Wavelengths longer than `original_positions / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths shorter than `original_positions / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Positions before scaling.
        original_positions: usize,
    },
    /// YaRN (arXiv:2309.00071): frequencies between the two betas are interpolated, attention is scaled.
    Yarn {
        /// Above 0.
        factor: f64,
        /// Positions before scaling.
        original_positions: usize,
        /// Multiplies cosine and sine; `None` means `0.1 ln(factor) + 1`.
        attention_factor: Option<f64>,
        /// Rotations over the original context above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which it is divided by `factor`.
        beta_slow: f64,
    },
    /// E/2 numbers that divide the frequencies one by one (`rope_freqs.weight` of GGUF).
    Factors(Vec<f32>),
}

/// `rope_theta` of the Hugging Face classes of these families when config.json has none.
pub const DEFAULT_THETA: f64 = 10_000.0;

/// Reads `rope_parameters` (newer), or `rope_theta` and `rope_scaling`.
pub(crate) fn hugging_face(config: Fields<'_>, max_positions: usize) -> Result<Rope, FormatError> {
    let (new, old) = (config.object("rope_parameters")?, config.object("rope_scaling")?);
    let outer = config.positive("rope_theta")?;
    let inner = match new {
        Some(new) => new.positive("rope_theta")?,
        None => None,
    };
    if let (Some(a), Some(b)) = (outer, inner)
        && a != b
    {
        let expected = format!("{b}, as in rope_parameters.rope_theta");
        return Err(config.fault("rope_theta", expected).into());
    }
    let scaling = match (new, old) {
        (Some(new), Some(old)) => {
            let (a, b) = (scaling(new, max_positions)?, scaling(old, max_positions)?);
            if a != b {
                return Err(config.fault("rope_scaling", "the same scaling as rope_parameters").into());
            }
            a
        }
        (Some(fields), None) | (None, Some(fields)) => scaling(fields, max_positions)?,
        (None, None) => RopeScaling::None,
    };
    let theta = inner.or(outer).unwrap_or(DEFAULT_THETA);
    Ok(Rope { theta, style: RopeStyle::HalfSplit, scaling })
}

/// Fields of every kind of scaling.
const SHARED: [&str; 4] = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];

fn scaling(fields: Fields<'_>, max_positions: usize) -> Result<RopeScaling, FormatError> {
    let (new, old) = (fields.text("rope_type")?, fields.text("type")?);
    if let (Some(a), Some(b)) = (new, old)
        && a != b
    {
        return Err(fields.fault("type", format!("`{a}`, as in rope_type")).into());
    }
    let name = fields.need("rope_type", "the name of a rope scaling", new.or(old))?;
    let known: &[&str] = match name {
        "default" => &[],
        "linear" => &["factor"],
        "llama3" => &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"],
        "yarn" => {
            &["factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "truncate"]
        }
        _ => {
            let field = if new.is_some() { "rope_type" } else { "type" };
            return Err(FormatError::Unsupported(fields.fault(field, "default, linear, llama3 or yarn")));
        }
    };
    if let Some(field) = fields.names().find(|f| !SHARED.contains(f) && !known.contains(f)) {
        let value = fields.get(field).map(kind).unwrap_or_default();
        let fault = Fault::new(fields.path(field), format!("no such field in rope scaling `{name}`"), value);
        return Err(FormatError::Unsupported(fault));
    }
    if fields.number("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
        return Err(FormatError::Unsupported(fields.fault("partial_rotary_factor", "1 (whole heads turn)")));
    }
    let factor = || fields.need("factor", "a number above 0", fields.positive("factor")?);
    let original = || fields.integer("original_max_position_embeddings", 1 << 30).map(|n| n.map(|n| n as usize));
    match name {
        "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
        "llama3" => llama3(fields, factor()?, original()?),
        "yarn" => yarn(fields, factor()?, original()?.unwrap_or(max_positions)),
        _ => Ok(RopeScaling::None),
    }
}

fn llama3(fields: Fields<'_>, factor: f64, original: Option<usize>) -> Result<RopeScaling, FormatError> {
    let need = |field| fields.need(field, "a number above 0", fields.positive(field)?);
    let (low, high) = (need("low_freq_factor")?, need("high_freq_factor")?);
    if high <= low {
        return Err(fields.fault("high_freq_factor", format!("more than low_freq_factor, {low}")).into());
    }
    let original = original.filter(|&n| n > 0);
    let original = fields.need("original_max_position_embeddings", "a count of positions", original)?;
    Ok(RopeScaling::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original_positions: original })
}

fn yarn(fields: Fields<'_>, factor: f64, original: usize) -> Result<RopeScaling, FormatError> {
    if fields.flag("truncate")? == Some(false) {
        return Err(FormatError::Unsupported(fields.fault("truncate", "true (correction range in whole dimensions)")));
    }
    if original == 0 {
        return Err(fields.fault("original_max_position_embeddings", "a count of positions").into());
    }
    let beta_fast = fields.positive("beta_fast")?.unwrap_or(32.0);
    let beta_slow = fields.positive("beta_slow")?.unwrap_or(1.0);
    if beta_fast < beta_slow {
        return Err(fields.fault("beta_fast", format!("at least beta_slow, {beta_slow}")).into());
    }
    let attention_factor = fields.positive("attention_factor")?;
    Ok(RopeScaling::Yarn { factor, original_positions: original, attention_factor, beta_fast, beta_slow })
}
