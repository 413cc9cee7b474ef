//! How many rounds a study needs, and how often its rule errs: answers by simulation with the rule itself.
//!
//! Each simulated study has an A/A arm and one candidate, and is judged by [`super::judge`]. Its other candidates raise
//! the p-value as the first step of Holm does. End to end is taken to follow the metric: where it spreads more, more
//! rounds are needed than are found here. Seeds are fixed: the same question has the same answer.

use super::random::SplitMix64;
use super::sign_flip::{interval_of, least_rounds, p_value_of};
use super::verdict::{Comparison, EqualArms, Verdict, judge_with, strict_alpha};
use crate::study::Rule;
use serde::Serialize;
use tare_core::Fault;

/// Studies simulated for one power: its standard error is at most 0.023.
const POWER_STUDIES: usize = 500;

/// Seed of the studies that a power is found with.
const POWER_SEED: u64 = 0x7a2e;

/// Sign patterns drawn for one simulated study beyond those that are enumerated: a study itself draws 16 times as many.
const DRAWN: usize = (1 << 12) - 1;

/// More rounds than this are no plan.
const MOST_ROUNDS: usize = 512;

/// The terms on which a candidate is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// When it is kept.
    pub rule: Rule,
    /// Level of significance.
    pub alpha: f64,
    /// The smallest gain for which a change would be kept, as a log-ratio.
    pub worthwhile: f64,
    /// The loss that still counts as none, as a log-ratio.
    pub tolerance: f64,
    /// Candidates that are judged together.
    pub candidates: usize,
}

/// Verdicts of simulated studies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdicts {
    /// Studies that kept their candidate.
    pub keep: usize,
    /// Studies that rejected it.
    pub reject: usize,
    /// Studies that could not tell.
    pub inconclusive: usize,
}

impl Verdicts {
    /// All of them.
    pub fn studies(&self) -> usize {
        self.keep + self.reject + self.inconclusive
    }

    /// The share of studies that erred where the arms do not differ: by [`Rule::Gain`] those that kept, by
    /// [`Rule::NoRegression`] those that rejected.
    pub fn false_share(&self, rule: Rule) -> f64 {
        let erred = match rule {
            Rule::Gain => self.keep,
            Rule::NoRegression => self.reject,
        };
        erred as f64 / self.studies().max(1) as f64
    }
}

/// Verdicts of `studies` studies of `samples` samples in which candidate and baseline are the same arm. The noise is
/// that of `spread`: log-ratios of an A/A arm, drawn again with either sign about their mean.
///
/// # Errors
/// When `spread` is empty, or `samples` are fewer than `terms.alpha` needs.
pub fn simulate_no_difference(
    spread: &[f64],
    samples: usize,
    studies: usize,
    seed: u64,
    terms: &Terms,
) -> Result<Verdicts, Fault> {
    if spread.is_empty() {
        return Err(Fault::new("spread", "log-ratios of an A/A arm", "none"));
    }
    check_samples(samples, terms)?;
    let mean = spread.iter().sum::<f64>() / spread.len() as f64;
    let mut random = SplitMix64(seed);
    let mut noise = || {
        let drawn = spread[random.below(spread.len())] - mean;
        if random.next() & 1 == 1 { -drawn } else { drawn }
    };
    Ok(simulate(0.0, samples, studies, &mut noise, terms))
}

/// The share of studies of `samples` samples that find an effect: by [`Rule::Gain`] they keep a candidate that gains
/// `effect`, by [`Rule::NoRegression`] they reject one that loses it. `spread` is the standard deviation of one sample
/// without an effect.
///
/// # Errors
/// When `samples` are fewer than `terms.alpha` needs.
pub fn power_of(samples: usize, effect: f64, spread: f64, terms: &Terms) -> Result<f64, Fault> {
    check_samples(samples, terms)?;
    let mut random = SplitMix64(POWER_SEED);
    let mut noise = || spread * random.normal();
    let signed = if terms.rule == Rule::Gain { effect } else { -effect };
    let verdicts = simulate(signed, samples, POWER_STUDIES, &mut noise, terms);
    let found = if terms.rule == Rule::Gain { verdicts.keep } else { verdicts.reject };
    Ok(found as f64 / POWER_STUDIES as f64)
}

/// The least number of samples for which [`power_of`] is at least `power`.
///
/// # Errors
/// When the numbers are no effect, power and spread, or more than 512 samples would be needed.
pub fn samples_for_power(effect: f64, power: f64, spread: f64, terms: &Terms) -> Result<usize, Fault> {
    let sound =
        effect > 0.0 && effect.is_finite() && (0.0..1.0).contains(&power) && spread >= 0.0 && spread.is_finite();
    if !sound {
        let found = format!("effect {effect}, power {power}, spread {spread}");
        return Err(Fault::new("power", "an effect above 0, a power from 0 to below 1, a spread from 0", found));
    }
    let hopeless = || {
        let expected = format!("an effect that {MOST_ROUNDS} samples can find");
        Fault::new("effect", expected, format!("{effect} at a spread of {spread}"))
            .remedy("use a design with less noise, longer rounds, or ask for a larger effect")
    };
    // A mean within one standard error of 0 is found by hardly any study: no need to simulate them.
    if effect * (MOST_ROUNDS as f64).sqrt() < spread {
        return Err(hopeless());
    }
    let enough = |n: usize| Ok::<bool, Fault>(power_of(n, effect, spread, terms)? >= power);
    let mut low = least_rounds(strict_alpha(terms.alpha, terms.candidates));
    if enough(low)? {
        return Ok(low);
    }
    let mut high = low * 2;
    while !enough(high)? {
        (low, high) = (high, high * 2);
        if high > MOST_ROUNDS {
            return Err(hopeless());
        }
    }
    while high - low > 1 {
        let middle = low.midpoint(high);
        if enough(middle)? { high = middle } else { low = middle }
    }
    Ok(high)
}

fn check_samples(samples: usize, terms: &Terms) -> Result<(), Fault> {
    let needs = least_rounds(strict_alpha(terms.alpha, terms.candidates));
    if samples >= needs { Ok(()) } else { Err(Fault::new("samples", format!("at least {needs}"), samples.to_string())) }
}

fn simulate(effect: f64, samples: usize, studies: usize, noise: &mut dyn FnMut() -> f64, terms: &Terms) -> Verdicts {
    let mut verdicts = Verdicts::default();
    for _ in 0..studies {
        let twin: Vec<f64> = (0..samples).map(|_| noise()).collect();
        let phase: Vec<f64> = (0..samples).map(|_| effect + noise()).collect();
        let seed = 0;
        let interval = |d: &[f64], alpha: f64| interval_of(d, alpha, seed, DRAWN);
        let judged = interval(&twin, terms.alpha).and_then(|twin| {
            let comparison = Comparison {
                phase: &phase,
                end_to_end: &phase,
                p_adjusted: (p_value_of(&phase, seed, DRAWN) * terms.candidates.max(1) as f64).min(1.0),
                candidates: terms.candidates,
                a_a: EqualArms { phase: twin, end_to_end: twin },
                worthwhile: terms.worthwhile,
                tolerance: terms.tolerance,
                alpha: terms.alpha,
                rule: terms.rule,
                seed,
            };
            judge_with(&comparison, &interval)
        });
        match judged.map(|r| r.verdict) {
            Ok(Verdict::Keep) => verdicts.keep += 1,
            Ok(Verdict::Reject) => verdicts.reject += 1,
            Ok(Verdict::Inconclusive { .. }) | Err(_) => verdicts.inconclusive += 1,
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use statrs::distribution::{Continuous, ContinuousCDF, Normal, StudentsT};

    const GAIN: Terms = Terms { rule: Rule::Gain, alpha: 0.05, worthwhile: 0.0, tolerance: 0.01, candidates: 1 };
    const HOLD: Terms = Terms { rule: Rule::NoRegression, ..GAIN };

    /// 10,000 studies without a difference, under the noise of an A/A arm with an outlier, err less often than alpha.
    #[test]
    fn ten_thousand_studies_of_equal_arms_err_no_more_often_than_alpha() {
        let spread = [0.004, -0.006, 0.002, -0.001, 0.03, -0.003, 0.005, -0.008];
        for terms in [GAIN, HOLD] {
            let verdicts = simulate_no_difference(&spread, 8, 10_000, 2026, &terms).unwrap();
            let share = verdicts.false_share(terms.rule);
            assert!(verdicts.studies() == 10_000 && share <= 0.05, "{verdicts:?}");
        }
        let gained = simulate_no_difference(&spread, 8, 10_000, 2026, &GAIN).unwrap().false_share(Rule::Gain);
        assert!(gained <= 0.025, "only half of alpha lies on the side of a gain: {gained}");
        assert!(simulate_no_difference(&[], 8, 1, 0, &GAIN).is_err());
        assert!(simulate_no_difference(&spread, 5, 1, 0, &GAIN).is_err());
    }

    /// A keep needs a mean that is at least the A/A arm's farther end: with Z and W standard normal,
    /// P(z + Z - |W| >= t), where z is the effect in standard errors and t the quantile of Student.
    #[test]
    fn power_is_that_of_the_normal_theory() {
        let (n, spread, effect) = (12usize, 0.02, 0.03);
        let normal = Normal::new(0.0, 1.0).unwrap();
        let t = StudentsT::new(0.0, 1.0, n as f64 - 1.0).unwrap().inverse_cdf(0.975);
        let z = effect / (spread / (n as f64).sqrt());
        let steps = 2000;
        let want: f64 = (0..steps)
            .map(|i| -6.0 + 12.0 * (f64::from(i) + 0.5) / f64::from(steps))
            .map(|w| normal.pdf(w) * normal.cdf(z - t - w.abs()) * 12.0 / f64::from(steps))
            .sum();
        let power = power_of(n, effect, spread, &GAIN).unwrap();
        assert!((power - want).abs() < 0.06, "{power} against {want}");
    }

    #[test]
    fn rounds_and_power_are_inverses() {
        for terms in [GAIN, HOLD] {
            let n = samples_for_power(0.03, 0.9, 0.015, &terms).unwrap();
            assert!(power_of(n, 0.03, 0.015, &terms).unwrap() >= 0.9, "{n}");
            assert!(n == 6 || power_of(n - 1, 0.03, 0.015, &terms).unwrap() < 0.9, "{n} is the least");
            assert!(n < samples_for_power(0.02, 0.9, 0.015, &terms).unwrap(), "a smaller effect needs more");
        }
        assert_eq!(samples_for_power(0.03, 0.9, 0.0, &GAIN).unwrap(), 6, "without noise the test's own least");
        let of_six = Terms { candidates: 6, ..GAIN };
        assert_eq!(samples_for_power(0.03, 0.9, 0.0, &of_six).unwrap(), 8, "0.05 / 6 needs two more");
        assert!(power_of(8, 0.03, 0.015, &of_six).unwrap() < power_of(8, 0.03, 0.015, &GAIN).unwrap());
        assert!(samples_for_power(0.0, 0.9, 0.01, &GAIN).is_err());
        assert!(samples_for_power(0.001, 0.9, 1.0, &GAIN).unwrap_err().to_string().contains("less noise"));
    }
}
