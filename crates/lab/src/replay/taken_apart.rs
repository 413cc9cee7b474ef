//! A step that was taken apart, as the ranking and the ledger see it: wherever it ran.

use serde::Serialize;
use tare_core::{Fault, Reading};
use tare_evidence::floor::Resource;
use tare_evidence::replay::{Coverage, Dispatch, GroupSamples, Replay as Body, ReplayMeasured, ReplayedStep};

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
    /// Nanoseconds of it alone, turn by turn, with what any run takes before and after.
    pub alone_ns: &'a [u64],
    /// Calls of the plan.
    pub calls: usize,
    /// Weights and cache that it must move.
    pub bytes: u64,
    /// The least time that the ceilings allow.
    pub floor_ns: &'a Reading<f64>,
    /// Which ceiling makes it.
    pub bound: Option<Resource>,
    /// Keys of its kernels, each with how often it runs.
    pub kernels: Vec<(&'a str, usize)>,
}

/// How the turns of a replay went.
#[derive(Clone, Debug, PartialEq)]
pub struct Turns<'a> {
    /// The whole step, turn by turn.
    pub step_ns: &'a [u64],
    /// What a run takes before and after its parts: it is taken off every one.
    pub region_ns: f64,
    /// Parts in the order in which they ran, turn by turn.
    pub order: &'a [Vec<usize>],
    /// What the step and the sum of its parts differ by.
    pub remainder_is: String,
    /// Whether the parts are the step.
    pub coverage: Coverage,
    /// What ran.
    pub dispatch: Dispatch,
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
    /// Its turns.
    fn turns(&self) -> Turns<'_>;
    /// The step, as documents name it.
    fn step(&self) -> ReplayedStep;

    /// The replay as the ledger keeps it: what a run takes before and after is taken off every sample of a part.
    ///
    /// # Errors
    /// When a part or the step has no time.
    fn body(&self) -> Result<Body, Fault> {
        let (parts, turns) = (self.parts(), self.turns());
        let region_ns = turns.region_ns as u64;
        let group = |p: &PartOfStep<'_>| GroupSamples {
            name: p.name.to_string(),
            calls: p.calls as u64,
            samples_ns: p.alone_ns.iter().map(|ns| ns.saturating_sub(region_ns)).collect(),
            floor_ns: p.floor_ns.clone(),
            bytes: Some(p.bytes),
            kernels: p.kernels.iter().map(|(key, count)| format!("{count} x {key}")).collect(),
        };
        let names = |turn: &Vec<usize>| turn.iter().map(|p| parts[*p].name.to_string()).collect();
        Body::of(ReplayMeasured {
            step: self.step(),
            groups: parts.iter().map(group).collect(),
            order: turns.order.iter().map(names).collect(),
            step_ns: turns.step_ns.to_vec(),
            remainder_is: turns.remainder_is,
            coverage: turns.coverage,
            dispatch: turns.dispatch,
        })
    }
}
