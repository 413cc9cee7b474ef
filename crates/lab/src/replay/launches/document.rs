//! A step of a device in parts, as the ranking and the ledger see it.

use tare_evidence::identity::Warmth;
use tare_evidence::replay::{Coverage, Dispatch, ReplayedStep};

use super::{LaunchReplay, Part};
use crate::replay::taken_apart::{PartOfStep, REMAINDER_LIMIT_PERCENT, TakenApart, Turns};
use crate::specimen::Phase;

/// Percent of a step by which its parts may exceed it: launches begin while those before them end, which those of one part do
/// otherwise beside their own kind than in the step.
const OVERLAP_LIMIT_PERCENT: f64 = 25.0;

impl LaunchReplay {
    /// What the launches of the step take on the device, without what a replay takes before and after any.
    fn chain_ns(&self) -> f64 {
        (self.step_ns - self.region_ns).max(0.0)
    }

    /// A part's time in the step: what the parts exceed the step by, because launches overlap, is taken off each in proportion.
    fn in_step_ns(&self, part: &Part) -> f64 {
        part.ns * (self.chain_ns() / self.sum_ns.max(1.0)).min(1.0)
    }
}

impl TakenApart for LaunchReplay {
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
        self.host_ns
    }
    fn adds_up(&self) -> Result<(), String> {
        if self.step_sha256 != self.parts_sha256 {
            return Err("the parts do not launch what the step launches".to_string());
        }
        let left = -100.0 * self.overlap_ns / self.step_ns.max(1.0);
        let limit = if left < 0.0 { OVERLAP_LIMIT_PERCENT } else { REMAINDER_LIMIT_PERCENT };
        if left.abs() > limit {
            return Err(format!(
                "its parts leave {left:+.1} % of the step over, more than {limit} %: measure again on a quiet device"
            ));
        }
        Ok(())
    }
    fn parts(&self) -> Vec<PartOfStep<'_>> {
        self.parts
            .iter()
            .zip(&self.times.parts_ns)
            .map(|(p, alone_ns)| PartOfStep {
                name: &p.name,
                ns: self.in_step_ns(p),
                alone_ns,
                calls: p.calls,
                bytes: p.bytes,
                floor_ns: &p.floor_ns,
                bound: p.bound,
                kernels: p.kernels.iter().map(|(key, count)| (key.as_str(), *count)).collect(),
            })
            .collect()
    }
    fn turns(&self) -> Turns<'_> {
        let region_ns = self.region_ns as u64;
        Turns {
            step_ns: &self.times.step_ns,
            region_ns: self.region_ns,
            order: &self.times.order,
            remainder_is: format!(
                "what a replay of launches takes before the first and after the last ({region_ns} ns, taken off every part, in \
                 the step once), less what launches gain beside each other: one begins while the one before ends, and finds \
                 what it reads in a cache"
            ),
            coverage: Coverage {
                complete: self.step_sha256 == self.parts_sha256,
                reason: format!("every one of {} launches of the step is recorded in one part", self.launches),
            },
            dispatch: Dispatch { step_sha256: self.step_sha256.clone(), replay_sha256: self.parts_sha256.clone() },
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
            // One, where threads mean nothing.
            threads: 1,
            warmth: Warmth::Warm,
        }
    }
}
