//! What operators give exactly, computed in F64, and how far from it a kernel with an order of its own may be.
//!
//! A limit is a share of the sum of the sizes of what is added, whatever cancels: no order of F32 sums is further away,
//! and one term that is missing, twice there or of another row is. Conformance holds kernels against these limits, and the
//! gate the launches of a step.

use std::ops::Range;

use tare_core::Weight;
use tare_formats::codec::dequantize_row;

use crate::class::Rounding;
use crate::plan::RopeStyle;
use crate::reference::linear::round_bf16;
use crate::reference::{int8, int16};
use crate::variant::Slack;

/// Share of the sizes of the terms of a sum that rounding its partial sums may cost: 2^-15, room for a few hundred
/// roundings in one direction, and for quants that are multiplied with an offset which a sum of x takes out again.
const SUM: f64 = 1.0 / 32_768.0;
/// Share that weights of attention may be off: they travel as two BF16 numbers.
const WEIGHT: f64 = 1.0 / 65_536.0;
/// What a score may be off, as a share of the sizes of its terms.
const SCORE: f64 = 1.0 / 1_048_576.0;
/// Relative limit of results that are no sums of both signs: norms, gated units, sums of exponentials
/// ([`log_probabilities`]). 2^-17, which is 128 times [`ROUNDED`].
const RELATIVE: f64 = 1.0 / 131_072.0;
/// Rounding to F32, as a share of the number.
const ROUNDED: f64 = 1.0 / 16_777_216.0;
/// Rounding to BF16, as a share of the number.
const BF16: f64 = 1.0 / 256.0;
/// Numbers so small may be lost: units that multiply in BF16 need not keep those below the least normal one.
const LOST: f64 = 1e-36;
/// The same of an operand of a product, which loses it times the other one.
const LEAST: f64 = f32::MIN_POSITIVE as f64;
/// The steepest that `x / (1 + e^-x)` is.
const SILU_SLOPE: f64 = 1.1;

/// Numbers of one row, each known to lie within a limit of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    /// The exact results.
    pub value: Vec<f64>,
    /// The largest differences from them; 0 where a number is known.
    pub limit: Vec<f64>,
}

impl Bounds {
    /// Numbers that are known.
    pub fn exactly(numbers: &[f32]) -> Self {
        Self { value: numbers.iter().map(|x| f64::from(*x)).collect(), limit: vec![0.0; numbers.len()] }
    }

    /// Results that are no sums of both signs, by what the reference gives for them.
    pub fn around(reference: &[f32]) -> Self {
        let mut bounds = Self::exactly(reference);
        for (limit, value) in bounds.limit.iter_mut().zip(&bounds.value) {
            *limit = RELATIVE * value.abs() + LOST;
        }
        bounds
    }

    /// The numbers, when all are known.
    pub fn numbers(&self) -> Option<Vec<f32>> {
        self.limit.iter().all(|l| *l == 0.0).then(|| self.value.iter().map(|v| *v as f32).collect())
    }

    /// How far `got` is from element `i`, as a share of its limit: at most 1 inside, not a number when `got` is none.
    pub fn off(&self, i: usize, got: f32) -> f64 {
        let (error, limit) = ((f64::from(got) - self.value[i]).abs(), self.limit[i]);
        if error == 0.0 { 0.0 } else { error / limit }
    }

    /// What becomes of the numbers when each is rounded to BF16. A number that is known stays known, unless it is below the
    /// least normal one, which some instructions take for 0.
    pub fn to_bf16(mut self) -> Self {
        for (value, limit) in self.value.iter_mut().zip(&mut self.limit) {
            if *limit > 0.0 {
                *limit += BF16 * (value.abs() + *limit);
            } else if value.abs() >= f64::from(f32::MIN_POSITIVE) {
                *value = f64::from(round_bf16(*value as f32));
            } else {
                *limit = value.abs();
            }
        }
        self
    }

    /// Adds `other`, as one more term of each sum.
    pub fn add(&mut self, other: &Bounds) {
        for (i, (value, limit)) in other.value.iter().zip(&other.limit).enumerate() {
            self.value[i] += value;
            self.limit[i] += SUM * value.abs() + limit;
        }
    }
}

/// A row as a product takes it: rounded where the class says so.
#[derive(Clone, Debug)]
pub struct Taken {
    value: Vec<f64>,
    /// Columns that are not quite known, and by how much.
    open: Vec<(usize, f64)>,
}

impl Taken {
    /// The row `x`, as a kernel of `slack` takes it. Where it is not quite known, it may be rounded to either side. Rounded to
    /// 8 bits, each number is open by half a step of its block.
    pub fn new(x: &Bounds, rounding: Rounding, slack: Slack) -> Self {
        if rounding == Rounding::Int8 {
            let steps = half_steps(x).zip(&x.limit).map(|(step, limit)| step + limit);
            let open = steps.enumerate().filter(|(_, by)| *by != 0.0).collect();
            return Self { value: x.value.clone(), open };
        }
        // Numbers of a device are F32; where they are known, so is `v`.
        let in_blocks = rounding == Rounding::Int15 || slack == Slack::Int16Blocks;
        let bf16 = rounding == Rounding::Bf16 || rounding == Rounding::Int15;
        let taken = |v: f64| if bf16 { f64::from(round_bf16(v as f32)) } else { v };
        let value: Vec<f64> = x.value.iter().map(|v| taken(*v)).collect();
        let apart = |i: usize| {
            let (v, limit) = (x.value[i], x.limit[i]);
            (taken(v + limit) - value[i]).max(value[i] - taken(v - limit))
        };
        let open = (0..value.len()).filter(|i| x.limit[*i] != 0.0).map(|i| (i, apart(i)));
        let open = open.filter(|(_, by)| *by != 0.0).collect();
        let taken = Self { value, open };
        if in_blocks { taken.in_blocks() } else { taken }
    }

    /// As integers of 15 bits. Where one number of a block is open, so is the step of all.
    fn in_blocks(mut self) -> Self {
        let mut by = vec![0.0; self.value.len()];
        self.open.iter().for_each(|(i, open)| by[*i] = *open);
        for (values, by) in self.value.chunks_mut(int16::BLOCK).zip(by.chunks_mut(int16::BLOCK)) {
            let mut x = [0.0; int16::BLOCK];
            x.iter_mut().zip(&*values).for_each(|(x, v)| *x = *v as f32);
            if by.iter().all(|by| *by == 0.0) {
                let block = int16::Block::of(&x);
                let taken = block.codes.iter().map(|c| f64::from(*c) * f64::from(block.scale));
                values.iter_mut().zip(taken).for_each(|(v, taken)| *v = taken);
            } else {
                let sizes = values.iter().zip(&*by).map(|(v, by)| v.abs() + by);
                let most = sizes.fold(0.0, f64::max);
                let half_step = most / if most < f64::from(int16::LEAST) { 1.0 } else { f64::from(int16::MOST) };
                by.iter_mut().for_each(|by| *by += half_step);
            }
        }
        self.open = by.into_iter().enumerate().filter(|(_, by)| *by != 0.0).collect();
        self
    }
}

/// What rounding to 8 bits may change each number by: half a step of its block, and the roundings of the step itself; all
/// of it where the block becomes zeros.
fn half_steps(x: &Bounds) -> impl Iterator<Item = f64> {
    let blocks = x.value.chunks(int8::BLOCK).zip(x.limit.chunks(int8::BLOCK));
    blocks.flat_map(|(values, limits)| {
        let most = values.iter().zip(limits).fold(0.0f64, |m, (v, limit)| m.max(v.abs() + limit));
        let half_step = most * if most < f64::from(int8::LEAST) { 1.0 } else { 0.5001 / f64::from(int8::MOST) };
        std::iter::repeat_n(half_step, values.len())
    })
}

/// A sum that the processor can make several elements at a time.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    const SIDE_BY_SIDE: usize = 8;
    let mut sums = [0.0; SIDE_BY_SIDE];
    let (a, b) = (a.as_chunks::<SIDE_BY_SIDE>(), b.as_chunks::<SIDE_BY_SIDE>());
    for (a, b) in a.0.iter().zip(b.0) {
        for i in 0..SIDE_BY_SIDE {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f64>() + a.1.iter().zip(b.1).map(|(a, b)| a * b).sum::<f64>()
}

/// `dot(x[t], w[n])` for the output features `of`, row by row of x. Bias and what is added to follow by [`Bounds::add`].
///
/// The size of a term is that of x times the largest weight of the block, in which quants share a scale.
pub fn products(weight: &Weight, slack: Slack, of: Range<usize>, x: &[Taken]) -> Vec<Bounds> {
    let (block, cols) = (weight.format().block_weights().max(1), weight.cols());
    let sizes = |x: &Taken| x.value.chunks(block).map(|b| b.iter().map(|x| x.abs()).sum()).collect();
    let sizes: Vec<Vec<f64>> = x.iter().map(sizes).collect();
    let (mut row, mut w, mut largest) = (vec![0.0f32; cols], vec![0.0f64; cols], vec![0.0f64; cols.div_ceil(block)]);
    let none = || Bounds { value: Vec::with_capacity(of.len()), limit: Vec::with_capacity(of.len()) };
    let mut bounds: Vec<Bounds> = x.iter().map(|_| none()).collect();
    for n in of.clone() {
        dequantize_row(weight, n, &mut row);
        for (largest, block) in largest.iter_mut().zip(row.chunks(block)) {
            *largest = f64::from(block.iter().fold(0.0f32, |m, w| m.max(w.abs())));
        }
        for (w, x) in w.iter_mut().zip(&row) {
            *w = f64::from(if slack == Slack::Bf16Products { round_bf16(*x) } else { *x });
        }
        let weights: f64 = w.iter().map(|w| w.abs()).sum();
        for ((x, sizes), bounds) in x.iter().zip(&sizes).zip(&mut bounds) {
            let open: f64 = x.open.iter().map(|(k, by)| by * w[*k].abs()).sum();
            let lost = LEAST * (weights + sizes.iter().sum::<f64>());
            bounds.value.push(dot(&x.value, &w));
            bounds.limit.push(SUM * dot(sizes, &largest) + open + lost + LOST);
        }
    }
    bounds
}

/// Softmax attention of one query head over the tokens whose keys and values are given. q, each key and value [E]
pub fn attention(q: &[f32], scale: f32, slack: Slack, keys: &[&[f32]], values: &[&[f32]]) -> Bounds {
    let rounded = slack == Slack::Bf16Products;
    let q: Vec<f64> = q.iter().map(|q| f64::from(if rounded { round_bf16(*q) } else { *q })).collect();
    let scale = f64::from(scale);
    let score = |key: &&[f32]| {
        let terms = q.iter().zip(key.iter()).map(|(q, k)| q * f64::from(*k));
        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    };
    let scores: Vec<(f64, f64)> = keys.iter().map(score).collect();
    let size = scores.iter().fold(0.0f64, |m, (_, size)| m.max(size * scale.abs()));
    let most = scores.iter().fold(f64::NEG_INFINITY, |m, (s, _)| m.max(s * scale));
    let weights: Vec<f64> = scores.iter().map(|(s, _)| (s * scale - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut bounds = Bounds { value: vec![0.0; q.len()], limit: vec![0.0; q.len()] };
    let mut largest = 0.0f64;
    for (w, v) in weights.iter().zip(values) {
        for ((value, limit), v) in bounds.value.iter_mut().zip(&mut bounds.limit).zip(v.iter()) {
            let v = f64::from(*v);
            *value += w / sum * v;
            *limit += w / sum * v.abs();
            largest = largest.max(v.abs());
        }
    }
    // Weights have the sum 1, whatever they are.
    let share = (WEIGHT + SCORE * size).min(2.0);
    for limit in &mut bounds.limit {
        // So far it is the size of what is added.
        *limit = share * largest + LOST + if rounded { BF16 * *limit } else { 0.0 };
    }
    bounds
}

/// `silu(gate) * up`.
pub fn swiglu(gate: &Bounds, up: &Bounds) -> Bounds {
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let each = |i: usize| {
        let (g, u) = (silu(gate.value[i]), up.value[i]);
        let (open_g, open_u) = (SILU_SLOPE * gate.limit[i], up.limit[i]);
        let open = open_g * u.abs() + g.abs() * open_u + open_g * open_u;
        (g * u, RELATIVE * ((g * u).abs() + open) + open + LOST)
    };
    let (value, limit) = (0..gate.value.len()).map(each).unzip();
    Bounds { value, limit }
}

/// `x / sqrt(mean(x^2) + eps) * weight` of each head of as many numbers as the weight has.
///
/// The root is off by no more than the root of the mean of the squared limits: it is the length of a vector.
pub fn head_norm(x: &Bounds, weight: &[f32], eps: f32) -> Bounds {
    let (n, eps) = (weight.len(), f64::from(eps));
    let mean = |head: &[f64]| head.iter().map(|v| v * v).sum::<f64>() / n as f64;
    let (mut value, mut limit) = (Vec::with_capacity(x.value.len()), Vec::with_capacity(x.value.len()));
    for (values, limits) in x.value.chunks(n).zip(x.limit.chunks(n)) {
        let (root, open) = ((mean(values) + eps).sqrt(), mean(limits).sqrt());
        let least = (root - open).max(eps.sqrt());
        for ((v, l), w) in values.iter().zip(limits).zip(weight) {
            let (normed, w) = (v / root, f64::from(*w));
            let off = w.abs() * (l + normed.abs() * open) / least;
            value.push(normed * w);
            limit.push(off + RELATIVE * ((normed * w).abs() + off) + LOST);
        }
    }
    Bounds { value, limit }
}

/// The heads of a row, rotated by the angles of its position. cos, sin [E / 2]
pub fn rotated(x: &Bounds, style: RopeStyle, cos: &[f32], sin: &[f32]) -> Bounds {
    let pairs = cos.len();
    let mut turned = Bounds { value: vec![0.0; x.value.len()], limit: vec![0.0; x.value.len()] };
    for head in (0..x.value.len()).step_by(2 * pairs) {
        for (i, (c, s)) in cos.iter().zip(sin).enumerate() {
            let (c, s) = (f64::from(*c), f64::from(*s));
            let (a, b) = match style {
                RopeStyle::HalfSplit => (head + i, head + pairs + i),
                RopeStyle::Interleaved => (head + 2 * i, head + 2 * i + 1),
            };
            for (to, from, other, other_by) in [(a, a, b, -s), (b, b, a, s)] {
                let (v, w) = (x.value[from] * c, x.value[other] * other_by);
                let off = x.limit[from] * c.abs() + x.limit[other] * other_by.abs();
                turned.value[to] = v + w;
                turned.limit[to] = off + RELATIVE * (v.abs() + w.abs() + off) + LOST;
            }
        }
    }
    turned
}

/// `ln sum_i e^(x_i)` of a row of logits, in F64.
pub fn log_sum(logits: &[f32]) -> f64 {
    let most = logits.iter().fold(f64::NEG_INFINITY, |m, x| m.max(f64::from(*x)));
    most + logits.iter().map(|x| (f64::from(*x) - most).exp()).sum::<f64>().ln()
}

/// Log-probabilities of the logits `of` in the row `logits`, each `x - most - ln S` with `S = sum_i e^(x_i - most)`.
///
/// Nothing cancels in S, so that what it may be off is a share of it, and `ln S` is off by that share. In units of
/// u = 2^-24, what one rounding costs:
/// - A difference d = most - x is rounded by at most u d, which changes its term by that share. Over all terms that is u times
///   the mean of d, and the mean of d is at most ln V (their entropy is ln S + mean d), 12 for 151,936 logits. A part that
///   sums under a maximum of its own splits d in two, whose sizes add up to d.
/// - An exponential is within 1.1 units in the last place, 2.2 u; with the factor that brings a part under the maximum of
///   the row, and their product, 5.4 u.
/// - Each addition rounds what it has by at most u: a sum in which no term goes through more than k additions is off by k u.
///
/// The first two are below 18 u, so that 2^-17 leaves room for k = 110 in any order. Lanes that take one term after the
/// other have chains of V / lanes: the reference's 16 lanes go through 3,072 additions for 49,152 logits and may be 3,072 u
/// off, most of it where a likely token comes first and every small term is rounded against it. That order is
/// known by its bits; it is no centre for another. The logarithm is taken in F64 and rounded to F32 once.
pub fn log_probabilities(logits: &[f32], of: &[f32]) -> Bounds {
    let log_sum = log_sum(logits);
    let value: Vec<f64> = of.iter().map(|x| f64::from(*x) - log_sum).collect();
    let limit = value.iter().map(|v| RELATIVE + ROUNDED * v.abs()).collect();
    Bounds { value, limit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::exp::exp;
    use tare_core::{Blob, Format};

    /// The log-probability of the largest logit, by a sum in F32 over runs of `run` terms that are added one after the other.
    fn in_runs(logits: &[f32], run: usize) -> f32 {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sums: Vec<f32> = logits.chunks(run).map(|x| x.iter().fold(0.0, |sum, x| sum + exp(x - most))).collect();
        while sums.len() > 1 {
            sums = sums.chunks(2).map(|two| two.iter().sum()).collect();
        }
        -f64::from(sums[0]).ln() as f32
    }

    #[test]
    fn short_ways_to_add_exponentials_are_within_the_limit_of_log_probabilities_and_long_ones_are_not() {
        for vocab in [49_152, 151_936] {
            for below in [0.0f32, 1.0, 11.0, 17.0] {
                let mut logits = vec![3.0 - below; vocab];
                logits[0] = 3.0;
                let bounds = log_probabilities(&logits, &[3.0]);
                let exact = -(1.0 + (vocab - 1) as f64 * f64::from(-below).exp()).ln();
                assert!((bounds.value[0] - exact).abs() < 1e-10, "{vocab} {below}");
                for run in [1, 16, 96] {
                    let off = bounds.off(0, in_runs(&logits, run));
                    assert!(off <= 1.0, "{vocab} logits {below} under the first in runs of {run}: {off}");
                }
                logits[1] = f32::NEG_INFINITY;
                let lacks = log_probabilities(&logits, &[3.0]).value[0] as f32;
                let share = (exact - f64::from(below)).exp();
                assert!(share < 1.2 * RELATIVE || bounds.off(0, lacks) > 1.0, "a term of share {share}");
            }
            let mut peaked = vec![-17.0; vocab];
            peaked[0] = 0.0;
            assert!(log_probabilities(&peaked, &[0.0]).off(0, in_runs(&peaked, vocab / 16)) > 1.0, "{vocab}");
        }
    }

    /// The sign of a factor changes no size: neither that of a scale nor those of what it is multiplied with.
    #[test]
    fn limits_are_sizes_whatever_the_signs() {
        let (q, key, v) = ([1.5f32, -2.0, 0.25], [[0.5f32, 1.0, -3.0], [-1.0, 0.75, 2.0]], [[1.0f32, -4.0, 2.0]; 2]);
        let minus = |x: &[f32; 3]| x.map(|x| -x);
        let of = |q: &[f32], scale: f32, [k, l]: &[[f32; 3]; 2], [v, w]: &[[f32; 3]; 2]| {
            attention(q, scale, Slack::F32, &[k, l], &[v, w])
        };
        let want = of(&q, 8.0, &key, &v);
        assert!(want.limit.iter().all(|l| *l > WEIGHT * 4.0), "scores have a share: {:?}", want.limit);
        assert_eq!(of(&minus(&q), -8.0, &key, &v), want);
        assert_eq!(of(&q, -8.0, &key.map(|k| minus(&k)), &v), want);
        let turned = of(&q, 8.0, &key, &v.map(|v| minus(&v)));
        assert_eq!((turned.limit, turned.value), (want.limit, want.value.iter().map(|v| -v).collect::<Vec<_>>()));

        let unit = |gate: f64, up: f64| {
            let around = |value: f64| Bounds { value: vec![value], limit: vec![0.5] };
            swiglu(&around(gate), &around(up)).limit[0]
        };
        assert_eq!(unit(2.0, 3.0), unit(2.0, -3.0));
        let mut sum = [Bounds::exactly(&[1.0]), Bounds::exactly(&[1.0])];
        sum[0].add(&Bounds::exactly(&[3.0]));
        sum[1].add(&Bounds::exactly(&[-3.0]));
        assert_eq!(sum[0].limit, sum[1].limit);
    }

    #[test]
    fn what_is_known_is_equal_or_outside() {
        let b = Bounds::exactly(&[1.0, 0.0]);
        assert_eq!((b.off(0, 1.0), b.off(1, -0.0)), (0.0, 0.0));
        assert_eq!(b.off(0, 1.0 + f32::EPSILON), f64::INFINITY);
        assert!(b.off(0, f32::NAN).is_nan());
        assert_eq!(b.numbers(), Some(vec![1.0, 0.0]));
        assert_eq!(b.to_bf16().numbers(), Some(vec![1.0, 0.0]));
    }

    #[test]
    fn what_is_known_is_known_when_it_is_rounded() {
        // The middle of two BF16 numbers goes to the even one; a number below the least normal one may become 0.
        let b = Bounds::exactly(&[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 1e-40]).to_bf16();
        assert_eq!((b.off(0, 1.0), b.off(1, 1.0 + 4.0 / 256.0)), (0.0, 0.0));
        assert_eq!((b.off(0, 1.0 + 2.0 / 256.0), b.off(1, 1.0 + 2.0 / 256.0)), (f64::INFINITY, f64::INFINITY));
        assert!(b.off(2, 0.0) <= 1.0 && b.off(2, 1e-38) > 1.0);
    }

    #[test]
    fn what_is_nearly_known_may_be_rounded_to_either_side() {
        let unit = 1.0 / 128.0;
        // In the middle of two BF16 numbers, and far from it.
        let x = Bounds { value: vec![1.0 + unit / 2.0, 1.0 + unit / 4.0], limit: vec![1e-6; 2] };
        let taken = Taken::new(&x, Rounding::Bf16, Slack::F32);
        assert_eq!(taken.value, [1.0, 1.0]);
        assert_eq!(taken.open, [(0, unit)]);
        let as_it_is = Taken::new(&x, Rounding::F32, Slack::F32).open;
        assert!(as_it_is.iter().all(|(_, by)| (by - 1e-6).abs() < 1e-12) && as_it_is.len() == 2);
    }

    #[test]
    fn rounding_to_8_bits_opens_each_number_by_half_a_step() {
        let mut x = vec![1.0f32; int8::BLOCK + 1];
        x[int8::BLOCK] = int8::LEAST / 2.0;
        let open = Taken::new(&Bounds::exactly(&x), Rounding::Int8, Slack::F32).open;
        assert_eq!(open.len(), x.len());
        assert!((open[0].1 - 0.5001 / 127.0).abs() < 1e-9);
        assert_eq!(open[int8::BLOCK].1, f64::from(x[int8::BLOCK]), "a block that becomes zeros is open by all of it");
    }

    #[test]
    fn rounding_to_15_bits_is_known_where_the_block_is() {
        let mut x = vec![1.0f32; int16::BLOCK + 1];
        (x[1], x[int16::BLOCK]) = (0.001, 0.001);
        let of = |x: &Bounds| Taken::new(x, Rounding::Bf16, Slack::Int16Blocks);
        let by_class = |x: &Bounds| Taken::new(x, Rounding::Int15, Slack::F32);
        let mut known = Bounds::exactly(&x);
        let taken = of(&known);
        let step = 1.0 / 8192.0;
        assert_eq!((taken.value[0], taken.value[1]), (1.0, 8.0 * step));
        assert_eq!(taken.value[int16::BLOCK], f64::from(round_bf16(0.001)), "the largest of its own block");
        assert_eq!(taken.open, []);
        assert_eq!(
            (by_class(&known).value, by_class(&known).open),
            (taken.value, taken.open),
            "the class says the same"
        );
        known.limit[0] = 0.01;
        let open = of(&known).open;
        assert_eq!(open.len(), int16::BLOCK, "one block is open, the other is not");
        assert!(open[1..].iter().all(|(_, by)| (0.5 * step..step).contains(by)), "{open:?}");
    }

    #[test]
    fn what_is_open_stays_open_through_a_product_and_the_unit() {
        let w: Vec<u8> = [2.0f32, -4.0].iter().flat_map(|w| w.to_le_bytes()).collect();
        let w = Weight::blocks("w", Format::F32, 1, 2, Blob::from_vec(w)).unwrap();
        let x = Bounds { value: vec![1.0, 1.0], limit: vec![0.0, 0.5] };
        let y = products(&w, Slack::F32, 0..1, &[Taken::new(&x, Rounding::F32, Slack::F32)]).remove(0);
        assert_eq!(y.value, [-2.0]);
        assert!((y.limit[0] - 2.0 - 6.0 * SUM).abs() < 1e-12, "4 times a half, and the sum of 2 and 4");
        let unit = swiglu(&y, &Bounds::exactly(&[3.0]));
        for gate in [-4.0f64, -2.0, 0.0] {
            let got = gate / (1.0 + (-gate).exp()) * 3.0;
            assert!(unit.off(0, got as f32) <= 1.0, "{gate}");
        }
    }

    #[test]
    fn what_is_open_stays_open_through_the_norm_and_the_rotation_of_heads() {
        use crate::reference::head_norm::head_norm as normed;
        use crate::reference::rope::rotate;
        let (weight, cos, sin) = ([1.5f32, -0.5, 2.0, 1.0], [0.6f32, -0.28], [0.8f32, 0.96]);
        let x: Vec<f32> = (0..8).map(|i| (i as f32 - 3.3) * 0.7).collect();
        for style in [RopeStyle::HalfSplit, RopeStyle::Interleaved] {
            for by in [0.0f32, 1e-4, 0.3] {
                let bounds = Bounds { limit: vec![f64::from(by); 8], ..Bounds::exactly(&x) };
                let bounds = rotated(&head_norm(&bounds, &weight, 1e-6), style, &cos, &sin);
                let mut furthest = 0.0f64;
                // Every corner of what the numbers may be, and one beyond them.
                for corner in 0..256u32 {
                    let of = |by: f32| {
                        let moved = |(i, x): (usize, &f32)| x + if corner >> i & 1 == 0 { by } else { -by };
                        let mut row: Vec<f32> = x.iter().enumerate().map(moved).collect();
                        normed(&mut row, &weight, 1e-6);
                        rotate(&mut row, style, &cos, &sin);
                        (0..8).map(|i| bounds.off(i, row[i])).fold(0.0, f64::max)
                    };
                    assert!(of(by) <= 1.0, "{style:?}, {by}, corner {corner}");
                    furthest = furthest.max(of(4.0 * by + 1e-3));
                }
                assert!(furthest > 1.0, "{style:?}, {by}: what is further away than it may be shows");
            }
        }
    }

    #[test]
    fn rounded_operands_are_counted_as_they_are() {
        let third = 1.0f32 / 3.0;
        let w = Weight::blocks("w", Format::F32, 1, 1, Blob::from_vec(third.to_le_bytes().to_vec())).unwrap();
        let x = [Taken::new(&Bounds::exactly(&[1.0]), Rounding::F32, Slack::F32)];
        let of = |slack| products(&w, slack, 0..1, &x).remove(0);
        assert!(of(Slack::Bf16Products).off(0, round_bf16(third)) <= 1.0);
        assert!(of(Slack::Bf16Products).off(0, third) > 1.0, "a weight that was not rounded is another one");
        assert!(of(Slack::F32).off(0, third) <= 1.0 && of(Slack::F32).off(0, round_bf16(third)) > 1.0);
    }
}
