//! `tare ledger`: what can be checked about records, without trusting who wrote them.

use anyhow::{Context, Result, bail};
use serde_json::json;
use std::path::Path;
use tare_evidence::{Ledger, Record, Strictness, compare, verify};

use crate::args::LedgerCommand;
use crate::settings::Settings;

/// Runs the command.
pub(crate) fn run(command: &LedgerCommand, settings: &Settings) -> Result<()> {
    match command {
        LedgerCommand::Verify { path, committed, json } => {
            check(path, if *committed { Strictness::Committed } else { Strictness::Scratch }, *json)
        }
        LedgerCommand::List { path, json } => list(path.as_deref().unwrap_or(&settings.scratch_ledger()), *json),
        LedgerCommand::Compare { first, second } => same_work(first, second),
    }
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
        bail!("{} of the findings above stand against these records", report.findings.len());
    }
    Ok(())
}

fn list(folder: &Path, as_json: bool) -> Result<()> {
    let entries = Ledger::at(folder).list()?;
    if as_json {
        let all: Vec<_> = entries
            .iter()
            .map(|e| json!({ "id": e.record.id, "path": e.path, "state": e.state, "title": e.record.about.title, "passed": e.record.passed() }))
            .collect();
        println!("{}", json!(all));
        return Ok(());
    }
    for e in &entries {
        let gate = if e.record.passed() { "passed" } else { "FAILED" };
        println!("{}  {}  gate {gate}  {}", e.record.id, e.state.name(), e.record.about.title);
    }
    eprintln!("[{} records in {}]", entries.len(), folder.display());
    Ok(())
}

fn same_work(first: &Path, second: &Path) -> Result<()> {
    let read = |path: &Path| -> Result<Record> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Record::parse(&text).with_context(|| path.display().to_string())
    };
    let (a, b) = (read(first)?, read(second)?);
    compare::comparable(&a, &b)?;
    println!("the same work in one campaign; the arms differ in:");
    for d in compare::arm_differences(&a.arm, &b.arm)? {
        println!("  {}: {} | {}", d.field, d.left, d.right);
    }
    Ok(())
}
