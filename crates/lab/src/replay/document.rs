//! A replay and a sensitivity as documents of the ledger.

use tare_core::Fault;
use tare_evidence::identity::Warmth as Kept;
use tare_evidence::replay::{
    Coverage, Dispatch, GroupSamples, Replay as Body, ReplayMeasured, ReplayedStep, StepPhase,
};
use tare_evidence::sensitivity::{DelaySample, Sensitivity as SensitivityBody, SensitivityMeasured};

use super::{Replay, TakenApart, Warmth};
use crate::sensitivity::{ALPHA, DOSES, Sensitivity};
use crate::specimen::Phase;

impl Replay {
    /// The step, as documents name it.
    pub fn step(&self) -> ReplayedStep {
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

    /// The replay as the ledger keeps it. The time of an empty region is taken off every sample of a group.
    ///
    /// # Errors
    /// When a group or the step has no time.
    pub fn body(&self) -> Result<Body, Fault> {
        let name = |g: usize| self.groups[g].group.name().to_string();
        let region_ns = self.region_ns as u64;
        let samples = |g: usize| self.times.groups_ns[g].iter().map(|ns| ns.saturating_sub(region_ns)).collect();
        let group = |g: usize| GroupSamples {
            name: name(g),
            calls: self.groups[g].calls as u64,
            samples_ns: samples(g),
            floor_ns: self.groups[g].floor_ns.clone(),
            bytes: Some(self.groups[g].bytes),
            kernels: self.groups[g].kinds.iter().map(|k| format!("{} x {}", k.count, k.kernel)).collect(),
        };
        let c = &self.coverage;
        Body::of(ReplayMeasured {
            step: self.step(),
            groups: (0..self.groups.len()).map(group).collect(),
            order: self.times.order.iter().map(|turn| turn.iter().map(|g| name(*g)).collect()).collect(),
            step_ns: self.times.whole_ns.clone(),
            remainder_is: format!(
                "one start and end of a parallel region ({region_ns} ns, taken off every group), meetings of workers that \
                 overlap in the step, and what stages gain or lose between their neighbours"
            ),
            coverage: Coverage {
                complete: c.complete,
                reason: c.reason.clone().unwrap_or_else(|| {
                    format!("the {} stages that the step ran are those that the groups ran", c.step_stages)
                }),
            },
            dispatch: Dispatch { step_sha256: c.step_sha256.clone(), replay_sha256: c.groups_sha256.clone() },
        })
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
