//! Commands about records.

use clap::Subcommand;
use std::path::PathBuf;

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
