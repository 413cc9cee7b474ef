//! The engine: requests in, events out, one forward a step.

use tare_ops::{Backend, BackendInfo, Bucket, Executable, KvShape};

use crate::cache::Kind;
use crate::counters::Counters;
use crate::error::{EngineError, Refused};
use crate::request::{Request, RequestId, Retained, StepReport};

/// A model packed and compiled on a backend.
#[derive(Clone, Debug)]
pub struct Program {
    /// One executable for each bucket.
    pub executables: Vec<(Bucket, Executable)>,
    /// KV cache of a token.
    pub kv: KvShape,
    /// V.
    pub vocabulary: usize,
    /// How KV is stored.
    pub kind: Kind,
}

/// The limits an engine keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens that a sequence may have, prompt and output together.
    pub context: usize,
    /// Tokens of KV that all sequences together may hold.
    pub kv_tokens: usize,
    /// Rows of a step: the token budget, and so the longest prefill chunk.
    pub max_rows: usize,
    /// Sequences that run at once.
    pub max_sequences: usize,
    /// Requests that may wait.
    pub max_queue: usize,
}

/// Runs many requests on one backend.
pub struct Engine {
    backend: Box<dyn Backend>,
}

impl Engine {
    /// An engine over a program that is already compiled on `backend`.
    ///
    /// # Errors
    /// When a limit is 0, no bucket is wide enough for `max_rows`, or the KV pool cannot be allocated.
    pub fn with_program(backend: Box<dyn Backend>, _program: Program, _limits: Limits) -> Result<Self, EngineError> {
        Ok(Self { backend })
    }

    /// Takes a request. It waits until [`Engine::step`] admits it.
    ///
    /// # Errors
    /// When it could never run or too many wait: see [`Refused`]. Nothing has changed then.
    pub fn submit(&mut self, _request: Request) -> Result<RequestId, Refused> {
        Err(Refused::PromptEmpty)
    }

    /// Ends a request: its KV is free at once and the next step reports it as cancelled. An id that is unknown or
    /// finished is ignored, since a cancel may cross the last event on its way.
    pub fn cancel(&mut self, _request: RequestId) {}

    /// One forward: admits, runs at most `max_rows` rows, draws tokens.
    ///
    /// # Errors
    /// When the backend fails; every sequence then stands where it stood.
    pub fn step(&mut self) -> Result<StepReport, EngineError> {
        Ok(StepReport::default())
    }

    /// Whether a step has anything to do or to report.
    pub fn has_work(&self) -> bool {
        false
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        Counters::default()
    }

    /// What the engine runs on.
    pub fn info(&self) -> BackendInfo {
        self.backend.describe()
    }

    /// Frees a kept sequence; one that is gone already is ignored.
    pub fn release_retained(&mut self, _retained: Retained) {}
}
