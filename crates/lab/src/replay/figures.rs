//! From turns to figures: medians, shares, floors, and what the sum of the groups leaves over.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tare_core::{Fault, Reading};
use tare_cpu::Dispatch;
use tare_evidence::canonical;
use tare_evidence::floor::Resource;
use tare_evidence::stats::median;
use tare_model::planner::op_shape;
use tare_ops::{Backend, Bucket, Cost, ForwardPlan};

use super::{Copies, Coverage, Dispatched, Replaying, Warmth};
use crate::LabError;
use crate::floor::{Pace, call_costs};
use crate::groups::Group;
use crate::specimen::{Phase, Specimen};

/// Nanoseconds of every turn, as they were taken. Index n of each list is turn n.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// The executable that the engine runs, untraced.
    pub whole_ns: Vec<u64>,
    /// The same, with the workers meeting before every stage.
    pub traced_ns: Vec<u64>,
    /// A parallel region without a stage.
    pub empty_ns: Vec<u64>,
    /// Each group alone, region included.
    pub groups_ns: Vec<Vec<u64>>,
    /// Each group's stages inside the traced step.
    pub in_step_ns: Vec<Vec<u64>>,
    /// Groups in the order in which they ran, turn by turn.
    pub order: Vec<Vec<usize>>,
}

impl Times {
    pub(super) fn new(groups: usize, turns: usize) -> Self {
        let room = || Vec::with_capacity(turns);
        Self {
            whole_ns: room(),
            traced_ns: room(),
            empty_ns: room(),
            groups_ns: (0..groups).map(|_| room()).collect(),
            in_step_ns: (0..groups).map(|_| room()).collect(),
            order: Vec::with_capacity(turns),
        }
    }
}

/// View 2 of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// The model, as records name it.
    pub model: String,
    /// Which step.
    pub phase: Phase,
    /// Name of the plan.
    pub plan: String,
    /// Canonical digest of the resolved plan.
    pub plan_sha256: String,
    /// Name of the class.
    pub class: String,
    /// What was planted, `group=percent`; none as a rule.
    pub delay: Option<String>,
    /// Threads that computed: without those that sat out, the same ones in every turn.
    pub threads: usize,
    /// Threads that sat out in all turns.
    pub sat_out: usize,
    /// Rows of the step.
    pub rows: usize,
    /// Rows that something is wanted of.
    pub selected: usize,
    /// Tokens cached before its first row.
    pub depth: usize,
    /// Timed turns.
    pub iterations: usize,
    /// Whether copies of the weights took turns.
    pub warmth: Warmth,
    /// How many did, against which cache.
    pub copies: Copies,
    /// Median of the whole step.
    pub step_ns: f64,
    /// Median of the traced step.
    pub traced_ns: f64,
    /// Median of an empty region: what starting and ending a run costs.
    pub region_ns: f64,
    /// In the order in which a step meets them.
    pub groups: Vec<GroupTime>,
    /// Whether the groups ran what the step ran.
    pub coverage: Coverage,
    /// The sum of the groups against the step; unavailable without complete coverage.
    pub remainder: Reading<Remainder>,
    /// Every sample.
    pub times: Times,
}

/// One group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupTime {
    /// Which.
    pub group: Group,
    /// Calls of the plan.
    pub calls: usize,
    /// Stages that they ran as.
    pub stages: usize,
    /// Median of its runs, less an empty region.
    pub ns: f64,
    /// Median of its stages inside the traced step.
    pub in_step_ns: f64,
    /// Percent of the sum of all groups.
    pub share_percent: f64,
    /// Weights and cache that it must move.
    pub bytes: u64,
    /// Operations that it must do.
    pub flops: u64,
    /// The least time that the ceilings of this host allow for them.
    pub floor_ns: Reading<f64>,
    /// Which of the two makes it.
    pub bound: Option<Resource>,
    /// 100 * floor / median.
    pub percent_of_floor: Reading<f64>,
    /// Whether what it reads may come out of a cache.
    pub cache: String,
    /// Its stages, the same ones together.
    pub kinds: Vec<CallKind>,
}

/// Stages that were launched alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallKind {
    /// Key of the kernel; of calls that run together all of them, joined by `+`.
    pub kernel: String,
    /// What the stage does for its calls.
    pub stage: String,
    /// How many.
    pub count: usize,
    /// Rows.
    pub rows: usize,
    /// Output width, of the last call.
    pub n: usize,
    /// Input width, of the first call.
    pub k: usize,
    /// Who did what.
    pub split: String,
}

/// The step less the sum of its groups, in two parts that add up to it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Remainder {
    /// Sum of the groups, empty regions taken off.
    pub sum_ns: f64,
    /// The step, an empty region taken off, less the sum. Negative when the groups alone take longer.
    pub ns: f64,
    /// Of the step.
    pub percent: f64,
    /// The part that is there because a stage costs another time between its neighbours than among its own kind: rows
    /// handed over in a cache, weights asked for ahead, a worker that waits for the other.
    pub neighbours_ns: f64,
    /// The part that is there because independent stages run into each other where the trace makes the workers meet.
    pub meetings_ns: f64,
}

pub(super) struct Ran {
    pub(super) times: Times,
    pub(super) dispatched: Dispatched,
    pub(super) copies: Copies,
}

pub(super) fn figures(
    of: &Replaying<'_>,
    specimen: &Specimen,
    groups: &[(Group, Vec<usize>)],
    ran: Ran,
) -> Result<Replay, LabError> {
    let Ran { times, dispatched, copies } = ran;
    let coverage = Coverage::of(&dispatched)?;
    let rows = specimen.rows();
    let (all, threads) = specimen.tap().with(|cpu| (Backend::describe(cpu).threads, cpu.active()));
    let pace = Pace::of(of.ceilings, threads, specimen.plan.order());
    let costs = call_costs(&specimen.plan, rows);
    let whole: Cost = costs.iter().copied().sum();
    let (step_ns, traced_ns, region_ns) =
        (middle(&times.whole_ns)?, middle(&times.traced_ns)?, middle(&times.empty_ns)?);
    let shaped = ForwardPlan { bucket: Bucket { rows: rows.all, selected: rows.selected }, ..specimen.plan.clone() };
    let mut out = Vec::with_capacity(groups.len());
    for (g, (group, calls)) in groups.iter().enumerate() {
        let ns = (middle(&times.groups_ns[g])? - region_ns).max(0.0);
        let cost: Cost = calls.iter().map(|c| costs[*c]).sum();
        let floor = pace.floor(cost);
        out.push(GroupTime {
            group: *group,
            calls: calls.len(),
            stages: dispatched.groups[g].len(),
            ns,
            in_step_ns: middle(&times.in_step_ns[g])?,
            share_percent: 0.0,
            bytes: cost.bytes,
            flops: cost.flops,
            percent_of_floor: percent(&floor, ns),
            bound: floor.available().map(|f| f.1),
            floor_ns: only_ns(floor),
            cache: copies.standing(cost.bytes, whole.bytes),
            kinds: kinds(&shaped, rows.first_slot + rows.all, &dispatched.groups[g]),
        });
    }
    let sum_ns: f64 = out.iter().map(|g| g.ns).sum();
    out.iter_mut().for_each(|g| g.share_percent = 100.0 * g.ns / sum_ns.max(1.0));
    let in_step: f64 = out.iter().map(|g| g.in_step_ns).sum();
    let stages_ns = step_ns - region_ns;
    let remainder = match &coverage.reason {
        Some(why) => Reading::unavailable(format!("the groups do not run what the step runs: {why}")),
        None => Reading::Available(Remainder {
            sum_ns,
            ns: stages_ns - sum_ns,
            percent: 100.0 * (stages_ns - sum_ns) / step_ns,
            neighbours_ns: in_step - sum_ns,
            meetings_ns: stages_ns - in_step,
        }),
    };
    Ok(Replay {
        model: of.rig.model.describe()?.label().to_string(),
        phase: of.phase,
        plan: specimen.plan.name.clone(),
        plan_sha256: canonical::digest_of(&specimen.plan)?,
        class: specimen.plan.class.clone(),
        delay: of.rig.delay.map(|d| d.to_string()),
        threads,
        sat_out: all - threads,
        rows: rows.all,
        selected: rows.selected,
        depth: rows.first_slot,
        iterations: of.iterations,
        warmth: of.warmth,
        copies,
        step_ns,
        traced_ns,
        region_ns,
        groups: out,
        coverage,
        remainder,
        times,
    })
}

pub(super) fn middle(ns: &[u64]) -> Result<f64, Fault> {
    let values: Vec<f64> = ns.iter().map(|n| *n as f64).collect();
    median(&values).ok_or_else(|| Fault::new("turns", "at least one", "none"))
}

fn percent(floor: &Reading<(f64, Resource)>, ns: f64) -> Reading<f64> {
    match floor {
        Reading::Available((floor, _)) if ns > 0.0 => Reading::Available(100.0 * floor / ns),
        Reading::Available(_) => Reading::unavailable("it takes no longer than an empty region"),
        Reading::Unavailable { why } => Reading::unavailable(why.clone()),
    }
}

fn only_ns(floor: Reading<(f64, Resource)>) -> Reading<f64> {
    match floor {
        Reading::Available((ns, _)) => Reading::Available(ns),
        Reading::Unavailable { why } => Reading::Unavailable { why },
    }
}

/// Stages that were launched alike, in the order of the first of each kind.
fn kinds(plan: &ForwardPlan, context: usize, ran: &[Dispatch]) -> Vec<CallKind> {
    let mut kinds: Vec<CallKind> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for d in ran {
        let shape = |call: usize| op_shape(plan, &plan.calls[call].op, context);
        let kind = CallKind {
            kernel: d.kernel.clone(),
            stage: d.stage.to_string(),
            count: 1,
            rows: d.rows,
            n: shape(d.call).n,
            k: shape(d.first_call).k,
            split: d.split.to_string(),
        };
        match known.get(&format!("{kind:?}")) {
            Some(at) => kinds[*at].count += 1,
            None => {
                known.insert(format!("{kind:?}"), kinds.len());
                kinds.push(kind);
            }
        }
    }
    kinds
}
