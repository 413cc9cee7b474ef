//! Flags of `tare report`.

use clap::{Args, ValueHint};
use std::path::PathBuf;

/// `tare report`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare report evidence -o report.html          ladders, steps and records of a ledger, verified first\n  \
    tare report                                  of the user's data folder, into tare-report.html\n\n\
    One file without scripts: for light and dark screens and for paper. What verification refuses is listed, not drawn.")]
pub(crate) struct ReportArgs {
    /// Folder of the ledger [default: the user's data folder]
    #[arg(value_name = "LEDGER", value_hint = ValueHint::DirPath)]
    pub(crate) ledger: Option<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "FILE.html", default_value = "tare-report.html", value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,
    /// Fail, and write nothing, when anything was refused
    #[arg(long)]
    pub(crate) strict: bool,
    /// What was written, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
