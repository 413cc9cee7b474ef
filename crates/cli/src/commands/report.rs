//! `tare report`: pictures from verified records.

use anyhow::{Context, Result, bail};
use serde_json::json;
use std::path::Path;
use tare_lab::report::report;

use crate::args::ReportArgs;
use crate::settings::Settings;

/// Runs the command. The file is written whole or not at all.
pub(crate) fn run(args: &ReportArgs, settings: &Settings) -> Result<()> {
    let scratch = settings.scratch_ledger();
    let folder = args.ledger.as_deref().unwrap_or(&scratch);
    let report = report(folder).with_context(|| format!("cannot report on {}", folder.display()))?;
    for (file, why) in &report.refused {
        eprintln!("refused: {file}: {why}");
    }
    if args.strict && !report.refused.is_empty() {
        bail!("{} findings stand against this ledger: nothing was written", report.refused.len());
    }
    write(&args.output, &report.html)?;
    if args.json {
        println!("{}", json!({ "output": args.output, "shown": report.shown, "refused": report.refused }));
    } else {
        println!("{}: {} records and documents", args.output.display(), report.shown);
    }
    Ok(())
}

/// An older report of that name is replaced in one step.
fn write(path: &Path, html: &str) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written = std::fs::write(&part, html).and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        drop(std::fs::remove_file(&part));
    }
    written.with_context(cannot)
}
