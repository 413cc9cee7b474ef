//! Judging what another engine emitted: its cache cannot be looked into, and its class has no emulation here.
//!
//! The F32 reference scores prompt and emitted ids, and the limits are those of the class that the engine declares. It
//! is stage 2 of tare's own gate, by the same rule and the same scores.

use tare_evidence::checks::{ACCURACY_LOGIT, ACCURACY_RANK, KNOWN_IDS, OUTPUT_LENGTH, OUTPUT_LOGITS, ROUNDS_AGREE};
use tare_evidence::gate::GateReport;
use tare_ops::class::CLASSES;

use super::{Add, Finding, Gate, Run, differing_ids, logit_errors, rank_gaps};
use crate::LabError;
use crate::work::ClockedRequest;

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
        report.add(OUTPUT_LENGTH, 0.0, &other_lengths(self.requests, runs));
        report.add(KNOWN_IDS, 0.0, &unknown_ids(first, self.rig.model.config().vocab));
        if !report.misses.is_empty() {
            return Ok(report);
        }
        let exact = self.scores(CLASSES[0], first)?;
        report.add(ACCURACY_RANK, limits.rank_gap, &rank_gaps(&exact));
        if runs.iter().flat_map(|r| r.rows).any(|row| !row.logits.is_empty()) {
            report.add(OUTPUT_LOGITS, 0.0, &missing_logits(runs));
            report.add(ACCURACY_LOGIT, limits.logit, &logit_errors(first, &exact, runs));
        }
        Ok(report)
    }
}

fn other_lengths(requests: &[ClockedRequest], runs: &[Run<'_>]) -> Vec<Finding> {
    let each = |run: &Run<'_>, n: usize| {
        let (wanted, found) = (requests.get(n).map_or(0, |r| r.output_tokens), run.ids(n).len());
        Finding {
            at: run.at(n),
            error: wanted.abs_diff(found) as f64,
            expected: format!("{wanted} tokens"),
            found: found.to_string(),
        }
    };
    let rows = |run: &Run<'_>| requests.len().max(run.rows.len());
    runs.iter().flat_map(|run| (0..rows(run)).map(move |n| each(run, n))).collect()
}

/// Logits that fail: an engine gives one for every token, or none at all.
fn missing_logits(runs: &[Run<'_>]) -> Vec<Finding> {
    let each = |run: &Run<'_>, n: usize| {
        let (ids, logits) = (run.ids(n).len(), run.logits(n).len());
        Finding {
            at: run.at(n),
            error: ids.abs_diff(logits) as f64,
            expected: format!("{ids} logits"),
            found: logits.to_string(),
        }
    };
    runs.iter().flat_map(|run| (0..run.rows.len()).map(move |n| each(run, n))).collect()
}

/// Ids that this model does not have: no reference has a score for them.
fn unknown_ids(run: &Run<'_>, vocabulary: usize) -> Vec<Finding> {
    let each = |n: usize, (i, id): (usize, &u32)| Finding {
        at: format!("{} token {i}", run.at(n)),
        error: f64::from(u8::from(*id as usize >= vocabulary)),
        expected: format!("an id below {vocabulary}"),
        found: id.to_string(),
    };
    let rows = run.rows.iter().enumerate();
    rows.flat_map(|(n, row)| row.ids.iter().enumerate().map(move |of| each(n, of))).collect()
}
