//! Commands about records and documents.

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;

/// `tare ledger`
#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Check a ledger: checksums, digests, every figure and every verdict derived again from its samples
    Verify {
        /// A file or a folder of a ledger
        path: PathBuf,
        /// Also refuse what was made from trees with uncommitted changes
        #[arg(long)]
        committed: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// List records and documents with their rates, verdicts and states
    #[command(after_help = "EXAMPLES\n  tare ledger list\n  tare ledger list evidence --json\n\n\
        `reopened here` says that the host's class, the gate's limits or the schema are others now: a hint of this\n\
        moment, which is not written. `tare ledger reopen` writes it.")]
    List {
        /// Folder of the ledger [default: the user's data folder]
        path: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a record or a document
    #[command(after_help = "EXAMPLES\n  tare ledger show 20260301T120000Z-0123456789abcdef\n  \
        tare ledger show ID --ledger evidence --json")]
    Show {
        /// Its id
        id: String,
        #[command(flatten)]
        place: Place,
        /// The file as JSON
        #[arg(long)]
        json: bool,
    },
    /// Hold two records side by side: work, arm, figures, and whether their times may be compared
    #[command(
        after_help = "EXAMPLES\n  tare ledger diff ID_A ID_B --ledger evidence\n  tare ledger diff a.json b.json\n\n\
        The exit status says whether times may be compared."
    )]
    Diff {
        /// The id or the file of a record
        first: String,
        /// Another
        second: String,
        #[command(flatten)]
        place: Place,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Add to a ledger whatever another one has more
    #[command(after_help = "EXAMPLES\n  tare ledger merge ~/colleague/records evidence\n\n\
        Equal files are skipped, a file with other bytes is refused before anything is written.")]
    Merge {
        /// The other ledger
        #[arg(value_hint = ValueHint::DirPath)]
        from: PathBuf,
        /// The ledger that grows
        #[arg(value_hint = ValueHint::DirPath)]
        into: PathBuf,
    },
    /// Put a record or a document under question again
    Reopen(Change),
    /// Say that what a record or a document depends on has moved on
    Stale(Change),
    /// Say that a record or a document was wrong
    Retract(Change),
    /// How often studies with the noise of a campaign would err if its arms were equal
    #[command(after_help = "EXAMPLES\n  tare ledger simulate CAMPAIGN_ID\n  \
        tare ledger simulate CAMPAIGN_ID --studies 10000 --samples 12 --ledger evidence --json")]
    Simulate {
        /// Id of a ruled campaign
        campaign: String,
        /// Studies to simulate
        #[arg(long, default_value_t = 10_000, value_name = "N")]
        studies: usize,
        /// Samples of each [default: those of the campaign]; in a duet and in ABBA two rounds are one
        #[arg(long, value_name = "N")]
        samples: Option<usize>,
        /// Seed of the draws
        #[arg(long, default_value_t = 0)]
        seed: u64,
        #[command(flatten)]
        place: Place,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// How many rounds find an effect, at the noise of a campaign
    #[command(after_help = "EXAMPLES\n  tare ledger plan --effect 0.03 --power 0.9 --from CAMPAIGN_ID\n  \
        tare ledger plan --effect 0.03 --rounds 12 --from CAMPAIGN_ID     the power of 12 rounds")]
    Plan(PlanArgs),
    /// Run a record or a campaign again on this host, keep what comes of it, and say whether it says the same
    #[command(after_help = "EXAMPLES\n  tare ledger reproduce ID --ledger evidence\n  \
        tare ledger reproduce ID -m ./model --seed 7")]
    Reproduce(ReproduceArgs),
}

/// Where ids are looked for.
#[derive(Debug, Clone, Args)]
pub(crate) struct Place {
    /// Folder of the ledger [default: the user's data folder]
    #[arg(short, long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) ledger: Option<PathBuf>,
}

/// A new state.
#[derive(Debug, Clone, Args)]
#[command(after_help = "EXAMPLES\n  tare ledger reopen ID --why \"a new compiler\"\n  \
    tare ledger retract ID --why \"the prompt was wrong\" --ledger evidence\n\n\
    The state is written beside the file, which stays as it is.")]
pub(crate) struct Change {
    /// Id of the record or document
    pub(crate) id: String,
    /// What changed, moved or was wrong
    #[arg(long)]
    pub(crate) why: String,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// `tare ledger plan`
#[derive(Debug, Clone, Args)]
pub(crate) struct PlanArgs {
    /// The effect to find, as a share: 0.03 is 3 %
    #[arg(long, value_name = "SHARE")]
    pub(crate) effect: f64,
    /// The share of studies that shall find it
    #[arg(long, default_value_t = 0.9, value_name = "SHARE", conflicts_with = "rounds")]
    pub(crate) power: f64,
    /// Give the power of this many rounds instead
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<usize>,
    /// Id of a ruled campaign whose A/A arm has the noise
    #[arg(long, value_name = "CAMPAIGN")]
    pub(crate) from: String,
    /// What is to be found: a gain, or a loss [default: as the campaign]
    #[arg(long, value_enum)]
    pub(crate) rule: Option<RuleArg>,
    #[command(flatten)]
    pub(crate) place: Place,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// When a candidate is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuleArg {
    /// It gains
    Gain,
    /// It loses no more than the tolerance
    NoRegression,
}

/// `tare ledger reproduce`
#[derive(Debug, Clone, Args)]
pub(crate) struct ReproduceArgs {
    /// Id of a record or a campaign
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) place: Place,
    /// The model [default: the one that is named there]
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Seed of the prompt's token ids, which a record does not have; a campaign has it
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Folder of the ledger that keeps what comes of it [default: the user's data folder]
    #[arg(short, long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}
