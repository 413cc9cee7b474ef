//! What can go wrong between a model's name and a plan that runs.

use tare_core::Fault;
use tare_formats::FormatError;
use tare_ops::OpError;

/// An error of opening, packing or planning a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The files could not be read or understood.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The backend refused a weight or a plan.
    #[error(transparent)]
    Backend(#[from] OpError),
    /// A name, a plan, a class or a configuration that does not fit.
    #[error(transparent)]
    Input(#[from] Fault),
}
