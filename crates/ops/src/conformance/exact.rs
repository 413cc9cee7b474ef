//! The limits of [`crate::exact`] for one case: what its call gives exactly, over the inputs that the case feeds it.

use crate::batch::{TokenSource, Wants};
use crate::exact::{self, Bounds, Taken};
use crate::op::{BufId, Op, OpName, WeightId};
use crate::reference::kv::{Half, KvPool};
use crate::reference::select::selected;
use crate::variant::Slack;
use tare_core::Weight;
use tare_formats::codec::dequantize;

use super::case::Case;

/// The first element of `got` that is further from the exact result than it may be, and how many are; `want` is what the
/// reference gave, which what is no sum must equal.
pub(super) fn difference(case: &Case, slack: Slack, got: &[f32], want: &[f32]) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} values instead of {}", got.len(), want.len()));
    }
    let bounds = bounds(case, slack, want);
    // Rows of which more is asked than the likeliest token are drawn by the reference, in its own order.
    let by_reference = |i: usize| case.op() == OpName::Sample && got[i].to_bits() == want[i].to_bits();
    let off = |i: &usize| {
        if by_reference(*i) {
            return false;
        }
        let (g, w) = (got[*i], want[*i]);
        // Also what the reference does not give as a number.
        if *i < bounds.value.len() && w.is_finite() {
            return g.is_nan() || bounds.off(*i, g) > 1.0;
        }
        g.to_bits() != w.to_bits() && !(g.is_nan() && w.is_nan())
    };
    let first = (0..got.len()).find(off)?;
    let n = (first..got.len()).filter(off).count();
    let value = bounds.value.get(first).copied().unwrap_or(f64::from(want[first]));
    let limit = bounds.limit.get(first).copied().unwrap_or(0.0);
    Some(format!(
        "{n} of {} values; first at {first}: got {:e}, exactly {value:e} within {limit:e}",
        got.len(),
        got[first]
    ))
}

/// Bounds of the first results of a case; what follows them must equal the reference's.
fn bounds(case: &Case, slack: Slack, want: &[f32]) -> Bounds {
    match &case.plan.calls[case.call].op {
        Op::Linear { .. } => joined(linear(case, slack)),
        Op::Attention { layer, q, kv_of_head, scale, .. } => {
            joined(attention(case, slack, (*layer, *q), kv_of_head, *scale))
        }
        Op::RmsNorm { .. } | Op::SwiGlu { .. } => Bounds::around(want),
        Op::Sample { logits } => sample(case, *logits, want),
        _ => Bounds::exactly(&[]),
    }
}

/// Rows one after the other.
fn joined(rows: Vec<Bounds>) -> Bounds {
    let (mut value, mut limit) = (Vec::new(), Vec::new());
    for row in rows {
        value.extend(row.value);
        limit.extend(row.limit);
    }
    Bounds { value, limit }
}

/// Rows of `table`, dequantized as the codecs do. [rows, cols]
fn rows_of(table: &Weight) -> Vec<Vec<f32>> {
    dequantize(table).chunks(table.cols().max(1)).map(<[f32]>::to_vec).collect()
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

fn linear(case: &Case, slack: Slack) -> Vec<Bounds> {
    let Op::Linear { x, weight, bias, accumulate, rounding, out } = &case.plan.calls[case.call].op else {
        return Vec::new();
    };
    let weight_of = |id: WeightId| &case.weights[id.0 as usize];
    let x: Vec<Taken> = input(case, *x).iter().map(|row| Taken::new(&Bounds::exactly(row), *rounding, slack)).collect();
    let weight = weight_of(*weight);
    let mut bounds = exact::products(weight, slack, 0..weight.rows(), &x);
    if let Some(bias) = bias {
        let bias = Bounds::exactly(&rows_of(weight_of(*bias))[0]);
        bounds.iter_mut().for_each(|b| b.add(&bias));
    }
    if *accumulate {
        bounds.iter_mut().zip(input(case, *out)).for_each(|(b, before)| b.add(&Bounds::exactly(&before)));
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

fn attention(case: &Case, slack: Slack, (layer, q): (u32, BufId), kv_of_head: &[u16], scale: f32) -> Vec<Bounds> {
    let (Some(pool), e) = (cache(case), case.plan.kv.head_size) else { return Vec::new() };
    let mut bounds = Vec::new();
    for (row, q) in case.batch.rows.iter().zip(input(case, q)) {
        for (head, kv) in q.chunks(e).zip(kv_of_head) {
            let from = *kv as usize * e;
            let tokens = |half| {
                let token = |j| {
                    let (page, place) = place(case, row.table, j, pool.page_tokens());
                    &pool.token(layer as usize, half, page, place)[from..from + e]
                };
                (0..row.context as usize).map(token).collect::<Vec<&[f32]>>()
            };
            bounds.push(exact::attention(head, scale, slack, &tokens(Half::Key), &tokens(Half::Value)));
        }
    }
    bounds
}

/// Log-probabilities under the logits that were selected into `logits`. Ids and logits, which no order changes, are those of
/// `want`: row by row as [`super::run_kernel`] gives them.
fn sample(case: &Case, logits: BufId, want: &[f32]) -> Bounds {
    let from = case.plan.calls[..case.call].iter().find_map(|c| match &c.op {
        Op::SelectRows { x, out } if *out == logits => Some(input(case, *x)),
        _ => None,
    });
    let (rows, from, mut bounds) = (&case.batch.rows, from.unwrap_or_default(), Bounds::exactly(want));
    let mut at = 0;
    for t in selected(rows) {
        let (wants, logits) = (rows[t].wants, &from[t]);
        let sampler = match wants {
            Wants::Token(n) | Wants::TokenAndLogits(n) => case.batch.samplers.get(n as usize),
            Wants::Nothing | Wants::Logits => None,
        };
        let given = if matches!(wants, Wants::Logits | Wants::TokenAndLogits(_)) { logits.len() } else { 0 };
        let top = sampler.map_or(0, |s| s.params.top_logprobs as usize);
        // Row, token, logit, log-probability; then the id and the log-probability of each of the likeliest.
        let (first, end) = (at + given, at + given + 4 + 2 * top);
        let places: Vec<usize> = (first + 3..end).step_by(2).collect();
        let of = places.iter().map(|at| if *at == first + 3 { want[at - 1] } else { logits[want[at - 1] as usize] });
        let exactly = exact::log_probabilities(logits, &of.collect::<Vec<f32>>());
        for ((place, value), limit) in places.iter().zip(exactly.value).zip(exactly.limit) {
            (bounds.value[*place], bounds.limit[*place]) = (value, limit);
        }
        at = end;
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{cases, run};
    use crate::reference::ReferenceBackend;

    /// The reference is one order among others.
    #[test]
    fn the_reference_is_within_the_limits_of_any_order() {
        let summed = [OpName::Linear, OpName::Attention, OpName::RmsNorm, OpName::SwiGlu];
        for case in cases().iter().filter(|c| summed.contains(&c.op())) {
            let want = run(&mut ReferenceBackend::new(), case).unwrap();
            assert_eq!(difference(case, Slack::F32, &want, &want), None, "{}", case.name);
        }
    }

    /// Log-probabilities are held against the exact ones. The reference's lanes lose the tail of a peaked row, and a limit
    /// around what they give would refuse a kernel that does not.
    #[test]
    fn log_probabilities_are_judged_by_the_exact_ones() {
        let cases = cases();
        let mut lost = Vec::new();
        for case in cases.iter().filter(|c| c.op() == OpName::Sample) {
            let Op::Sample { logits } = &case.plan.calls[case.call].op else { unreachable!() };
            let want = run(&mut ReferenceBackend::new(), case).unwrap();
            assert_eq!(difference(case, Slack::F32, &want, &want), None, "{}: the reference", case.name);
            let bounds = sample(case, *logits, &want);
            let exactly: Vec<f32> = bounds.value.iter().map(|v| *v as f32).collect();
            assert_eq!(difference(case, Slack::F32, &exactly, &want), None, "{}: what is exact", case.name);
            let sums: Vec<usize> = (0..want.len()).filter(|i| bounds.limit[*i] > 0.0).collect();
            let asked = case.batch.rows.iter().filter(|r| r.wants != Wants::Nothing).count();
            assert!(sums.len() >= asked, "{}: a log-probability a row", case.name);
            if sums.iter().any(|i| bounds.off(*i, want[*i]) > 1.0) {
                lost.push(case.name.as_str());
            }
            for i in sums {
                let mut got = exactly.clone();
                got[i] += 1e-4;
                assert!(difference(case, Slack::F32, &got, &want).is_some(), "{}: number {i}", case.name);
            }
            // Rows, ids and logits are no sums, however large they are.
            for i in (0..want.len()).filter(|i| bounds.limit[*i] == 0.0 && want[*i].is_finite()).take(64) {
                let mut got = exactly.clone();
                got[i] = got[i].next_up();
                assert!(difference(case, Slack::F32, &got, &want).is_some(), "{}: number {i}", case.name);
            }
        }
        assert_eq!(lost, ["sample.summed.v49152", "sample.summed.v151936"]);
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
