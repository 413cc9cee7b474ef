//! Groups by the time that could go: (measured - floor) x sensitivity x calls in the request.

use serde::{Deserialize, Serialize};
use tare_core::Reading;
use tare_evidence::floor::Resource;

use crate::replay::TakenApart;
use crate::replay::taken_apart::{PartOfStep, REMAINDER_LIMIT_PERCENT};
use crate::sensitivity::{Ends, Sensitivity};
use crate::specimen::Phase;

/// The request that the ranking is for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestTime {
    /// Median of the prefill.
    pub prefill_ns: f64,
    /// Median of all decode steps together.
    pub decode_ns: f64,
    /// Median of a decode step. A few steps that the host disturbed are in `decode_ns` and not in this.
    pub decode_step_ns: f64,
    /// Rows of the prefill: tokens of the prompt.
    pub prompt_tokens: usize,
    /// Rows of its longest chunk.
    pub chunk_rows: usize,
    /// Decode steps.
    pub decode_steps: usize,
}

impl RequestTime {
    /// Prefill and decode together.
    pub fn ns(&self) -> f64 {
        self.prefill_ns + self.decode_ns
    }

    /// How often the replayed step is in the request. A prompt of several chunks counts by its rows.
    fn steps(&self, replay: &impl TakenApart) -> f64 {
        match replay.phase() {
            Phase::Prefill => self.prompt_tokens as f64 / replay.rows().max(1) as f64,
            Phase::Decode => self.decode_steps as f64,
        }
    }

    /// Whether the replayed step can stand for the phase: it takes as long as the clock says, and is no short rest of a
    /// prompt.
    fn stands_for(&self, replay: &impl TakenApart) -> Result<(), String> {
        if replay.phase() == Phase::Prefill && 2 * replay.rows() < self.chunk_rows {
            return Err(format!(
                "the last chunk has {} rows where others have {}: take a prompt whose chunks are alike",
                replay.rows(),
                self.chunk_rows
            ));
        }
        // Medians on both sides.
        let clocked_ns = match replay.phase() {
            Phase::Prefill => self.prefill_ns / self.steps(replay),
            Phase::Decode => self.decode_step_ns,
        };
        let off_percent = 100.0 * (replay.host_ns() / clocked_ns.max(1.0) - 1.0);
        if off_percent.abs() > REMAINDER_LIMIT_PERCENT {
            return Err(format!(
                "the step that was replayed is {off_percent:+.1} % off the clocked one, more than \
                 {REMAINDER_LIMIT_PERCENT} %: measure again on a quiet host"
            ));
        }
        Ok(())
    }
}

/// A document and the id under which it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept<T> {
    /// Its id.
    pub id: String,
    /// What it says.
    pub document: T,
}

/// One group of one phase, and what would be gained if it ran at its floor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    /// Of which step.
    pub phase: Phase,
    /// Which group, as the replay names it.
    pub group: String,
    /// Its time in a step.
    pub measured_ns: f64,
    /// The least that the ceilings allow.
    pub floor_ns: f64,
    /// Which ceiling makes the floor.
    pub bound: Resource,
    /// 100 * floor / measured.
    pub percent_of_floor: f64,
    /// How often the step is in the request.
    pub steps: f64,
    /// d(step)/d(group), where it was measured; the ranking takes 1 where not, and where its interval holds 1.
    pub slope: Option<f64>,
    /// 95 % interval of it.
    pub slope_interval: Option<Ends>,
    /// What the ranking takes for it.
    pub worth: f64,
    /// Time of the request that would go.
    pub removable_ns: f64,
    /// The same in percent of the request.
    pub gain_percent: f64,
    /// From the interval of the slope.
    pub gain_interval: Option<Ends>,
    /// Id of the replay.
    pub replay: String,
    /// Id of the sensitivity, where it was measured.
    pub sensitivity: Option<String>,
}

/// The groups of all phases, the one with most to gain first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranking {
    /// The request.
    pub request: RequestTime,
    /// Largest removable time first.
    pub groups: Vec<Ranked>,
    /// Why a phase or group is not in the ranking.
    pub withheld: Vec<String>,
}

impl Ranking {
    /// Ranks the groups of `replays`. A phase whose groups do not add up to its step, or whose step is not the clocked
    /// one, is withheld.
    pub fn new<R: TakenApart>(request: RequestTime, replays: &[Kept<R>], probes: &[Kept<Sensitivity>]) -> Self {
        let mut ranking = Self { request, groups: Vec::new(), withheld: Vec::new() };
        for replay in replays {
            match replay.document.adds_up().and_then(|()| request.stands_for(&replay.document)) {
                Ok(()) => ranking.take(replay, probes),
                Err(why) => ranking.withheld.push(format!("{}: {why}", replay.document.phase())),
            }
        }
        ranking.groups.sort_by(|a, b| b.removable_ns.total_cmp(&a.removable_ns));
        ranking
    }

    /// The highest of the first `count` groups whose sensitivity was not measured. What could not give a thousandth of
    /// the request is not worth a probe.
    pub fn unprobed(&self, count: usize) -> Option<&Ranked> {
        self.groups.iter().take(count).find(|g| g.slope.is_none() && g.gain_percent > 0.1)
    }

    fn take<R: TakenApart>(&mut self, replay: &Kept<R>, probes: &[Kept<Sensitivity>]) {
        let phase = replay.document.phase();
        for g in replay.document.parts() {
            let PartOfStep { name, .. } = g;
            let (Reading::Available(floor_ns), Some(bound)) = (g.floor_ns, g.bound) else {
                let why = match g.floor_ns {
                    Reading::Unavailable { why } => why.as_str(),
                    Reading::Available(_) => "no ceiling bounds it",
                };
                self.withheld.push(format!("{phase} {name}: {why}"));
                continue;
            };
            // What is lost in the noise of an empty region has no percentage of a floor.
            if g.ns <= 0.0 {
                self.withheld.push(format!("{phase} {name}: it takes no longer than an empty region"));
                continue;
            }
            let probe = probes.iter().find(|p| (p.document.phase, p.document.group.as_str()) == (phase, name));
            let slope = probe.map(|p| p.document.slope);
            let slope_interval = probe.and_then(|p| p.document.slope_interval.available().copied());
            let steps = self.request.steps(&replay.document);
            let above_ns = (g.ns - floor_ns).max(0.0) * steps;
            let worth = worth(slope, slope_interval);
            let percent = |slope: f64| 100.0 * above_ns * slope.max(0.0) / self.request.ns();
            self.groups.push(Ranked {
                phase,
                group: name.to_string(),
                measured_ns: g.ns,
                floor_ns: *floor_ns,
                bound,
                percent_of_floor: 100.0 * floor_ns / g.ns,
                steps,
                slope,
                slope_interval,
                worth,
                removable_ns: above_ns * worth,
                gain_percent: percent(worth),
                gain_interval: slope_interval.map(|i| Ends { low: percent(i.low), high: percent(i.high) }),
                replay: replay.id.clone(),
                sensitivity: probe.map(|p| p.id.clone()),
            });
        }
    }
}

/// The slope that a group is ranked by: 1 until it has an interval that leaves 1 out, so that the widest interval does not
/// come first by luck.
fn worth(slope: Option<f64>, interval: Option<Ends>) -> f64 {
    match (slope, interval) {
        (Some(slope), Some(i)) if i.low > 1.0 || i.high < 1.0 => slope.max(0.0),
        _ => 1.0,
    }
}
