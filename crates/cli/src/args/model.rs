//! Which model, how it is run, how tokens are drawn.

use clap::{Args, ValueEnum, ValueHint};

/// Which model, and how it is run.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    /// Folder, .gguf file, pulled name or synthetic:NAME
    #[arg(short, long, value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) how: HowArgs,
}

/// A backend by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    /// The processors of this host.
    #[default]
    Cpu,
    /// The first CUDA device.
    Cuda,
}

impl BackendName {
    /// Its name, as arms and records have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            BackendName::Cpu => "cpu",
            BackendName::Cuda => "cuda",
        }
    }
}

/// How a model is run.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct HowArgs {
    /// What computes
    #[arg(long, value_enum, default_value_t = BackendName::Cpu)]
    pub(crate) backend: BackendName,
    /// Worker threads [default: the processors this process may use]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Keep every worker in every step, also one whose processor another process keeps busy [default: it sits out for a while]
    #[arg(long)]
    pub(crate) keep_workers: bool,
    /// Arithmetic class: f32, bf16, w4a16, w8a16, the last three with -free, w4a8, w8a8, w4a15, w8a15 [default: that of the file's format: where it is packed w4a15 or w8a15, on cuda w4a16 or w8a16]
    #[arg(long, value_name = "CLASS")]
    pub(crate) class: Option<String>,
    /// Plan: a name (paged, deterministic, capacity-cache, a rung such as rmsnorm; a wrong one lists all) or a TOML file [default: paged]
    #[arg(long, value_name = "PLAN")]
    pub(crate) plan: Option<String>,
    /// Highest instruction-set level to use: portable, avx2, avx512, neon [default: what the host has]
    #[arg(long, value_name = "ISA")]
    pub(crate) isa: Option<String>,
    /// Most tokens of prompt and output together [default: 4096, or the model's limit]
    #[arg(short, long, value_name = "TOKENS")]
    pub(crate) context: Option<usize>,
}

/// How tokens are drawn.
#[derive(Debug, Clone, Args)]
pub(crate) struct SampleArgs {
    /// 0 takes the most likely token
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub(crate) top_k: u32,
    /// Keep the likeliest tokens up to this probability
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    pub(crate) top_p: f32,
    /// Drop tokens less likely than this share of the likeliest
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    pub(crate) min_p: f32,
    /// Divide the logits of tokens already seen; 1 is off
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    pub(crate) repetition_penalty: f32,
    /// Subtract from the logits of tokens already written
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Subtract once for each time a token was written
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// Seed of the draw
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}
