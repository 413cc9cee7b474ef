//! Flags of `tare translate`.

use clap::Args;

/// `tare translate`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare translate 'llama-bench -m model.gguf -p 512 -n 128 -t 2'\n  \
    tare translate 'mlx_lm.benchmark --model qwen3-0.6b -p 2048 -g 128'\n  \
    tare translate --page > docs/coming-from.md                     the table of all commands and flags")]
pub(crate) struct TranslateArgs {
    /// The command line in quotes; `-` reads standard input
    #[arg(value_name = "COMMAND LINE", required_unless_present = "page", conflicts_with = "page")]
    pub(crate) line: Option<String>,
    /// The whole table as Markdown
    #[arg(long)]
    pub(crate) page: bool,
    /// As JSON
    #[arg(long, conflicts_with = "page")]
    pub(crate) json: bool,
}
