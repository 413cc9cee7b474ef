//! Flags of `tare replay`.

use clap::{Args, ValueEnum};
use tare_lab::delay::Delay;

use super::{MEASURED_MODEL, model::HowArgs};

/// `tare replay`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare replay                                      a decode step of the synthetic 0.6B model, group by group\n  \
    tare replay -m smollm2-135m --depth 2048         with 2,048 tokens in the cache\n  \
    tare replay --phase prefill -p 256 --calls       a prompt of 256 tokens, with kernels and thread split\n  \
    tare replay -m synthetic:qwen3-tiny --cold       weights that would fit in a cache, kept out of it\n  \
    tare replay --delay down=20                      with a planted delay: the group shows it")]
pub(crate) struct ReplayArgs {
    /// Folder, .gguf file, pulled name or synthetic:NAME
    #[arg(short, long, value_name = "MODEL", default_value = MEASURED_MODEL)]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    /// Which step is taken apart
    #[arg(long, value_enum, default_value_t = PhaseArg::Decode)]
    pub(crate) phase: PhaseArg,
    /// Tokens in the cache before the step [default: 128 for decode, 0 for prefill]
    #[arg(short, long, value_name = "N")]
    pub(crate) depth: Option<usize>,
    /// Rows of the prefill step: prompt tokens
    #[arg(short = 'p', long, default_value_t = 128, value_name = "N")]
    pub(crate) prompt_tokens: usize,
    /// Timed turns of the step and of every group [default: 30 for decode, 7 for prefill]
    #[arg(short, long, value_name = "N")]
    pub(crate) iterations: Option<usize>,
    /// Read the same weights in every run, as a decode loop does (the default)
    #[arg(long, conflicts_with = "cold")]
    pub(crate) warm: bool,
    /// Rotate over copies of the weights, enough to exceed the last-level cache
    #[arg(long)]
    pub(crate) cold: bool,
    /// Plant a delay of so many percent into a group
    #[arg(long, value_name = "GROUP=PERCENT")]
    pub(crate) delay: Option<Delay>,
    /// Show kernels, shapes and who did which share
    #[arg(long)]
    pub(crate) calls: bool,
    /// Seed of the prompt's token ids
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Everything, with every sample, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A phase by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PhaseArg {
    /// The step that ends in the first token.
    Prefill,
    /// The step after it.
    Decode,
}
