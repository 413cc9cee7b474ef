//! What is asked of the engine and what it answers.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use tare_ops::SamplingParams;

/// A request of one engine; numbers rise with arrival and are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// Which positions of the prompt go through the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptLogits {
    /// The last one alone. No [`Event::PromptLogits`] is given, except where `max_tokens` is 0: then the logits of the
    /// last position are the answer.
    #[default]
    Last,
    /// Every one: [`Event::PromptLogits`] brings them chunk by chunk, in order. Nothing of a resumed sequence is
    /// reused, since a cached position has no logits.
    All,
}

/// What limits the tokens that may be drawn, one token at a time: the place where grammars plug in.
pub trait Constraint: Send {
    /// The tokens that may come next: bit `i % 32` of word `i / 32`, `ceil(V / 32)` words. None allows all.
    fn allowed(&mut self) -> Option<Arc<[u32]>>;

    /// The token that was drawn.
    fn accept(&mut self, token: u32);
}

/// A prompt and how it is to be continued.
pub struct Request {
    /// Token ids; at least one.
    pub prompt: Vec<u32>,
    /// The most tokens to draw. 0 computes the prompt alone: for prompt logits.
    pub max_tokens: usize,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// With the index of the token in the output it fixes the random number, wherever the request runs.
    pub seed: u64,
    /// Tokens after which the request is finished. The stop token itself is given out as the last token.
    pub stop_tokens: Vec<u32>,
    /// While fewer tokens than this are out, stop tokens may not be drawn.
    pub min_tokens: usize,
    /// Which prompt positions go through the head.
    pub prompt_logits: PromptLogits,
    /// Whether each token brings all V logits that it was drawn from.
    pub token_logits: bool,
    /// Whether the sequence's KV is kept when the request is finished, to be resumed.
    pub retain: bool,
    /// A kept sequence whose longest common prefix with `prompt` need not be computed again.
    pub resume: Option<Retained>,
    /// Limits what may be drawn.
    pub constraint: Option<Box<dyn Constraint>>,
}

impl Request {
    /// A greedy request: no stop tokens, nothing kept, only tokens given out.
    pub fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            max_tokens,
            sampling: SamplingParams::default(),
            seed: 0,
            stop_tokens: Vec::new(),
            min_tokens: 0,
            prompt_logits: PromptLogits::Last,
            token_logits: false,
            retain: false,
            resume: None,
            constraint: None,
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("prompt_tokens", &self.prompt.len())
            .field("max_tokens", &self.max_tokens)
            .field("sampling", &self.sampling)
            .field("seed", &self.seed)
            .field("resume", &self.resume)
            .finish_non_exhaustive()
    }
}

/// A handle to the kept KV of a finished request.
///
/// Keeping is a courtesy, never a lock: when pages run short the kept sequences go first, the longest untouched of
/// them before others. Resuming one that is gone is no error; the prompt is then computed afresh, with the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Retained {
    /// The request that left it.
    pub request: RequestId,
}

/// Why a request is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// `max_tokens` are out.
    Length,
    /// A stop token was drawn; it is the last [`Event::Token`].
    StopToken,
    /// Prompt and output fill the context.
    Context,
    /// [`crate::Engine::cancel`] was called.
    Cancelled,
}

/// Tokens of a finished request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// In the prompt.
    pub prompt_tokens: usize,
    /// Of the prompt, those taken from a resumed sequence instead of computed.
    pub cached_tokens: usize,
    /// Drawn.
    pub output_tokens: usize,
}

/// What a step has to say about a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Logits of consecutive prompt positions.
    PromptLogits {
        /// Whose.
        request: RequestId,
        /// Position of the first row of `logits` in the prompt.
        first_position: usize,
        /// Rows of V logits.
        logits: Vec<Vec<f32>>,
    },
    /// A token was drawn.
    Token {
        /// For whom.
        request: RequestId,
        /// Its place in the output, from 0.
        index: usize,
        /// The token.
        token: u32,
        /// Its F32 logit before penalties, bias and temperature.
        logit: f32,
        /// Natural logarithm of its probability under the unmodified logits.
        logprob: f32,
        /// The most likely tokens and their log-probabilities, best first; as many as
        /// [`SamplingParams::top_logprobs`].
        top: Vec<(u32, f32)>,
        /// All V logits, when [`Request::token_logits`].
        logits: Option<Vec<f32>>,
    },
    /// The last event of a request.
    Finished {
        /// Which.
        request: RequestId,
        /// Why.
        reason: FinishReason,
        /// Tokens in and out.
        usage: Usage,
        /// The kept KV, when [`Request::retain`] and the plan keeps any.
        retained: Option<Retained>,
    },
}

/// What one step did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepReport {
    /// In the order in which they happened.
    pub events: Vec<Event>,
    /// Rows of prompts, and of sequences computed again.
    pub prefill_rows: usize,
    /// Rows that continue a sequence by the token drawn last.
    pub decode_rows: usize,
    /// Nanoseconds of the forward by the device's own clock; none where nothing has one, or there was no forward.
    pub device_ns: Option<u64>,
}
