//! Why the laboratory could not do something.

use tare_core::Fault;
use tare_engine::{EngineError, Refused};
use tare_model::ModelError;
use tare_ops::OpError;

/// Why a measurement or a gate could not be made. A gate that failed is not an error: it is a result.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Something given was not what it should be.
    #[error(transparent)]
    Input(#[from] Fault),
    /// The model or the plan.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The backend.
    #[error(transparent)]
    Backend(#[from] OpError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine did not take the request.
    #[error("the request was refused")]
    Refused(#[from] Refused),
    /// The judge gave something other than what it was asked.
    #[error("the judge failed: {0}")]
    Judge(String),
    /// The clocked request ended otherwise than it should.
    #[error("the clocked request {0}")]
    Request(String),
    /// The ledger did not take a document.
    #[error(transparent)]
    Ledger(#[from] tare_evidence::LedgerError),
    /// Stopped by the user: nothing was recorded. What a caller gave to be filled keeps what it has.
    #[error("interrupted: nothing was recorded")]
    Interrupted,
}
