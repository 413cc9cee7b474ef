//! `tare ledger`: what can be checked about records and documents, without trusting who wrote them.

mod change;
mod diff;
mod list;
mod noise;
mod reproduce;
mod rerun;
mod show;

use anyhow::{Result, bail};
use serde_json::json;
use std::path::{Path, PathBuf};
use tare_evidence::{Ledger, Strictness, verify};

use crate::args::{LedgerCommand, Place};
use crate::settings::Settings;

/// Runs the command.
pub(crate) fn run(command: &LedgerCommand, settings: &Settings) -> Result<()> {
    match command {
        LedgerCommand::Verify { path, committed, json } => {
            check(path, if *committed { Strictness::Committed } else { Strictness::Scratch }, *json)
        }
        LedgerCommand::List { path, json } => list::run(path.as_deref().unwrap_or(&settings.scratch_ledger()), *json),
        LedgerCommand::Show { id, place, json } => show::run(&ledger(place, settings), id, *json),
        LedgerCommand::Diff { first, second, place, json } => {
            diff::run(&ledger(place, settings), (first, second), *json)
        }
        LedgerCommand::Merge { from, into } => merge(from, into),
        LedgerCommand::Reopen(c) => change::reopen(&ledger(&c.place, settings), c),
        LedgerCommand::Stale(c) => change::stale(&ledger(&c.place, settings), c),
        LedgerCommand::Retract(c) => change::retract(&ledger(&c.place, settings), c),
        LedgerCommand::Simulate { campaign, studies, samples, seed, place, json } => {
            let asked = noise::Asked { studies: *studies, samples: *samples, seed: *seed };
            noise::simulate(&ledger(place, settings), campaign, asked, *json)
        }
        LedgerCommand::Plan(args) => noise::plan(&ledger(&args.place, settings), args),
        LedgerCommand::Reproduce(args) => reproduce::run(&ledger(&args.place, settings), args, settings),
    }
}

/// The ledger that the flags name.
fn ledger(place: &Place, settings: &Settings) -> Ledger {
    Ledger::at(place.ledger.clone().unwrap_or_else(|| settings.scratch_ledger()))
}

fn check(path: &Path, strictness: Strictness, as_json: bool) -> Result<()> {
    let report = verify(path, strictness)?;
    if as_json {
        let findings: Vec<_> =
            report.findings.iter().map(|f| json!({ "path": f.path, "fault": f.fault.to_string() })).collect();
        println!(
            "{}",
            json!({ "ok": report.is_ok(), "files": report.files, "findings": findings, "notes": report.notes })
        );
    } else {
        for f in &report.findings {
            println!("{}: {}", f.path.display(), f.fault);
        }
        for n in &report.notes {
            println!("note: {n}");
        }
        println!("{} files, {} findings", report.files, report.findings.len());
    }
    if !report.is_ok() {
        bail!("{} of the findings above stand against this ledger", report.findings.len());
    }
    Ok(())
}

fn merge(from: &PathBuf, into: &PathBuf) -> Result<()> {
    let merged = Ledger::at(into).merge(&Ledger::at(from))?;
    for path in &merged.written {
        println!("{}", path.display());
    }
    eprintln!("[{} files added to {}, {} were there]", merged.written.len(), into.display(), merged.present);
    Ok(())
}
