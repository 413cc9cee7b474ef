//! A replay and a sensitivity as documents of the ledger.

use tare_core::{Fault, Reading};
use tare_evidence::identity::Warmth as Kept;
use tare_evidence::replay::{Coverage, Dispatch, ReplayedStep, StepPhase};
use tare_evidence::sensitivity::{DelaySample, Sensitivity as SensitivityBody, SensitivityMeasured};

use super::taken_apart::{PartOfStep, REMAINDER_LIMIT_PERCENT, TakenApart, Turns};
use super::{Replay, Warmth};
use crate::sensitivity::{ALPHA, DOSES, Sensitivity};
use crate::specimen::Phase;

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
            .zip(&self.times.groups_ns)
            .map(|(g, alone_ns)| PartOfStep {
                name: g.group.name(),
                ns: g.ns,
                alone_ns,
                calls: g.calls,
                bytes: g.bytes,
                floor_ns: &g.floor_ns,
                bound: g.bound,
                kernels: g.kinds.iter().map(|k| (k.kernel.as_str(), k.count)).collect(),
            })
            .collect()
    }
    fn turns(&self) -> Turns<'_> {
        let (region_ns, c) = (self.region_ns as u64, &self.coverage);
        let short = match self.sat_out {
            0 => String::new(),
            out => format!(", on {} of {} threads: the others sat out of all turns", self.threads, self.threads + out),
        };
        Turns {
            step_ns: &self.times.whole_ns,
            region_ns: self.region_ns,
            order: &self.times.order,
            remainder_is: format!(
                "one start and end of a parallel region ({region_ns} ns, taken off every group), meetings of workers that \
                 overlap in the step, and what stages gain or lose between their neighbours"
            ),
            coverage: Coverage {
                complete: c.complete,
                reason: c.reason.clone().unwrap_or_else(|| {
                    format!("the {} stages that the step ran are those that the groups ran{short}", c.step_stages)
                }),
            },
            dispatch: Dispatch { step_sha256: c.step_sha256.clone(), replay_sha256: c.groups_sha256.clone() },
        }
    }
    fn step(&self) -> ReplayedStep {
        ReplayedStep {
            model: self.model.clone(),
            plan: self.plan.clone(),
            plan_sha256: self.plan_sha256.clone(),
            class: self.class.clone(),
            phase: self.phase.into(),
            rows: self.rows as u32,
            selected: self.selected as u32,
            depth: self.depth as u32,
            threads: self.threads as u32,
            warmth: match self.warmth {
                Warmth::Warm => Kept::Warm,
                Warmth::Cold => Kept::Cold,
            },
        }
    }
}

impl From<Phase> for StepPhase {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Prefill => Self::Prefill,
            Phase::Decode => Self::Decode,
        }
    }
}

impl Sensitivity {
    /// The sensitivity as the ledger keeps it, on the step of `replay`, whose id is `replay_id`.
    ///
    /// # Errors
    /// When a block has no delay.
    pub fn body(&self, replay: &impl TakenApart, replay_id: &str) -> Result<SensitivityBody, Fault> {
        let samples = self.blocks.iter().enumerate().flat_map(|(round, block)| {
            block.pairs.iter().map(move |p| DelaySample {
                round: round as u32,
                percent: DOSES[p.dose],
                injected_ns: p.injected_ns,
                with_ns: p.with_ns,
                without_ns: p.without_ns,
            })
        });
        SensitivityBody::of(SensitivityMeasured {
            step: replay.step(),
            group: self.group.clone(),
            replay: replay_id.to_string(),
            samples: samples.collect(),
            alpha: ALPHA,
        })
    }
}
