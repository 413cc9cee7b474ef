//! The inference engine: KV storage, a pure scheduler, and the runner that turns its decisions into forwards.
//!
//! [`Engine::submit`] takes requests, [`Engine::step`] makes one forward and reports [`Event`]s. The engine has no
//! clock, no thread and no device of its own: whoever owns it decides when to step, and it sees [`tare_ops::Backend`].
//! docs/reference/engine.md tells how the parts fit.

#![forbid(unsafe_code)]

mod cache;
mod config;
mod counters;
mod engine;
mod error;
mod forward;
pub mod pages;
mod program;
mod request;
mod runner;
pub mod scheduler;
mod sequence;

pub use cache::ExportedKv;
pub use config::EngineConfig;
pub use counters::{CopyBytes, Counters, PoolUse};
pub use engine::Engine;
pub use error::{CacheError, EngineError, Refused};
pub use forward::{Forward, RunForward};
pub use request::{Constraint, Event, FinishReason, PromptLogits, Request, RequestId, Retained, StepReport, Usage};
pub use tare_ops::Benched;
