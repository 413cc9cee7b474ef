//! `tare decide`: what was decided, on which evidence, and what comes next.

use anyhow::Result;
use serde_json::json;
use tare_evidence::decision::{Decided, Decision, RestsOn};
use tare_evidence::record::{About, Role};
use tare_evidence::{Document, Ledger};
use tare_lab::campaign::live::now;

use crate::args::{DecideArgs, VerdictArg};
use crate::settings::Settings;
use crate::weighing::provenance;

/// Runs the command. Evidence that the ledger lacks, and a verdict that is not the campaign's, are refused.
pub(crate) fn run(args: &DecideArgs, settings: &Settings) -> Result<()> {
    let rests_on = args.campaign.clone().zip(args.arm.clone()).map(|(campaign, arm)| RestsOn { campaign, arm });
    let decision = Decision {
        dominant_group: args.dominant.clone(),
        mechanism: args.mechanism.clone(),
        support: args.support.clone(),
        hypothesis: args.hypothesis.clone(),
        falsifier: args.falsifier.clone(),
        observed_effect: args.observed.clone(),
        verdict: match args.verdict {
            VerdictArg::Keep => Decided::Keep,
            VerdictArg::Reject => Decided::Reject,
            VerdictArg::Inconclusive => Decided::Inconclusive,
        },
        next_experiment: args.next_experiment.clone(),
        rests_on,
    };
    let at = now()?;
    let about = About {
        role: Role::Diagnostic,
        study: args.study.clone(),
        campaign: format!("{}-{}", at.compact(), std::process::id()),
        created_at: at,
        title: format!("{}: {}", args.dominant, decision.verdict.name()),
        question: args.hypothesis.clone(),
        notes: vec![],
    };
    let document = Document::seal(about, provenance(json!({}))?, decision)?;
    let scratch = settings.scratch_ledger();
    let path = Ledger::at(args.ledger.as_ref().unwrap_or(&scratch)).append_document(&document)?;
    if args.json {
        println!("{}", json!({ "id": document.id, "path": path, "verdict": document.body.verdict }));
    } else {
        println!("{}  {}", document.body.verdict.name(), document.id);
        println!("  decision {}", path.display());
    }
    Ok(())
}
