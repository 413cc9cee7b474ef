//! View 2: the operators of one step, replayed group by group, and how far their sum is from the step on the clock.

use crate::check;
use crate::derive::{Spread, spread};
use crate::document::{Body, Document, Kind};
use crate::identity::Warmth;
use crate::record::About;
use crate::schema::ReadingShape;
use crate::shelf::Shelf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tare_core::{Fault, Reading};

/// What was replayed, what was measured, and what follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// What was replayed and measured.
    pub measured: ReplayMeasured,
    /// What follows from it.
    pub derived: ReplayFigures,
}

/// What was replayed and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayMeasured {
    /// The step.
    pub step: ReplayedStep,
    /// Every group of the plan, in dependency order of its first call.
    pub groups: Vec<GroupSamples>,
    /// Groups as they ran, `[iterations][groups]`.
    pub order: Vec<Vec<String>>,
    /// The whole step on the clock, one value for each sample, in nanoseconds.
    pub step_ns: Vec<u64>,
    /// What the step does that no group does: it is what the remainder is made of.
    pub remainder_is: String,
    /// Whether all of the step was replayed.
    pub coverage: Coverage,
    /// What the step and the replay called.
    pub dispatch: Dispatch,
}

/// One step of the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayedStep {
    /// The model, as it was named.
    pub model: String,
    /// Name of the plan.
    pub plan: String,
    /// Canonical digest of the resolved plan of the bucket.
    pub plan_sha256: String,
    /// Arithmetic class.
    pub class: String,
    /// Which phase it is a step of.
    pub phase: StepPhase,
    /// Rows of the bucket.
    pub rows: u32,
    /// Rows whose logits are wanted.
    pub selected: u32,
    /// Tokens in the KV cache before it.
    pub depth: u32,
    /// Threads that compute.
    pub threads: u32,
    /// Whether the weights may lie in a processor cache.
    pub warmth: Warmth,
}

/// A phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepPhase {
    /// The prompt.
    Prefill,
    /// A token after the first.
    Decode,
}

/// The samples of one group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSamples {
    /// Its name.
    pub name: String,
    /// Calls that the step makes of it.
    pub calls: u64,
    /// Time of all its calls, one value for each iteration, in nanoseconds.
    pub samples_ns: Vec<u64>,
    /// The least time that the measured ceilings allow for all its calls, in nanoseconds.
    #[schemars(with = "ReadingShape<f64>")]
    pub floor_ns: Reading<f64>,
    /// Bytes of weights and cache that all its calls must move, where the replay tells them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Keys of its kernels, each with how many stages or launches there are: `28 x linear.bf16.cuda`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<String>,
}

/// Whether all of the step was replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Coverage {
    /// Whether it was.
    pub complete: bool,
    /// What was left out and why, or how it is known that nothing was.
    pub reason: String,
}

/// Digests of the calls in order: kernel, shapes, operands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dispatch {
    /// Of the step.
    pub step_sha256: String,
    /// Of the replay, its calls put back in the order of the plan.
    pub replay_sha256: String,
}

/// Every figure of a replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayFigures {
    /// One for each group, in the order of the groups.
    pub groups: Vec<GroupFigures>,
    /// The step on the clock.
    pub step_ns: Spread,
    /// Sum of the medians of the groups.
    pub sum_ns: f64,
    /// Median of the step less the sum: below 0 when the replay took longer.
    pub remainder_ns: f64,
    /// The remainder in percent of the step.
    pub remainder_percent: f64,
}

/// Figures of one group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupFigures {
    /// Its name.
    pub name: String,
    /// Time of all its calls.
    pub ns: Spread,
    /// Its median in percent of the sum of all medians.
    pub share_percent: f64,
    /// 100 * floor / median: 100 is at the floor.
    #[schemars(with = "ReadingShape<f64>")]
    pub percent_of_floor: Reading<f64>,
}

impl Replay {
    /// A replay with its figures.
    ///
    /// # Errors
    /// When there is no group or no sample.
    pub fn of(measured: ReplayMeasured) -> Result<Self, Fault> {
        let derived = figures(&measured)?;
        Ok(Self { measured, derived })
    }
}

fn figures(measured: &ReplayMeasured) -> Result<ReplayFigures, Fault> {
    let floats = |ns: &[u64]| ns.iter().map(|&ns| ns as f64).collect::<Vec<_>>();
    let medians = measured
        .groups
        .iter()
        .map(|g| spread(&format!("groups: {}: samples_ns", g.name), &floats(&g.samples_ns)))
        .collect::<Result<Vec<_>, _>>()?;
    let step_ns = spread("step_ns", &floats(&measured.step_ns))?;
    let sum_ns: f64 = medians.iter().map(|s| s.median).sum();
    if sum_ns <= 0.0 || step_ns.median <= 0.0 {
        return Err(Fault::new("groups, step_ns", "times above 0", format!("{sum_ns} and {}", step_ns.median)));
    }
    let group = |(g, ns): (&GroupSamples, Spread)| GroupFigures {
        name: g.name.clone(),
        share_percent: 100.0 * ns.median / sum_ns,
        percent_of_floor: match &g.floor_ns {
            Reading::Available(_) if ns.median <= 0.0 => Reading::unavailable("the group took no time"),
            floor => floor.clone().map(|floor| 100.0 * floor / ns.median),
        },
        ns,
    };
    let remainder_ns = step_ns.median - sum_ns;
    Ok(ReplayFigures {
        groups: measured.groups.iter().zip(medians).map(group).collect(),
        sum_ns,
        remainder_ns,
        remainder_percent: 100.0 * remainder_ns / step_ns.median,
        step_ns,
    })
}

impl Body for Replay {
    const KIND: Kind = Kind::Replay;

    fn faults(&self, _about: &About) -> Vec<Fault> {
        let m = &self.measured;
        let mut faults = Vec::new();
        let names: BTreeSet<&str> = m.groups.iter().map(|g| g.name.as_str()).collect();
        if names.len() != m.groups.len() || names.contains("") {
            faults.push(Fault::new("groups", "names that differ", "one twice or empty"));
        }
        for g in &m.groups {
            if g.samples_ns.len() != m.order.len() || g.calls == 0 {
                let found = format!("{} samples of {} calls", g.samples_ns.len(), g.calls);
                let expected = format!("calls, and a sample for each of {} iterations", m.order.len());
                faults.push(Fault::new(format!("groups: {}", g.name), expected, found));
            }
        }
        for (i, order) in m.order.iter().enumerate() {
            let ran: BTreeSet<&str> = order.iter().map(String::as_str).collect();
            if ran != names || order.len() != names.len() {
                faults.push(Fault::new(format!("order: {i}"), "every group once", format!("{order:?}")));
            }
        }
        let equal = m.dispatch.step_sha256 == m.dispatch.replay_sha256;
        if m.coverage.complete && !equal {
            let Dispatch { step_sha256, replay_sha256 } = &m.dispatch;
            faults.push(Fault::new("dispatch", format!("{step_sha256}, what the step called"), replay_sha256.as_str()));
        }
        if m.coverage.reason.trim().is_empty() || m.remainder_is.trim().is_empty() {
            faults.push(Fault::new("coverage.reason, remainder_is", "a sentence each", "none"));
        }
        check::follows("derived", figures(m), &self.derived, &mut faults);
        faults
    }

    fn faults_in(_document: &Document<Self>, _shelf: &Shelf) -> Vec<Fault> {
        Vec::new()
    }
}
