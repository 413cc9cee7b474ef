//! The engine: requests in, events out, one forward a step.

use tare_model::{Model, Resolved};
use tare_ops::{Backend, BackendInfo};

use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::error::{EngineError, Refused};
use crate::request::{Request, RequestId, Retained, StepReport};

/// Runs many requests on one backend.
pub struct Engine {
    backend: Box<dyn Backend>,
    resolved: Vec<Resolved>,
}

impl Engine {
    /// Packs `model` on `backend`, resolves and compiles the plan for every bucket, and makes the KV storage.
    ///
    /// # Errors
    /// When a limit cannot be kept, the plan does not suit the model or the backend, or memory runs out.
    pub fn new(_model: &Model, backend: Box<dyn Backend>, config: EngineConfig) -> Result<Self, EngineError> {
        config.check()?;
        Ok(Self { backend, resolved: Vec::new() })
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

    /// The plans it runs, from the smallest bucket to the largest.
    pub fn resolved(&self) -> &[Resolved] {
        &self.resolved
    }

    /// Frees a kept sequence; one that is gone already is ignored.
    pub fn release_retained(&mut self, _retained: Retained) {}
}
