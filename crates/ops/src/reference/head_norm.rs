//! RMSNorm of each head by itself: the QK-norm of Qwen3.

use super::rms_norm::inverse_rms;

/// Normalises each head of `x` in place, in the order of [`rms_norm`](super::rms_norm::rms_norm). x [heads * E], weight [E]
///
/// # Panics
/// When `x` is no whole number of heads.
pub fn head_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    assert!(x.len().is_multiple_of(weight.len()), "x is a whole number of heads");
    for head in x.chunks_exact_mut(weight.len()) {
        let inv = inverse_rms(head, eps);
        for (x, w) in head.iter_mut().zip(weight) {
            *x = (*x * inv) * w;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::rms_norm::rms_norm;

    #[test]
    fn each_head_is_an_rms_norm() {
        let x: Vec<f32> = (0..192).map(|i| (i as f32 * 0.3).sin() * (1.0 + i as f32)).collect();
        let w: Vec<f32> = (0..64).map(|i| 0.5 + i as f32 * 0.01).collect();
        let mut got = x.clone();
        head_norm(&mut got, &w, 1e-6);
        for h in 0..3 {
            let mut want = vec![0.0; 64];
            rms_norm(&x[h * 64..][..64], &w, 1e-6, &mut want);
            assert_eq!(&got[h * 64..][..64], &want[..], "head {h}");
        }
    }
}
