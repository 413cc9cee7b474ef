//! Flags of `tare accuracy`.

use clap::{Args, ValueHint};
use std::path::PathBuf;

use crate::commands::accuracy::ArmName;

/// `tare accuracy`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES\n  \
    tare accuracy -m smollm2-135m goldens/text/prose.txt --arm file:w4a16 --arm file:w4a8 --arm file:llama.cpp\n  \
    tare accuracy -m smollm2-135m goldens/text/prose.txt --arm bf16:bf16 --arm q8_0:w8a8 --arm q4_0+q8_0:w4a8 -o evidence\n\n\
    The model as it is given, in class f32, is what all arms are held against. `file` is that same file; other formats are\n\
    written once, from its values in F32. The logits of the whole text are kept in memory, 4 bytes for each word of the\n\
    vocabulary and each token.")]
pub(crate) struct AccuracyArgs {
    /// Folder, .gguf file, pulled name or synthetic:NAME
    #[arg(short, long, value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub(crate) model: String,
    /// A text file; with --ids a JSON array of token ids
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// FILE holds token ids
    #[arg(long)]
    pub(crate) ids: bool,
    /// Tokens scored in one window
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub(crate) window: usize,
    /// A file and who reads it: FORMAT[+HEAD]:CLASS, or file:CLASS; a peer may stand in the place of the class
    #[arg(long = "arm", value_name = "ARM", required = true)]
    pub(crate) arms: Vec<ArmName>,
    /// Worker threads [default: the processors this process may use]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// The ledger that keeps the document [default: the user's scratch ledger]
    #[arg(short, long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
    /// Id, path and figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
