//! One HTML file with pictures from verified records.
//!
//! Nothing is drawn that verification did not let pass: what it refused is listed instead. Every figure is read from the
//! records' derived values or a campaign's rulings, which verification has just computed again, or is asked of `evidence`.
//! One thing is the report's own: which samples it marks as far from the others (`ratios::far_out`). Marks change no
//! figure. The charts are pure functions from values to SVG text.

mod accuracies;
mod floors;
mod gathered;
mod ladder;
mod page;
mod ratios;
mod records;
mod sensitivities;
mod shares;
mod steps;
mod svg;

use std::path::Path;
use tare_evidence::{LedgerError, Record, State};

pub use floors::floor_lines;

use gathered::{Gathered, Stated, told};
use page::{paragraph, table};

/// A report and what is in it.
#[derive(Debug)]
pub struct Report {
    /// The file.
    pub html: String,
    /// Records and documents that are in it.
    pub shown: usize,
    /// Findings of verification: what they are about is not drawn.
    pub refused: Vec<(String, String)>,
}

/// The report of the ledger in folder `root`.
///
/// # Errors
/// When the folder cannot be read.
pub fn report(root: &Path) -> Result<Report, LedgerError> {
    let all = Gathered::from(root)?;
    let steps = all.replays.len() + all.sensitivities.len();
    let documents = all.campaigns.len() + steps + all.decisions.len() + all.accuracies.len();
    let shown = all.records.len() + documents;
    let mut body = paragraph(
        "",
        &format!(
            "{} files were verified: checksums, digests, and every figure derived again. {shown} records and documents hold \
             and are shown, {} findings stand against others, which are not.",
            all.files,
            all.refused.len()
        ),
    );
    if !all.refused.is_empty() {
        let rows: Vec<Vec<String>> = all.refused.iter().map(|(file, why)| vec![file.clone(), why.clone()]).collect();
        body.push_str("<h2>Refused</h2>\n");
        body.push_str(&table("What verification found", &["file", "finding"], &rows));
    }
    if !all.campaigns.is_empty() {
        body.push_str("<h2>Campaigns</h2>\n");
        all.campaigns.iter().for_each(|c| body.push_str(&ladder::section(c, &all.records)));
    }
    if !all.replays.is_empty() {
        body.push_str("<h2>Where a step spends its time</h2>\n");
        body.push_str(&steps::section(&all.replays));
    }
    if !all.sensitivities.is_empty() {
        body.push_str("<h2>What a group's time is worth</h2>\n");
        body.push_str(&sensitivities::section(&all.sensitivities));
    }
    if !all.accuracies.is_empty() {
        body.push_str("<h2>What a packing or a class costs in accuracy</h2>\n");
        body.push_str(&accuracies::section(&all.accuracies));
    }
    if !all.decisions.is_empty() {
        body.push_str("<h2>Decisions</h2>\n");
        body.push_str(&decisions(&all.decisions));
    }
    let alone: Vec<(&Record, &State)> = all.alone().collect();
    if !alone.is_empty() {
        body.push_str("<h2>Records</h2>\n");
        body.push_str(&records::section(&alone));
    }
    body.push_str(&paragraph("quiet", "Check it yourself: tare ledger verify FOLDER, and Python's json and hashlib."));
    Ok(Report { html: page::page("Measured with tare", &body), shown, refused: all.refused })
}

fn decisions(all: &[Stated<tare_evidence::decision::Decision>]) -> String {
    let row = |d: &Stated<tare_evidence::decision::Decision>| {
        let b = &d.document.body;
        vec![
            d.document.id.clone(),
            told(&d.state).unwrap_or_else(|| "valid".to_string()),
            b.verdict.name().to_string(),
            b.dominant_group.clone(),
            b.mechanism.clone(),
            b.observed_effect.clone(),
            b.falsifier.clone(),
            b.next_experiment.clone(),
            b.support.join(", "),
        ]
    };
    let head = ["decision", "state", "verdict", "dominant", "mechanism", "observed", "falsifier", "next", "evidence"];
    table("What was decided and why", &head, &all.iter().map(row).collect::<Vec<_>>())
}
