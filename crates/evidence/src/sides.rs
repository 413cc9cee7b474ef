//! What arms of one campaign must share: every field that is not under study, the limits of the gate, the tokens.
//!
//! A gate holds each arm against a judge of its own build. Two builds with one fault each in themselves would pass it, so
//! that the arms are also held against each other.

use crate::checks::{Seen, demanded, version};
use crate::compare;
use crate::gate::GateReport;
use crate::identity::Arm;
use crate::recount::CACHE_CHECKS;
use crate::samples::RowTokens;
use crate::study::StudyPlan;
use std::collections::{BTreeMap, BTreeSet};
use tare_core::Fault;

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
    let mut faults = limit_faults(first, other);
    faults.extend(token_fault(first.rows, other.rows));
    faults
}

/// Only a check of the cache may be on one side alone: a plan without a cache lacks both, and limits of an older version have
/// one of them.
fn limit_faults(first: &Side<'_>, other: &Side<'_>) -> Vec<Fault> {
    let limits = |s: &Side<'_>| s.gate.checks.iter().map(|c| (c.name.clone(), c.limit)).collect::<BTreeMap<_, _>>();
    let (a, b) = (limits(first), limits(other));
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let shown = |limit: Option<&f64>| limit.map_or("no such check".to_string(), ToString::to_string);
    let may_lack = |side: &Side<'_>, name: &str| CACHE_CHECKS.contains(&name) && !side.demands(name);
    names
        .into_iter()
        .filter(|name| match (a.get(*name), b.get(*name)) {
            (Some(x), Some(y)) => x != y,
            (None, _) => !may_lack(first, name),
            (_, None) => !may_lack(other, name),
        })
        .map(|name| {
            Fault::new(format!("gate.checks: {name}: limit"), shown(a.get(name)), shown(b.get(name))).remedy(
                "hold arms of one class to the same checks and limits: build both from sources with one gates.toml",
            )
        })
        .collect()
}

impl Side<'_> {
    /// Whether the limits of this arm have the check `name`.
    fn demands(&self, name: &str) -> bool {
        let seen = Seen { arm: self.arm, logits: self.rows.iter().any(|row| !row.logits.is_empty()), warmed: false };
        version(self.gate).is_ok_and(|version| demanded(version, seen).any(|demanded| demanded == name))
    }
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
    use crate::checks::tests::arm;
    use crate::gate::Check;

    #[test]
    fn limits_are_the_same_on_both_sides_but_for_a_cache_that_one_lacks() {
        // A cache, a version of the limits, its checks.
        type Judged<'a> = (&'a str, &'a str, &'a [(&'a str, f64)]);
        let gate = |(_, version, checks): Judged<'_>| {
            let check = |&(name, limit): &(&str, f64)| Check { name: name.into(), compared: 1, max_error: 0.0, limit };
            let checks = checks.iter().map(check).collect();
            GateReport { thresholds_version: version.into(), checks, misses: vec![] }
        };
        let found = |a: Judged<'_>, b: Judged<'_>| {
            let arms = [a, b].map(|(cache, ..)| arm("w4a16", cache, None));
            let (a, b) = (gate(a), gate(b));
            let [first, other] = [(&arms[0], &a), (&arms[1], &b)].map(|(arm, gate)| Side { arm, gate, rows: &[] });
            let both = [limit_faults(&first, &other), limit_faults(&other, &first)];
            let [one, turned] = both.map(|f| f.iter().map(|f| f.at.clone()).collect::<Vec<_>>());
            assert_eq!(one, turned);
            one
        };
        let (none, known, cached) =
            (&[("rank", 0.1)][..], &[("rank", 0.1), ("kv", 0.0)][..], &[("rank", 0.1), ("kv", 0.0), ("kv-token", 0.0)]);
        let all = ("paged", "6", &cached[..]);
        assert!(found(all, ("recompute", "6", none)).is_empty(), "a plan without a cache");
        assert!(found(all, ("paged", "5", known)).is_empty(), "a build that knew one of them");
        assert_eq!(found(all, ("paged", "6", known)), ["gate.checks: kv-token: limit"]);
        assert_eq!(found(all, ("paged", "7", none)), ["gate.checks: kv: limit", "gate.checks: kv-token: limit"]);
        assert_eq!(found(all, ("paged", "5", none)), ["gate.checks: kv: limit"]);
        for (a, b, name) in [
            (none, &[("rank", 0.2)][..], "rank"),
            (known, &[("rank", 0.1), ("kv", 1.0)], "kv"),
            (&[("rank", 0.1), ("logit", 0.1)], none, "logit"),
        ] {
            let found = found(("recompute", "6", a), ("recompute", "6", b));
            assert_eq!(found, [format!("gate.checks: {name}: limit")]);
        }
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
