//! Root-mean-square normalisation (Zhang and Sennrich, arXiv 1910.07467).

use super::lanes;

/// `out = (x * inv) * weight` with `inv = 1 / sqrt(dot(x, x) / D + eps)`. x, weight, out [D]
///
/// # Panics
/// When the lengths differ.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!((weight.len(), out.len()), (x.len(), x.len()), "weight and out are as long as x");
    let inv = inverse_rms(x, eps);
    for ((o, x), w) in out.iter_mut().zip(x).zip(weight) {
        *o = (x * inv) * w;
    }
}

/// `1 / sqrt(dot(x, x) / D + eps)`, every operation rounded to F32.
pub fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (lanes::dot(x, x) / x.len() as f32 + eps).sqrt()
}
