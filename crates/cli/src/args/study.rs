//! Commands that run a campaign: study, compare.

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;

use super::{MEASURED_MODEL, OpsArgs};

/// `tare study`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "EXAMPLES\n  \
    tare study --list                          the studies inside the binary and what they ask\n  \
    tare study aa-duet --dry-run               arms, order and rounds, nothing is started\n  \
    tare study aa-duet -o evidence             a campaign, with its documents in a ledger of its own\n  \
    tare study aa-duet --resume                go on where Ctrl-C or a lost process ended the last one\n  \
    tare study my-study.toml --rounds 2        a screening of a study of yours\n  \
    tare study ops --op linear --rows 1,4      the kernels of one operator against each other\n\n\
    Finished rounds are kept at once: Ctrl-C loses the round under way at most."
)]
pub(crate) struct StudyArgs {
    /// Name of a study inside the binary, or a .toml file
    #[arg(value_name = "NAME|FILE", required_unless_present = "list")]
    pub(crate) study: Option<String>,
    /// List the studies inside the binary
    #[arg(long, conflicts_with_all = ["study", "rounds", "output", "resume", "dry_run"])]
    pub(crate) list: bool,
    /// Other rounds than were planned: the result is a screening, and its records say so
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,
    #[command(flatten)]
    pub(crate) run: CampaignArgs,
    /// A study of another kind
    #[command(subcommand)]
    pub(crate) other: Option<OtherStudy>,
}

/// Studies that are no campaign of requests.
#[derive(Debug, Subcommand)]
pub(crate) enum OtherStudy {
    /// The kernels of each operator against each other at the model's shapes, and the guards that follow
    Ops(OpsArgs),
}

/// How a campaign is run and kept.
#[derive(Debug, Clone, Args)]
pub(crate) struct CampaignArgs {
    /// Folder of the ledger that keeps its documents [default: the user's data folder]
    #[arg(short, long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
    /// Go on with the last campaign that was not finished, as one more attempt
    #[arg(long)]
    pub(crate) resume: bool,
    /// End the last campaign that was not finished, without a verdict; what ran is kept in the ledger
    #[arg(long, conflicts_with_all = ["resume", "dry_run"])]
    pub(crate) close: bool,
    /// Show what would run, and start nothing
    #[arg(long, conflicts_with = "resume")]
    pub(crate) dry_run: bool,
    /// Results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tare compare`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare compare old/tare target/release/tare                       did tokens get slower? a duet of the two builds\n  \
    tare compare old/tare new/tare --metric prefill --class w4a16-free --rounds 24\n  \
    tare compare old/tare new/tare --effect 0.03 --power 0.9 --spread-from ID")]
pub(crate) struct CompareArgs {
    /// The tare binary that is the baseline
    #[arg(value_name = "BUILD_A", value_hint = ValueHint::FilePath)]
    pub(crate) baseline: PathBuf,
    /// The tare binary that is compared with it
    #[arg(value_name = "BUILD_B", value_hint = ValueHint::FilePath)]
    pub(crate) candidate: PathBuf,
    /// Folder, .gguf file, pulled name or synthetic:NAME
    #[arg(short, long, value_name = "MODEL", default_value = MEASURED_MODEL)]
    pub(crate) model: String,
    /// What is compared; end-to-end in ABBA, the others in a duet
    #[arg(long, value_enum, default_value_t = CompareMetric::InterToken)]
    pub(crate) metric: CompareMetric,
    /// Prompt tokens
    #[arg(short, long, default_value_t = 128, value_name = "N")]
    pub(crate) prompt_tokens: usize,
    /// Output tokens, the first belongs to prefill
    #[arg(short = 'n', long = "max-tokens", default_value_t = 97, value_name = "N")]
    pub(crate) max_tokens: usize,
    /// Arithmetic class of both [default: each build's own default]
    #[arg(long, value_name = "CLASS")]
    pub(crate) class: Option<String>,
    /// Plan of both
    #[arg(long, value_name = "PLAN")]
    pub(crate) plan: Option<String>,
    /// Planned rounds
    #[arg(short, long, value_name = "N", default_value_t = 16, conflicts_with_all = ["effect", "power", "spread_from"],
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Plan the rounds to find this loss: 0.03 is 3 %
    #[arg(long, value_name = "X", requires = "spread_from")]
    pub(crate) effect: Option<f64>,
    /// The chance of finding it
    #[arg(long, value_name = "P", default_value_t = 0.9)]
    pub(crate) power: f64,
    /// Campaign in the ledger whose A/A arm says how far a round's log-ratio spreads on this host
    #[arg(long, value_name = "ID", requires = "effect")]
    pub(crate) spread_from: Option<String>,
    #[command(flatten)]
    pub(crate) run: CampaignArgs,
}

/// What two builds are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompareMetric {
    /// The prompt and the first token.
    Prefill,
    /// The tokens after it.
    Decode,
    /// The token in the middle of them.
    InterToken,
    /// The whole request.
    EndToEnd,
}
