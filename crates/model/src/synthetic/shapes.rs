//! The shapes that can be made. Sizes of the Qwen3 rows are those of the published config.json files.

use tare_core::{AffineBits, Fault, Format};
use tare_formats::ModelConfig;
use tare_formats::config::{Arch, Rope, RopeScaling, RopeStyle};

/// A shape by name.
pub(super) struct Shape {
    /// What follows `synthetic:`.
    pub(super) name: &'static str,
    /// Format when none is asked for.
    pub(super) default_format: Format,
    /// The decoder's numbers.
    pub(super) config: fn() -> ModelConfig,
}

const W4G128: Format = Format::Affine { bits: AffineBits::Four, group: 128 };

const SHAPES: [Shape; 6] = [
    Shape { name: "qwen3-tiny", default_format: Format::BF16, config: qwen3_tiny },
    Shape { name: "qwen3-0.6b", default_format: W4G128, config: || qwen3(1024, 28, (16, 8), 3072, true) },
    Shape { name: "qwen3-1.7b", default_format: W4G128, config: || qwen3(2048, 28, (16, 8), 6144, true) },
    Shape { name: "qwen3-4b", default_format: W4G128, config: || qwen3(2560, 36, (32, 8), 9728, true) },
    Shape { name: "qwen3-8b", default_format: W4G128, config: || qwen3(4096, 36, (32, 8), 12288, false) },
    Shape { name: "llama-tiny", default_format: Format::BF16, config: llama_tiny },
];

/// The shape called `name`.
///
/// # Errors
/// When there is none.
pub(super) fn find(name: &str) -> Result<&'static Shape, Fault> {
    SHAPES.iter().find(|s| s.name == name).ok_or_else(|| {
        let names: Vec<&str> = SHAPES.iter().map(|s| s.name).collect();
        Fault::new("synthetic", format!("one of {}", names.join(", ")), format!("`{name}`"))
    })
}

/// A published Qwen3: D, L, (H, K) and F differ, the rest is common to all.
fn qwen3(hidden: usize, layers: usize, heads: (usize, usize), ffn: usize, tied_head: bool) -> ModelConfig {
    ModelConfig {
        arch: Arch::Qwen3,
        hidden,
        layers,
        heads: heads.0,
        kv_heads: heads.1,
        head_size: 128,
        ffn,
        vocab: 151_936,
        rms_eps: 1e-6,
        rope: Rope { theta: 1e6, style: RopeStyle::HalfSplit, scaling: RopeScaling::None },
        tied_head,
        qkv_bias: false,
        qk_norm: true,
        max_positions: 40_960,
        bos: None,
        eos: Vec::new(),
        quantization: None,
    }
}

/// Every width is a multiple of 128, so that every format can be made.
fn qwen3_tiny() -> ModelConfig {
    ModelConfig { head_size: 64, vocab: 1024, ..qwen3(256, 4, (4, 2), 512, true) }
}

/// Llama 3.1's rotary scaling, no QK-norm, an untied head.
fn llama_tiny() -> ModelConfig {
    let scaling =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_positions: 8192 };
    ModelConfig {
        arch: Arch::Llama,
        rms_eps: 1e-5,
        rope: Rope { theta: 5e5, style: RopeStyle::HalfSplit, scaling },
        qk_norm: false,
        max_positions: 131_072,
        tied_head: false,
        layers: 3,
        ..qwen3_tiny()
    }
}
