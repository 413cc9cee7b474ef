//! Judging what another engine emitted: its cache cannot be looked into, and its class has no emulation here.
//!
//! The F32 reference scores prompt and emitted ids, and the limits are those of the class that the engine declares. It
//! is stage 2 of tare's own gate, by the same rule and the same scores.

use tare_evidence::gate::GateReport;
use tare_ops::class::CLASSES;

use super::{Add, Finding, Gate, ROUNDS_AGREE, Run, differing_ids, logit_errors, rank_gaps};
use crate::LabError;

impl Gate<'_> {
    /// Judges `runs` of an engine whose arithmetic class has the name `class` in `gates.toml`: the runs agree, have as
    /// many tokens as were asked for, all of them in the vocabulary, and by the F32 reference none lies further under the
    /// best one than the class allows. Where the engine gives out logits, they are held against the reference too.
    ///
    /// # Errors
    /// When there is no run, the class has no limits, or the judge cannot be made or fails.
    pub fn judge_emitted(&self, class: &str, runs: &[Run<'_>]) -> Result<GateReport, LabError> {
        let limits = self.thresholds.accuracy(class)?;
        let mut report =
            GateReport { thresholds_version: self.thresholds.version.clone(), checks: vec![], misses: vec![] };
        let Some(first) = runs.first() else {
            return Err(LabError::Judge("there is no run to judge".to_string()));
        };
        report.add(ROUNDS_AGREE, 0.0, &differing_ids(first, runs));
        report.add("output-length", 0.0, &other_lengths(self.request.output_tokens, runs));
        report.add("ids-in-vocabulary", 0.0, &unknown_ids(first, self.rig.model.config().vocab));
        if !report.misses.is_empty() {
            return Ok(report);
        }
        let exact = self.scores(CLASSES[0], first.ids)?;
        report.add("accuracy-rank", limits.rank_gap, &rank_gaps(&exact));
        if runs.iter().any(|r| !r.logits.is_empty()) {
            report.add("output-logits", 0.0, &missing_logits(runs));
            report.add("accuracy-logit", limits.logit, &logit_errors(first.ids, &exact, runs));
        }
        Ok(report)
    }
}

fn other_lengths(wanted: usize, runs: &[Run<'_>]) -> Vec<Finding> {
    let each = |run: &Run<'_>| Finding {
        at: run.label.to_string(),
        error: wanted.abs_diff(run.ids.len()) as f64,
        expected: format!("{wanted} tokens"),
        found: format!("{}", run.ids.len()),
    };
    runs.iter().map(each).collect()
}

/// Logits that fail: an engine gives one for every token, or none at all.
fn missing_logits(runs: &[Run<'_>]) -> Vec<Finding> {
    let each = |run: &Run<'_>| Finding {
        at: run.label.to_string(),
        error: run.ids.len().abs_diff(run.logits.len()) as f64,
        expected: format!("{} logits", run.ids.len()),
        found: format!("{}", run.logits.len()),
    };
    runs.iter().map(each).collect()
}

/// Ids that this model does not have: no reference has a score for them.
fn unknown_ids(run: &Run<'_>, vocabulary: usize) -> Vec<Finding> {
    let each = |(i, id): (usize, &u32)| Finding {
        at: format!("{} token {i}", run.label),
        error: f64::from(u8::from(*id as usize >= vocabulary)),
        expected: format!("an id below {vocabulary}"),
        found: id.to_string(),
    };
    run.ids.iter().enumerate().map(each).collect()
}
