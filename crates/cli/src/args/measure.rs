//! Commands that measure one request: clock, next, mutate.

use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use tare_lab::Delay;

use super::{MEASURED_MODEL, model::HowArgs, remote::RemoteArgs};

/// What a clocked request looks like.
#[derive(Debug, Clone, Args)]
pub(crate) struct WorkArgs {
    /// Prompt tokens
    #[arg(short = 'p', long, default_value_t = 128, value_name = "N")]
    pub(crate) prompt_tokens: usize,
    /// Output tokens, the first belongs to prefill
    #[arg(short = 'n', long = "max-tokens", default_value_t = 65, value_name = "N")]
    pub(crate) max_tokens: usize,
    /// Tokens already in the cache before the prompt
    #[arg(short, long, default_value_t = 0, value_name = "N")]
    pub(crate) depth: usize,
    /// Timed rounds
    #[arg(short, long, default_value_t = 5, value_name = "N", value_parser = at_least_one)]
    pub(crate) rounds: usize,
    /// Logits computed in prefill: of the last prompt token or of all
    #[arg(long, value_enum, default_value_t = PrefillLogits::Last)]
    pub(crate) prefill_logits: PrefillLogits,
    /// Seed of the prompt's token ids
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// A JSON file with an array of token ids instead of drawn ones
    #[arg(long, value_name = "FILE.json", conflicts_with = "prompt_tokens", value_hint = ValueHint::FilePath)]
    pub(crate) ids: Option<PathBuf>,
}

/// A count that must not be 0: a measurement without a round has no figure.
fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1".to_string()),
        Ok(n) => Ok(n),
        Err(e) => Err(e.to_string()),
    }
}

/// Which logits prefill computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrefillLogits {
    /// The last prompt token's.
    Last,
    /// Every prompt token's.
    All,
}

/// `tare clock`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare clock -m synthetic:qwen3-0.6b?format=w4g128              128 in, 65 out, 5 rounds: about a minute\n  \
    tare clock -m smollm2-135m -p 512 -n 129 --json -o evidence\n  \
    tare clock -m smollm2-135m --class f32 --plan capacity-cache\n  \
    tare clock -m smollm2-135m --depths 0,512,2048                one record for each depth\n  \
    tare clock -m smollm2-135m --sequences 8                      eight at once, one row of each in a step\n  \
    tare clock --url http://127.0.0.1:8080 -p 256 -n 65           any OpenAI-compatible server\n  \
    tare clock --url http://127.0.0.1:8080 --gate-model smollm2-135m    its answers judged by the F32 reference")]
pub(crate) struct ClockArgs {
    /// Folder, .gguf file, pulled name or synthetic:NAME; with --url the name under which the server has it
    #[arg(short, long, value_name = "MODEL", value_hint = ValueHint::AnyPath, required_unless_present = "url")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    /// Sequences that run together, each with a prompt of its own
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = at_least_one, conflicts_with_all = ["url", "ids"])]
    pub(crate) sequences: usize,
    /// Several depths, one after the other
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', conflicts_with = "depth")]
    pub(crate) depths: Vec<usize>,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// Folder of the ledger that keeps the record [default: the user's data folder]
    #[arg(short, long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
    /// The record and its path as JSON; an array with --depths
    #[arg(long)]
    pub(crate) json: bool,
}

impl ClockArgs {
    /// The request at each depth that was asked for.
    pub(crate) fn works(&self) -> Vec<WorkArgs> {
        if self.depths.is_empty() {
            return vec![self.work.clone()];
        }
        self.depths.iter().map(|&depth| WorkArgs { depth, ..self.work.clone() }).collect()
    }
}

/// `tare next`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare next                                  the synthetic 0.6B model in W4, nothing to download\n  \
    tare next -m smollm2-135m -p 256 -n 33\n  \
    tare next --delay down=50                  with a planted delay, which it must name\n  \
    tare next --backend cuda -m synthetic:qwen3-0.6b?format=bf16 --class bf16-free    the launches of a device\n  \
    tare next --after DECISION                 did the change bring what was predicted?")]
pub(crate) struct NextArgs {
    /// Folder, .gguf file, pulled name or synthetic:NAME
    #[arg(short, long, value_name = "MODEL", default_value = MEASURED_MODEL)]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    /// Hold this build against the one of before: its binary, or the id of the decision that it was kept for
    #[arg(long, value_name = "DECISION|BINARY", conflicts_with = "delay")]
    pub(crate) after: Option<String>,
    /// Plant a delay of so many percent into a group
    #[arg(long, value_name = "GROUP=PERCENT")]
    pub(crate) delay: Option<Delay>,
    /// Folder of the ledger that keeps the record [default: the user's data folder]
    #[arg(short, long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
    /// Everything that was measured, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tare mutate`
#[derive(Debug, Args)]
#[command(
    after_help = "EXAMPLES\n  tare mutate                                every fault at 0.6B shape, on the path that is timed"
)]
pub(crate) struct MutateArgs {
    /// Folder, .gguf file, pulled name or synthetic:NAME
    #[arg(short, long, value_name = "MODEL", default_value = MEASURED_MODEL)]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    /// Results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
