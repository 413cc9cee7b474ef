//! Models made from a seed: the shapes of published models, no download, the same bytes on every host.
//!
//! `synthetic:NAME[?format=F&seed=N]`, where NAME is a row of `synthetic/shapes.rs`; weights are written straight in the wanted
//! format. Without `format` the published sizes come as `w4g128` and the tiny ones as `bf16`; without `seed` it is 0.
//! No token ends an answer and there is no vocabulary: ids in, ids out.
//!
//! Random weights are weak judges of an engine: attention over random keys is flat, so that a lost page changes
//! nothing. These models are *peaky* instead (`synthetic/recipe.rs`), and no two cache lines of a tensor are equal, so that
//! neither a compressing nor a deduplicating layer can flatter a measurement.

mod encode;
mod recipe;
mod shapes;
mod stream;

use std::sync::Arc;
use tare_core::{AffineBits, Fault, Format, Weight};
use tare_formats::{ModelConfig, Role};

use crate::TensorInfo;
use recipe::Recipe;

pub use recipe::is_needle;

/// What a synthetic name starts with.
pub const SCHEME: &str = "synthetic:";

/// Version of the generator. It changes when any byte of any synthetic weight does, and digests change with it.
pub const GENERATOR: &str = "synthetic-1";

/// A model made from a seed. A matrix is made when somebody looks at its bytes, and is not kept here.
#[derive(Clone, Debug)]
pub struct Synthetic {
    name: &'static str,
    config: Arc<ModelConfig>,
    format: Format,
    seed: u64,
}

impl Synthetic {
    /// Reads `NAME[?format=F&seed=N]`.
    ///
    /// # Errors
    /// When the name, a parameter or a value is unknown, a parameter comes twice, or the format cannot be made in
    /// this shape.
    pub fn parse(spec: &str) -> Result<Self, Fault> {
        let (name, query) = spec.split_once('?').unwrap_or((spec, ""));
        let shape = shapes::find(name)?;
        let (mut format, mut seed) = (None, None);
        for pair in query.split('&').filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let at = format!("{SCHEME}{name}: {key}");
            let twice = match key {
                "format" => format.replace(makeable(value).map_err(|f| f.within(&at))?).is_some(),
                "seed" => {
                    let n = value.parse::<u64>();
                    seed.replace(n.map_err(|_| Fault::new(&at, "a whole number below 2^64", format!("`{value}`")))?)
                        .is_some()
                }
                _ => return Err(Fault::new(at, "format or seed", format!("`{pair}`"))),
            };
            if twice {
                return Err(Fault::new(at, "one value", "two"));
            }
        }
        let format = format.unwrap_or(shape.default_format);
        let mut config = (shape.config)();
        if let Format::Affine { bits, group } = format {
            config.quantization = Some((bits, group));
        }
        Ok(Self { name: shape.name, config: Arc::new(config), format, seed: seed.unwrap_or(0) })
    }

    /// The name written out in full: equal specs are equal bytes.
    pub fn spec(&self) -> String {
        format!("{SCHEME}{}?format={}&seed={}", self.name, self.format, self.seed)
    }

    /// Name of the shape: `qwen3-0.6b`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The decoder's numbers.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// A tensor without its bytes. `role` is one of [`Role::all`].
    pub fn tensor(&self, role: Role) -> TensorInfo {
        let (rows, cols) = role.shape(&self.config);
        let format = self.format_of(role);
        let bytes = format.row_bytes(cols).map_or(0, |row| row * rows);
        TensorInfo { role, name: role.to_string(), format, rows, cols, bytes }
    }

    /// One weight, whose bytes are made when somebody looks at them if it is a matrix. A tied head is the embedding.
    ///
    /// # Errors
    /// When a model of this shape has no such weight.
    pub fn weight(&self, role: Role) -> Result<Weight, Fault> {
        let role = if role == Role::Head && self.config.tied_head { Role::Embed } else { role };
        let there = match role {
            Role::Layer { layer, part } => layer < self.config.layers && part.in_model(&self.config),
            _ => true,
        };
        if !there {
            return Err(Fault::new(role.to_string(), format!("a weight of {}", self.name), "no such weight"));
        }
        let recipe = Recipe::new(Arc::clone(&self.config), role, self.seed);
        let shape = role.shape(&self.config);
        if role.is_vector() {
            encode::vector(&recipe, self.format_of(role), shape.1)
        } else {
            encode::matrix(recipe, self.format, shape)
        }
    }

    /// Vectors are never packed: files of packed matrices keep them as their own kind does.
    fn format_of(&self, role: Role) -> Format {
        match self.format {
            packed if !role.is_vector() => packed,
            Format::BF16 | Format::Affine { .. } => Format::BF16,
            Format::F16 => Format::F16,
            _ => Format::F32,
        }
    }
}

/// The format called `name`, if the generator writes it.
fn makeable(name: &str) -> Result<Format, Fault> {
    let format: Format = name.parse()?;
    match format {
        Format::F32 | Format::F16 | Format::BF16 | Format::Q8_0 | Format::Q4_0 | Format::Q4_1 => Ok(format),
        Format::Affine { bits: AffineBits::Four | AffineBits::Eight, .. } => Ok(format),
        _ => Err(Fault::new("format", "f32, f16, bf16, q8_0, q4_0, q4_1, w4g… or w8g…", format!("`{name}`"))
            .remedy("these blocks are only read from files")),
    }
}
