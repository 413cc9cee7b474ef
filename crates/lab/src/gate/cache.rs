//! Cached keys and values of the timed path against those of its judge.
//!
//! Keys and values have no unit: they are as large as a model's weights make them. What rounding does to them is a share of them,
//! and it does it to a whole row at a time, since every number of a token's keys is a sum over the same activations. So what is
//! compared are vectors, and a difference is a share of the length that the judge's have.
//!
//! A model may make the noise of a single token large: where an activation is about to become one of those that outgrow all
//! others, a difference of a hundredth before it is one of a tenth behind it, on both sides of which lies the exact result.
//! So the token that is furthest away has a limit of its own, which the row of another token exceeds, and all others together have a
//! tight one, which finds what is a little wrong in many.

use half::bf16;
use tare_core::DType;
use tare_engine::ExportedKv;

use super::Finding;

/// Differences of the keys and of the values of each layer.
#[derive(Debug, Default)]
pub(super) struct Differences {
    /// Over all tokens but the furthest.
    pub(super) others: Vec<Finding>,
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
            let (mut others, mut furthest) = (Squares::default(), (0, Squares::default()));
            for (t, (e, f)) in e.chunks(token).zip(f.chunks(token)).enumerate() {
                let mut own = Squares::default();
                e.chunks_exact(width).zip(f.chunks_exact(width)).for_each(|(e, f)| own.add(number(e), number(f)));
                // What is no number is not exceeded.
                let further = own.share() > furthest.1.share() || own.share().is_nan();
                others.join(if further { std::mem::replace(&mut furthest, (t, own)).1 } else { own });
            }
            let at = format!("layer {} {}", i / 2, if i % 2 == 0 { "keys" } else { "values" });
            let finding = |of: Squares, found: String| Finding {
                at: at.clone(),
                error: of.share(),
                expected: "the judge's".into(),
                found: format!("{found} {} of their length away", of.share()),
            };
            all.furthest.push(finding(furthest.1, format!("those of token {}", furthest.0)));
            all.others.push(finding(others, format!("those of all tokens but {}", furthest.0)));
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
        Self { others: vec![one.clone()], furthest: vec![one] }
    }

    /// Adds those of another sequence, whose places are within `named`.
    pub(super) fn extend(&mut self, other: Self, named: &str) {
        let place = |f: Finding| Finding { at: format!("{named}{}", f.at), ..f };
        self.others.extend(other.others.into_iter().map(place));
        self.furthest.extend(other.furthest.into_iter().map(place));
    }
}

/// Squares of the distance of two vectors and of the length of the first.
#[derive(Clone, Copy, Debug, Default)]
struct Squares {
    distance: f64,
    length: f64,
}

impl Squares {
    fn add(&mut self, expected: f64, found: f64) {
        self.distance += (found - expected).powi(2);
        self.length += expected.powi(2);
    }

    fn join(&mut self, other: Self) {
        self.distance += other.distance;
        self.length += other.length;
    }

    /// The distance as a share of the length: 0 for the same numbers, infinite beside nothing.
    fn share(self) -> f64 {
        if self.distance == 0.0 { 0.0 } else { (self.distance / self.length).sqrt() }
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

    fn errors(expected: &ExportedKv, found: &ExportedKv) -> [Vec<f64>; 2] {
        let d = Differences::between(expected, found);
        [d.others, d.furthest].map(|findings| findings.iter().map(|f| f.error).collect())
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
            let right = kv(&[a, a, b], &[a, a, b]);
            for keys in [[near, a, far], [a, near, far]] {
                let [others, furthest] = errors(&right, &kv(&keys, &[a, a, b]));
                assert!((furthest[0] - 0.75).abs() < 1e-6, "{size}: {furthest:?}");
                assert!((others[0] - 0.5 / 50f64.sqrt()).abs() < 1e-6, "{size}: {others:?}");
                assert_eq!([others[1], furthest[1]], [0.0, 0.0], "{size}");
            }
        }
    }

    #[test]
    fn what_is_no_number_and_what_has_no_length_differ() {
        let (a, zeros) = ([1.0, 2.0, 3.0, 4.0], [0.0; HEAD]);
        let none = [1.0, f32::NAN, 3.0, 4.0];
        let [others, furthest] = errors(&kv(&[a, a], &[a, zeros]), &kv(&[none, a], &[a, a]));
        assert!(furthest[0].is_nan(), "also where a number follows");
        assert_eq!((others[0], others[1], furthest[1]), (0.0, 0.0, f64::INFINITY));
        assert!(errors(&kv(&[a, a], &[a, a]), &kv(&[none, none], &[a, a])).iter().all(|e| e[0].is_nan()));
        assert_eq!(errors(&kv(&[a], &[zeros]), &kv(&[a], &[zeros])), [vec![0.0; 2], vec![0.0; 2]]);
        assert_eq!(errors(&kv(&[a], &[a]), &kv(&[a, a], &[a, a])), [[f64::INFINITY], [f64::INFINITY]]);
    }

    /// Names of the checks over their limits in class `class`.
    fn missed(class: &str, differences: &Differences) -> Vec<String> {
        let limits = Thresholds::built_in().unwrap().emulation(Class::by_name(class).unwrap());
        let mut r = GateReport { thresholds_version: "t".into(), checks: vec![], misses: vec![] };
        r.add(CACHE, limits.kv, &differences.others);
        r.add(CACHED_TOKENS, limits.kv_token, &differences.furthest);
        r.misses.into_iter().map(|m| m.check).collect()
    }

    #[test]
    fn one_wrong_row_and_a_little_everywhere_are_seen_and_one_token_on_edge_is_not() {
        let (keys, values) = (noise(2000, 8.0), noise(2000, 0.1));
        let right = kv(&keys, &values);
        let against = |keys: &[[f32; HEAD]]| missed("bf16-free", &Differences::between(&right, &kv(keys, &values)));
        let mut swapped = keys.clone();
        swapped[700] = [-keys[700][1], keys[700][0], -keys[700][3], keys[700][2]];
        assert_eq!(against(&swapped), [CACHED_TOKENS], "a row that is turned");
        let all: Vec<[f32; HEAD]> = keys.iter().map(|k| k.map(|x| x * 1.05)).collect();
        assert_eq!(against(&all), [CACHE], "every row a little");
        let mut edge = keys.clone();
        edge[1] = keys[1].map(|x| x * 1.4);
        assert!(against(&edge).is_empty(), "the noise of one token, made large by the model");
        let mut bit = keys.clone();
        bit[1][0] = bit[1][0].next_up();
        let one = Differences::between(&right, &kv(&bit, &values));
        assert_eq!(missed("bf16", &one), [CACHED_TOKENS], "an order that is kept leaves nothing open");
        bit[2][0] = bit[2][0].next_up();
        let two = Differences::between(&right, &kv(&bit, &values));
        assert_eq!(missed("bf16", &two), [CACHE, CACHED_TOKENS]);
    }

    #[test]
    fn a_cache_of_other_tokens_is_a_miss_under_any_limit() {
        for (expected, found) in [(&[4, 5, 6][..], &[4, 7, 6][..]), (&[4, 5][..], &[4][..])] {
            let other = Differences::of_tokens(expected, found);
            assert_eq!(missed("bf16-free", &other), [CACHE, CACHED_TOKENS]);
            assert_eq!(other.others[0].at, "cached token 1");
        }
    }
}
