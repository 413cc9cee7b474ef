//! View 2, operator replay: one real step taken apart into the groups of its plan, each run alone.
//!
//! A group is the stages of its calls, taken out of the executable that the engine runs: the same kernels, bound to the
//! same weights, step buffers and cache, in dependency order, separated where the whole separates them. Groups, the whole
//! step untraced, the whole step traced and an empty parallel region take turns inside one run, in an order that rotates,
//! so that what disturbs one disturbs all; a thread that sits out as they begin sits out of all of them, and none follows it.
//! A gated unit that writes over
//! its gate writes elsewhere when it runs alone, so that its numbers stay those of the step. The sum of the groups is then held against the step, and what is left over is
//! named. That the groups run what the step runs is not assumed: the list of stages that ran is compared, and without
//! agreement there is no sum.
//!
//! On a device a step is launches, which may carry calls of several groups: [`launches`] takes it apart into them.

mod cache;
mod coverage;
mod document;
mod figures;
pub mod launches;
pub mod taken_apart;

use serde::{Deserialize, Serialize};
use std::time::Instant;
use tare_core::Fault;
use tare_cpu::{CpuBackend, Dispatch};
use tare_ops::{Cost, Executable, StepOutput};
use tare_probe::{Ceilings, Host};

use crate::LabError;
use crate::floor::call_costs;
use crate::groups::{Group, groups_as_run};
use crate::held::{Held, Steady};
use crate::rig::Rig;
use crate::specimen::{Phase, Specimen};
use crate::work::ClockedRequest;

pub use cache::Copies;
pub use coverage::Coverage;
pub use figures::{CallKind, GroupTime, Remainder, Replay, Times};
pub use taken_apart::TakenApart;

/// Whether a weight may still be in a cache when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Warmth {
    /// As in a decode loop: every run reads the same weights.
    Warm,
    /// Copies of the weights take turns, enough of them to exceed the last-level cache.
    Cold,
}

/// What is taken apart, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Replaying<'a> {
    /// Model, plan and class.
    pub rig: &'a Rig<'a>,
    /// The request whose step it is.
    pub request: &'a ClockedRequest,
    /// Which step.
    pub phase: Phase,
    /// Timed turns of every member.
    pub iterations: usize,
    /// Whether copies of the weights take turns.
    pub warmth: Warmth,
    /// For its caches and memory.
    pub host: &'a Host,
    /// For the floors.
    pub ceilings: &'a Ceilings,
}

/// What a replay is doing, for a progress line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// The request runs up to the step.
    Reaching,
    /// Copies are made and groups compiled.
    Parting,
    /// Turn `n`.
    Turn(usize),
}

impl Replaying<'_> {
    /// Reaches the step, takes it apart and times the parts.
    ///
    /// `go_on` is asked before every turn; false ends the replay with nothing kept.
    ///
    /// # Errors
    /// When the engine or backend fails, copies do not fit in memory, the step run again gives another answer than the
    /// engine had, or `go_on` said no.
    pub fn run(&self, go_on: &mut dyn FnMut(Doing) -> bool) -> Result<Replay, LabError> {
        if !go_on(Doing::Reaching) {
            return Err(LabError::Interrupted);
        }
        let specimen = Specimen::take(self.rig, self.request, self.phase)?;
        self.of(&specimen, go_on)
    }

    /// As [`Replaying::run`], on a step of `phase` that was reached before.
    ///
    /// # Errors
    /// As [`Replaying::run`].
    pub fn of(&self, specimen: &Specimen, go_on: &mut dyn FnMut(Doing) -> bool) -> Result<Replay, LabError> {
        let mut ask = |doing| if go_on(doing) { Ok(()) } else { Err(LabError::Interrupted) };
        if self.iterations == 0 {
            return Err(Fault::new("iterations", "at least 1", "0").into());
        }
        ask(Doing::Parting)?;
        let streamed: Cost = call_costs(&specimen.plan, specimen.rows()).into_iter().sum();
        let carried = specimen.tap().with(|cpu| cpu.carried(specimen.exe))?;
        let groups = groups_as_run(&specimen.plan, &carried)?;
        let streaming = (streamed.bytes, groups.len() + MEMBERS.len());
        let copies = Copies::of(self.warmth, specimen.weight_bytes(), streaming, self.host)?;
        let mut parted = Parted::new(specimen, groups, self.rig, copies.count)?;
        // One turn that is not timed: first touches, first wake-ups, and whoever is late by now may sit out.
        parted.turn(specimen, 0, None)?;
        // From here on all that is compared has the same threads.
        let _steady = Steady::of(specimen.tap());
        let dispatched = parted.dispatches(specimen)?;
        let mut times = Times::new(parted.groups.len(), self.iterations);
        for n in 0..self.iterations {
            ask(Doing::Turn(n))?;
            parted.turn(specimen, n, Some(&mut times))?;
        }
        parted.confirm(specimen)?;
        figures::figures(self, specimen, &parted.groups, figures::Ran { times, dispatched, copies })
    }
}

/// What ran: the stages of the whole and of each group.
#[derive(Debug)]
struct Dispatched {
    whole: Vec<Dispatch>,
    groups: Vec<Vec<Dispatch>>,
}

/// A step in parts, once for each copy of its weights.
struct Parted<'s> {
    /// Groups of the plan with the indices of their calls.
    groups: Vec<(Group, Vec<usize>)>,
    copies: Vec<Parts>,
    /// All that was compiled for it.
    _held: Held<'s, CpuBackend>,
    /// Runs so far: each takes the next copy.
    runs: usize,
}

struct Parts {
    whole: Executable,
    /// No call at all: what a run costs before and after its stages.
    empty: Executable,
    groups: Vec<Executable>,
}

/// One that takes its turn.
#[derive(Clone, Copy)]
enum Member {
    Whole,
    Traced,
    Empty,
    Group(usize),
}

impl Member {
    fn group(self) -> Option<usize> {
        match self {
            Member::Group(g) => Some(g),
            Member::Whole | Member::Traced | Member::Empty => None,
        }
    }
}

/// The members that are no group.
const MEMBERS: [Member; 3] = [Member::Whole, Member::Traced, Member::Empty];

impl<'s> Parted<'s> {
    fn new(
        specimen: &'s Specimen,
        groups: Vec<(Group, Vec<usize>)>,
        rig: &Rig<'_>,
        copies: usize,
    ) -> Result<Self, LabError> {
        let tap = specimen.tap();
        let mut held = Held::executables(tap);
        let mut parted = Vec::with_capacity(copies);
        for copy in 0..copies {
            let whole = if copy == 0 { specimen.exe } else { held.keep(specimen.copy(rig)?) };
            let empty = held.keep(tap.with(|cpu| cpu.part(whole, &[]))?);
            let mut alone = |calls: &[usize]| -> Result<Executable, LabError> {
                Ok(held.keep(tap.with(|cpu| cpu.part_alone(whole, calls))?))
            };
            let groups = groups.iter().map(|(_, calls)| alone(calls)).collect::<Result<_, _>>()?;
            parted.push(Parts { whole, empty, groups });
        }
        Ok(Self { groups, copies: parted, _held: held, runs: 0 })
    }

    /// The stages that run, in the whole and in each group.
    fn dispatches(&self, specimen: &Specimen) -> Result<Dispatched, LabError> {
        let first = &self.copies[0];
        let ran = |exe| specimen.tap().with(|cpu| cpu.dispatches(exe, &specimen.batch));
        let groups = first.groups.iter().map(|exe| ran(*exe)).collect::<Result<_, _>>()?;
        Ok(Dispatched { whole: ran(first.whole)?, groups })
    }

    /// One turn of every member, beginning with another one each time and going the other way every second time round.
    fn turn(&mut self, specimen: &Specimen, n: usize, mut times: Option<&mut Times>) -> Result<(), LabError> {
        let mut members = MEMBERS.to_vec();
        members.extend((0..self.groups.len()).map(Member::Group));
        let count = members.len();
        members.rotate_left(n % count);
        if n / count % 2 == 1 {
            members.reverse();
        }
        if let Some(times) = times.as_deref_mut() {
            times.order.push(members.iter().filter_map(|m| m.group()).collect());
        }
        let (mut out, mut calls_ns) = (StepOutput::default(), Vec::new());
        for member in members {
            let parts = &self.copies[self.runs % self.copies.len()];
            self.runs += 1;
            let start = Instant::now();
            match member {
                Member::Whole => specimen.run(parts.whole, &mut out)?,
                Member::Empty => specimen.run(parts.empty, &mut out)?,
                Member::Group(g) => specimen.run(parts.groups[g], &mut out)?,
                Member::Traced => {
                    specimen.tap().with(|cpu| cpu.run_traced(parts.whole, &specimen.batch, &mut out, &mut calls_ns))?
                }
            }
            let ns = start.elapsed().as_nanos() as u64;
            let Some(times) = times.as_deref_mut() else { continue };
            match member {
                Member::Whole => times.whole_ns.push(ns),
                Member::Empty => times.empty_ns.push(ns),
                Member::Group(g) => times.groups_ns[g].push(ns),
                Member::Traced => {
                    times.traced_ns.push(ns);
                    for (g, (_, calls)) in self.groups.iter().enumerate() {
                        times.in_step_ns[g].push(calls.iter().map(|c| calls_ns[*c]).sum());
                    }
                }
            }
        }
        Ok(())
    }

    /// That every copy, after all the turns, still gives the engine's answer.
    fn confirm(&self, specimen: &Specimen) -> Result<(), LabError> {
        self.copies.iter().try_for_each(|parts| specimen.confirm(parts.whole))
    }
}
