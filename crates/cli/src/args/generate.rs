//! Commands that write text: run, chat, serve.

use clap::{Args, ValueHint};
use std::path::PathBuf;

use super::{model::ModelArgs, model::SampleArgs};

/// `tare run`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare run -m smollm2-135m \"The capital of France is\" --raw -n 20\n  \
    tare run -m smollm2-135m \"Write a haiku\" --temperature 0.8 --seed 7\n  \
    tare run -m synthetic:qwen3-tiny --ids prompt.json -n 24 --json")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The prompt; `-` reads standard input
    #[arg(value_name = "PROMPT", conflicts_with = "prompt")]
    pub(crate) text: Option<String>,
    /// The prompt, as a flag
    #[arg(short, long, value_name = "PROMPT")]
    pub(crate) prompt: Option<String>,
    /// A JSON file with an array of token ids instead of a text prompt
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["text", "prompt", "raw", "system"], value_hint = ValueHint::FilePath)]
    pub(crate) ids: Option<PathBuf>,
    /// Complete the text as it is, without the model's chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Let a thinking model think, or not [default: the template's]
    #[arg(long, value_name = "BOOL")]
    pub(crate) thinking: Option<bool>,
    /// Most tokens to write
    #[arg(short = 'n', long = "max-tokens", default_value_t = 256, value_name = "N")]
    pub(crate) max_tokens: usize,
    /// Stop when this text appears; may be given more than once
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Go on past the end-of-sequence token
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    #[command(flatten)]
    pub(crate) sample: SampleArgs,
    /// One JSON object at the end instead of text as it comes
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tare chat`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare chat -m smollm2-135m --system \"You answer in one sentence.\"\n  \
    tare chat -m qwen3-0.6b --thinking false --temperature 0.7 --top-p 0.8 --top-k 20")]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Let a thinking model think, or not [default: the template's]
    #[arg(long, value_name = "BOOL")]
    pub(crate) thinking: Option<bool>,
    /// Most tokens of one answer
    #[arg(short = 'n', long = "max-tokens", default_value_t = 1024, value_name = "N")]
    pub(crate) max_tokens: usize,
    #[command(flatten)]
    pub(crate) sample: SampleArgs,
}

/// `tare serve`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare serve -m smollm2-135m\n  \
    curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\\n    \
      -d '{\"model\":\"smollm2-135m\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"stream\":true}'")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: std::net::IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,
    /// Requests decoded together
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(crate) max_sequences: usize,
    /// Requests waiting before new ones are turned away
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub(crate) max_queue: usize,
    /// Name under which the model is served [default: MODEL]
    #[arg(long, value_name = "NAME")]
    pub(crate) served_name: Option<String>,
}
