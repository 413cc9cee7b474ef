//! What runs the request of one arm: the engine under test, or another engine behind a shim.
//!
//! A request is run in turns, so that two arms that live side by side can hand a baton to and fro. A whole request is
//! one turn. Clocks are read where the work is done, in the process that does it.

use std::fmt;

use crate::LabError;
use crate::work::ClockedRequest;
use tare_core::Reading;

/// Runs one request at a time, in turns.
pub trait Runner: fmt::Debug {
    /// Puts the prefix in the cache off the clock, then runs the prompt on it; ends with the first token on the host.
    ///
    /// # Errors
    /// When the engine refuses or fails, or did not start at the depth that was asked for.
    fn prefill(&mut self, request: &ClockedRequest) -> Result<Prefilled, LabError>;

    /// Draws `tokens` more, and appends them to `out`.
    ///
    /// # Errors
    /// When the engine fails or ends the request early.
    fn decode(&mut self, tokens: usize, out: &mut Vec<Drawn>) -> Result<(), LabError>;

    /// Ends the request and releases its storage.
    ///
    /// # Errors
    /// When the engine fails.
    fn finish(&mut self) -> Result<Ended, LabError>;

    /// Lets the processors go until the next call: no thread of this arm may spin while another arm has its turn.
    ///
    /// # Errors
    /// When the engine cannot be reached.
    fn rest(&mut self) -> Result<(), LabError>;
}

/// A token and how long it took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// Its id.
    pub id: u32,
    /// Its F32 logit; none when the engine does not give it out.
    pub logit: Option<f32>,
    /// From the token before it, or from the start of this turn when it is the first of a turn.
    pub ns: u64,
    /// The steps that led to it by the device's own clock; none where nothing has one.
    pub device_ns: Option<u64>,
}

/// The first token and what came before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prefilled {
    /// Handing the request over.
    pub setup_ns: u64,
    /// The first token; its time is that of the prefill.
    pub first: Drawn,
}

/// What was counted over the whole request.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// From the last token until nothing was left to do.
    pub release_ns: u64,
    /// Processor time of the thread that drives the engine, over all turns.
    pub main_thread_cpu_ns: Reading<u64>,
    /// The most bytes that were allocated at once during the request.
    pub allocator_peak_bytes: Reading<u64>,
    /// Rows that went through the layers and through the head.
    pub rows: Reading<(u64, u64)>,
}
