//! What a kernel with an order of its own is compared with: the exact result, and how far from it the kernel may be.
//!
//! A limit is a share of the sum of the sizes of what is added, whatever cancels: no order of F32 sums is further away,
//! and one term that is missing, twice there or of another row is.

use half::bf16;
use tare_core::Weight;
use tare_formats::codec::dequantize_row;

use super::case::Case;
use crate::batch::TokenSource;
use crate::class::Rounding;
use crate::op::{BufId, Op, WeightId};
use crate::reference::int8;
use crate::reference::kv::{Half, KvPool};
use crate::variant::Slack;

/// Share of the sizes of the terms of a sum that rounding its partial sums may cost: 2^-15, room for a few hundred
/// roundings in one direction, and for quants that are multiplied with an offset which a sum of x takes out again.
const SUM: f64 = 1.0 / 32_768.0;
/// Share that weights of attention may be off: they travel as two BF16 numbers.
const WEIGHT: f64 = 1.0 / 65_536.0;
/// What a score may be off, as a share of the sizes of its terms.
const SCORE: f64 = 1.0 / 1_048_576.0;
/// Relative limit of results that are no sums of both signs: norms, logarithms of sums of exponentials.
const RELATIVE: f64 = 1.0 / 131_072.0;
/// Rounding one operand of a product to BF16, and the other.
const BF16_PRODUCT: f64 = 1.0 / 128.0;
/// Numbers so small may be lost: units that multiply in BF16 need not keep those below the least normal one.
const LOST: f64 = 1e-36;

/// An exact value and the largest difference from it.
#[derive(Clone, Copy, Debug)]
struct Bound {
    value: f64,
    limit: f64,
}

/// The first element of `got` that is further from the exact result than it may be, and how many are; `want` is what the
/// reference gave, which what is no sum must equal.
pub(super) fn difference(case: &Case, slack: Slack, got: &[f32], want: &[f32]) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} values instead of {}", got.len(), want.len()));
    }
    let bounds = bounds(case, slack, want);
    let off = |i: &usize| {
        let (g, w) = (got[*i], want[*i]);
        match bounds.get(*i) {
            // Also what the reference does not give as a number.
            Some(b) if w.is_finite() => (f64::from(g) - b.value).abs() > b.limit || g.is_nan(),
            _ => g.to_bits() != w.to_bits() && !(g.is_nan() && w.is_nan()),
        }
    };
    let first = (0..got.len()).find(off)?;
    let n = (first..got.len()).filter(off).count();
    let b = bounds.get(first).copied().unwrap_or(Bound { value: f64::from(want[first]), limit: 0.0 });
    let (value, limit) = (b.value, b.limit);
    Some(format!(
        "{n} of {} values; first at {first}: got {:e}, exactly {value:e} within {limit:e}",
        got.len(),
        got[first]
    ))
}

/// Bounds of the first results of a case; what follows them must equal the reference's.
fn bounds(case: &Case, slack: Slack, want: &[f32]) -> Vec<Bound> {
    let relative = |share: f64| {
        let bound = |w: &f32| Bound { value: f64::from(*w), limit: share * (1.0 + f64::from(*w).abs()) };
        want.iter().map(bound).collect()
    };
    match &case.plan.calls[case.call].op {
        Op::Linear { x, weight, bias, accumulate, rounding, out } => {
            let before = accumulate.then_some(*out);
            linear(case, slack, (*x, *weight), (*bias, before), *rounding)
        }
        Op::Attention { layer, q, kv_of_head, scale, .. } => attention(case, slack, (*layer, *q), kv_of_head, *scale),
        Op::RmsNorm { .. } | Op::SwiGlu { .. } => {
            let bound = |w: &f32| Bound { value: f64::from(*w), limit: RELATIVE * f64::from(*w).abs() + LOST };
            want.iter().map(bound).collect()
        }
        Op::Sample { .. } => relative(RELATIVE),
        _ => Vec::new(),
    }
}

/// Rows of `table`, dequantized as the codecs do. [rows, cols]
fn rows_of(table: &Weight) -> Vec<Vec<f32>> {
    let row = |r| {
        let mut values = vec![0.0; table.cols()];
        dequantize_row(table, r, &mut values);
        values
    };
    (0..table.rows()).map(row).collect()
}

/// What buffer `id` holds before the call under test: the rows of the table that was embedded into it.
fn input(case: &Case, id: BufId) -> Vec<Vec<f32>> {
    let table = case.plan.calls[..case.call].iter().rev().find_map(|c| match &c.op {
        Op::Embedding { table, out } if *out == id => Some(rows_of(&case.weights[table.0 as usize])),
        _ => None,
    });
    let table = table.unwrap_or_default();
    let token = |t: TokenSource| match t {
        TokenSource::Id(id) | TokenSource::Previous(id) => id as usize,
    };
    case.batch.rows.iter().filter_map(|row| table.get(token(row.token)).cloned()).collect()
}

/// The largest size that a weight near each column has: of a block of its format, in which quants share a scale.
fn sizes(weight: &Weight, row: &[f32]) -> Vec<f64> {
    let block = weight.format().block_weights().max(1);
    let largest = |b: &[f32]| b.iter().fold(0.0f64, |m, w| m.max(f64::from(w.abs())));
    row.chunks(block).flat_map(|b| std::iter::repeat_n(largest(b), b.len())).collect()
}

/// What rounding to 8 bits may change each activation by: half a step of its block, and the roundings of the step itself;
/// all of it where the block becomes zeros.
fn half_steps(row: &[f32]) -> Vec<f64> {
    let half_step = |block: &[f32]| {
        let most = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        f64::from(most) * if most < int8::LEAST { 1.0 } else { 0.5001 / f64::from(int8::MOST) }
    };
    row.chunks(int8::BLOCK).flat_map(|b| std::iter::repeat_n(half_step(b), b.len())).collect()
}

fn linear(
    case: &Case,
    slack: Slack,
    (x, weight): (BufId, WeightId),
    (bias, before): (Option<WeightId>, Option<BufId>),
    rounding: Rounding,
) -> Vec<Bound> {
    let weight = &case.weights[weight.0 as usize];
    let (matrix, bias) = (rows_of(weight), bias.map(|b| rows_of(&case.weights[b.0 as usize])));
    let sizes: Vec<Vec<f64>> = matrix.iter().map(|row| sizes(weight, row)).collect();
    let before = before.map(|b| input(case, b));
    let share = SUM + if slack == Slack::Bf16Products { BF16_PRODUCT } else { 0.0 };
    let taken = |x: &f32| f64::from(if rounding == Rounding::Bf16 { bf16::from_f32(*x).to_f32() } else { *x });
    let mut bounds = Vec::new();
    for (t, row) in input(case, x).iter().enumerate() {
        let steps = if rounding == Rounding::Int8 { half_steps(row) } else { vec![0.0; row.len()] };
        let row: Vec<f64> = row.iter().map(taken).collect();
        for (n, w) in matrix.iter().enumerate() {
            let added = [bias.as_ref().map(|b| b[0][n]), before.as_ref().map(|b| b[t][n])];
            let added: Vec<f64> = added.into_iter().flatten().map(f64::from).collect();
            let value: f64 = row.iter().zip(w).map(|(x, w)| x * f64::from(*w)).chain(added.iter().copied()).sum();
            let terms = row.iter().zip(&sizes[n]).map(|(x, size)| x.abs() * size);
            let size: f64 = terms.chain(added.iter().map(|a| a.abs())).sum();
            let rounded: f64 = steps.iter().zip(&sizes[n]).map(|(step, size)| step * size).sum();
            bounds.push(Bound { value, limit: share * size + rounded + LOST });
        }
    }
    bounds
}

/// The cache as the call under test sees it: that of the case, and what appends before it stored.
fn cache(case: &Case) -> Option<KvPool> {
    let mut pool = case.cache.clone()?;
    for call in &case.plan.calls[..case.call] {
        let Op::KvAppend { layer, k, v } = &call.op else { continue };
        for (half, id) in [(Half::Key, *k), (Half::Value, *v)] {
            for (row, x) in case.batch.rows.iter().zip(input(case, id)) {
                let (page, place) = place(case, row.table, row.slot as usize, pool.page_tokens());
                pool.store(*layer as usize, half, page, place, &x);
            }
        }
    }
    Some(pool)
}

/// The page of a token of a sequence, and its place there.
fn place(case: &Case, table: u32, token: usize, page_tokens: usize) -> (u32, usize) {
    (case.batch.tables[table as usize].pages[token / page_tokens], token % page_tokens)
}

fn attention(case: &Case, slack: Slack, (layer, q): (u32, BufId), kv_of_head: &[u16], scale: f32) -> Vec<Bound> {
    let (Some(pool), e, scale) = (cache(case), case.plan.kv.head_size, f64::from(scale)) else { return Vec::new() };
    let numbers = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    let mut bounds = Vec::new();
    for (row, q) in case.batch.rows.iter().zip(input(case, q)) {
        for (head, kv) in q.chunks(e).zip(kv_of_head) {
            let (head, from) = (numbers(head), *kv as usize * e);
            let token = |half, j| {
                let (page, place) = place(case, row.table, j, pool.page_tokens());
                numbers(&pool.token(layer as usize, half, page, place)[from..from + e])
            };
            let terms = |j| head.iter().zip(token(Half::Key, j)).map(|(q, k)| q * k).collect::<Vec<f64>>();
            let terms: Vec<Vec<f64>> = (0..row.context as usize).map(terms).collect();
            let scores: Vec<f64> = terms.iter().map(|t| t.iter().sum::<f64>() * scale).collect();
            let sizes = terms.iter().map(|t| t.iter().map(|x| x.abs()).sum::<f64>() * scale);
            let size = sizes.fold(0.0, f64::max);
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut share = WEIGHT + SCORE * size;
            if slack == Slack::Bf16Products {
                share += BF16_PRODUCT * (1.0 + size);
            }
            let values: Vec<Vec<f64>> = (0..weights.len()).map(|j| token(Half::Value, j)).collect();
            let largest = values.iter().flatten().fold(0.0f64, |m, v| m.max(v.abs()));
            for i in 0..e {
                let value = weights.iter().zip(&values).map(|(w, v)| w * v[i]).sum::<f64>() / sum;
                bounds.push(Bound { value, limit: share * largest + LOST });
            }
        }
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpName;
    use crate::conformance::{cases, run};
    use crate::reference::ReferenceBackend;

    /// The reference is one order among others.
    #[test]
    fn the_reference_is_within_the_limits_of_any_order() {
        let summed = [OpName::Linear, OpName::Attention, OpName::RmsNorm, OpName::SwiGlu, OpName::Sample];
        for case in cases().iter().filter(|c| summed.contains(&c.op())) {
            let want = run(&mut ReferenceBackend::new(), case).unwrap();
            assert_eq!(difference(case, Slack::F32, &want, &want), None, "{}", case.name);
        }
    }

    /// Whoever leaves a column, a token or the bias out is found out.
    #[test]
    fn what_lacks_a_term_is_outside() {
        let of = |name: &str| cases().into_iter().find(|c| c.name == name).unwrap();
        let case = of("linear.bf16.t4_n576_k576");
        let mut got = run(&mut ReferenceBackend::new(), &case).unwrap();
        let want = got.clone();
        let (x, w) = (input(&case, BufId(0)), rows_of(case.weights.last().unwrap()));
        let (k, largest) = (0..576).map(|k| (k, (x[0][k] * w[5][k]).abs())).max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        assert!(largest > 0.0);
        got[5] -= x[0][k] * w[5][k];
        assert!(difference(&case, Slack::F32, &got, &want).unwrap().contains("first at 5"));
        let mut got = want.clone();
        got[7] = f32::NAN;
        assert!(difference(&case, Slack::F32, &got, &want).is_some());

        let case = of("attention.bf16.h4_k1_e64_p300_s257_300");
        let want = run(&mut ReferenceBackend::new(), &case).unwrap();
        let mut shorter = case.clone();
        shorter.batch.rows[1].context -= 1;
        let got = run(&mut ReferenceBackend::new(), &shorter).unwrap();
        assert!(difference(&case, Slack::F32, &got, &want).is_some(), "a token that is not looked at");
    }
}
