//! Closeness of two vectors, with the worst element named.

/// Asserts `|got - want| <= abs + rel * |want|` for every element; differences are taken in f64.
///
/// Equal values pass, infinities of one sign included. NaN never passes, not even where both sides are NaN.
///
/// # Panics
/// When lengths differ or an element is too far off: `what`, how many failed, and the index, both values, difference
/// and limit of the worst one (the largest difference in units of its own limit; NaN is the worst of all).
#[track_caller]
pub fn assert_close(got: &[f32], want: &[f32], abs: f64, rel: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: length of got (left) and want (right)");
    let mut failed = 0usize;
    let mut worst: Option<(f64, usize)> = None;
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let excess = excess(f64::from(g), f64::from(w), abs, rel);
        if excess > 1.0 {
            failed += 1;
            if worst.is_none_or(|(e, _)| excess > e) {
                worst = Some((excess, i));
            }
        }
    }
    if let Some((_, i)) = worst {
        let (g, w) = (f64::from(got[i]), f64::from(want[i]));
        let limit = abs + rel * w.abs();
        panic!(
            "{what}: {failed} of {} elements too far off; worst at index {i}: got {g:e}, want {w:e}, \
             difference {:e}, limit {limit:e}",
            got.len(),
            (g - w).abs(),
        );
    }
}

/// The difference in units of its limit: at most 1 passes, infinite for NaN and for any difference under a zero limit.
fn excess(got: f64, want: f64, abs: f64, rel: f64) -> f64 {
    if got == want {
        return 0.0;
    }
    let ratio = (got - want).abs() / (abs + rel * want.abs());
    // An infinite `want` makes the limit infinite too, and the ratio NaN: that is a failure, as NaN itself is.
    if ratio.is_nan() { f64::INFINITY } else { ratio }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message of the panic that `assert_close` gives, or `None` when it passes.
    fn complaint(got: &[f32], want: &[f32], abs: f64, rel: f64) -> Option<String> {
        let (got, want) = (got.to_vec(), want.to_vec());
        let outcome = std::panic::catch_unwind(move || assert_close(&got, &want, abs, rel, "x"));
        outcome.err().map(|e| e.downcast_ref::<String>().cloned().unwrap_or_default())
    }

    #[test]
    fn the_limit_is_absolute_plus_relative() {
        assert_eq!(complaint(&[1.0, 101.0], &[1.0, 100.0], 0.5, 0.005), None);
        assert!(complaint(&[101.5], &[100.0], 0.5, 0.005).is_some());
        assert!(complaint(&[1.0], &[1.0 + f32::EPSILON], 0.0, 0.0).is_some());
        assert!(complaint(&[1.0], &[1.0, 2.0], 1.0, 1.0).is_some());
    }

    #[test]
    fn the_worst_index_is_named() {
        let text = complaint(&[0.0, 3.0, 1.0], &[0.0, 0.0, 0.0], 0.1, 0.0).unwrap();
        assert!(text.contains("2 of 3") && text.contains("index 1"), "{text}");
    }

    #[test]
    fn nan_never_passes_and_infinities_must_be_equal() {
        let inf = f32::INFINITY;
        for (g, w) in [(f32::NAN, 0.0), (0.0, f32::NAN), (f32::NAN, f32::NAN), (inf, -inf), (0.0, inf), (inf, 0.0)] {
            assert!(complaint(&[g], &[w], 1e30, 1e30).is_some(), "{g} against {w}");
        }
        assert_eq!(complaint(&[inf], &[inf], 0.0, 0.0), None);
    }
}
