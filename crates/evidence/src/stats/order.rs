//! Medians, quantiles and ratios of finite values. An empty slice has none of them.

use tare_core::Fault;

/// Median: the middle value, or the mean of the two middle values.
pub fn median(values: &[f64]) -> Option<f64> {
    let s = sorted(values);
    let (n, half) = (s.len(), s.len() / 2);
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(s[half]),
        // Halved before adding, so that two large values do not overflow.
        _ => Some(s[half - 1] / 2.0 + s[half] / 2.0),
    }
}

/// Quantile by nearest rank: the smallest value that at least a share `p` of all values does not exceed.
///
/// It is always one of the values. `p` outside 0..=1 has no quantile.
pub fn nearest_rank(values: &[f64], p: f64) -> Option<f64> {
    if values.is_empty() || !(0.0..=1.0).contains(&p) {
        return None;
    }
    let n = values.len();
    // 0.95 * 20 is 19.000000000000004 or so for some p and n: a rank that is whole up to rounding is whole.
    let exact = p * n as f64;
    let rank = if (exact - exact.round()).abs() < 1e-9 * n as f64 { exact.round() } else { exact.ceil() };
    Some(sorted(values)[(rank as usize).clamp(1, n) - 1])
}

/// Quantile of type 7 in R. J. Hyndman and Y. Fan, "Sample quantiles in statistical packages" (1996): linear between
/// the values around `(n - 1) p`, as in R and NumPy. `p` outside 0..=1 has no quantile.
pub fn quantile_type7(values: &[f64], p: f64) -> Option<f64> {
    if values.is_empty() || !(0.0..=1.0).contains(&p) {
        return None;
    }
    let s = sorted(values);
    let h = (s.len() - 1) as f64 * p;
    let below = h.floor() as usize;
    let above = (below + 1).min(s.len() - 1);
    Some(s[below] + (h - below as f64) * (s[above] - s[below]))
}

/// Median absolute deviation from the median, unscaled (multiply by 1.4826 for a normal standard deviation).
pub fn mad(values: &[f64]) -> Option<f64> {
    let centre = median(values)?;
    median(&values.iter().map(|v| (v - centre).abs()).collect::<Vec<_>>())
}

/// Standard deviation of a sample, over `n - 1`; none of fewer than two values.
pub fn standard_deviation(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.len() > 1).then(|| (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt())
}

/// Places of the values that lie farther than `mads` median absolute deviations from the median. They are flagged for a
/// reader; no figure leaves them out.
pub fn outliers(values: &[f64], mads: f64) -> Vec<usize> {
    let (Some(centre), Some(mad)) = (median(values), mad(values)) else { return Vec::new() };
    let far = |v: &f64| (v - centre).abs() > mads * mad;
    values.iter().enumerate().filter(|(_, v)| far(v)).map(|(i, _)| i).collect()
}

/// Geometric mean of positive ratios.
pub fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    if ratios.is_empty() || ratios.iter().any(|r| *r <= 0.0) {
        return None;
    }
    Some((ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp())
}

/// `ln(numerator / denominator)` of each pair. With a baseline's times above and a candidate's below, a positive
/// value is a gain.
///
/// # Errors
/// When the sides have different lengths, or a value is not positive and finite.
pub fn paired_log_ratios(numerator: &[f64], denominator: &[f64]) -> Result<Vec<f64>, Fault> {
    if numerator.len() != denominator.len() {
        let found = format!("{} against {}", numerator.len(), denominator.len());
        return Err(Fault::new("pairs", "a value on each side of every round", found));
    }
    let bad = numerator.iter().chain(denominator).find(|v| !(v.is_finite() && **v > 0.0));
    match bad {
        Some(v) => Err(Fault::new("pairs", "positive finite values", v.to_string())),
        None => Ok(numerator.iter().zip(denominator).map(|(a, b)| (a / b).ln()).collect()),
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut s = values.to_vec();
    s.sort_unstable_by(f64::total_cmp);
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use statrs::statistics::{Data, Median, OrderStatistics, RankTieBreaker, Statistics};

    #[test]
    fn closed_forms() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        // The nearest-rank example everybody knows: 15 20 35 40 50.
        let five = [15.0, 20.0, 35.0, 40.0, 50.0];
        for (p, want) in [(0.05, 15.0), (0.3, 20.0), (0.4, 20.0), (0.5, 35.0), (1.0, 50.0), (0.0, 15.0)] {
            assert_eq!(nearest_rank(&five, p), Some(want), "{p}");
        }
        assert_eq!(nearest_rank(&five, 1.1), None);
        // R: quantile(c(15, 20, 35, 40, 50), 0.4, type = 7) is 29.
        assert!((quantile_type7(&five, 0.4).unwrap() - 29.0).abs() < 1e-12);
        assert_eq!(mad(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]), Some(1.0));
        assert!((geometric_mean(&[2.0, 8.0]).unwrap() - 4.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[2.0, 0.0]), None);
        assert_eq!(outliers(&[10.0, 11.0, 9.0, 10.5, 75.0, 9.5], 5.0), [4]);
        assert!(outliers(&[10.0, 11.0, 9.0], 5.0).is_empty() && outliers(&[], 5.0).is_empty());
    }

    #[test]
    fn whole_ranks_stay_whole() {
        for n in 1..=200u32 {
            let values: Vec<f64> = (1..=n).map(f64::from).collect();
            for percent in 1..=100u32 {
                let want = (percent * n).div_ceil(100).max(1);
                let p = f64::from(percent) / 100.0;
                assert_eq!(nearest_rank(&values, p), Some(f64::from(want)), "p{percent} of {n}");
            }
        }
    }

    #[test]
    fn pairs_must_be_pairs_of_times() {
        let d = paired_log_ratios(&[2.0, 3.0], &[1.0, 3.0]).unwrap();
        assert!((d[0] - 2f64.ln()).abs() < 1e-15 && d[1] == 0.0);
        assert!(paired_log_ratios(&[1.0], &[]).is_err());
        assert!(paired_log_ratios(&[1.0], &[0.0]).is_err());
        assert!(paired_log_ratios(&[f64::NAN], &[1.0]).is_err());
    }

    proptest! {
        #[test]
        fn agrees_with_another_library(v in prop::collection::vec(0.001f64..1e6, 1..40)) {
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
            prop_assert!(close(median(&v).unwrap(), Data::new(v.clone()).median()));
            if v.len() > 1 {
                prop_assert!((standard_deviation(&v).unwrap() - v.as_slice().std_dev()).abs() <= 1e-9 * 1e6);
            }
            prop_assert!(close(geometric_mean(&v).unwrap(), v.as_slice().geometric_mean()));
        }

        #[test]
        fn quantiles_are_ordered_and_inside(v in prop::collection::vec(-1e6f64..1e6, 1..40), p in 0.0f64..1.0, q in 0.0f64..1.0) {
            let (low, high) = (p.min(q), p.max(q));
            prop_assert!(quantile_type7(&v, low) <= quantile_type7(&v, high));
            prop_assert!(nearest_rank(&v, low) <= nearest_rank(&v, high));
            prop_assert!(v.contains(&nearest_rank(&v, p).unwrap()));
            let mut ranked = Data::new(v.clone());
            let ranks = ranked.ranks(RankTieBreaker::Max);
            let at = v.iter().position(|x| Some(*x) == nearest_rank(&v, high)).unwrap();
            prop_assert!(ranks[at] + 1e-6 >= high * v.len() as f64, "a share of at least p lies at or below");
        }
    }
}
