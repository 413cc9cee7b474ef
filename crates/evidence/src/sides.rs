//! What arms of one campaign must share: every field that is not under study, the limits of the gate, the tokens.
//!
//! A gate holds each arm against a judge of its own build. Two builds with one fault each in themselves would pass it, so
//! that the arms are also held against each other.

use crate::compare;
use crate::gate::GateReport;
use crate::identity::Arm;
use crate::samples::RowTokens;
use crate::study::StudyPlan;
use std::collections::{BTreeMap, BTreeSet};
use tare_core::Fault;

/// Checks that a plan without a cache lacks; `kv-token` came with version 6 of the limits.
const CACHE_CHECKS: [&str; 2] = ["kv", "kv-token"];

/// An arm that was judged.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The arm.
    pub arm: &'a Arm,
    /// What its gate looked at.
    pub gate: &'a GateReport,
    /// What it emitted in a round, row by row.
    pub rows: &'a [RowTokens],
}

/// Fields in which an arm differs from the baseline that are not under study; for the baseline's twin, all in which it
/// differs.
pub fn arm_faults(study: &StudyPlan, twin: bool, baseline: &Arm, arm: &Arm) -> Vec<Fault> {
    let allowed: BTreeSet<&str> =
        if twin { BTreeSet::new() } else { study.under_study.iter().flat_map(|u| u.arm_fields()).copied().collect() };
    let differences = match compare::arm_differences(baseline, arm) {
        Ok(differences) => differences,
        Err(fault) => return vec![fault],
    };
    let confounds = differences.into_iter().filter(|d| !allowed.contains(d.field.as_str())).map(|d| {
        let names = if twin { "nothing: an arm against itself".into() } else { format!("{:?}", study.under_study) };
        Fault::new(
            format!("arm.{}", d.field),
            format!("one value: under study is {names}"),
            format!("{} and {}", d.left, d.right),
        )
        .remedy("vary what is under study alone, or declare it")
    });
    confounds.collect()
}

/// What two arms of tare and of one class do not share: one class draws one series of tokens, and is judged by one set of
/// limits. Of another engine or another class nothing is asked.
pub fn class_faults(first: &Side<'_>, other: &Side<'_>) -> Vec<Fault> {
    let foreign = first.arm.peer.is_some() || other.arm.peer.is_some();
    if foreign || first.arm.class != other.arm.class {
        return Vec::new();
    }
    let mut faults = limit_faults(first.gate, other.gate);
    faults.extend(token_fault(first.rows, other.rows));
    faults
}

fn limit_faults(first: &GateReport, other: &GateReport) -> Vec<Fault> {
    let limits = |g: &GateReport| g.checks.iter().map(|c| (c.name.clone(), c.limit)).collect::<BTreeMap<_, _>>();
    let (a, b) = (limits(first), limits(other));
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let shown = |limit: Option<&f64>| limit.map_or("no such check".to_string(), ToString::to_string);
    names
        .into_iter()
        .filter(|name| match (a.get(*name), b.get(*name)) {
            (Some(x), Some(y)) => x != y,
            _ => !CACHE_CHECKS.contains(&name.as_str()),
        })
        .map(|name| {
            Fault::new(format!("gate.checks: {name}: limit"), shown(a.get(name)), shown(b.get(name))).remedy(
                "hold arms of one class to the same checks and limits: build both from sources with one gates.toml",
            )
        })
        .collect()
}

/// The first token that differs.
fn token_fault(first: &[RowTokens], other: &[RowTokens]) -> Option<Fault> {
    let none = RowTokens { ids: Vec::new(), logits: Vec::new() };
    (0..first.len().max(other.len())).find_map(|row| {
        let [a, b] = [first, other].map(|rows| &rows.get(row).unwrap_or(&none).ids);
        let place = (0..a.len().max(b.len())).find(|&i| a.get(i) != b.get(i))?;
        let shown = |id: Option<&u32>| id.map_or("no token".to_string(), |id| format!("id {id}"));
        Some(
            Fault::new(format!("tokens: row {row}: token {place}"), shown(a.get(place)), shown(b.get(place)))
                .remedy("arms of one class compute the same: find out which of the two is wrong"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Check;

    fn gate(checks: &[(&str, f64)]) -> GateReport {
        let check = |&(name, limit): &(&str, f64)| Check { name: name.into(), compared: 1, max_error: 0.0, limit };
        GateReport { thresholds_version: "1".into(), checks: checks.iter().map(check).collect(), misses: vec![] }
    }

    #[test]
    fn limits_are_the_same_on_both_sides_but_for_a_cache_that_one_lacks() {
        let found = |a: &[(&str, f64)], b: &[(&str, f64)]| {
            limit_faults(&gate(a), &gate(b)).iter().map(|f| f.at.clone()).collect::<Vec<_>>()
        };
        let cached = [("rank", 0.1), ("kv", 0.0), ("kv-token", 0.0)];
        assert!(found(&cached, &[("rank", 0.1)]).is_empty());
        assert!(found(&cached, &[("rank", 0.1), ("kv", 0.0)]).is_empty(), "a build that knew one of them");
        assert_eq!(found(&[("rank", 0.1)], &[("rank", 0.2)]), ["gate.checks: rank: limit"]);
        assert_eq!(found(&[("rank", 0.1), ("kv", 0.0)], &[("rank", 0.1), ("kv", 1.0)]), ["gate.checks: kv: limit"]);
        assert_eq!(found(&[("rank", 0.1), ("logit", 0.1)], &[("rank", 0.1)]), ["gate.checks: logit: limit"]);
    }

    #[test]
    fn the_first_other_token_is_named() {
        let rows = |ids: &[u32]| vec![RowTokens { ids: ids.to_vec(), logits: Vec::new() }];
        assert!(token_fault(&rows(&[1, 2]), &rows(&[1, 2])).is_none());
        let fault = token_fault(&rows(&[1, 2, 3]), &rows(&[1, 9, 4])).unwrap();
        assert_eq!((fault.at.as_str(), fault.found.as_str()), ("tokens: row 0: token 1", "id 9"));
        assert_eq!(token_fault(&rows(&[1, 2]), &rows(&[1])).unwrap().found, "no token");
        assert!(token_fault(&rows(&[1]), &[]).is_some());
    }
}
