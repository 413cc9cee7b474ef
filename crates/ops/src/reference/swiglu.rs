//! The gated unit of the feed-forward block (Shazeer, arXiv 2002.05202).

use super::exp::silu;

/// `gate = silu(gate) * up`, in place. [F]
///
/// # Panics
/// When the lengths differ.
pub fn swiglu(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up are of one length");
    for (g, u) in gate.iter_mut().zip(up) {
        *g = silu(*g) * u;
    }
}
