//! The `tare` command: the only place that reads the environment and prints.

#![forbid(unsafe_code)]

#[macro_use]
mod output;

mod args;
mod built;
mod campaigning;
mod commands;
mod generate;
mod interrupt;
mod progress;
mod pull;
mod settings;
mod setup;
mod translate;
mod weighing;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use settings::Settings;
use std::process::ExitCode;
use tare_lab::LabError;

/// Counts, so that records can say what a request allocated at its peak.
#[global_allocator]
static ALLOCATOR: tare_probe::allocator::Counting = tare_probe::allocator::Counting;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // A study shows its own rounds.
    if cli.dry_run && !matches!(cli.command, Command::Study(_) | Command::Compare(_)) {
        println!("{:#?}", cli.command);
        return ExitCode::SUCCESS;
    }
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if is_closed_pipe(&e) => ExitCode::SUCCESS,
        Err(e) if e.is::<interrupt::Cancelled>() => ExitCode::from(interrupt::INTERRUPTED),
        Err(e) => {
            eprintln!("tare: {e:#}");
            let interrupted = matches!(e.downcast_ref(), Some(LabError::Interrupted));
            if interrupted { ExitCode::from(interrupt::INTERRUPTED) } else { ExitCode::FAILURE }
        }
    }
}

fn run(command: &Command) -> anyhow::Result<()> {
    let settings = Settings::read()?;
    let s = &settings;
    match command {
        Command::Run(a) => commands::run::run(a, s),
        Command::Chat(a) => commands::chat::run(a, s),
        Command::Serve(a) => commands::serve::run(a, s),
        Command::Clock(a) => commands::clock::run(a, s),
        Command::Next(a) => commands::next::run(a, s),
        Command::Study(a) => commands::study::run(a, s),
        Command::Compare(a) => commands::compare::run(a, s),
        Command::Arm => commands::arm::run(s),
        Command::Replay(a) => commands::replay::run(a, s),
        Command::Mutate(a) => commands::mutate::run(a, s),
        Command::Pull(a) => commands::pull::run(a, s),
        Command::Inspect(a) => commands::inspect::run(a, s),
        Command::Quantize(a) => commands::quantize::run(a, s),
        Command::Doctor(a) => commands::doctor::run(a, s),
        Command::Logits(a) => commands::logits::run(a, s),
        Command::Perplexity(a) => commands::perplexity::run(a, s),
        Command::Accuracy(a) => commands::accuracy::run(a, s),
        Command::Tokenize(a) => commands::text::tokenize(a, s),
        Command::Detokenize(a) => commands::text::detokenize(a, s),
        Command::Template(a) => commands::text::template(a, s),
        Command::Ledger(a) => commands::ledger::run(a, s),
        Command::Decide(a) => commands::decide::run(a, s),
        Command::Peers(a) => commands::peers::run(a, s),
        Command::Report(a) => commands::report::run(a, s),
        Command::Translate(a) => commands::translate::run(a),
        Command::Completions { shell } => {
            clap_complete::generate(*shell, &mut Cli::command(), "tare", &mut std::io::stdout());
            Ok(())
        }
    }
}

/// Whether the reader of our output went away, as `head` does: no error of ours.
fn is_closed_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
