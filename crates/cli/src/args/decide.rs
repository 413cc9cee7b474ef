//! `tare decide`.

use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

/// `tare decide`
#[derive(Debug, Clone, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare decide --dominant attention --mechanism \"the cache is read twice\" --support REPLAY_ID \\\n    \
    --hypothesis \"one pass halves its time\" --falsifier \"decode takes as long as before\" \\\n    \
    --observed \"decode 1.21x\" --verdict keep --campaign CAMPAIGN_ID --arm fused --next-experiment \"fuse the projection\"\n\n\
    Every part is asked for; a verdict must be that of the campaign that it rests on.")]
pub(crate) struct DecideArgs {
    /// The group of operators, or the phase, that costs the most
    #[arg(long, value_name = "GROUP")]
    pub(crate) dominant: String,
    /// Why it costs that
    #[arg(long, value_name = "TEXT")]
    pub(crate) mechanism: String,
    /// Ids of the evidence
    #[arg(long, value_name = "ID", required = true, num_args = 1..)]
    pub(crate) support: Vec<String>,
    /// What the change was thought to do
    #[arg(long, value_name = "TEXT")]
    pub(crate) hypothesis: String,
    /// What would have shown that it does not
    #[arg(long, value_name = "TEXT")]
    pub(crate) falsifier: String,
    /// What was seen
    #[arg(long, value_name = "TEXT")]
    pub(crate) observed: String,
    /// What was decided
    #[arg(long, value_enum)]
    pub(crate) verdict: VerdictArg,
    /// What comes next
    #[arg(long, value_name = "TEXT")]
    pub(crate) next_experiment: String,
    /// Id of the campaign that it rests on
    #[arg(long, value_name = "ID", requires = "arm")]
    pub(crate) campaign: Option<String>,
    /// Label of the candidate in that campaign
    #[arg(long, value_name = "LABEL", requires = "campaign")]
    pub(crate) arm: Option<String>,
    /// Folder name of the study
    #[arg(long, default_value = "decisions", value_name = "NAME")]
    pub(crate) study: String,
    /// Folder of the ledger that has the evidence and keeps the decision [default: the user's data folder]
    #[arg(short, long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) ledger: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerdictArg {
    /// To keep the change
    Keep,
    /// To drop it
    Reject,
    /// Nothing yet
    Inconclusive,
}
