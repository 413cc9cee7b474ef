//! View 2 of a device: one real step taken apart into its launches, those that carry calls of the same groups together.
//!
//! A part is recorded from the launches of the step itself: the same kernels on the same weights, buffers and cache, in the
//! order of the step, with the delays that were planted behind them. The whole step, its parts and a launch of nothing are
//! replayed in turns, in an order that rotates, each timed by the device's own clock. What a replay takes before its first
//! launch and after its last is known from the launch of nothing and taken off every part. Every launch is in one part, so that
//! the parts are the step; what their sum and the step differ by is what launches gain by standing beside each other: one
//! begins while the one before ends, and finds what it reads in a cache.
//!
//! A part that runs alone goes on from what it left behind, so that its numbers are not the step's; the step is run again
//! afterwards and must give the engine's answer.

mod document;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;
use tare_core::digest::sha256_hex;
use tare_core::{Fault, Reading};
use tare_cuda::ceilings::Ceilings;
use tare_cuda::device::{Device, GraphId, Launch};
use tare_cuda::{Carried, CudaBackend};
use tare_evidence::canonical;
use tare_evidence::floor::Resource;
use tare_ops::{Backend, Cost, ForwardPlan, StepOutput};

use super::Doing;
use super::figures::middle;
use crate::LabError;
use crate::floor::{Pace, call_costs};
use crate::groups::{Group, groups};
use crate::held::Held;
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
    /// What was planted, `group=percent`; none as a rule.
    pub delay: Option<String>,
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
    /// What a replay takes before its first launch and after its last, by the device's clock.
    pub region_ns: f64,
    /// In the order of their first launches.
    pub parts: Vec<Part>,
    /// Sum of the parts.
    pub sum_ns: f64,
    /// The sum less the step without `region_ns`: what the launches gain beside each other.
    pub overlap_ns: f64,
    /// SHA-256 of the launches of the step: kernels, shapes, arguments.
    pub step_sha256: String,
    /// SHA-256 of the launches of the parts, put back in order.
    pub parts_sha256: String,
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
    /// Median, alone, by the device's clock, less what a replay of nothing takes.
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
    /// A launch of nothing, by the device's clock.
    pub empty_ns: Vec<u64>,
    /// Each part alone, by the device's clock.
    pub parts_ns: Vec<Vec<u64>>,
    /// Parts in the order in which they ran, turn by turn.
    pub order: Vec<Vec<usize>>,
}

/// Launches of one part: their places in the step, and the calls that they carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sorted {
    /// Groups of the calls: `norm+qkv`.
    pub(crate) name: String,
    places: Vec<usize>,
    /// Indices of the calls.
    pub(crate) calls: Vec<usize>,
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
        if !go_on(Doing::Reaching) {
            return Err(LabError::Interrupted);
        }
        let tap = Tap::new(backend, self.rig.delay);
        self.of(&Specimen::of(tap, self.rig, self.request, self.phase)?, go_on)
    }

    /// As [`LaunchReplaying::run`], on a step of `phase` that was reached before.
    ///
    /// # Errors
    /// As [`LaunchReplaying::run`].
    pub fn of<D: Device + 'static>(
        &self,
        specimen: &Specimen<CudaBackend<D>>,
        go_on: &mut dyn FnMut(Doing) -> bool,
    ) -> Result<LaunchReplay, LabError> {
        let mut ask = |doing| if go_on(doing) { Ok(()) } else { Err(LabError::Interrupted) };
        if self.iterations == 0 {
            return Err(Fault::new("iterations", "at least 1", "0").into());
        }
        ask(Doing::Parting)?;
        let (sorted, launches) = specimen.tap().with(|b| -> Result<_, LabError> {
            let (launches, carried) = b.launches(specimen.exe)?;
            Ok((sort(&specimen.plan, (launches, carried))?, launches.to_vec()))
        })?;
        // The parts, then the whole and a launch of nothing.
        let mut recorded = Held::new(specimen.tap(), |tap, part| tap.with(|b| b.forget_part(part)));
        let all: Vec<usize> = (0..launches.len()).collect();
        for places in sorted.iter().map(|s| &s.places).chain([&all]) {
            recorded.keep(specimen.tap().with(|b| b.part(specimen.exe, places))?);
        }
        let (empty, empty_own_ns) = specimen.tap().with(|b| b.empty_part())?;
        recorded.keep(empty);
        let mut times = LaunchTimes { parts_ns: vec![Vec::new(); sorted.len()], ..LaunchTimes::default() };
        // One turn that is not timed: first replays.
        turn(specimen, &recorded, 0, None)?;
        for n in 0..self.iterations {
            ask(Doing::Turn(n))?;
            turn(specimen, &recorded, n, Some(&mut times))?;
        }
        specimen.confirm(specimen.exe)?;
        let region_ns = (middle(&times.empty_ns)? - empty_own_ns).max(0.0);
        self.figures(specimen, (&launches, &sorted), (times, region_ns))
    }

    fn figures<D: Device + 'static>(
        &self,
        specimen: &Specimen<CudaBackend<D>>,
        (launches, sorted): (&[Launch], &[Sorted]),
        (times, region_ns): (LaunchTimes, f64),
    ) -> Result<LaunchReplay, LabError> {
        let device = specimen.tap().with(|b| b.describe().device);
        let rows = specimen.rows();
        let pace = Pace::of_device(self.ceilings, self.rig.class.order);
        let costs = call_costs(&specimen.plan, rows);
        let mut parts = Vec::with_capacity(sorted.len());
        for (s, ns) in sorted.iter().zip(&times.parts_ns) {
            let cost: Cost = s.calls.iter().map(|call| costs[*call]).sum();
            parts.push(self::part(s, (middle(ns)? - region_ns).max(0.0), cost, pace.floor(cost)));
        }
        let sum_ns: f64 = parts.iter().map(|p| p.ns).sum();
        parts.iter_mut().for_each(|p| p.share_percent = 100.0 * p.ns / sum_ns.max(1.0));
        let step_ns = middle(&times.step_ns)?;
        let mut places: Vec<usize> = sorted.iter().flat_map(|s| s.places.iter().copied()).collect();
        places.sort_unstable();
        Ok(LaunchReplay {
            model: self.rig.model.describe()?.label().to_string(),
            phase: self.phase,
            plan: specimen.plan.name.clone(),
            plan_sha256: canonical::digest_of(&specimen.plan)?,
            class: specimen.plan.class.clone(),
            device,
            delay: self.rig.delay.map(|d| d.to_string()),
            rows: rows.all,
            selected: rows.selected,
            depth: rows.first_slot,
            iterations: self.iterations,
            launches: launches.len(),
            step_ns,
            host_ns: middle(&times.host_ns)?,
            region_ns,
            parts,
            sum_ns,
            overlap_ns: sum_ns - (step_ns - region_ns),
            step_sha256: digest(launches),
            parts_sha256: digest(places.iter().filter_map(|at| launches.get(*at))),
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
        percent_of_floor: match &floor_ns {
            Reading::Available(_) if ns <= 0.0 => Reading::unavailable("it takes no longer than a launch of nothing"),
            floor => floor.clone().map(|floor| 100.0 * floor / ns),
        },
        removable_ns: floor_ns.clone().map(|floor| (ns - floor).max(0.0)),
        floor_ns,
        bound,
        kernels: s.keys.clone(),
    }
}

/// The launches, told apart by what they run, in which shape and on what.
fn digest<'a>(launches: impl IntoIterator<Item = &'a Launch>) -> String {
    let mut text = String::new();
    for l in launches {
        let Launch { kernel, key, grid, threads, shared, early, args } = l;
        text += &format!("{kernel:?} {key} {grid:?} {threads} {shared} {early} {}\n", sha256_hex(args));
    }
    sha256_hex(text.as_bytes())
}

/// One turn of `recorded`: every part, the step and the launch of nothing, beginning with another one each time and going the other way
/// every second time round.
fn turn<D: Device + 'static>(
    specimen: &Specimen<CudaBackend<D>>,
    recorded: &[GraphId],
    n: usize,
    mut times: Option<&mut LaunchTimes>,
) -> Result<(), LabError> {
    let parts = recorded.len() - 2;
    let mut members: Vec<usize> = (0..recorded.len()).collect();
    members.rotate_left(n % recorded.len());
    if n / recorded.len() % 2 == 1 {
        members.reverse();
    }
    if let Some(times) = times.as_deref_mut() {
        times.order.push(members.iter().copied().filter(|m| *m < parts).collect());
    }
    for member in members {
        let ns = specimen.tap().with(|b| b.time_part(specimen.exe, recorded[member], &specimen.batch))?;
        let Some(times) = times.as_deref_mut() else { continue };
        if let Some(part) = times.parts_ns.get_mut(member) {
            part.push(ns);
        } else if member == parts {
            times.step_ns.push(ns);
            let (mut out, start) = (StepOutput::default(), Instant::now());
            specimen.run(specimen.exe, &mut out)?;
            times.host_ns.push(start.elapsed().as_nanos() as u64);
        } else {
            times.empty_ns.push(ns);
        }
    }
    Ok(())
}

/// The launches of a step by the groups of what they carry, in the order of their first ones.
///
/// # Errors
/// When a call of the plan is in no group or in no launch.
pub(crate) fn sort(plan: &ForwardPlan, (launches, carried): (&[Launch], &[Carried])) -> Result<Vec<Sorted>, Fault> {
    let mut of_call: BTreeMap<usize, Group> = BTreeMap::new();
    for (group, calls) in groups(plan)? {
        of_call.extend(calls.into_iter().map(|call| (call, group)));
    }
    let mut sorted: Vec<Sorted> = Vec::new();
    for c in carried.iter().filter(|c| !c.launches.is_empty()) {
        let theirs: Vec<Group> = c.calls.clone().filter_map(|call| of_call.get(&call).copied()).collect();
        let names: Vec<&str> = Group::ALL.iter().filter(|g| theirs.contains(g)).map(|g| g.name()).collect();
        let name = names.join("+");
        let at = sorted.iter().position(|s| s.name == name).unwrap_or_else(|| {
            sorted.push(Sorted { name, ..Sorted::default() });
            sorted.len() - 1
        });
        let part = &mut sorted[at];
        part.calls.extend(c.calls.clone());
        for launch in c.launches.clone() {
            part.places.push(launch);
            let key = &launches[launch].key;
            match part.keys.iter_mut().find(|(of, _)| of == key) {
                Some((_, count)) => *count += 1,
                None => part.keys.push((key.clone(), 1)),
            }
        }
    }
    let carried = |call: &usize| sorted.iter().any(|s| s.calls.contains(call));
    match (0..plan.calls.len()).find(|call| !carried(call)) {
        Some(call) => Err(Fault::new(format!("call {call}"), "a launch that carries it", "none")),
        None => Ok(sorted),
    }
}
