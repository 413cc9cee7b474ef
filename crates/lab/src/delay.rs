//! A delay planted into one group of the live plan: what a study must find when it is asked to. [`crate::shared`] plants it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use tare_core::Fault;
use tare_ops::ForwardPlan;

use crate::groups::{Group, calls_of};

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
    /// The calls of `plan` that are delayed.
    ///
    /// # Errors
    /// When the percentage is no positive number, or the plan has no call of the group.
    pub fn calls(&self, plan: &ForwardPlan) -> Result<Vec<usize>, Fault> {
        if !(self.percent.is_finite() && self.percent > 0.0) {
            return Err(Fault::new("delay", "a percentage above 0", self.percent.to_string()));
        }
        let calls = calls_of(plan, self.group)?;
        if calls.is_empty() {
            return Err(Fault::new("delay", format!("a group of plan {}", plan.name), format!("`{}`", self.group)));
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
