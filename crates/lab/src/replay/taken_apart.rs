//! A step that was taken apart, as the ranking and the ledger see it: wherever it ran.

use serde::Serialize;
use tare_core::{Fault, Reading};
use tare_evidence::floor::Resource;
use tare_evidence::replay::{Replay as Body, ReplayedStep};

use super::{GroupTime, Replay};
use crate::specimen::Phase;

/// Percent of a step that its parts may leave over: beyond it their times are no basis for a ranking.
pub const REMAINDER_LIMIT_PERCENT: f64 = 10.0;

/// One part of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct PartOfStep<'a> {
    /// Its name in the replay.
    pub name: &'a str,
    /// Its time in a step; not above 0 when it takes no longer than an empty region.
    pub ns: f64,
    /// Weights and cache that it must move.
    pub bytes: u64,
    /// The least time that the ceilings allow.
    pub floor_ns: &'a Reading<f64>,
    /// Which ceiling makes it.
    pub bound: Option<Resource>,
    /// Keys of its kernels, one after the other alike told once.
    pub kernels: Vec<&'a str>,
}

/// A replay of one step.
pub trait TakenApart: Clone + Serialize {
    /// Which step.
    fn phase(&self) -> Phase;
    /// Rows of the step.
    fn rows(&self) -> usize;
    /// Median of the step by the clock that its parts were timed with.
    fn step_ns(&self) -> f64;
    /// Median of the step by the host's clock, by which requests are clocked.
    fn host_ns(&self) -> f64;
    /// Whether the times of the parts are a basis for a ranking.
    ///
    /// # Errors
    /// Why they are not.
    fn adds_up(&self) -> Result<(), String>;
    /// Its parts, in the order of the step.
    fn parts(&self) -> Vec<PartOfStep<'_>>;
    /// The step, as documents name it.
    fn step(&self) -> ReplayedStep;
    /// The replay as the ledger keeps it.
    ///
    /// # Errors
    /// When a part or the step has no time.
    fn body(&self) -> Result<Body, Fault>;
}

/// Keys of the kernels of a group.
fn kernels(g: &GroupTime) -> Vec<&str> {
    let mut keys: Vec<&str> = g.kinds.iter().map(|k| k.kernel.as_str()).collect();
    keys.dedup();
    keys
}

impl TakenApart for Replay {
    fn phase(&self) -> Phase {
        self.phase
    }
    fn rows(&self) -> usize {
        self.rows
    }
    fn step_ns(&self) -> f64 {
        self.step_ns
    }
    fn host_ns(&self) -> f64 {
        self.step_ns
    }
    fn adds_up(&self) -> Result<(), String> {
        match &self.remainder {
            Reading::Unavailable { why } => Err(why.clone()),
            Reading::Available(left) if left.percent.abs() > REMAINDER_LIMIT_PERCENT => Err(format!(
                "its groups leave {:+.1} % of the step over, more than {REMAINDER_LIMIT_PERCENT} %: measure again on a \
                 quiet host",
                left.percent
            )),
            Reading::Available(_) => Ok(()),
        }
    }
    fn parts(&self) -> Vec<PartOfStep<'_>> {
        self.groups
            .iter()
            .map(|g| PartOfStep {
                name: g.group.name(),
                ns: g.ns,
                bytes: g.bytes,
                floor_ns: &g.floor_ns,
                bound: g.bound,
                kernels: kernels(g),
            })
            .collect()
    }
    fn step(&self) -> ReplayedStep {
        Replay::step(self)
    }
    fn body(&self) -> Result<Body, Fault> {
        Replay::body(self)
    }
}
