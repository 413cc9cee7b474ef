//! Running a campaign: control, rounds, control; every finished thing goes into the journal.

use std::time::Instant;
use tare_core::Fault;
use tare_evidence::gate::Judgement;
use tare_evidence::sides::{Side, arm_faults, class_faults};
use tare_probe::Quietness;

use crate::LabError;
use crate::arm::process::Lost;
use crate::arm::protocol::Judged;
use crate::campaign::bench::{Bench, CeilingTurn, LiveArm};
use crate::campaign::design::{Meeting, Seating};
use crate::campaign::journal::{Attempt, Control, Journal, Line, RoundLog, Stopped, When};
use crate::clock::Baton;
use crate::facts::ArmFacts;
use crate::floor::CeilingKind;
use crate::study::Study;

/// Name under which the baseline runs alone, before the first and after the last round.
pub const CONTROL: &str = "control";

/// Place of the baseline's twin among the arms; the baseline is before it.
const TWIN: usize = 1;

/// A campaign that is about to run, or to go on.
#[derive(Debug)]
pub struct Campaign<'a> {
    /// The study.
    pub study: &'a Study,
    /// Its slots and who meets whom.
    pub seating: &'a Seating,
    /// Rounds in all, those of earlier attempts included.
    pub planned_rounds: u32,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every planned round is there.
    Complete,
    /// It was stopped by a person; another attempt can go on.
    Interrupted,
    /// There will be no verdict from this attempt: why.
    Stopped(Stopped),
}

/// What a campaign is doing, for a progress line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step<'s> {
    /// The baseline alone.
    Control(When),
    /// What else runs on the host before a round.
    Quiet(u32, &'s Quietness),
    /// A process is started and its weights are packed.
    Loading(&'s str),
    /// Warm-ups and the timed request.
    Timing(&'s str),
    /// The gate.
    Judging(&'s str),
    /// A round is in the journal.
    Round(&'s RoundLog),
}

/// Why a round has no samples.
enum Broken {
    Lost { slot: String, lost: Lost },
    Void(String),
    Journal(Fault),
}

impl From<Fault> for Broken {
    fn from(f: Fault) -> Self {
        Self::Journal(f)
    }
}

impl Campaign<'_> {
    /// Runs what is left of the campaign as one more attempt, which `opening` opened in the ledger at `at`.
    ///
    /// # Errors
    /// When the journal cannot be written. Whatever happens to the arms is an [`Ended`].
    pub fn run(
        &self,
        opening: Attempt,
        bench: &mut dyn Bench,
        journal: &mut Journal,
        told: &mut dyn FnMut(Step<'_>),
    ) -> Result<Ended, LabError> {
        let number = opening.number;
        journal.add(Line::Attempt(opening))?;
        let mut round = journal.rounds().count() as u32;
        let attempt = Running { campaign: self, number };
        let broken = match attempt.all(&mut round, bench, journal, told) {
            Ok(()) => {
                journal.add(Line::Completed { attempt: number, at: bench.now()? })?;
                return Ok(Ended::Complete);
            }
            Err(broken) => broken,
        };
        let (why, resumable, interrupted) = match broken {
            Broken::Journal(f) => return Err(f.into()),
            Broken::Lost { lost: Lost::Interrupted, .. } => ("interrupted".to_string(), true, true),
            Broken::Lost { slot, lost } => (format!("{slot}: {lost}"), true, false),
            Broken::Void(why) => (why, false, false),
        };
        let stopped = Stopped { attempt: number, at: bench.now()?, round, why, resumable, interrupted };
        journal.add(Line::Stopped(stopped.clone()))?;
        Ok(if interrupted { Ended::Interrupted } else { Ended::Stopped(stopped) })
    }
}

/// One attempt under way.
struct Running<'a> {
    campaign: &'a Campaign<'a>,
    number: u32,
}

impl Running<'_> {
    /// Control, the rounds from `round` on, control.
    fn all(
        &self,
        round: &mut u32,
        bench: &mut dyn Bench,
        journal: &mut Journal,
        told: &mut dyn FnMut(Step<'_>),
    ) -> Result<(), Broken> {
        self.control(When::Start, bench, journal, told)?;
        while *round < self.campaign.planned_rounds {
            self.round(*round, bench, journal, told)?;
            *round += 1;
        }
        self.control(When::End, bench, journal, told)
    }

    fn control(
        &self,
        when: When,
        bench: &mut dyn Bench,
        journal: &mut Journal,
        told: &mut dyn FnMut(Step<'_>),
    ) -> Result<(), Broken> {
        told(Step::Control(when));
        let quiet = bench.quietness();
        let lost = |lost| Broken::Lost { slot: CONTROL.to_string(), lost };
        let mut arm = self.ready(0, CONTROL, bench, journal, told)?;
        let judged = settled(self.alone(&mut *arm, CONTROL, true, told).map_err(lost)?)?;
        drop(arm);
        let why = failed("the control", "", &judged);
        journal.add(Line::Control(Box::new(Control { attempt: self.number, when, quiet, judged })))?;
        why.map_or(Ok(()), |why| Err(Broken::Void(why)))
    }

    /// One round, into the journal.
    fn round(
        &self,
        round: u32,
        bench: &mut dyn Bench,
        journal: &mut Journal,
        told: &mut dyn FnMut(Step<'_>),
    ) -> Result<(), Broken> {
        let start = Instant::now();
        let seating = self.campaign.seating;
        let quiet = bench.quietness();
        told(Step::Quiet(round, &quiet));
        let mut ceilings = Vec::new();
        let mut slots: Vec<Option<Judged>> = seating.slots.iter().map(|_| None).collect();
        for (turn, meeting) in (0..).zip(seating.round(round)?) {
            // Whatever an arm or the gate leaves behind is before every second turn alone.
            let before = round.is_multiple_of(2);
            if before {
                ceilings.extend(self.ceilings(turn, bench, journal, told));
            }
            match meeting {
                Meeting::Alone(slot) => {
                    let name = &seating.slots[slot].name;
                    let mut arm = self.ready(seating.slots[slot].arm, name, bench, journal, told)?;
                    let lost = |lost| Broken::Lost { slot: name.clone(), lost };
                    let full = self.full(round);
                    slots[slot] = Some(self.alone(&mut *arm, name, full, told).map_err(lost)?);
                }
                Meeting::Together { opens, follows } => {
                    let (a, b) = self.together(round, (opens, follows), bench, journal, told)?;
                    (slots[opens], slots[follows]) = (Some(a), Some(b));
                }
            }
            if !before {
                ceilings.extend(self.ceilings(turn, bench, journal, told));
            }
        }
        // Every slot is in a meeting of every round.
        let slots = slots.into_iter().flatten().map(settled).collect::<Result<Vec<Judged>, Broken>>()?;
        let log = RoundLog {
            attempt: self.number,
            round,
            order: seating.order(round)?,
            quiet,
            ceilings,
            slots,
            spent_ns: start.elapsed().as_nanos() as u64,
        };
        let void = self.void(&log, journal).or_else(|| bench.changed());
        told(Step::Round(&log));
        journal.add(Line::Round(Box::new(log)))?;
        void.map_or(Ok(()), |why| Err(Broken::Void(why)))
    }

    /// A turn of every ceiling arm, while no other arm has a process.
    fn ceilings(
        &self,
        turn: u32,
        bench: &mut dyn Bench,
        journal: &Journal,
        told: &mut dyn FnMut(Step<'_>),
    ) -> Vec<CeilingTurn> {
        let Some(facts) = journal.facts(CONTROL) else { return Vec::new() };
        let mut one = |(arm, kind): (&str, CeilingKind)| {
            told(Step::Timing(arm));
            CeilingTurn { arm: arm.to_string(), turn, pass: bench.ceiling(kind, facts) }
        };
        self.campaign.study.ceilings().map(&mut one).collect()
    }

    /// Whether cached keys and values are compared in this round: in the first and in the last.
    fn full(&self, round: u32) -> bool {
        round == 0 || round + 1 == self.campaign.planned_rounds
    }

    /// A process that is loaded, known and warm.
    fn ready(
        &self,
        arm: usize,
        slot: &str,
        bench: &mut dyn Bench,
        journal: &mut Journal,
        told: &mut dyn FnMut(Step<'_>),
    ) -> Result<Box<dyn LiveArm>, Broken> {
        told(Step::Loading(slot));
        let lost = |lost| Broken::Lost { slot: slot.to_string(), lost };
        let mut live = bench.start(arm).map_err(lost)?;
        match journal.facts(slot) {
            None => journal.add(Line::Facts { slot: slot.to_string(), facts: Box::new(live.facts().clone()) })?,
            Some(known) => {
                if let Some(what) = difference(known, live.facts()) {
                    return Err(Broken::Void(format!("{slot} is another arm than it was: {what}")));
                }
            }
        }
        if let Some(control) = journal.facts(CONTROL)
            && control.work != live.facts().work
        {
            let why = tare_evidence::compare::same_work(&control.work, &live.facts().work);
            let why = why.map_or_else(|e| e.to_string(), |()| "its work differs".to_string());
            return Err(Broken::Void(format!("{slot}: {why}")));
        }
        if let Some(control) = journal.facts(CONTROL) {
            let faults = arm_faults(&journal.opened()?.plan, arm <= TWIN, &control.arm, &live.facts().arm);
            if let Some(fault) = faults.into_iter().next() {
                return Err(Broken::Void(format!("{slot}: {fault}")));
            }
        }
        for _ in 0..self.campaign.study.warmups {
            live.warm_up(self.campaign.study.warmup_output()).map_err(lost)?;
        }
        Ok(live)
    }

    /// The timed request in one turn.
    fn alone(
        &self,
        arm: &mut dyn LiveArm,
        slot: &str,
        full: bool,
        told: &mut dyn FnMut(Step<'_>),
    ) -> Result<Judged, Lost> {
        told(Step::Timing(slot));
        arm.prefill()?;
        arm.decode(self.campaign.study.work.output_tokens - 1, Baton::Kept)?;
        arm.finish()?;
        told(Step::Judging(slot));
        arm.judge(full)
    }

    /// Two timed requests in turns.
    fn together(
        &self,
        round: u32,
        (opens, follows): (usize, usize),
        bench: &mut dyn Bench,
        journal: &mut Journal,
        told: &mut dyn FnMut(Step<'_>),
    ) -> Result<(Judged, Judged), Broken> {
        let slots = &self.campaign.seating.slots;
        let (first, second) = (&slots[opens], &slots[follows]);
        let lost = |slot: &str| {
            let slot = slot.to_string();
            move |lost| Broken::Lost { slot, lost }
        };
        let mut a = self.ready(first.arm, &first.name, bench, journal, told)?;
        a.rest().map_err(lost(&first.name))?;
        let mut b = self.ready(second.arm, &second.name, bench, journal, told)?;
        b.rest().map_err(lost(&second.name))?;
        told(Step::Timing(&second.name));
        for (arm, slot) in [(&mut a, first), (&mut b, second)] {
            arm.prefill().and_then(|()| arm.rest()).map_err(lost(&slot.name))?;
        }
        let mut left = self.campaign.study.work.output_tokens - 1;
        while left > 0 {
            let tokens = left.min(self.campaign.study.turn_tokens);
            for (arm, slot) in [(&mut a, first), (&mut b, second)] {
                arm.decode(tokens, Baton::Returned).and_then(|()| arm.rest()).map_err(lost(&slot.name))?;
            }
            left -= tokens;
        }
        let mut judged = Vec::with_capacity(2);
        for (arm, slot) in [(&mut a, first), (&mut b, second)] {
            told(Step::Judging(&slot.name));
            let done = arm.finish().and_then(|()| arm.judge(self.full(round))).and_then(|j| arm.rest().map(|()| j));
            judged.push(done.map_err(lost(&slot.name))?);
        }
        let second = judged.pop();
        judged.pop().zip(second).ok_or_else(|| Broken::Void("a duet has two sides".to_string()))
    }

    /// What takes the verdict away: a failed gate, a missing time, or other tokens than in the rounds before.
    fn void(&self, log: &RoundLog, journal: &Journal) -> Option<String> {
        let first = journal.rounds().next();
        for (i, (slot, judged)) in self.campaign.seating.slots.iter().zip(&log.slots).enumerate() {
            let round = log.round;
            if let Some(why) = failed(&slot.name, &format!(" in round {round}"), judged) {
                return Some(why);
            }
            if first.is_some_and(|f| ids(&f.slots[i]) != ids(judged)) {
                return Some(format!("{} drew other tokens in round {round} than in round 0", slot.name));
            }
        }
        self.apart(log, journal)
    }

    /// Two arms of one class that drew other tokens than each other, or were held to other limits: one of them is wrong,
    /// though each agrees with the judge of its own build.
    fn apart(&self, log: &RoundLog, journal: &Journal) -> Option<String> {
        let mut classes: Vec<(&str, Side<'_>)> = Vec::new();
        for (slot, judged) in self.campaign.seating.slots.iter().zip(&log.slots) {
            let arm = &journal.facts(&slot.name)?.arm;
            let side = Side { arm, gate: &judged.gate, rows: &judged.tokens };
            match classes.iter().find(|(_, s)| s.arm.class == arm.class && s.arm.peer.is_none()) {
                None => classes.push((&slot.name, side)),
                Some((name, first)) => {
                    if let Some(fault) = class_faults(first, &side).into_iter().next() {
                        return Some(format!("{} against {name} in round {}: {fault}", slot.name, log.round));
                    }
                }
            }
        }
        None
    }
}

/// The ids that were drawn, `[sequences][tokens]`.
fn ids(judged: &Judged) -> Vec<&[u32]> {
    judged.tokens.iter().map(|row| &row.ids[..]).collect()
}

/// Why nothing may be said of the times of an arm: its first miss, or that there are none.
fn failed(name: &str, when: &str, judged: &Judged) -> Option<String> {
    match judged.gate.misses.first() {
        Some(m) => {
            let why = format!("{} at {}: expected {}, found {}", m.check, m.at, m.expected, m.found);
            Some(format!("the gate of {name} failed{when}: {why}"))
        }
        None => judged.timing.is_none().then(|| format!("{name} gave no times{when}")),
    }
}

/// What was judged, by its own checks: an arm of another build may leave a miss out, or times in.
fn settled(judged: Judged) -> Result<Judged, Broken> {
    Ok(match judged.gate.clone().judge().map_err(|f| Broken::Void(f.to_string()))? {
        Judgement::Passed(_) => judged,
        Judgement::Failed(gate) => Judged { gate: gate.report().clone(), timing: None, ..judged },
    })
}

/// The first part of an arm's facts that is another than before.
fn difference(known: &ArmFacts, now: &ArmFacts) -> Option<&'static str> {
    let parts = [
        ("its work", known.work != now.work),
        ("its binary", known.build != now.build),
        ("its plan", known.plan != now.plan),
        ("its arm", known.arm != now.arm),
        ("its configuration", known.config != now.config),
    ];
    parts.into_iter().find(|(_, differs)| *differs).map(|(what, _)| what)
}
