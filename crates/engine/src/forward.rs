//! A forward as whoever runs it is handed it.

use tare_ops::{Backend, Batch, Executable, OpError, StepOutput};

/// A forward that is about to run: [`Engine::step`](crate::Engine::step) hands it to [`Backend::run`].
#[derive(Debug)]
pub struct Forward<'a> {
    /// Which of [`Engine::resolved`](crate::Engine::resolved) was compiled.
    pub plan: usize,
    /// What runs.
    pub exe: Executable,
    /// Its rows.
    pub batch: &'a Batch,
    /// Tokens of a page of each table of the batch.
    pub page_tokens: &'a [usize],
    /// What it gives.
    pub out: &'a mut StepOutput,
}

/// Runs a forward on the engine's backend.
pub type RunForward<'a> = dyn FnMut(&mut dyn Backend, Forward<'_>) -> Result<(), OpError> + 'a;
