//! A delay planted into one group of the live plan: what a study must find when it is asked to. [`crate::shared`] plants it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use tare_core::Fault;
use tare_ops::ForwardPlan;

use crate::groups::{Group, calls_of, groups_as_run};

/// How much slower one group is made. On the processor each worker spins, after each of its calls, for `percent` of the time
/// that it spent there: it follows the group's own time, so that it holds for every shape, phase and depth. On a device each
/// launch that carries a call of the group is followed by a launch that takes `percent` of what the first one took in the first
/// step of its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// Which group.
    pub group: Group,
    /// Percent of the group's time that are added to it.
    pub percent: f64,
}

impl Delay {
    /// The calls of `plan` that are delayed, where those of `together` are delayed as one: those of the group as it runs, or of
    /// a joined group whose parts run one by one. A record then names all that is delayed.
    ///
    /// # Errors
    /// When the percentage is no positive number, the plan lacks a part of the group, or calls of it run together with others.
    pub fn calls(&self, plan: &ForwardPlan, together: &[Range<usize>]) -> Result<Vec<usize>, Fault> {
        if !(self.percent.is_finite() && self.percent > 0.0) {
            return Err(Fault::new("delay", "a percentage above 0", self.percent.to_string()));
        }
        let run = groups_as_run(plan, together)?;
        if let Some((_, calls)) = run.iter().find(|(group, _)| *group == self.group) {
            return Ok(calls.clone());
        }
        let calls = calls_of(plan, self.group)?;
        let delayed = |call: &usize| calls.contains(call);
        let cut = together.iter().any(|t| t.clone().any(|i| delayed(&i)) && !t.clone().all(|i| delayed(&i)));
        let parts = run.iter().filter(|(_, calls)| calls.iter().any(delayed)).flat_map(|(g, _)| g.name().split('+'));
        if cut || parts.collect::<BTreeSet<_>>() != self.group.name().split('+').collect() {
            let names: Vec<&str> = run.iter().map(|(group, _)| group.name()).collect();
            let expected = format!("a group as it runs in a step of plan {}: {}", plan.name, names.join(", "));
            return Err(Fault::new("delay", expected, format!("`{}`", self.group))
                .remedy("calls that run together are delayed together"));
        }
        Ok(calls)
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.group, self.percent)
    }
}

impl FromStr for Delay {
    type Err = Fault;
    fn from_str(text: &str) -> Result<Self, Fault> {
        let bad = || Fault::new("delay", "GROUP=PERCENT, such as down=20", format!("`{text}`"));
        let (group, percent) = text.split_once('=').ok_or_else(bad)?;
        Ok(Self { group: group.parse()?, percent: percent.parse().map_err(|_| bad())? })
    }
}
