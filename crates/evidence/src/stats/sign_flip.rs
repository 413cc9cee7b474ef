//! The sign-flip test on paired differences, and the interval that it gives.
//!
//! When two arms do not differ, every paired difference could as well have had the other sign. All 2^n sign patterns
//! are then equally likely, and the share of them whose sum is at least as far from 0 as the observed one is an exact
//! p-value: no normal distribution is assumed.
//!
//! The interval holds every shift that the test would not reject. Turned around (J. A. Hartigan, "Using subsample
//! values as typical values", 1969), its ends are order statistics of the means of all non-empty subsets, so that
//! nothing has to be searched: with `k = floor(2^n alpha / 2)` they are the k-th smallest and k-th largest mean.

use super::random::SplitMix64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Up to this many pairs all 2^n patterns are enumerated; beyond it as many are drawn at random.
const ENUMERATED: usize = 16;

/// Patterns drawn beyond [`ENUMERATED`]; the observed pattern counts as one more.
const DRAWN: usize = (1 << ENUMERATED) - 1;

/// A two-sided confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Fewer pairs than the wanted level of significance needs: not even the most extreme outcome could be rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected at least {needs} rounds for this level of significance, found {has}; run more rounds")]
pub struct TooFewRounds {
    /// Pairs given.
    pub has: usize,
    /// Pairs needed.
    pub needs: usize,
}

/// The least number of pairs with which a two-sided test at level `alpha` can reject: 2^(1 - n) <= alpha.
pub fn least_rounds(alpha: f64) -> usize {
    (1..64).find(|&n| 2f64.powi(1 - n) <= alpha).map_or(64, |n| n as usize)
}

/// Two-sided p-value of the mean of `differences` against 0. Without differences it is 1.
///
/// Exact up to 16 pairs; beyond that over seeded random patterns, the observed one included, which keeps the test
/// valid (B. Phipson and G. K. Smyth, 2010).
pub fn p_value(differences: &[f64], seed: u64) -> f64 {
    p_value_of(differences, seed, DRAWN)
}

/// As [`p_value`], over `drawn` random patterns where they are not enumerated.
pub(super) fn p_value_of(differences: &[f64], seed: u64, drawn: usize) -> f64 {
    let n = differences.len();
    let total = differences.iter().sum::<f64>();
    // Sums that are equal in exact arithmetic must count as equal.
    let slack = 1e-12 * differences.iter().map(|d| d.abs()).sum::<f64>();
    // To flip the signs of a subset takes its sum away twice.
    let extreme = |subset: f64| (total - 2.0 * subset).abs() >= total.abs() - slack;
    if n <= ENUMERATED {
        let sums = subset_sums(differences);
        let hits = sums.iter().filter(|s| extreme(**s)).count();
        return hits as f64 / sums.len() as f64;
    }
    let mut random = SplitMix64(seed);
    let hits = (0..drawn).filter(|_| extreme(random.subset(differences).0)).count();
    (hits + 1) as f64 / (drawn + 1) as f64
}

/// Confidence interval of level `1 - alpha` for the mean of `differences`: all shifts that [`p_value`] does not reject.
///
/// # Errors
/// When there are fewer than [`least_rounds`] differences: the interval would be unbounded.
pub fn interval(differences: &[f64], alpha: f64, seed: u64) -> Result<Interval, TooFewRounds> {
    interval_of(differences, alpha, seed, DRAWN)
}

/// As [`interval`], over `drawn` random subsets where they are not enumerated.
pub(super) fn interval_of(differences: &[f64], alpha: f64, seed: u64, drawn: usize) -> Result<Interval, TooFewRounds> {
    let n = differences.len();
    let needs = least_rounds(alpha);
    if n < needs {
        return Err(TooFewRounds { has: n, needs });
    }
    let mut means: Vec<f64> = if n <= ENUMERATED {
        let sums = subset_sums(differences).into_iter().enumerate().skip(1);
        sums.map(|(bits, sum)| sum / f64::from(bits.count_ones())).collect()
    } else {
        let mut random = SplitMix64(seed);
        let subsets = (0..drawn).map(|_| random.subset(differences)).filter(|(_, count)| *count > 0);
        subsets.map(|(sum, count)| sum / f64::from(count)).collect()
    };
    let k = (((means.len() + 1) as f64 * alpha / 2.0) as usize).max(1);
    let last = means.len() - k;
    let (_, low, _) = means.select_nth_unstable_by(k - 1, f64::total_cmp);
    let low = *low;
    let (_, high, _) = means.select_nth_unstable_by(last, f64::total_cmp);
    Ok(Interval { low, high: *high })
}

/// The sum of every subset, at the place whose bits are its members; terms are added in their order.
fn subset_sums(values: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; 1 << values.len()];
    for (i, value) in values.iter().enumerate() {
        let half = 1 << i;
        for bits in 0..half {
            sums[half + bits] = sums[bits] + value;
        }
    }
    sums
}

impl SplitMix64 {
    /// Sum and number of the members of a random subset.
    fn subset(&mut self, values: &[f64]) -> (f64, u32) {
        let (mut sum, mut count) = (0.0, 0);
        for chunk in values.chunks(64) {
            let bits = self.next();
            for (_, value) in chunk.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1) {
                sum += value;
                count += 1;
            }
        }
        (sum, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use statrs::distribution::{ContinuousCDF, StudentsT};

    #[test]
    fn closed_forms() {
        // All signs equal: only the observed pattern and its mirror are as extreme.
        for n in 1..=12 {
            let d: Vec<f64> = (1..=n).map(f64::from).collect();
            assert_eq!(p_value(&d, 0), 2.0 / 2f64.powi(n));
        }
        assert_eq!(p_value(&[], 0), 1.0);
        assert_eq!(p_value(&[1.0, -1.0], 0), 1.0);
        // Equal magnitudes: the sum is a binomial count; 7 of 8 positive has P(|X - 4| >= 3) = 2 (1 + 8) / 256.
        assert_eq!(p_value(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0], 0), 18.0 / 256.0);
        assert_eq!((least_rounds(0.05), least_rounds(0.01), least_rounds(0.5)), (6, 8, 2));
    }

    #[test]
    fn six_rounds_span_from_the_smallest_to_the_largest() {
        // n = 6 at 5 %: k = floor(64 * 0.025) = 1, the extreme subset means, which are the extreme values.
        let d = [0.1, 0.3, -0.2, 0.5, 0.4, 0.2];
        assert_eq!(interval(&d, 0.05, 0).unwrap(), Interval { low: -0.2, high: 0.5 });
        assert_eq!(interval(&d[..5], 0.05, 0).unwrap_err(), TooFewRounds { has: 5, needs: 6 });
    }

    #[test]
    fn drawn_patterns_agree_with_student_on_normal_noise() {
        let mut r = SplitMix64(7);
        let d: Vec<f64> = (0..40).map(|_| r.normal() + 0.3).collect();
        let n = d.len() as f64;
        let mean = d.iter().sum::<f64>() / n;
        let sd = (d.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
        let student = StudentsT::new(0.0, 1.0, n - 1.0).unwrap();
        let want = 2.0 * student.sf((mean / (sd / n.sqrt())).abs());
        assert!((p_value(&d, 1) - want).abs() < 0.01, "{} against {want}", p_value(&d, 1));
        let half = student.inverse_cdf(0.975) * sd / n.sqrt();
        let ci = interval(&d, 0.05, 1).unwrap();
        assert!((ci.low - (mean - half)).abs() < 0.1 * half && (ci.high - (mean + half)).abs() < 0.1 * half, "{ci:?}");
        assert_eq!(p_value(&d, 1), p_value(&d, 1), "a seed gives one answer");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn interval_excludes_zero_exactly_when_the_test_rejects(seed: u64, n in 6usize..11, shift in -1.5f64..1.5) {
            let mut r = SplitMix64(seed);
            let d: Vec<f64> = (0..n).map(|_| r.normal() + shift).collect();
            let ci = interval(&d, 0.05, 0).unwrap();
            prop_assert_eq!(ci.low > 0.0 || ci.high < 0.0, p_value(&d, 0) <= 0.05);
        }

        #[test]
        fn interval_moves_with_its_data(seed: u64, shift in -3.0f64..3.0) {
            let mut r = SplitMix64(seed);
            let d: Vec<f64> = (0..8).map(|_| r.normal()).collect();
            let moved: Vec<f64> = d.iter().map(|x| x + shift).collect();
            let (a, b) = (interval(&d, 0.05, 0).unwrap(), interval(&moved, 0.05, 0).unwrap());
            prop_assert!((a.low + shift - b.low).abs() < 1e-9 && (a.high + shift - b.high).abs() < 1e-9);
        }
    }
}
