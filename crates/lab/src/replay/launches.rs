//! View 2 of a device: one real step taken apart into its launches, those that carry calls of the same groups together.
//!
//! A part is recorded from the launches of the step itself: the same kernels on the same weights, buffers and cache, in the
//! order of the step. The whole step and its parts are replayed in turns, in an order that rotates, each timed by the
//! device's own clock from its first kernel to its last. Every launch is in one part, so that the parts are the step;
//! what their sum and the step differ by is what launches gain by standing beside each other: one begins while the one
//! before ends, and finds what it reads in a cache.
//!
//! A part that runs alone goes on from what it left behind, so that its numbers are not the step's; the step is run again
//! afterwards and must give the engine's answer.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;
use tare_core::{Fault, Reading};
use tare_cuda::ceilings::Ceilings;
use tare_cuda::device::{Device, GraphId};
use tare_cuda::{CarriedLaunch, CudaBackend};
use tare_evidence::canonical;
use tare_evidence::floor::Resource;
use tare_ops::{Backend, Cost, ForwardPlan, StepOutput};

use super::Doing;
use super::figures::middle;
use crate::LabError;
use crate::floor::{Pace, call_costs};
use crate::groups::{Group, groups};
use crate::rig::Rig;
use crate::specimen::{Phase, Specimen};
use crate::tap::Tap;
use crate::work::ClockedRequest;

/// What is taken apart, and how often.
#[derive(Clone, Copy, Debug)]
pub struct LaunchReplaying<'a> {
    /// Model, plan and class.
    pub rig: &'a Rig<'a>,
    /// The request whose step it is.
    pub request: &'a ClockedRequest,
    /// Which step.
    pub phase: Phase,
    /// Timed turns of every member.
    pub iterations: usize,
    /// For the floors.
    pub ceilings: &'a Reading<Ceilings>,
}

/// A step of a device in parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchReplay {
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
    /// The device.
    pub device: String,
    /// Rows of the step.
    pub rows: usize,
    /// Rows that something is wanted of.
    pub selected: usize,
    /// Tokens cached before its first row.
    pub depth: usize,
    /// Timed turns.
    pub iterations: usize,
    /// Launches of the step.
    pub launches: usize,
    /// Median of the step by the device's clock.
    pub step_ns: f64,
    /// Median of the step by the host's clock: what changes is copied, the answers are copied back.
    pub host_ns: f64,
    /// In the order of their first launches.
    pub parts: Vec<Part>,
    /// Sum of the parts.
    pub sum_ns: f64,
    /// The sum less the step: what the launches gain beside each other.
    pub overlap_ns: f64,
    /// Every sample.
    pub times: LaunchTimes,
}

/// Launches that carry calls of the same groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Those groups: `norm+qkv`.
    pub name: String,
    /// How many launches.
    pub launches: usize,
    /// How many calls of the plan.
    pub calls: usize,
    /// Median, alone, by the device's clock.
    pub ns: f64,
    /// Percent of the sum of all parts.
    pub share_percent: f64,
    /// Weights and cache that it must move.
    pub bytes: u64,
    /// Operations that it must do.
    pub flops: u64,
    /// The least time that the ceilings of the device allow for them.
    pub floor_ns: Reading<f64>,
    /// Which of the two makes it.
    pub bound: Option<Resource>,
    /// 100 * floor / median.
    pub percent_of_floor: Reading<f64>,
    /// The median less the floor: the most that a better kernel could take off.
    pub removable_ns: Reading<f64>,
    /// Keys of its launches, each with how many there are.
    pub kernels: Vec<(String, usize)>,
}

/// Nanoseconds of every turn. Index n of each list is turn n.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchTimes {
    /// The step, by the device's clock.
    pub step_ns: Vec<u64>,
    /// The step, by the host's clock.
    pub host_ns: Vec<u64>,
    /// Each part alone, by the device's clock.
    pub parts_ns: Vec<Vec<u64>>,
    /// Parts in the order in which they ran, turn by turn.
    pub order: Vec<Vec<usize>>,
}

/// Launches of one part: their places in the step, and the calls that they carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sorted {
    name: String,
    places: Vec<usize>,
    calls: Vec<usize>,
    keys: Vec<(String, usize)>,
}

impl LaunchReplaying<'_> {
    /// Reaches the step on `backend`, takes it apart and times the parts.
    ///
    /// `go_on` is asked before every turn; false ends the replay with nothing kept.
    ///
    /// # Errors
    /// When the engine or the device fails, the step run again gives another answer than the engine had, or `go_on` said
    /// no.
    pub fn run<D: Device + 'static>(
        &self,
        backend: CudaBackend<D>,
        go_on: &mut dyn FnMut(Doing) -> bool,
    ) -> Result<LaunchReplay, LabError> {
        let mut ask = |doing| if go_on(doing) { Ok(()) } else { Err(LabError::Interrupted) };
        if self.iterations == 0 {
            return Err(Fault::new("iterations", "at least 1", "0").into());
        }
        ask(Doing::Reaching)?;
        let specimen = Specimen::of(Tap::new(backend, None), self.rig, self.request, self.phase)?;
        ask(Doing::Parting)?;
        let carried = specimen.tap().with(|b| b.carried(specimen.exe))?;
        let sorted = sort(&specimen.plan, &carried)?;
        let part = |places: &[usize]| specimen.tap().with(|b| b.part(specimen.exe, places));
        let all: Vec<usize> = (0..carried.len()).collect();
        let whole = part(&all)?;
        let parts: Vec<GraphId> = sorted.iter().map(|s| part(&s.places)).collect::<Result<_, _>>()?;
        let mut times = LaunchTimes { parts_ns: vec![Vec::new(); parts.len()], ..LaunchTimes::default() };
        // One turn that is not timed: first replays.
        turn(&specimen, whole, &parts, 0, None)?;
        for n in 0..self.iterations {
            ask(Doing::Turn(n))?;
            turn(&specimen, whole, &parts, n, Some(&mut times))?;
        }
        specimen.confirm(specimen.exe)?;
        specimen.tap().with(|b| parts.iter().chain([&whole]).for_each(|part| b.forget_part(*part)));
        let device = specimen.tap().with(|b| b.describe().device);
        self.figures(&specimen, device, (carried.len(), &sorted), times)
    }

    fn figures<D: Device + 'static>(
        &self,
        specimen: &Specimen<CudaBackend<D>>,
        device: String,
        (launches, sorted): (usize, &[Sorted]),
        times: LaunchTimes,
    ) -> Result<LaunchReplay, LabError> {
        let rows = specimen.rows();
        let pace = Pace::of_device(self.ceilings, self.rig.class.order);
        let costs = call_costs(&specimen.plan, rows);
        let mut parts = Vec::with_capacity(sorted.len());
        for (s, ns) in sorted.iter().zip(&times.parts_ns) {
            let cost: Cost = s.calls.iter().map(|call| costs[*call]).sum();
            parts.push(self::part(s, middle(ns)?, cost, pace.floor(cost)));
        }
        let sum_ns: f64 = parts.iter().map(|p| p.ns).sum();
        parts.iter_mut().for_each(|p| p.share_percent = 100.0 * p.ns / sum_ns.max(1.0));
        let step_ns = middle(&times.step_ns)?;
        Ok(LaunchReplay {
            model: self.rig.model.describe()?.label().to_string(),
            phase: self.phase,
            plan: specimen.plan.name.clone(),
            plan_sha256: canonical::digest_of(&specimen.plan)?,
            class: specimen.plan.class.clone(),
            device,
            rows: rows.all,
            selected: rows.selected,
            depth: rows.first_slot,
            iterations: self.iterations,
            launches,
            step_ns,
            host_ns: middle(&times.host_ns)?,
            parts,
            sum_ns,
            overlap_ns: sum_ns - step_ns,
            times,
        })
    }
}

fn part(s: &Sorted, ns: f64, cost: Cost, floor: Reading<(f64, Resource)>) -> Part {
    let bound = floor.available().map(|f| f.1);
    let floor_ns = floor.map(|f| f.0);
    Part {
        name: s.name.clone(),
        launches: s.places.len(),
        calls: s.calls.len(),
        ns,
        share_percent: 0.0,
        bytes: cost.bytes,
        flops: cost.flops,
        percent_of_floor: floor_ns.clone().map(|floor| 100.0 * floor / ns),
        removable_ns: floor_ns.clone().map(|floor| (ns - floor).max(0.0)),
        floor_ns,
        bound,
        kernels: s.keys.clone(),
    }
}

/// One turn of the step and of every part, beginning with another one each time and going the other way every second time
/// round.
fn turn<D: Device + 'static>(
    specimen: &Specimen<CudaBackend<D>>,
    whole: GraphId,
    parts: &[GraphId],
    n: usize,
    mut times: Option<&mut LaunchTimes>,
) -> Result<(), LabError> {
    // The last member is the step.
    let count = parts.len() + 1;
    let mut members: Vec<usize> = (0..count).collect();
    members.rotate_left(n % count);
    if n / count % 2 == 1 {
        members.reverse();
    }
    if let Some(times) = times.as_deref_mut() {
        times.order.push(members.iter().copied().filter(|m| *m < parts.len()).collect());
    }
    for member in members {
        let graph = parts.get(member).copied().unwrap_or(whole);
        let ns = specimen.tap().with(|b| b.time_part(specimen.exe, graph, &specimen.batch))?;
        let Some(times) = times.as_deref_mut() else { continue };
        match times.parts_ns.get_mut(member) {
            Some(part) => part.push(ns),
            None => {
                times.step_ns.push(ns);
                let (mut out, start) = (StepOutput::default(), Instant::now());
                specimen.run(specimen.exe, &mut out)?;
                times.host_ns.push(start.elapsed().as_nanos() as u64);
            }
        }
    }
    Ok(())
}

/// The launches of a step by the groups of what they carry, in the order of their first ones.
///
/// # Errors
/// When a call of the plan is in no group or in no launch.
fn sort(plan: &ForwardPlan, carried: &[CarriedLaunch]) -> Result<Vec<Sorted>, Fault> {
    let mut of_call: BTreeMap<usize, Group> = BTreeMap::new();
    for (group, calls) in groups(plan)? {
        of_call.extend(calls.into_iter().map(|call| (call, group)));
    }
    let mut sorted: Vec<Sorted> = Vec::new();
    let mut seen = vec![false; plan.calls.len()];
    for (place, launch) in carried.iter().enumerate() {
        let theirs: Vec<Group> = launch.calls.clone().filter_map(|call| of_call.get(&call).copied()).collect();
        let names: Vec<&str> = Group::ALL.iter().filter(|g| theirs.contains(g)).map(|g| g.name()).collect();
        let name = names.join("+");
        let at = sorted.iter().position(|s| s.name == name).unwrap_or_else(|| {
            sorted.push(Sorted { name, ..Sorted::default() });
            sorted.len() - 1
        });
        let part = &mut sorted[at];
        part.places.push(place);
        for call in launch.calls.clone().filter(|call| !std::mem::replace(&mut seen[*call], true)) {
            part.calls.push(call);
        }
        match part.keys.iter_mut().find(|(key, _)| *key == launch.key) {
            Some((_, count)) => *count += 1,
            None => part.keys.push((launch.key.clone(), 1)),
        }
    }
    match seen.iter().position(|seen| !seen) {
        Some(call) => Err(Fault::new(format!("call {call}"), "a launch that carries it", "none")),
        None => Ok(sorted),
    }
}
