//! The sign-flip test on paired differences, and the interval that it gives.
//!
//! When two arms do not differ, every paired difference could as well have had the other sign. All 2^n sign patterns
//! are then equally likely, and the share of them whose sum is at least as far from 0 as the observed one is an exact
//! p-value: no normal distribution is assumed.
//!
//! The interval holds every shift that the test would not reject. Turned around (J. A. Hartigan, "Using subsample
//! values as typical values", 1969), its ends are order statistics of the means of all non-empty subsets, so that
//! nothing has to be searched: with `k = floor(2^n alpha / 2)` they are the k-th smallest and k-th largest mean.

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
    let n = differences.len();
    let observed = differences.iter().sum::<f64>().abs();
    // Sums that are equal in exact arithmetic must count as equal.
    let slack = 1e-12 * differences.iter().map(|d| d.abs()).sum::<f64>();
    let extreme = |pattern: &Pattern| {
        let sum: f64 = differences.iter().enumerate().map(|(i, d)| if pattern.has(i) { -d } else { *d }).sum();
        sum.abs() >= observed - slack
    };
    if n <= ENUMERATED {
        let all = 1u64 << n;
        let hits = (0..all).filter(|&bits| extreme(&Pattern(vec![bits]))).count();
        return hits as f64 / all as f64;
    }
    let mut random = SplitMix64(seed);
    let hits = (0..DRAWN).filter(|_| extreme(&random.pattern(n))).count();
    (hits + 1) as f64 / (DRAWN + 1) as f64
}

/// Confidence interval of level `1 - alpha` for the mean of `differences`: all shifts that [`p_value`] does not reject.
///
/// # Errors
/// When there are fewer than [`least_rounds`] differences: the interval would be unbounded.
pub fn interval(differences: &[f64], alpha: f64, seed: u64) -> Result<Interval, TooFewRounds> {
    let n = differences.len();
    let needs = least_rounds(alpha);
    if n < needs {
        return Err(TooFewRounds { has: n, needs });
    }
    let mean_of = |pattern: &Pattern| {
        let (sum, count) = differences
            .iter()
            .enumerate()
            .filter(|(i, _)| pattern.has(*i))
            .fold((0.0, 0u32), |(sum, count), (_, d)| (sum + d, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    };
    let mut means: Vec<f64> = if n <= ENUMERATED {
        (1..1u64 << n).filter_map(|bits| mean_of(&Pattern(vec![bits]))).collect()
    } else {
        let mut random = SplitMix64(seed);
        (0..DRAWN).filter_map(|_| mean_of(&random.pattern(n))).collect()
    };
    means.sort_unstable_by(f64::total_cmp);
    let k = (((means.len() + 1) as f64 * alpha / 2.0) as usize).max(1);
    Ok(Interval { low: means[k - 1], high: means[means.len() - k] })
}

/// A subset of pairs: those whose sign is flipped, or those whose mean is taken.
struct Pattern(Vec<u64>);

impl Pattern {
    fn has(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }
}

/// The generator of G. L. Steele, D. Lea and C. H. Flood (2014). Figures of old records must come out the same with
/// every later version of every dependency, so its twelve lines live here.
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn pattern(&mut self, n: usize) -> Pattern {
        Pattern((0..n.div_ceil(64)).map(|_| self.next()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use statrs::distribution::{ContinuousCDF, StudentsT};

    #[test]
    fn generator_matches_its_published_first_values() {
        let mut r = SplitMix64(1_234_567);
        assert_eq!([r.next(), r.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

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
        let d: Vec<f64> = (0..40).map(|_| normal(&mut r) + 0.3).collect();
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

    /// Sum of twelve uniform values: near enough to a standard normal.
    fn normal(r: &mut SplitMix64) -> f64 {
        (0..12).map(|_| (r.next() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn interval_excludes_zero_exactly_when_the_test_rejects(seed: u64, n in 6usize..11, shift in -1.5f64..1.5) {
            let mut r = SplitMix64(seed);
            let d: Vec<f64> = (0..n).map(|_| normal(&mut r) + shift).collect();
            let ci = interval(&d, 0.05, 0).unwrap();
            prop_assert_eq!(ci.low > 0.0 || ci.high < 0.0, p_value(&d, 0) <= 0.05);
        }

        #[test]
        fn interval_moves_with_its_data(seed: u64, shift in -3.0f64..3.0) {
            let mut r = SplitMix64(seed);
            let d: Vec<f64> = (0..8).map(|_| normal(&mut r)).collect();
            let moved: Vec<f64> = d.iter().map(|x| x + shift).collect();
            let (a, b) = (interval(&d, 0.05, 0).unwrap(), interval(&moved, 0.05, 0).unwrap());
            prop_assert!((a.low + shift - b.low).abs() < 1e-9 && (a.high + shift - b.high).abs() < 1e-9);
        }
    }
}
