//! From logits to a token: penalties, filters, the draw and log-probabilities.
//!
//! The filters work in F64 on F32 logits. The random number of a token is a function of the request's seed and the
//! token's index alone: word pair `2 * index` of the ChaCha8 stream keyed by the seed. So the same request draws the
//! same tokens on any slot, in any batch and after any preemption.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tare_core::Fault;

use super::exp::exp;
use super::filter::{adjusted, keep};
use super::lanes;
use super::select::selected;
use crate::batch::{Batch, RowOutput, StepOutput, Wants};
use crate::sampling::Sampler;

/// One output for each selected row. logits [selected, V]
///
/// # Errors
/// When a row of logits has a NaN, an infinity above, or nothing that may be drawn; `out` is then empty.
pub fn sample(batch: &Batch, logits: &[f32], vocab: usize, out: &mut StepOutput) -> Result<(), Fault> {
    out.rows.resize_with(batch.selected(), RowOutput::default);
    for ((t, logits), row) in selected(&batch.rows).zip(logits.chunks_exact(vocab)).zip(&mut out.rows) {
        let wants = batch.rows[t].wants;
        let sampler = match wants {
            Wants::Token(n) | Wants::TokenAndLogits(n) => Some(&batch.samplers[n as usize]),
            Wants::Nothing | Wants::Logits => None,
        };
        row.row = t as u32;
        row.logits.clear();
        if matches!(wants, Wants::Logits | Wants::TokenAndLogits(_)) {
            row.logits.extend_from_slice(logits);
        }
        if let Err(fault) = sample_row(logits, sampler, row) {
            out.rows.clear();
            return Err(fault.within(format!("row {t}")));
        }
    }
    Ok(())
}

/// Fills token, logit, log-probability and the top of one row; without a sampler the token is the most likely one.
///
/// # Errors
/// As [`sample`].
pub fn sample_row(logits: &[f32], sampler: Option<&Sampler>, out: &mut RowOutput) -> Result<(), Fault> {
    let best = argmax(logits)?;
    out.token = match sampler {
        Some(s) if !(s.params.is_plain_greedy() && s.allowed.is_none()) => draw(logits, s)?,
        _ => best,
    };
    let norm = LogSoftmax::of(logits, logits[best as usize]);
    out.logit = logits[out.token as usize];
    out.logprob = norm.of_logit(out.logit);
    out.top.clear();
    let wanted = sampler.map_or(0, |s| s.params.top_logprobs as usize);
    out.top.extend(most_likely(logits, wanted).into_iter().map(|id| (id, norm.of_logit(logits[id as usize]))));
    Ok(())
}

/// The token with the largest logit, the lower id on a tie.
///
/// # Errors
/// When a logit is NaN or infinite above, or none is above negative infinity.
pub fn argmax(logits: &[f32]) -> Result<u32, Fault> {
    let mut best = None;
    for (id, x) in logits.iter().enumerate() {
        if x.is_nan() || *x == f32::INFINITY {
            return Err(Fault::new(format!("logit {id}"), "a number below infinity", x.to_string())
                .remedy("the weights or the cache of this sequence are not numbers"));
        }
        if *x > best.map_or(f32::NEG_INFINITY, |(_, m)| m) {
            best = Some((id as u32, *x));
        }
    }
    best.map(|(id, _)| id).ok_or_else(|| Fault::new("logits", "one above negative infinity", "none"))
}

/// The tokens that may be drawn and their probabilities, ascending by id: what [`draw`] draws from.
///
/// With temperature 0 it is one token.
///
/// # Errors
/// When a logit is NaN or infinite above, or nothing may be drawn.
pub fn distribution(logits: &[f32], sampler: &Sampler) -> Result<Vec<(u32, f64)>, Fault> {
    argmax(logits)?;
    let candidates = adjusted(logits, sampler);
    if candidates.is_empty() {
        return Err(Fault::new("logits", "a token that is allowed and above negative infinity", "none")
            .remedy("the mask or the bias excludes every token"));
    }
    Ok(keep(candidates, &sampler.params))
}

/// Draws the token: the first, ascending by id, at which the cumulated probability passes the [`uniform`] number.
///
/// # Errors
/// As [`distribution`].
pub fn draw(logits: &[f32], sampler: &Sampler) -> Result<u32, Fault> {
    let kept = distribution(logits, sampler)?;
    let u = uniform(sampler.seed, sampler.index);
    let mut reached = 0.0;
    for (id, p) in &kept {
        reached += p;
        if u < reached {
            return Ok(*id);
        }
    }
    // Rounding may leave the sum a little below 1, and `u` between the two.
    Ok(kept[kept.len() - 1].0)
}

/// The random number in [0, 1) of output token `index` of a request: 53 bits of ChaCha8 under the key `seed`
/// (little-endian, then zeros), at word `2 * index`.
pub fn uniform(seed: u64, index: u32) -> f64 {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_word_pos(2 * u128::from(index));
    (rng.next_u64() >> 11) as f64 * 2f64.powi(-53)
}

/// The `n` tokens with the largest logits, best first, the lower id on a tie.
fn most_likely(logits: &[f32], n: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then_with(|| a.cmp(b));
    if n == 0 {
        return Vec::new();
    }
    if n < ids.len() {
        ids.select_nth_unstable_by(n - 1, by_logit);
        ids.truncate(n);
    }
    ids.sort_unstable_by(by_logit);
    ids
}

/// Log-probabilities under unmodified logits.
struct LogSoftmax {
    most: f32,
    log_sum: f64,
}

impl LogSoftmax {
    /// `ln sum_i exp(x_i - most)`: exponentials and their lanes in F32, the logarithm in F64.
    fn of(logits: &[f32], most: f32) -> Self {
        let mut sums = [0.0f32; lanes::LANES];
        for step in logits.chunks(lanes::LANES) {
            for (sum, x) in sums.iter_mut().zip(step) {
                *sum += exp(x - most);
            }
        }
        Self { most, log_sum: f64::from(lanes::tree(sums)).ln() }
    }

    fn of_logit(&self, x: f32) -> f32 {
        (f64::from(x) - f64::from(self.most) - self.log_sum) as f32
    }
}

/// Whether a sampler can be used with V logits.
///
/// # Errors
/// The first parameter outside its range.
pub fn check_sampler(sampler: &Sampler, vocab: usize) -> Result<(), Fault> {
    sampler.params.check(vocab)?;
    let words = vocab.div_ceil(32);
    if let Some(mask) = sampler.allowed.as_ref().filter(|m| m.len() != words) {
        return Err(Fault::new("allowed", format!("{words} words for {vocab} tokens"), mask.len().to_string()));
    }
    match sampler.prompt.iter().chain(&sampler.output).find(|id| **id as usize >= vocab) {
        Some(id) => Err(Fault::new("token history", format!("ids below {vocab}"), id.to_string())),
        None => Ok(()),
    }
}
