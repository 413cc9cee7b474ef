//! Ctrl-C as a question that loops can ask: the work at hand stops, the program goes on to clean up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tare_lab::LabError;

/// The exit status of a program that Ctrl-C ended, as shells have it: 128 and the signal's number.
pub(crate) const INTERRUPTED: u8 = 130;

/// Ctrl-C ended the work; what was done until then has been shown.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Cancelled;

/// `error`, as [`Cancelled`] where it is an interruption of the laboratory about which nothing is left to say.
pub(crate) fn cancelled(error: LabError) -> anyhow::Error {
    if matches!(error, LabError::Interrupted) { Cancelled.into() } else { error.into() }
}

/// Whether Ctrl-C was pressed since the last [`Interrupt::clear`]. A second press before anybody looked ends the
/// program at once.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts listening. Only the first call of a process takes the signal over.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let pressed = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&pressed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        std::thread::Builder::new().name("interrupt".into()).spawn(move || {
            runtime.block_on(async {
                while tokio::signal::ctrl_c().await.is_ok() {
                    if seen.swap(true, Ordering::SeqCst) {
                        std::process::exit(i32::from(INTERRUPTED));
                    }
                }
            });
        })?;
        Ok(Self(pressed))
    }

    /// Whether it was pressed.
    pub(crate) fn pressed(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Forgets that it was pressed.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
