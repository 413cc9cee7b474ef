//! Flags of `tare study ops`.

use clap::{Args, ValueHint};
use std::path::PathBuf;

use super::{MEASURED_MODEL, model::HowArgs};

/// `tare study ops`
#[derive(Debug, Clone, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare study ops --op linear --rows 1,4,16            every kernel of the model's projections, warm and cold\n  \
    tare study ops --op attention --depth 4096\n  \
    tare study ops --op linear --plan my.toml --write-guard my.toml --study 3f0c9a...\n\n\
    A guard is written only when the win is there in every pass, warm and cold, the kernel that was meant is the one\n\
    that ran, and the study of whole requests that --study names kept it. Otherwise the command says what is missing.")]
pub(crate) struct OpsArgs {
    /// Folder, .gguf file, pulled name or synthetic:NAME
    #[arg(short, long, value_name = "MODEL", default_value = MEASURED_MODEL)]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    /// Operators, by the first part of their kernels' keys [default: all that have a choice of kernels]
    #[arg(long = "op", value_name = "OPERATOR", value_delimiter = ',')]
    pub(crate) operators: Vec<String>,
    /// Numbers of rows
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256])]
    pub(crate) rows: Vec<usize>,
    /// Tokens in the cache that attention reads
    #[arg(short, long, value_name = "N", default_value_t = 1024)]
    pub(crate) depth: usize,
    /// Passes; a win counts when it is there in each
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) passes: usize,
    /// Only with the same weight in every run
    #[arg(long, conflicts_with = "cold")]
    pub(crate) warm: bool,
    /// Only with copies of the weight that take turns
    #[arg(long)]
    pub(crate) cold: bool,
    /// Append the guards that were earned to this plan
    #[arg(long, value_name = "PLAN.toml", value_hint = ValueHint::FilePath, conflicts_with_all = ["warm", "cold"])]
    pub(crate) write_guard: Option<PathBuf>,
    /// Id of the closing document of a study of whole requests that kept the plan with the kernel
    #[arg(long, value_name = "ID", requires = "write_guard")]
    pub(crate) study: Option<String>,
    /// Folder of the ledger with that study [default: the user's data folder]
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) ledger: Option<PathBuf>,
    /// Show who did which share of each kernel's stages
    #[arg(long)]
    pub(crate) calls: bool,
    /// Every sample as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
