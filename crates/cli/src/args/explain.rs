//! Commands that show what the engine sees: doctor, logits, perplexity, tokens, templates.

use clap::{Args, ValueHint};
use std::path::PathBuf;

use super::{model::HowArgs, model::ModelArgs};

/// `tare doctor`
#[derive(Debug, Args)]
#[command(
    after_help = "EXAMPLES\n  tare doctor\n  tare doctor --plan paged                    also which kernel runs each operator, and why\n  tare doctor -m smollm2-135m --class f32\n  tare doctor --kernels                       the matrix of formats, phases and instruction sets\n  tare doctor --backend cuda --conformance    whether every kernel gives the bits of the reference on this device"
)]
pub(crate) struct DoctorArgs {
    /// Show the kernels chosen for this model [default with --plan or --class: the one of `tare next`]
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    /// Hold every kernel of the backend against the conformance table, bit for bit
    #[arg(long)]
    pub(crate) conformance: bool,
    /// Which kernel runs each operator, format and class at one row, few rows and many, on each instruction set
    #[arg(long)]
    pub(crate) kernels: bool,
    /// With --kernels: the ledger whose records say how near to its floor a kernel was
    #[arg(long, default_value = "evidence", value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) ledger: PathBuf,
    /// Measure the ceilings again
    #[arg(long)]
    pub(crate) fresh: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tare logits`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  tare logits -m smollm2-135m --ids ids.json --class f32 -o logits.safetensors")]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// A JSON file with an array of token ids
    #[arg(long, value_name = "FILE.json", value_hint = ValueHint::FilePath)]
    pub(crate) ids: PathBuf,
    /// The file to write: tensor `logits` [T, V] F32
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,
    /// A summary as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tare perplexity`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  tare perplexity -m smollm2-135m --class f32 text.txt")]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// A text file; with --ids a JSON array of token ids
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// FILE holds token ids
    #[arg(long)]
    pub(crate) ids: bool,
    /// Tokens scored in one window
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub(crate) window: usize,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tare tokenize`
#[derive(Debug, Args)]
#[command(
    after_help = "EXAMPLES\n  tare tokenize -m smollm2-135m \"Hello <|im_end|>\"\n  tare tokenize -m smollm2-135m --parse-special \"Hello <|im_end|>\""
)]
pub(crate) struct TokenizeArgs {
    /// Model whose tokenizer is used
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: String,
    /// The text; `-` reads standard input
    pub(crate) text: String,
    /// Take special tokens in the text for what they name; otherwise they stay text
    #[arg(long)]
    pub(crate) parse_special: bool,
    /// A JSON array alone
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tare detokenize`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  tare detokenize -m smollm2-135m 504 3575 282")]
pub(crate) struct DetokenizeArgs {
    /// Model whose tokenizer is used
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: String,
    /// Token ids
    #[arg(required_unless_present = "ids")]
    pub(crate) tokens: Vec<u32>,
    /// A JSON file with an array of token ids
    #[arg(long, value_name = "FILE.json", conflicts_with = "tokens")]
    pub(crate) ids: Option<PathBuf>,
    /// Leave special tokens out
    #[arg(long)]
    pub(crate) skip_special: bool,
    /// A JSON string
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tare template`
#[derive(Debug, Args)]
#[command(
    after_help = "EXAMPLES\n  tare template -m smollm2-135m messages.json\n\n  messages.json holds an array of {\"role\": .., \"content\": ..}, or an object with messages and tools."
)]
pub(crate) struct TemplateArgs {
    /// Model whose template is used
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: String,
    /// Messages as JSON; `-` reads standard input
    #[arg(value_name = "FILE.json")]
    pub(crate) file: PathBuf,
    /// Leave out the opening of the assistant's turn
    #[arg(long)]
    pub(crate) no_generation_prompt: bool,
    /// Let a thinking model think, or not [default: the template's]
    #[arg(long, value_name = "BOOL")]
    pub(crate) thinking: Option<bool>,
    /// Rendered text and token ids as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
