//! Cached keys and values of the timed path against those of its judge.
//!
//! Keys and values have no unit: they are as large as a model's weights make them. What rounding does to them is a share of them,
//! and it does it to a whole row at a time, since every number of a token's keys is a sum over the same activations. So what is
//! compared are vectors, and a difference is a share of the length that the judge's have.
//!
//! A model may make the noise of a single token large: where an activation is about to become one of those that outgrow all
//! others, a difference of a hundredth before it is one of a tenth behind it, with nobody wrong. So the token of a layer that
//! is furthest away has a wide limit, which the row of another token exceeds. The fourth has a tight one, which finds faults in a few
//! rows as well as in all, however long the cache is: a sum over all tokens loses the few among the many.

use half::bf16;
use tare_core::DType;
use tare_engine::ExportedKv;

use super::Finding;

/// Tokens of a layer whose noise a model may make large.
const SINGLE: usize = 3;

/// Differences of the keys and of the values of each layer.
#[derive(Debug, Default)]
pub(super) struct Differences {
    /// Of the token that is furthest away behind [`SINGLE`] others; in shorter caches of the nearest token.
    pub(super) several: Vec<Finding>,
    /// Of the token that is furthest away.
    pub(super) furthest: Vec<Finding>,
}

impl Differences {
    /// The differences of `found` from `expected`. Caches of different sizes differ everywhere.
    pub(super) fn between(expected: &ExportedKv, found: &ExportedKv) -> Self {
        let (dtype, shape) = (expected.shape.dtype, expected.shape);
        let width = dtype.bytes();
        let number = |b: &[u8]| match dtype {
            DType::BF16 => f64::from(bf16::from_le_bytes([b[0], b[1]]).to_f32()),
            _ => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        };
        if expected.bytes.len() != found.bytes.len() {
            let bytes = |kv: &ExportedKv| format!("{} bytes", kv.bytes.len());
            return Self::infinite("the cache", bytes(expected), bytes(found));
        }
        let plane = (expected.bytes.len() / (2 * shape.layers)).max(width);
        let token = (shape.kv_heads * shape.head_size * width).max(width);
        let mut all = Self::default();
        for (i, (e, f)) in expected.bytes.chunks(plane).zip(found.bytes.chunks(plane)).enumerate() {
            let of_token =
                |(e, f): (&[u8], &[u8])| share(e.chunks_exact(width).map(number), f.chunks_exact(width).map(number));
            let mut tokens: Vec<(f64, usize)> = e.chunks(token).zip(f.chunks(token)).map(of_token).zip(0..).collect();
            tokens.sort_by(|a, b| b.0.total_cmp(&a.0));
            let at = format!("layer {} {}", i / 2, if i % 2 == 0 { "keys" } else { "values" });
            let finding = |of: Option<&(f64, usize)>| {
                let (error, token) = of.copied().unwrap_or_default();
                let found = format!("those of token {token} {error} of their length away");
                Finding { at: at.clone(), error, expected: "the judge's".into(), found }
            };
            all.furthest.push(finding(tokens.first()));
            all.several.push(finding(tokens.get(SINGLE.min(tokens.len().saturating_sub(1)))));
        }
        all
    }

    /// What a cache of other tokens than those that were timed is: a miss whatever the limits.
    pub(super) fn of_tokens(expected: &[u32], found: &[u32]) -> Self {
        let at = expected.iter().zip(found).position(|(a, b)| a != b).unwrap_or(expected.len().min(found.len()));
        let shown = |tokens: &[u32]| format!("{:?} there, {} tokens in all", tokens.get(at), tokens.len());
        Self::infinite(&format!("cached token {at}"), shown(expected), shown(found))
    }

    fn infinite(at: &str, expected: String, found: String) -> Self {
        let one = Finding { at: at.into(), error: f64::INFINITY, expected, found };
        Self { several: vec![one.clone()], furthest: vec![one] }
    }

    /// Adds those of another sequence, whose places are within `named`.
    pub(super) fn extend(&mut self, other: Self, named: &str) {
        let place = |f: Finding| Finding { at: format!("{named}{}", f.at), ..f };
        self.several.extend(other.several.into_iter().map(place));
        self.furthest.extend(other.furthest.into_iter().map(place));
    }
}

/// The distance of `found` from `expected` as a share of the length of `expected`: 0 for the same numbers, infinite beside zeros.
fn share(expected: impl Iterator<Item = f64>, found: impl Iterator<Item = f64>) -> f64 {
    let add = |(distance, length): (f64, f64), (e, f): (f64, f64)| (distance + (f - e).powi(2), length + e.powi(2));
    let (distance, length) = expected.zip(found).fold((0.0, 0.0), add);
    match (distance / length).sqrt() {
        _ if distance == 0.0 => 0.0,
        // Of the sign that is sorted as the largest.
        share if share.is_nan() => f64::NAN,
        share => share,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{Add, CACHE, CACHED_TOKENS};
    use crate::thresholds::Thresholds;
    use tare_evidence::gate::GateReport;
    use tare_ops::{Class, KvShape};

    const HEAD: usize = 4;

    /// One layer with one head of `keys`, and as many values.
    fn kv(keys: &[[f32; HEAD]], values: &[[f32; HEAD]]) -> ExportedKv {
        ExportedKv {
            tokens: vec![0; keys.len()],
            shape: KvShape { layers: 1, kv_heads: 1, head_size: HEAD, dtype: DType::F32 },
            bytes: [keys, values].concat().iter().flatten().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    /// Errors of keys and values: of several tokens, and of the furthest.
    fn errors(expected: &ExportedKv, found: &ExportedKv) -> [Vec<f64>; 2] {
        let d = Differences::between(expected, found);
        [d.several, d.furthest].map(|findings| findings.iter().map(|f| f.error).collect())
    }

    /// Keys or values of a cache as large as `size`, each token another vector.
    fn noise(tokens: usize, size: f32) -> Vec<[f32; HEAD]> {
        (0..tokens).map(|t| std::array::from_fn(|e| size * (1.0 + ((7 * t + 3 * e) % 11) as f32))).collect()
    }

    #[test]
    fn a_difference_is_a_share_of_the_length_whatever_the_size() {
        for size in [1e-3f32, 1.0, 512.0] {
            let (a, b) = ([3.0 * size, 0.0, 4.0 * size, 0.0], [0.0, size, 0.0, 0.0]);
            let near = [3.0 * size, 0.5 * size, 4.0 * size, 0.0];
            let far = [0.0, size, 0.0, 0.75 * size];
            let right = kv(&[a, a, b, b, b], &[a, a, b, b, b]);
            for keys in [[near, a, far, far, far], [a, near, far, far, far]] {
                let [several, furthest] = errors(&right, &kv(&keys, &[a, a, b, b, b]));
                assert!((furthest[0] - 0.75).abs() < 1e-6, "{size}: {furthest:?}");
                assert!((several[0] - 0.1).abs() < 1e-6, "{size}: {several:?}");
                assert_eq!([several[1], furthest[1]], [0.0, 0.0], "{size}");
            }
        }
    }

    #[test]
    fn what_is_no_number_and_what_has_no_length_differ() {
        let (a, zeros) = ([1.0, 2.0, 3.0, 4.0], [0.0; HEAD]);
        for none in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let none = [1.0, none, 3.0, 4.0];
            let [several, furthest] = errors(&kv(&[a, none], &[a, zeros]), &kv(&[none, none], &[a, a]));
            assert!(furthest[0].is_nan() && furthest[1] == f64::INFINITY, "{furthest:?}");
            assert!(!several[0].is_finite() && several[1] == 0.0, "the nearest of a short cache: {several:?}");
            let all = errors(&kv(&[a; 4], &[a; 4]), &kv(&[none; 4], &[a; 4]));
            assert!(all.iter().all(|e| !e[0].is_finite() && e[1] == 0.0), "{all:?}");
        }
        assert_eq!(errors(&kv(&[a], &[zeros]), &kv(&[a], &[zeros])), [vec![0.0; 2], vec![0.0; 2]]);
        assert_eq!(errors(&kv(&[a], &[a]), &kv(&[a, a], &[a, a])), [[f64::INFINITY], [f64::INFINITY]]);
    }

    /// Names of the checks over their limits in class `class`.
    fn missed(class: &str, differences: &Differences) -> Vec<String> {
        let limits = Thresholds::built_in().unwrap().emulation(Class::by_name(class).unwrap());
        let mut r = GateReport { thresholds_version: "t".into(), checks: vec![], misses: vec![] };
        r.add(CACHE, limits.kv, &differences.several);
        r.add(CACHED_TOKENS, limits.kv_token, &differences.furthest);
        r.misses.into_iter().map(|m| m.check).collect()
    }

    #[test]
    fn a_wrong_row_and_several_that_are_off_are_seen_and_tokens_on_edge_are_not() {
        let (keys, values) = (noise(2000, 8.0), noise(2000, 0.1));
        let right = kv(&keys, &values);
        let differ = |change: &dyn Fn(usize, [f32; HEAD]) -> [f32; HEAD]| {
            let keys: Vec<[f32; HEAD]> = keys.iter().enumerate().map(|(t, k)| change(t, *k)).collect();
            Differences::between(&right, &kv(&keys, &values))
        };
        let turned = differ(&|t, k| if t == 700 { [-k[1], k[0], -k[3], k[2]] } else { k });
        assert_eq!(missed("bf16-free", &turned), [CACHED_TOKENS], "a row that is another one");
        let last = differ(&|t, k| if t >= 1996 { k.map(|x| x * 1.25) } else { k });
        assert_eq!(missed("bf16-free", &last), [CACHE], "a few rows, by less than one alone may be");
        let edge = differ(&|t, k| k.map(|x| x * if (1..=SINGLE).contains(&t) { 1.4 } else { 1.05 }));
        assert_eq!(missed("bf16-free", &edge), [""; 0], "noise, which the model makes large in single tokens");
        for tokens in 1..=SINGLE + 1 {
            let bit = differ(&|t, k| if t < tokens { k.map(f32::next_up) } else { k });
            let of = if tokens > SINGLE { &[CACHE, CACHED_TOKENS][..] } else { &[CACHED_TOKENS] };
            assert_eq!(missed("bf16", &bit), of, "an order that is kept leaves nothing open");
        }
    }

    #[test]
    fn a_cache_of_other_tokens_is_a_miss_under_any_limit() {
        for (expected, found) in [(&[4, 5, 6][..], &[4, 7, 6][..]), (&[4, 5][..], &[4][..])] {
            let other = Differences::of_tokens(expected, found);
            assert_eq!(missed("bf16-free", &other), [CACHE, CACHED_TOKENS]);
            assert_eq!(other.several[0].at, "cached token 1");
        }
    }
}
