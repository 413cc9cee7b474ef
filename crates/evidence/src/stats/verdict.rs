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
    /// Candidates of the study: its level is that of all of them together.
    pub candidates: usize,
    /// What the study's A/A arm showed.
    pub a_a: EqualArms,
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

/// How far apart the same arm lay from itself: the intervals of a study's A/A arm.
#[derive(Clone, Copy, Debug)]
pub struct EqualArms {
    /// Of the primary metric.
    pub phase: Interval,
    /// End to end.
    pub end_to_end: Interval,
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

impl EqualArms {
    /// From the log-ratios of the A/A arm.
    ///
    /// # Errors
    /// When it has too few rounds for `alpha`.
    pub fn of(phase: &[f64], end_to_end: &[f64], alpha: f64, seed: u64) -> Result<Self, TooFewRounds> {
        Ok(Self { phase: interval(phase, alpha, seed)?, end_to_end: interval(end_to_end, alpha, seed)? })
    }

    /// The smallest effect that the study can tell from none: the farther end of the interval. An effect of just this
    /// size is found about every second time.
    pub fn detectable(&self) -> f64 {
        farther_end(self.phase)
    }

    /// Whether an arm that shows these means may be said to have lost nothing. It may not where equal arms lie apart by
    /// more than the tolerance, nor where the baseline's twin gains as the candidate does: that gain is of its place.
    fn bear_out(&self, phase_mean: f64, end_to_end_mean: f64, tolerance: f64) -> bool {
        let one = |a_a: Interval, mean: f64| {
            let apart = a_a.low > tolerance || a_a.high < -tolerance;
            let flattered = a_a.low > 0.0 && mean > 0.0;
            !(apart || flattered)
        };
        one(self.phase, phase_mean) && one(self.end_to_end, end_to_end_mean)
    }
}

/// The end of an interval that is farther from 0.
fn farther_end(Interval { low, high }: Interval) -> f64 {
    low.abs().max(high.abs())
}

/// The verdict on one candidate. Intervals at the level of one of all candidates are called strict.
///
/// Under both rules end to end is worse when its strict interval lies below `-tolerance` and its mean is as far from 0 as
/// the A/A arm shows end to end.
///
/// By the rule [`Rule::Gain`]:
///
/// - reject: end to end is worse, or the phase gains less than `worthwhile` beyond chance;
/// - keep: the adjusted p-value is at most `alpha`, the phase's interval lies above 0, its mean is at least `worthwhile`
///   and at least the A/A arm's [`EqualArms::detectable`], and the interval end to end lies above `-tolerance`;
/// - inconclusive otherwise.
///
/// By the rule [`Rule::NoRegression`]:
///
/// - keep: the strict intervals of the phase and end to end lie above `-tolerance`, and the A/A arm neither lies beyond
///   the tolerance nor gains where the candidate does;
/// - reject: end to end is worse, or the phase is slower beyond chance (the adjusted p-value is at most `alpha` and its
///   interval lies below 0) and by at least what the A/A arm shows;
/// - inconclusive otherwise.
///
/// # Errors
/// When there are fewer rounds than `alpha` needs.
pub fn judge(c: &Comparison<'_>) -> Result<Ruling, TooFewRounds> {
    judge_with(c, &|differences, alpha| interval(differences, alpha, c.seed))
}

/// The interval of differences at a level.
pub(super) type IntervalAt<'a> = &'a dyn Fn(&[f64], f64) -> Result<Interval, TooFewRounds>;

/// As [`judge`], with the intervals that `interval` gives for a level.
pub(super) fn judge_with(c: &Comparison<'_>, interval: IntervalAt<'_>) -> Result<Ruling, TooFewRounds> {
    let (phase, end_to_end) = (interval(c.phase, c.alpha)?, interval(c.end_to_end, c.alpha)?);
    let (mean, whole_mean) = (mean_of(c.phase), mean_of(c.end_to_end));
    // With too few rounds for the strict level nothing is known at it.
    let strict = |differences: &[f64]| interval(differences, strict_alpha(c.alpha, c.candidates)).ok();
    let whole = strict(c.end_to_end);
    let whole_lost = whole.is_some_and(|i| i.high < -c.tolerance) && whole_mean.abs() >= farther_end(c.a_a.end_to_end);
    let beyond_chance = c.p_adjusted <= c.alpha && mean.abs() >= c.a_a.detectable();
    let (keep, reject, target) = match c.rule {
        Rule::Gain => {
            let reject = whole_lost || phase.high < c.worthwhile;
            let gains = beyond_chance && phase.low > 0.0 && mean >= c.worthwhile;
            (!reject && gains && end_to_end.low > -c.tolerance, reject, mean.abs().max(c.worthwhile))
        }
        Rule::NoRegression => {
            let held = |i: Option<Interval>| i.is_some_and(|i| i.low > -c.tolerance);
            let keep = held(strict(c.phase)) && held(whole) && c.a_a.bear_out(mean, whole_mean, c.tolerance);
            let reject = whole_lost || beyond_chance && phase.high < 0.0;
            (keep, reject, (mean + c.tolerance).abs())
        }
    };
    let verdict = match (keep, reject) {
        (true, _) => Verdict::Keep,
        (false, true) => Verdict::Reject,
        (false, false) => {
            let of_phase = needs_rounds(c, phase, target);
            let of_whole = needs_rounds(c, end_to_end, (whole_mean + c.tolerance).abs());
            let open = end_to_end.low <= -c.tolerance;
            Verdict::Inconclusive { needs_rounds: if open { of_phase.max(of_whole) } else { of_phase } }
        }
    };
    Ok(Ruling { verdict, phase, end_to_end })
}

fn mean_of(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The level of one candidate where all of them together have `alpha`.
pub(super) fn strict_alpha(alpha: f64, candidates: usize) -> f64 {
    alpha / candidates.max(1) as f64
}

/// Rounds after which the half width, shrinking with the root of their number, is no more than the effect to be seen.
fn needs_rounds(c: &Comparison<'_>, seen: Interval, target: f64) -> usize {
    let target = target.max(f64::MIN_POSITIVE);
    let n = c.phase.len();
    let half = (seen.high - seen.low) / 2.0;
    let wanted = n as f64 * (half / target).powi(2);
    // A float beyond the range of usize saturates, which is the right answer to "never".
    (wanted.ceil() as usize).max(n + 1).max(least_rounds(strict_alpha(c.alpha, c.candidates)))
}

#[cfg(test)]
mod tests {
    use super::super::random::SplitMix64;
    use super::super::sign_flip::p_value;
    use super::*;

    const ALPHA: f64 = 0.05;

    /// An A/A arm about 0 that shows effects of at least `detectable`.
    fn equal_arms(detectable: f64) -> EqualArms {
        let about = Interval { low: -detectable, high: detectable };
        EqualArms { phase: about, end_to_end: about }
    }

    fn comparison<'a>(phase: &'a [f64], end_to_end: &'a [f64], detectable: f64) -> Comparison<'a> {
        let p_adjusted = p_value(phase, 0);
        Comparison {
            phase,
            end_to_end,
            p_adjusted,
            candidates: 1,
            a_a: equal_arms(detectable),
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

    /// A twin that gains shows that the place gains, and a candidate that gains less has lost by it.
    #[test]
    fn no_loss_is_said_where_equal_arms_lie_apart() {
        let (phase, total) = (around(0.005), around(0.005));
        let verdict = |phase_twin: f64, whole_twin: f64| {
            let a_a = EqualArms::of(&around(phase_twin), &around(whole_twin), ALPHA, 0).unwrap();
            let c = Comparison { rule: Rule::NoRegression, tolerance: 0.01, ..comparison(&phase, &total, 0.0) };
            judge(&Comparison { a_a, ..c }).unwrap().verdict
        };
        assert_eq!(verdict(0.0, 0.0), Verdict::Keep);
        for (phase_twin, whole_twin, why) in [
            (0.025, 0.0, "the twin gains more than the tolerance"),
            (-0.025, 0.0, "the twin loses more than the tolerance"),
            (0.005, 0.0, "the twin gains as the candidate does"),
            (0.0, 0.025, "the same end to end"),
            (0.0, -0.025, "the same end to end"),
        ] {
            assert!(matches!(verdict(phase_twin, whole_twin), Verdict::Inconclusive { .. }), "{why}");
        }
    }

    /// Arms that all lose just more than the tolerance are cleared in no more studies than the level says, whatever their
    /// number.
    #[test]
    fn no_loss_is_said_at_the_level_of_all_candidates() {
        let mut r = SplitMix64(7);
        let studies = 400;
        for arms in [1, 3, 6] {
            let mut cleared = 0;
            for _ in 0..studies {
                let kept = (0..arms).any(|_| {
                    let d: [f64; 8] = std::array::from_fn(|_| -0.0101 + 0.01 * r.normal());
                    let c = Comparison { rule: Rule::NoRegression, tolerance: 0.01, ..comparison(&d, &d, 0.005) };
                    judge(&Comparison { candidates: arms, ..c }).unwrap().verdict == Verdict::Keep
                });
                cleared += u32::from(kept);
            }
            let rate = f64::from(cleared) / f64::from(studies);
            assert!(rate <= ALPHA, "{arms} arms: {rate}");
        }
    }

    /// Eight rounds tell nothing at the level of one of 20 candidates.
    #[test]
    fn more_candidates_need_more_rounds() {
        let flat = around(0.0);
        let c = Comparison { rule: Rule::NoRegression, tolerance: 0.02, ..comparison(&flat, &flat, 0.004) };
        assert_eq!(judge(&c).unwrap().verdict, Verdict::Keep);
        let of_many = judge(&Comparison { candidates: 20, ..c }).unwrap().verdict;
        assert_eq!(of_many, Verdict::Inconclusive { needs_rounds: 10 });
        let lost = around(-0.05);
        let c = Comparison { rule: Rule::NoRegression, tolerance: 0.02, ..comparison(&flat, &lost, 0.004) };
        assert_eq!(judge(&c).unwrap().verdict, Verdict::Reject);
        assert!(matches!(judge(&Comparison { candidates: 20, ..c }).unwrap().verdict, Verdict::Inconclusive { .. }));
        let wide = EqualArms { end_to_end: Interval { low: -0.08, high: 0.08 }, ..equal_arms(0.004) };
        let blind = judge(&Comparison { a_a: wide, ..c }).unwrap().verdict;
        assert!(matches!(blind, Verdict::Inconclusive { .. }), "end to end equal arms lie as far apart");
    }

    #[test]
    fn a_gain_that_is_not_worthwhile_is_not_kept() {
        let small = [0.0035, 0.004, 0.0145, 0.003, 0.0145, 0.004, 0.003, 0.0035];
        let c = comparison(&small, &small, 0.004);
        assert!(matches!(judge(&c).unwrap().verdict, Verdict::Inconclusive { .. }), "a mean of 0.6 %");
        assert_eq!(judge(&Comparison { worthwhile: 0.005, ..c }).unwrap().verdict, Verdict::Keep);
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
        let lossy = EqualArms::of(&around(-0.02), &around(0.0), ALPHA, 0).unwrap();
        assert!((lossy.detectable() - 0.022).abs() < 0.002);
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
            let detectable = EqualArms::of(&aa, &aa, ALPHA, 0).unwrap().detectable();
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
