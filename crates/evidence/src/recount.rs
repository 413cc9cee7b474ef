//! What a gate says about the samples that lie beside it, counted again.
//!
//! Reference scores and the judge's cache are not in a record, so that errors of logits, ranks and cached values cannot
//! be computed again. How many values were compared can, and so can everything about rounds that must agree.

use crate::agree::{all_logits, emitted, widest};
use crate::checks::{
    self, ACCURACY_LOGIT, ACCURACY_RANK, CACHE, CACHED_TOKENS, EMULATION_LOGIT, EMULATION_RANK, ROUNDS_AGREE, Seen,
};
use crate::gate::Check;
use crate::record::Record;
use crate::samples::{Emitted, RowTokens};
use serde_json::Value;
use tare_core::Fault;

/// Checks of the logits of every run that emitted the ids of the first.
const LOGIT_CHECKS: [&str; 2] = [EMULATION_LOGIT, ACCURACY_LOGIT];
/// Checks of the ids of the first run.
const RANK_CHECKS: [&str; 2] = [EMULATION_RANK, ACCURACY_RANK];
/// Checks of the keys and of the values of every layer, of every row.
pub(crate) const CACHE_CHECKS: [&str; 2] = [CACHE, CACHED_TOKENS];

/// Everything that the gate says otherwise than the samples do, and the checks that a passed one lacks. A check of another
/// name is another writer's, and nothing is known about it.
pub(crate) fn faults(record: &Record) -> Vec<Fault> {
    let (report, passed) = (record.gate(), record.passed());
    let (warmups, rounds) = emitted(record);
    let runs: Vec<&Emitted> = warmups.iter().chain(rounds).collect();
    let Some(first) = runs.first() else { return Vec::new() };
    let like_first: Vec<&Emitted> = runs.iter().copied().filter(|r| same_ids(first, r)).collect();
    let logits = |runs: &[&Emitted]| runs.iter().flat_map(|r| &r.rows).map(|row| row.logits.len() as u64).sum::<u64>();
    let tokens = |runs: &[&Emitted]| runs.iter().flat_map(|r| &r.rows).map(|row| row.ids.len() as u64).sum::<u64>();
    let mut faults = Vec::new();
    if passed {
        faults.extend(checks::faults(report, Seen::in_record(record, false)));
    }
    for check in &report.checks {
        let name = check.name.as_str();
        if name == ROUNDS_AGREE {
            let (compared, differing) = differing_ids(first, &runs);
            faults.extend(compared_fault(check, compared));
            faults.extend(agreement_fault(check, differing));
        } else if LOGIT_CHECKS.contains(&name) {
            // Behind a failed gate logits that are no numbers are left out.
            let kept = passed || all_logits(record);
            faults.extend(compared_fault(check, logits(&like_first)).filter(|_| kept));
            faults.extend(spread_fault(check, first, &like_first).filter(|_| passed));
        } else if RANK_CHECKS.contains(&name) {
            faults.extend(compared_fault(check, tokens(&[first])));
        } else if CACHE_CHECKS.contains(&name) && passed {
            let layers = widest(record).pointer("/kv/layers").and_then(Value::as_u64);
            let rows = u64::from(record.work.rows);
            faults.extend(layers.and_then(|layers| compared_fault(check, layers.saturating_mul(2 * rows))));
        }
    }
    faults
}

fn same_ids(a: &Emitted, b: &Emitted) -> bool {
    a.rows.iter().map(|r| &r.ids).eq(b.rows.iter().map(|r| &r.ids))
}

/// How many ids were compared and how many of them differ. A missing id differs from any.
fn differing_ids(first: &Emitted, runs: &[&Emitted]) -> (u64, u64) {
    let ids = |e: &'_ Emitted, row: usize| e.rows.get(row).map(|r| r.ids.clone()).unwrap_or_default();
    let (mut compared, mut differing) = (0, 0);
    for run in runs {
        for row in 0..first.rows.len().max(run.rows.len()) {
            let (a, b) = (ids(first, row), ids(run, row));
            let longest = a.len().max(b.len());
            compared += longest as u64;
            differing += (0..longest).filter(|&i| a.get(i) != b.get(i)).count() as u64;
        }
    }
    (compared, differing)
}

fn at(check: &Check, field: &str) -> String {
    format!("gate.checks: {}: {field}", check.name)
}

fn compared_fault(check: &Check, counted: u64) -> Option<Fault> {
    (check.compared != counted).then(|| {
        Fault::new(at(check, "compared"), format!("{counted}, counted in the samples"), check.compared.to_string())
            .remedy("a sample or this check was edited: restore the file as it was written")
    })
}

/// The error of an id is 0 or 1.
fn agreement_fault(check: &Check, differing: u64) -> Option<Fault> {
    let error = if differing == 0 { 0.0 } else { 1.0 };
    (check.max_error != error).then(|| {
        let expected = format!("{error}: {differing} ids differ from those of the first run");
        Fault::new(at(check, "max_error"), expected, check.max_error.to_string())
            .remedy("a sample or this check was edited: restore the file as it was written")
    })
}

/// All runs were held against one reference, so that two logits of one token cannot both be nearer to it than half of
/// their distance.
fn spread_fault(check: &Check, first: &Emitted, runs: &[&Emitted]) -> Option<Fault> {
    let mut widest = 0.0_f64;
    for (row, RowTokens { logits, .. }) in first.rows.iter().enumerate() {
        for token in 0..logits.len() {
            let seen = runs.iter().filter_map(|r| r.rows.get(row)?.logits.get(token)).map(|&l| f64::from(l));
            let (low, high) = seen.fold((f64::MAX, f64::MIN), |(low, high), l| (low.min(l), high.max(l)));
            widest = widest.max(high - low);
        }
    }
    // A difference of two F32 is rounded once in F64.
    let least = widest / 2.0 * (1.0 - 1e-12);
    (check.max_error < least).then(|| {
        let expected = format!("at least {least}: logits of one token are {widest} apart");
        Fault::new(at(check, "max_error"), expected, check.max_error.to_string())
            .remedy("a sample or this check was edited: restore the file as it was written")
    })
}
