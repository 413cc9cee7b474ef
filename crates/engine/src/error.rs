//! Why the engine could not do something.

use tare_core::Fault;
use tare_model::ModelError;
use tare_ops::OpError;

use crate::request::RequestId;

/// Why a request was not taken. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is nothing to continue.
    #[error("the prompt is empty: give at least one token")]
    PromptEmpty,
    /// The prompt does not leave room for a token of output.
    #[error(
        "the prompt has {prompt_tokens} tokens and at least {output_tokens} of output was asked for; the context is \
         {context_tokens} tokens: shorten the prompt or raise the context"
    )]
    ContextExceeded {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// 1, or 0 when no output was asked for.
        output_tokens: usize,
        /// Tokens that a sequence may have.
        context_tokens: usize,
    },
    /// The pool is too small for the request, even when nothing else runs.
    #[error(
        "the request can need {needed_tokens} tokens of KV cache; the pool has {capacity_tokens}: ask for fewer tokens \
         or give the engine a larger KV pool"
    )]
    NeverFits {
        /// Tokens of KV at its longest, whole pages.
        needed_tokens: usize,
        /// Tokens in the pool.
        capacity_tokens: usize,
    },
    /// A sampling parameter outside its range, or nothing left that could be drawn. In a step it would fail everybody.
    #[error("sampling: {0}")]
    Sampling(Fault),
    /// Too many requests wait.
    #[error("{waiting} requests are waiting, as many as the queue holds: try again later")]
    QueueFull {
        /// How many wait.
        waiting: usize,
    },
    /// A token is not in the vocabulary.
    #[error("{place}: token {token} is outside the vocabulary of {vocabulary}")]
    OutOfVocabulary {
        /// `prompt[3]`, `stop_tokens[0]`, `logit_bias[1]`.
        place: String,
        /// The token.
        token: u32,
        /// V.
        vocabulary: usize,
    },
}

/// Why the engine could not start or take a step.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A limit of the configuration cannot be kept.
    #[error(transparent)]
    Config(#[from] Fault),
    /// The model, the plan and the backend do not suit each other.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The backend failed. Sequences stand where they stood before the step.
    #[error(transparent)]
    Backend(#[from] OpError),
    /// KV storage refused.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A step is wider than every executable: the scheduler and the buckets disagree.
    #[error("no executable takes {rows} rows of which {selected} are selected: this is a defect of tare")]
    NoBucket {
        /// Rows of the step.
        rows: usize,
        /// Rows that go through the head.
        selected: usize,
    },
    /// A batch got fewer answers than it asked for.
    #[error("the backend answered {found} rows where {expected} were selected")]
    Answers {
        /// Rows that wanted something.
        expected: usize,
        /// Rows answered.
        found: usize,
    },
}

/// Why KV storage could not do something. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// More tokens than the sequence's storage was made for.
    #[error("{sequence}: expected at most {capacity} tokens of KV, found {wanted}: open it with a larger bound")]
    Overflow {
        /// Whose.
        sequence: RequestId,
        /// Tokens that fit.
        capacity: usize,
        /// Tokens after the append.
        wanted: usize,
    },
    /// The pool has no page left.
    #[error("{wanted} pages are needed and {free} of {capacity} are free")]
    OutOfPages {
        /// Pages needed.
        wanted: usize,
        /// Pages free.
        free: usize,
        /// Pages in the pool.
        capacity: usize,
    },
    /// Page accounting is broken: a page was given back twice, is unknown, or the sum does not hold.
    #[error("page accounting: {0}")]
    Pages(Fault),
    /// There is no such sequence.
    #[error("no KV is held for {0}")]
    Unknown(RequestId),
    /// A rewind to more tokens than are cached.
    #[error("{sequence}: cannot rewind to {wanted} tokens, {cached} are cached")]
    Rewind {
        /// Whose.
        sequence: RequestId,
        /// Tokens wanted.
        wanted: usize,
        /// Tokens cached.
        cached: usize,
    },
    /// There is no room to import a sequence.
    #[error(
        "no room to import {tokens} tokens of KV beside what runs and is kept ({free} are free), or the plan keeps none"
    )]
    NoRoom {
        /// Tokens to import.
        tokens: usize,
        /// Tokens free.
        free: usize,
    },
    /// Imported bytes are not of that many tokens.
    #[error("imported KV: expected {expected} bytes, found {found}")]
    Bytes {
        /// Bytes of that many tokens.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The backend could not allocate or copy.
    #[error(transparent)]
    Backend(#[from] OpError),
}
