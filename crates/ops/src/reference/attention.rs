//! Softmax attention of one query head over cached tokens, in two passes.

use super::exp::exp;
use super::lanes;

/// `out = softmax(scale * q K^T) V` for one query head; gives `ln(sum_j e^(s_j))`, the log of the denominator.
///
/// `tokens` gives the key and value [E] of each token that may be seen, from token 0; there is at least one.
/// q, out [E]; `scores` is working memory.
///
/// The order, whatever the pages: `s_j = dot(q, k_j) * scale`; `m` the largest; `p_j = exp(s_j - m)`; the denominator
/// sums `p` in lanes; `out[e]` takes `p_j * v_j[e]`, fused, for `j` ascending, and is divided by the denominator once.
pub fn attend<'a>(
    q: &[f32],
    scale: f32,
    tokens: impl Iterator<Item = (&'a [f32], &'a [f32])> + Clone,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) -> f64 {
    scores.clear();
    scores.extend(tokens.clone().map(|(k, _)| lanes::dot(q, k) * scale));
    let m = lanes::max(scores);
    for s in scores.iter_mut() {
        *s = exp(*s - m);
    }
    let denominator = lanes::sum(scores);
    out.fill(0.0);
    for (p, (_, v)) in scores.iter().zip(tokens) {
        for (o, v) in out.iter_mut().zip(v) {
            *o = p.mul_add(*v, *o);
        }
    }
    for o in out.iter_mut() {
        *o /= denominator;
    }
    f64::from(m) + f64::from(denominator).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_gives_its_value_and_equal_scores_the_mean() {
        let (k, v) = ([1.0f32, 2.0], [[3.0f32, -5.0], [5.0, 7.0]]);
        let mut out = [f32::NAN; 2];
        let lse = attend(&[2.0, 1.0], 0.5, [(&k[..], &v[0][..])].into_iter(), &mut Vec::new(), &mut out);
        assert_eq!((out, lse), ([3.0, -5.0], 2.0));
        let both = [(&k[..], &v[0][..]), (&k[..], &v[1][..])];
        attend(&[2.0, 1.0], 0.5, both.into_iter(), &mut Vec::new(), &mut out);
        assert_eq!(out, [4.0, 1.0]);
    }

    #[test]
    fn far_scores_neither_overflow_nor_vanish() {
        let (k, v) = ([[1.0f32], [-1.0]], [[1.0f32], [2.0]]);
        let tokens = [(&k[0][..], &v[0][..]), (&k[1][..], &v[1][..])];
        let mut out = [f32::NAN];
        let lse = attend(&[1e4], 1.0, tokens.into_iter(), &mut Vec::new(), &mut out);
        assert_eq!((out, lse), ([1.0], 1e4));
        attend(&[-1e4], 1.0, tokens.into_iter(), &mut Vec::new(), &mut out);
        assert_eq!(out, [2.0]);
    }
}
