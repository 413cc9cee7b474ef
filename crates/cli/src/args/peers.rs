//! Commands about other engines.

use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// `tare peers`
#[derive(Debug, Subcommand)]
pub(crate) enum PeersCommand {
    /// Install an engine at its pinned version, built for this processor and its device
    #[command(after_help = "EXAMPLES\n  \
        tare peers install llama.cpp                needs python3 and a C++ compiler; some minutes\n  \
        tare peers install llama.cpp-cuda           needs NVIDIA's compiler too\n  \
        tare peers install openvino                 needs python3 with pip and 6 GB of disk\n  \
        tare peers install llama.cpp-cuda --sources llama.cpp.tar.gz    without a network: needs cmake and ninja")]
    Install {
        /// The engine
        #[arg(value_name = "NAME")]
        name: String,
        /// An archive that `tare peers sources` wrote, instead of a download
        #[arg(long, value_name = "FILE.tar.gz", value_hint = ValueHint::FilePath)]
        sources: Option<PathBuf>,
        /// What was installed, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Pack the sources that a build of an engine needs, for a host without a network
    Sources {
        /// The engine
        #[arg(value_name = "NAME")]
        name: String,
        /// The archive to write
        #[arg(short, long, value_name = "FILE.tar.gz", value_hint = ValueHint::FilePath)]
        output: PathBuf,
    },
    /// List the engines: which are installed, and why others are not
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Find the fastest settings of an engine in a fixed time and freeze them
    Tune(TuneArgs),
    /// Judge the tokens of an engine by the F32 reference, untimed
    Check(CheckArgs),
}

/// `tare peers tune`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare quantize -m synthetic:qwen3-0.6b?format=bf16 --format q4_0 -o qwen3-0.6b-q4_0.gguf\n  \
    tare peers tune llama.cpp -m qwen3-0.6b-q4_0.gguf\n  \
    tare peers tune llama.cpp -m synthetic:qwen3-0.6b?format=q4_0 --written-as q4_0\n  \
    tare peers tune llama.cpp -m synthetic:qwen3-0.6b?format=bf16 --written-as q4_0 --head-as q6_k\n  \
    tare peers tune openvino -m synthetic:qwen3-0.6b?format=bf16 --written-as openvino-int4\n\n\
    The request has other ids and lengths than those that are measured. Every engine has the same seconds.")]
pub(crate) struct TuneArgs {
    /// The engine
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// A .gguf file, a folder or a pulled name; with --written-as a synthetic model
    #[arg(short, long, value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub(crate) model: PathBuf,
    /// Write a synthetic model to a file of this format first, once, as a study with `written_as` does
    #[arg(long, value_name = "FORMAT")]
    pub(crate) written_as: Option<String>,
    /// Format of the head of that file, as a study with `head_as` does
    #[arg(long, value_name = "FORMAT", requires = "written_as")]
    pub(crate) head_as: Option<String>,
    /// Most threads that it may use [default: all that this process may use]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Seconds for all candidates together, loading left out
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,
    /// What was tried and chosen, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tare peers check`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare peers check llama.cpp -m qwen3-0.6b-q4_0.gguf\n\n\
    No time is shown: this is the gate alone, and what the engine says of itself.")]
pub(crate) struct CheckArgs {
    /// The engine
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// A .gguf file, a folder or a pulled name; with --written-as a synthetic model
    #[arg(short, long, value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub(crate) model: PathBuf,
    /// Write a synthetic model to a file of this format first, once, as a study with `written_as` does
    #[arg(long, value_name = "FORMAT")]
    pub(crate) written_as: Option<String>,
    /// Format of the head of that file, as a study with `head_as` does
    #[arg(long, value_name = "FORMAT", requires = "written_as")]
    pub(crate) head_as: Option<String>,
    /// Most threads that it may use [default: all that this process may use]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Prompt tokens
    #[arg(short = 'p', long, default_value_t = 128, value_name = "N")]
    pub(crate) prompt_tokens: usize,
    /// Output tokens
    #[arg(short = 'n', long = "max-tokens", default_value_t = 65, value_name = "N")]
    pub(crate) max_tokens: usize,
    /// Tokens already in the cache before the prompt
    #[arg(short, long, default_value_t = 0, value_name = "N")]
    pub(crate) depth: usize,
    /// Seed of the prompt's token ids
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}
