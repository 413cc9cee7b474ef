//! The filters between logits and a draw, in both [orders](SampleOrder).

use std::collections::BTreeMap;

use crate::sampling::{SampleOrder, Sampler, SamplingParams};

/// A token that may be drawn and its logit.
pub(super) type Candidate = (u32, f64);

/// Tokens of prompt and output that llama.cpp's penalties look at.
const LLAMA_CPP_LAST: usize = 64;

/// The tokens that the mask allows with bias and penalties applied, ascending by id. Negative infinity drops out.
pub(super) fn adjusted(logits: &[f32], sampler: &Sampler) -> Vec<Candidate> {
    let mut x: Vec<f64> = logits.iter().copied().map(f64::from).collect();
    for (id, bias) in &sampler.params.logit_bias {
        x[*id as usize] += f64::from(*bias);
    }
    penalize(&mut x, sampler);
    let allowed = |id: usize| sampler.allowed.as_ref().is_none_or(|m| m[id / 32] >> (id % 32) & 1 == 1);
    let kept = x.into_iter().enumerate().filter(|(id, x)| *x > f64::NEG_INFINITY && allowed(*id));
    kept.map(|(id, x)| (id as u32, x)).collect()
}

fn penalize(x: &mut [f64], sampler: &Sampler) {
    let p = &sampler.params;
    if !p.needs_history() {
        return;
    }
    let both = sampler.prompt.iter().chain(&sampler.output);
    let all = sampler.prompt.len() + sampler.output.len();
    let (repeated, counted) = match p.order {
        SampleOrder::Hf => (counts(both), counts(sampler.output.iter())),
        SampleOrder::LlamaCpp => {
            let last = counts(both.skip(all.saturating_sub(LLAMA_CPP_LAST)));
            (last.clone(), last)
        }
    };
    let repetition = f64::from(p.repetition_penalty);
    for id in repeated.keys() {
        let x = &mut x[*id as usize];
        *x = if *x < 0.0 { *x * repetition } else { *x / repetition };
    }
    for (id, n) in counted {
        x[id as usize] -= f64::from(p.frequency_penalty) * f64::from(n) + f64::from(p.presence_penalty);
    }
}

/// How often each token occurs.
fn counts<'a>(ids: impl Iterator<Item = &'a u32>) -> BTreeMap<u32, u32> {
    let mut n = BTreeMap::new();
    for id in ids {
        *n.entry(*id).or_default() += 1;
    }
    n
}

/// What temperature, top-k, top-p and min-p leave of the candidates, with probabilities that sum to 1, ascending by id.
/// There is at least one candidate, and at least one stays.
pub(super) fn keep(mut candidates: Vec<Candidate>, p: &SamplingParams) -> Vec<(u32, f64)> {
    if p.temperature == 0.0 {
        return vec![(best(&candidates), 1.0)];
    }
    let temperature = f64::from(p.temperature);
    match p.order {
        SampleOrder::Hf => {
            top_k_with_ties(&mut candidates, p.top_k as usize);
            let mut kept = softmax(candidates, temperature);
            hf_top_p(&mut kept, f64::from(p.top_p));
            let least = f64::from(p.min_p) * most(&kept);
            kept.retain(|(_, q)| *q >= least);
            normalize(kept)
        }
        SampleOrder::LlamaCpp => {
            candidates.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            if p.top_k > 0 {
                candidates.truncate(p.top_k as usize);
            }
            llama_cpp_top_p(&mut candidates, f64::from(p.top_p));
            if p.min_p > 0.0 {
                let least = candidates[0].1 + f64::from(p.min_p).ln();
                candidates.retain(|(_, x)| *x >= least);
            }
            normalize(softmax(candidates, temperature))
        }
    }
}

/// The largest logit, the lower id on a tie.
fn best(candidates: &[Candidate]) -> u32 {
    let first = candidates[0];
    candidates.iter().fold(first, |best, c| if c.1 > best.1 { *c } else { best }).0
}

/// Drops what is below the k-th largest; whatever equals it stays.
fn top_k_with_ties(candidates: &mut Vec<Candidate>, k: usize) {
    if k == 0 || k >= candidates.len() {
        return;
    }
    let mut values: Vec<f64> = candidates.iter().map(|c| c.1).collect();
    let (_, kth, _) = values.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    candidates.retain(|c| c.1 >= *kth);
}

/// Probabilities at a temperature. The largest logit is taken away before the division, so that no temperature overflows.
fn softmax(candidates: Vec<Candidate>, temperature: f64) -> Vec<(u32, f64)> {
    let m = most(&candidates);
    normalize(candidates.into_iter().map(|(id, x)| (id, ((x - m) / temperature).exp())).collect())
}

fn most(pairs: &[(u32, f64)]) -> f64 {
    pairs.iter().fold(f64::NEG_INFINITY, |m, p| m.max(p.1))
}

/// Makes the weights sum to 1 and sorts them by id; a weight of 0 drops out.
fn normalize(mut weights: Vec<(u32, f64)>) -> Vec<(u32, f64)> {
    let total: f64 = weights.iter().map(|w| w.1).sum();
    weights.retain(|w| w.1 > 0.0);
    weights.iter_mut().for_each(|w| w.1 /= total);
    weights.sort_unstable_by_key(|w| w.0);
    weights
}

/// From the least likely on, ties by id, drops tokens while their cumulated probability is at most 1 - p; never the
/// most likely one.
fn hf_top_p(kept: &mut Vec<(u32, f64)>, p: f64) {
    if p >= 1.0 {
        return;
    }
    kept.sort_unstable_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let mut reached = 0.0;
    let drop = kept[..kept.len() - 1].iter().take_while(|(_, q)| {
        reached += q;
        reached <= 1.0 - p
    });
    let n = drop.count();
    kept.drain(..n);
}

/// From the most likely on (the order they come in), keeps tokens until their cumulated probability reaches p.
fn llama_cpp_top_p(sorted: &mut Vec<Candidate>, p: f64) {
    if p >= 1.0 {
        return;
    }
    let m = sorted[0].1;
    let total: f64 = sorted.iter().map(|c| (c.1 - m).exp()).sum();
    let mut reached = 0.0;
    let before = sorted.iter().take_while(|c| {
        reached += (c.1 - m).exp() / total;
        reached < p
    });
    let n = before.count() + 1;
    sorted.truncate(n);
}
