//! What a request says about how its tokens are drawn.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tare_core::Fault;

/// The order in which the filters are applied. The orders keep different sets: see goldens/README.md, `sampling`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleOrder {
    /// Hugging Face and vLLM, and tare's own: bias, repetition, presence and frequency, temperature, top-k (ties are
    /// kept), top-p, min-p. Repetition looks at prompt and output, presence and frequency at the output alone.
    #[default]
    Hf,
    /// llama.cpp: bias, penalties over the last 64 tokens of prompt and output, top-k (exactly k, lower id first),
    /// top-p, min-p, temperature last.
    LlamaCpp,
}

/// How a token is drawn. The default is greedy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// 0 is greedy: the largest logit, the lower id on a tie.
    pub temperature: f32,
    /// Keep the k most likely; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches p; 1 keeps all.
    pub top_p: f32,
    /// Drop what is less likely than this share of the most likely; 0 keeps all.
    pub min_p: f32,
    /// Subtracted from the logit of every token that was in the output.
    pub presence_penalty: f32,
    /// Subtracted once for each time a token was in the output.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output (Keskar et al., 2019); 1 is off.
    pub repetition_penalty: f32,
    /// Added to logits before everything else.
    pub logit_bias: Vec<(u32, f32)>,
    /// How many most likely tokens are reported with each token.
    pub top_logprobs: u32,
    /// Order of the filters.
    pub order: SampleOrder,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            top_logprobs: 0,
            order: SampleOrder::Hf,
        }
    }
}

impl SamplingParams {
    /// Whether they can be used with V logits.
    ///
    /// # Errors
    /// The first parameter outside its range.
    pub fn check(&self, vocab: usize) -> Result<(), Fault> {
        let ranges = [
            ("temperature", self.temperature, self.temperature >= 0.0, "0 (greedy) or more"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 to 1"),
            ("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0.0, "above 0"),
            ("presence_penalty", self.presence_penalty, true, "a number"),
            ("frequency_penalty", self.frequency_penalty, true, "a number"),
        ];
        let outside = ranges.iter().find(|(_, value, inside, _)| !(*inside && value.is_finite()));
        if let Some((name, value, _, range)) = outside {
            return Err(Fault::new(*name, *range, value.to_string()));
        }
        if self.top_logprobs as usize > vocab {
            return Err(Fault::new("top_logprobs", format!("at most {vocab}"), self.top_logprobs.to_string()));
        }
        match self.logit_bias.iter().find(|(id, b)| *id as usize >= vocab || b.is_nan() || *b == f32::INFINITY) {
            Some((id, b)) => {
                let expected = format!("ids below {vocab} and numbers below infinity");
                Err(Fault::new("logit_bias", expected, format!("{id}: {b}")))
            }
            None => Ok(()),
        }
    }

    /// Whether drawing needs to know the tokens so far.
    pub fn needs_history(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 || self.repetition_penalty != 1.0
    }

    /// Whether the token is simply the largest unmodified logit.
    pub fn is_plain_greedy(&self) -> bool {
        self.temperature == 0.0 && !self.needs_history() && self.logit_bias.is_empty()
    }
}

/// The state with which one token of one request is drawn. It belongs to the request, never to a slot: the same
/// request gives the same tokens wherever and with whomever it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampler {
    /// How.
    pub params: Arc<SamplingParams>,
    /// The request's seed.
    pub seed: u64,
    /// Which output token of the request this is, from 0: with the seed it fixes the random number.
    pub index: u32,
    /// Prompt tokens, when [`SamplingParams::needs_history`]; empty otherwise.
    pub prompt: Arc<[u32]>,
    /// Output tokens so far, when needed; empty otherwise.
    pub output: Vec<u32>,
    /// Tokens that may be drawn: bit `i % 32` of word `i / 32`. None allows all.
    pub allowed: Option<Arc<[u32]>>,
}
