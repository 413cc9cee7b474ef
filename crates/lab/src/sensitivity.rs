//! What a group is worth: time is added to it in the live step, and the step is watched.
//!
//! A share of the step is a guess at what a group is worth, because workers overlap and caches couple stages. Here the
//! slope d(step)/d(injected) is measured: 5, 10 and 20 percent of the group's time are spun away inside its calls, each
//! time beside a step with spins of no time, in random order within blocks of one process. What was really spun is
//! counted, so that the cost of spinning is not taken for the group's. On a device a launch spins, and steps are timed by the
//! device's own clock. Each block gives one slope. 1 means that
//! what is taken from the group is taken from the step; 0 that it hides behind something else.

use serde::{Deserialize, Serialize};
use std::time::Instant;
use tare_core::{Fault, Reading};
use tare_evidence::stats::{Interval, interval};
use tare_ops::{Executable, StepOutput};

use crate::LabError;
use crate::held::{Held, Steady};
use crate::shared::Shared;
use crate::specimen::{Phase, Specimen};
use crate::work::mix;

/// Percent of the group's time that the doses add.
pub const DOSES: [f64; 3] = [5.0, 10.0, 20.0];

/// Level of the interval: 1 - this.
pub const ALPHA: f64 = 0.05;

/// What is probed, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe<'a> {
    /// Which group of the step, as its replay names it.
    pub group: &'a str,
    /// The group's time in a step, as replay measured it.
    pub group_ns: f64,
    /// Blocks; each runs every dose once.
    pub blocks: usize,
    /// The first of [`DOSES`] that is given; those after it are given too. Long steps get the largest alone.
    pub first_dose: usize,
    /// Of the order within blocks, and of the interval.
    pub seed: u64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    /// Which step.
    pub phase: Phase,
    /// Which group.
    pub group: String,
    /// How often a step waits: once for each call of the group, on a device once for each launch.
    pub calls: usize,
    /// The group's time that the doses are percents of.
    pub group_ns: f64,
    /// Nanoseconds that each of [`DOSES`] is meant to add to a step.
    pub planned_ns: Vec<u64>,
    /// Seed of the orders.
    pub seed: u64,
    /// In the order in which they ran.
    pub blocks: Vec<Block>,
    /// Mean over the blocks of d(step)/d(injected).
    pub slope: f64,
    /// 95 % interval of it by inverting the sign-flip test; unavailable with too few blocks.
    pub slope_interval: Reading<Ends>,
}

/// Ends of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    /// Lower.
    pub low: f64,
    /// Upper.
    pub high: f64,
}

impl From<Interval> for Ends {
    fn from(i: Interval) -> Self {
        Self { low: i.low, high: i.high }
    }
}

/// One block: every dose once, each beside a step without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// In the order in which they ran.
    pub pairs: Vec<Pair>,
}

/// A step with a dose and one without, one right after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Index into [`DOSES`].
    pub dose: usize,
    /// Whether the step with the dose ran first.
    pub with_first: bool,
    /// Nanoseconds that a worker really spun for it, less those of the step without.
    pub injected_ns: u64,
    /// The step's time with the dose.
    pub with_ns: u64,
    /// And without.
    pub without_ns: u64,
}

impl Block {
    /// The least-squares slope through 0 of the added time over the injected time.
    fn slope(&self) -> f64 {
        let (mut both, mut own) = (0.0, 0.0);
        for p in &self.pairs {
            let x = p.injected_ns as f64;
            both += x * (p.with_ns as f64 - p.without_ns as f64);
            own += x * x;
        }
        both / own
    }
}

impl Probe<'_> {
    /// Injects the doses into `specimen` and measures the slope.
    ///
    /// `go_on` is asked before every block with its index; false ends the probe with nothing kept.
    ///
    /// # Errors
    /// When the step has no call of the group, the group has no time to be a percent of, the backend fails, a delayed
    /// step gives another answer, or `go_on` said no.
    pub fn run<B: Shared + 'static>(
        &self,
        specimen: &Specimen<B>,
        phase: Phase,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Sensitivity, LabError> {
        let (calls, waits) = specimen.tap().with(|b| {
            let calls = b.calls_of(specimen.exe, &specimen.plan, self.group)?;
            b.waits(specimen.exe, &calls).map(|waits| (calls, waits))
        })?;
        let each_ns: Vec<u64> =
            DOSES.iter().map(|p| (p / 100.0 * self.group_ns / waits.max(1) as f64) as u64).collect();
        if calls.is_empty() || each_ns[0] == 0 || self.first_dose >= DOSES.len() {
            let found = format!("{} calls, {:.0} ns together", calls.len(), self.group_ns);
            return Err(Fault::new(self.group, "a group with time to add a share of", found).into());
        }
        let arms = self.arms(specimen, &calls, &each_ns)?;
        let blocks = self.blocks(specimen, &arms, go_on)?;
        let planned_ns = each_ns.iter().map(|ns| ns * waits as u64).collect();
        let slopes: Vec<f64> = blocks.iter().map(|b| b.slope()).collect();
        let slope_interval = match interval(&slopes, ALPHA, self.seed) {
            Ok(i) => Reading::Available(i.into()),
            Err(e) => Reading::unavailable(e.to_string()),
        };
        Ok(Sensitivity {
            phase,
            group: self.group.to_string(),
            calls: waits,
            group_ns: self.group_ns,
            planned_ns,
            seed: self.seed,
            slope: slopes.iter().sum::<f64>() / slopes.len() as f64,
            slope_interval,
            blocks,
        })
    }

    /// An executable for each dose, and last the one with spins of no time. Each must give the engine's answer.
    fn arms<'s, B: Shared + 'static>(
        &self,
        specimen: &'s Specimen<B>,
        calls: &[usize],
        each_ns: &[u64],
    ) -> Result<Held<'s, B>, LabError> {
        let mut arms = Held::executables(specimen.tap());
        for ns in each_ns.iter().chain([&0]) {
            arms.keep(specimen.tap().with(|b| b.delayed(specimen.exe, &specimen.plan, calls, *ns))?);
        }
        arms.iter().try_for_each(|exe| specimen.confirm(*exe))?;
        Ok(arms)
    }

    fn blocks<B: Shared + 'static>(
        &self,
        specimen: &Specimen<B>,
        arms: &[Executable],
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Block>, LabError> {
        if self.blocks == 0 {
            return Err(Fault::new("blocks", "at least 1", "0").into());
        }
        let _steady = Steady::of(specimen.tap());
        let mut out = StepOutput::default();
        let mut blocks = Vec::with_capacity(self.blocks);
        for n in 0..self.blocks {
            if !go_on(n) {
                return Err(LabError::Interrupted);
            }
            let without = arms[DOSES.len()];
            let mut pairs = Vec::with_capacity(DOSES.len());
            let given = DOSES.len() - self.first_dose;
            for dose in shuffled(given, self.seed, n).into_iter().map(|i| i + self.first_dose) {
                let with_first = mix(!self.seed, (n * DOSES.len() + dose) as u64) >> 63 == 1;
                // The step's time by its own clock, and how much of it was spun away.
                let mut time = |exe: Executable| -> Result<(u64, u64), LabError> {
                    let spun = || specimen.tap().with(|b| b.spun_ns(exe));
                    let before = spun()?;
                    let start = Instant::now();
                    specimen.run(exe, &mut out)?;
                    let host_ns = start.elapsed().as_nanos() as u64;
                    Ok((out.device_ns.unwrap_or(host_ns), spun()? - before))
                };
                let (first, second) = if with_first { (arms[dose], without) } else { (without, arms[dose]) };
                let (first, second) = (time(first)?, time(second)?);
                let (with, without) = if with_first { (first, second) } else { (second, first) };
                let injected_ns = with.1.saturating_sub(without.1);
                pairs.push(Pair { dose, with_first, injected_ns, with_ns: with.0, without_ns: without.0 });
            }
            blocks.push(Block { pairs });
        }
        Ok(blocks)
    }
}

/// 0 to `count` in an order that depends on seed and block alone.
fn shuffled(count: usize, seed: u64, block: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        let draw = mix(seed, (block * count + i) as u64);
        order.swap(i, (draw % (i as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_gives_the_slope_that_was_put_in() {
        for slope in [0.0, 0.5, 1.0] {
            let pair = |dose: usize| {
                let injected_ns = [500, 1000, 2000][dose];
                let with_ns = 10_000 + (injected_ns as f64 * slope) as u64;
                Pair { dose, with_first: dose == 1, injected_ns, with_ns, without_ns: 10_000 }
            };
            assert!((Block { pairs: [2, 0, 1].map(pair).to_vec() }.slope() - slope).abs() < 1e-9);
        }
    }

    #[test]
    fn orders_are_permutations_that_come_again_with_the_seed() {
        let orders: Vec<Vec<usize>> = (0..200).map(|b| shuffled(4, 7, b)).collect();
        assert!(orders.iter().all(|o| {
            let mut sorted = o.clone();
            sorted.sort_unstable();
            sorted == [0, 1, 2, 3]
        }));
        assert_eq!(orders[3], shuffled(4, 7, 3));
        // Every dose comes first about as often as every other.
        let first = |dose| orders.iter().filter(|o| o[0] == dose).count();
        assert!((0..4).all(|dose| (30..70).contains(&first(dose))), "{:?}", [0, 1, 2, 3].map(first));
    }
}
