//! Holm's adjustment for several arms in one study.

/// Adjusted p-values, in the order given: comparing each with alpha keeps the chance of any false rejection below
/// alpha (S. Holm, 1979). The i-th smallest of m is multiplied by m - i + 1, made monotone and capped at 1.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let m = p_values.len();
    let mut order: Vec<usize> = (0..m).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut adjusted = vec![0.0; m];
    let mut floor = 0.0f64;
    for (rank, i) in order.into_iter().enumerate() {
        floor = floor.max(p_values[i] * (m - rank) as f64).min(1.0);
        adjusted[i] = floor;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn matches_r() {
        // R: p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm") and p.adjust(c(0.04, 0.01, 0.9), "holm").
        let close = |a: Vec<f64>, b: &[f64]| a.iter().zip(b).all(|(x, y)| (x - y).abs() < 1e-12);
        assert!(close(holm(&[0.01, 0.02, 0.03, 0.04, 0.05]), &[0.05, 0.08, 0.09, 0.09, 0.09]));
        assert!(close(holm(&[0.04, 0.01, 0.9]), &[0.08, 0.03, 0.9]));
        assert!(holm(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn never_below_the_raw_value_nor_above_bonferroni(p in prop::collection::vec(0.0f64..1.0, 1..8)) {
            for (raw, adjusted) in p.iter().zip(holm(&p)) {
                prop_assert!(adjusted >= *raw && adjusted <= (raw * p.len() as f64).min(1.0) + 1e-12);
            }
        }
    }
}
