//! From paired log-ratios to a verdict.

use super::sign_flip::{Interval, TooFewRounds, interval, least_rounds};
use crate::study::Rule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One candidate against its baseline. All effects are log-ratios, baseline time over candidate time: above 0 is a gain.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'a> {
    /// The primary metric of the study, one value per round.
    pub phase: &'a [f64],
    /// End to end, one value per round.
    pub end_to_end: &'a [f64],
    /// p-value of the phase, adjusted for the number of arms ([`super::holm`]).
    pub p_adjusted: f64,
    /// [`detectable_effect`] of the study's A/A arm.
    pub detectable: f64,
    /// The smallest gain for which a change would be kept.
    pub worthwhile: f64,
    /// The loss end to end that still counts as not worse.
    pub tolerance: f64,
    /// Level of significance.
    pub alpha: f64,
    /// When it is kept.
    pub rule: Rule,
    /// Seed of the drawn patterns.
    pub seed: u64,
}

/// What a study says about a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Verdict {
    /// A gain beyond chance and beyond what A/A shows, or no loss beyond the tolerance; and end to end not worse.
    Keep,
    /// No worthwhile gain, a loss, or end to end worse.
    Reject,
    /// The rounds do not tell.
    Inconclusive {
        /// Rounds after which they should, at the spread seen so far.
        needs_rounds: usize,
    },
}

/// A verdict with the intervals behind it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ruling {
    /// The verdict.
    pub verdict: Verdict,
    /// Interval of the phase.
    pub phase: Interval,
    /// Interval end to end.
    pub end_to_end: Interval,
}

/// The smallest effect that a study can tell from none: the farther end of the interval of its A/A arm, in which the
/// same arm ran twice. An effect of just this size is found about every second time.
///
/// # Errors
/// When the A/A arm has too few rounds for `alpha`.
pub fn detectable_effect(a_over_a: &[f64], alpha: f64, seed: u64) -> Result<f64, TooFewRounds> {
    Ok(farther_end(interval(a_over_a, alpha, seed)?))
}

/// The end of an interval that is farther from 0.
pub(super) fn farther_end(Interval { low, high }: Interval) -> f64 {
    low.abs().max(high.abs())
}

/// The verdict on one candidate.
///
/// By the rule [`Rule::Gain`]:
///
/// - reject: end to end is worse beyond chance, or the phase gains less than `worthwhile` beyond chance;
/// - keep: the adjusted p-value is at most `alpha`, the phase's interval lies above 0, its mean is at least
///   `detectable`, and the interval end to end lies above `-tolerance`;
/// - inconclusive otherwise.
///
/// By the rule [`Rule::NoRegression`]:
///
/// - keep: the intervals of the phase and end to end lie above `-tolerance`;
/// - reject: end to end is worse beyond chance and tolerance, or the phase is slower beyond chance (the adjusted p-value
///   is at most `alpha` and its interval lies below 0) and by at least `detectable`;
/// - inconclusive otherwise.
///
/// # Errors
/// When there are fewer rounds than `alpha` needs.
pub fn judge(c: &Comparison<'_>) -> Result<Ruling, TooFewRounds> {
    judge_with(c, &|differences| interval(differences, c.alpha, c.seed))
}

/// As [`judge`], with the intervals that `interval` gives.
pub(super) fn judge_with(
    c: &Comparison<'_>,
    interval: &dyn Fn(&[f64]) -> Result<Interval, TooFewRounds>,
) -> Result<Ruling, TooFewRounds> {
    let (phase, end_to_end) = (interval(c.phase)?, interval(c.end_to_end)?);
    let mean = c.phase.iter().sum::<f64>() / c.phase.len() as f64;
    let beyond_chance = c.p_adjusted <= c.alpha && mean.abs() >= c.detectable;
    let (whole_lost, whole_held) = (end_to_end.high < -c.tolerance, end_to_end.low > -c.tolerance);
    let (keep, reject, target) = match c.rule {
        Rule::Gain => {
            let reject = whole_lost || phase.high < c.worthwhile;
            (!reject && beyond_chance && phase.low > 0.0 && whole_held, reject, mean.abs().max(c.worthwhile))
        }
        Rule::NoRegression => {
            let keep = phase.low > -c.tolerance && whole_held;
            let reject = whole_lost || beyond_chance && phase.high < 0.0;
            (keep, reject, (mean + c.tolerance).abs())
        }
    };
    let verdict = match (keep, reject) {
        (true, _) => Verdict::Keep,
        (false, true) => Verdict::Reject,
        (false, false) => Verdict::Inconclusive { needs_rounds: needs_rounds(c, phase, target) },
    };
    Ok(Ruling { verdict, phase, end_to_end })
}

/// Rounds after which the half width, shrinking with the root of their number, is no more than the effect to be seen.
fn needs_rounds(c: &Comparison<'_>, phase: Interval, target: f64) -> usize {
    let target = target.max(f64::MIN_POSITIVE);
    let n = c.phase.len();
    let half = (phase.high - phase.low) / 2.0;
    let wanted = n as f64 * (half / target).powi(2);
    // A float beyond the range of usize saturates, which is the right answer to "never".
    (wanted.ceil() as usize).max(n + 1).max(least_rounds(c.alpha))
}

#[cfg(test)]
mod tests {
    use super::super::random::SplitMix64;
    use super::super::sign_flip::p_value;
    use super::*;

    const ALPHA: f64 = 0.05;

    fn comparison<'a>(phase: &'a [f64], end_to_end: &'a [f64], detectable: f64) -> Comparison<'a> {
        let p_adjusted = p_value(phase, 0);
        Comparison {
            phase,
            end_to_end,
            p_adjusted,
            detectable,
            worthwhile: 0.01,
            tolerance: 0.005,
            alpha: ALPHA,
            rule: Rule::Gain,
            seed: 0,
        }
    }

    fn around(centre: f64) -> [f64; 8] {
        [-3.0, 2.0, -1.0, 0.5, 1.0, -0.5, 3.0, -2.0].map(|e| centre + e * 1e-3)
    }

    #[test]
    fn the_three_answers() {
        let verdict = |phase: f64, total: f64, detectable: f64| {
            judge(&comparison(&around(phase), &around(total), detectable)).unwrap().verdict
        };
        assert_eq!(verdict(0.10, 0.05, 0.02), Verdict::Keep);
        assert_eq!(verdict(0.10, -0.05, 0.02), Verdict::Reject, "a phase gains while the whole loses");
        assert_eq!(verdict(0.0, 0.0, 0.02), Verdict::Reject, "no worthwhile gain is left in the interval");
        assert_eq!(verdict(-0.10, 0.0, 0.02), Verdict::Reject);
        assert!(matches!(verdict(0.015, 0.0, 0.02), Verdict::Inconclusive { .. }), "below what A/A shows");
        let Verdict::Inconclusive { needs_rounds } = verdict(0.10, -0.005, 0.02) else { panic!("end to end unknown") };
        assert!(needs_rounds > 8);
    }

    /// By the rule of no regression, with a tolerance of 1 %.
    #[test]
    fn a_loss_is_held_against_the_tolerance() {
        let verdict = |phase: f64, total: f64, detectable: f64| {
            let (phase, total) = (around(phase), around(total));
            let c = comparison(&phase, &total, detectable);
            judge(&Comparison { rule: Rule::NoRegression, tolerance: 0.01, ..c }).unwrap().verdict
        };
        assert_eq!(verdict(0.0, 0.0, 0.004), Verdict::Keep);
        assert_eq!(verdict(0.10, 0.10, 0.004), Verdict::Keep);
        assert_eq!(verdict(-0.005, 0.0, 0.004), Verdict::Keep, "a loss that is surely within the tolerance");
        assert_eq!(verdict(-0.03, 0.0, 0.004), Verdict::Reject);
        assert_eq!(verdict(0.0, -0.03, 0.004), Verdict::Reject, "the whole loses");
        assert!(matches!(verdict(-0.03, 0.0, 0.05), Verdict::Inconclusive { .. }), "below what A/A shows");
        let Verdict::Inconclusive { needs_rounds } = verdict(-0.0095, 0.0, 0.02) else {
            panic!("across the tolerance")
        };
        assert!(needs_rounds > 8);
    }

    #[test]
    fn holm_can_take_a_keep_back() {
        let (phase, total) = (around(0.10), around(0.10));
        let c = Comparison { p_adjusted: 0.06, ..comparison(&phase, &total, 0.02) };
        assert!(matches!(judge(&c).unwrap().verdict, Verdict::Inconclusive { .. }));
    }

    #[test]
    fn too_few_rounds_are_refused_with_their_number() {
        let short = [0.1; 5];
        assert_eq!(judge(&comparison(&short, &short, 0.0)).unwrap_err(), TooFewRounds { has: 5, needs: 6 });
    }

    #[test]
    fn a_steady_loss_in_aa_shows_in_the_detectable_effect() {
        assert!((detectable_effect(&around(-0.02), ALPHA, 0).unwrap() - 0.022).abs() < 0.002);
    }

    /// Arms without any difference, under noise with heavy tails, are kept no more often than half of alpha promises.
    #[test]
    fn false_keeps_stay_below_their_promise() {
        let mut r = SplitMix64(2026);
        let mut noise = || {
            let u = (r.next() >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
            0.3 * u * u * u
        };
        let studies = 1500;
        let (mut kept, mut kept_without_aa) = (0, 0);
        for _ in 0..studies {
            let d: [f64; 8] = std::array::from_fn(|_| noise());
            let aa: [f64; 8] = std::array::from_fn(|_| noise());
            let detectable = detectable_effect(&aa, ALPHA, 0).unwrap();
            let keeps = |detectable: f64| {
                let c = Comparison { worthwhile: 0.0, tolerance: f64::INFINITY, ..comparison(&d, &d, detectable) };
                judge(&c).unwrap().verdict == Verdict::Keep
            };
            kept += u32::from(keeps(detectable));
            kept_without_aa += u32::from(keeps(0.0));
        }
        let rate = f64::from(kept_without_aa) / f64::from(studies);
        assert!((0.012..=0.036).contains(&rate), "alpha / 2 is 0.025, seen {rate}");
        assert!(kept <= kept_without_aa / 2, "the A/A arm makes false keeps rarer still: {kept} of {kept_without_aa}");
    }
}
