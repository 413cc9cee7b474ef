//! Cases of `sample`.

use std::sync::Arc;

use super::case::{Case, Draft, mask};
use super::values::Noise;
use crate::batch::Wants;
use crate::op::Op;
use crate::plan::RowSpace;
use crate::sampling::{SampleOrder, Sampler, SamplingParams};

pub(super) fn cases() -> Vec<Case> {
    let sizes = [("v1", 1), ("v17", 17), ("v64", 64), ("v1000", 1000)];
    let drawn = sizes
        .into_iter()
        .flat_map(|(name, vocab)| [SampleOrder::Hf, SampleOrder::LlamaCpp].map(|o| case(name, vocab, o)));
    drawn.chain([49_152, 151_936].map(summed)).collect()
}

/// Rows of a large vocabulary that are hard on a sum of exponentials: one logit far above many that are lost when they are
/// added to it one after the other, first, last and among noise; all equal; and the first drawn with more asked of it.
fn summed(vocab: usize) -> Case {
    const ROWS: usize = 5;
    let (mut noise, most) = (Noise::new(vocab as u64), 9.0);
    let mut d = Draft::new(format!("sample.summed.v{vocab}"), ROWS);
    let mut logits = vec![most - 17.0; ROWS * vocab];
    let rows: Vec<&mut [f32]> = logits.chunks_mut(vocab).collect();
    for (t, row) in rows.into_iter().enumerate() {
        match t {
            1 => row[vocab - 1] = most,
            2 => {
                row.iter_mut().for_each(|x| *x = most - 15.0 + 3.0 * noise.number());
                row[vocab / 3] = most;
            }
            3 => {}
            _ => row[0] = most,
        }
    }
    let x = d.input("x", &logits);
    let out = d.buffer("logits", vocab, RowSpace::Selected);
    d.call(Op::SelectRows { x, out });
    d.test(Op::Sample { logits: out });
    let batch = d.batch();
    batch.rows.iter_mut().enumerate().for_each(|(t, row)| row.wants = Wants::Token(t as u32));
    let sampler = |t: usize| {
        let greedy = SamplingParams::default();
        let hot = SamplingParams { temperature: 0.9, top_p: 0.7, top_logprobs: 5, ..greedy.clone() };
        let none: Arc<[u32]> = Arc::new([]);
        let params = Arc::new(if t + 1 == ROWS { hot } else { greedy });
        Sampler { params, seed: 1, index: 0, prompt: none, output: Vec::new(), allowed: None }
    };
    batch.samplers = (0..ROWS).map(sampler).collect();
    d.done()
}

/// One row for each way of drawing, in one batch: greedy, tied, hot, filtered, penalised, masked, with a top.
fn case(name: &str, vocab: usize, order: SampleOrder) -> Case {
    let ways = ways(order, vocab);
    let rows = ways.len() + 2;
    let mut noise = Noise::new(vocab as u64);
    let word = if order == SampleOrder::Hf { "hf" } else { "llama_cpp" };
    let mut d = Draft::new(format!("sample.{word}.{name}"), rows);
    // Multiples of 1/4, so that logits tie.
    let logits: Vec<f32> = noise.row(rows * vocab).iter().map(|x| (x * 24.0).round() / 4.0).collect();
    let x = d.input("x", &logits);
    let out = d.buffer("logits", vocab, RowSpace::Selected);
    d.call(Op::SelectRows { x, out });
    d.test(Op::Sample { logits: out });
    let batch = d.batch();
    for (t, row) in batch.rows.iter_mut().enumerate() {
        row.wants = match t {
            0 => Wants::Logits,
            1 => Wants::Nothing,
            n if n.is_multiple_of(2) => Wants::Token(n as u32 - 2),
            n => Wants::TokenAndLogits(n as u32 - 2),
        };
    }
    batch.samplers = ways;
    d.done()
}

fn ways(order: SampleOrder, vocab: usize) -> Vec<Sampler> {
    let params = SamplingParams { order, ..SamplingParams::default() };
    let hot = SamplingParams { temperature: 0.9, ..params.clone() };
    let last = vocab as u32 - 1;
    let all = [
        params.clone(),
        SamplingParams { logit_bias: vec![(0, 3.0), (last, -100.0)], ..params.clone() },
        hot.clone(),
        SamplingParams { top_k: 5, ..hot.clone() },
        SamplingParams { top_p: 0.7, top_logprobs: vocab.min(5) as u32, ..hot.clone() },
        SamplingParams { min_p: 0.2, ..hot.clone() },
        SamplingParams { repetition_penalty: 1.3, presence_penalty: 0.5, frequency_penalty: 0.25, ..hot.clone() },
        SamplingParams { top_k: 20, top_p: 0.9, min_p: 0.01, repetition_penalty: 1.1, ..hot },
    ];
    let sampler = |(n, params): (usize, SamplingParams)| Sampler {
        params: Arc::new(params),
        seed: 1 + n as u64,
        index: 10 * n as u32,
        prompt: Arc::new([0, last, last / 2]),
        output: vec![last, last, 0],
        allowed: (n % 3 == 2).then(|| mask(vocab, |id| id % 3 == 1)),
    };
    all.into_iter().enumerate().map(sampler).collect()
}
