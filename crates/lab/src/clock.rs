//! View 1, the request clock: what one request costs, token by token.
//!
//! A request on the clock is a [`Runner`] driven through one request. Alone it has one turn; in a duet the same calls
//! come in many. What is inside and outside the clock is said where the clock is read: [`crate::engine_runner`] for the
//! engine under test.

use tare_core::Reading;
use tare_engine::Engine;
use tare_evidence::samples::{DeviceTiming, Emitted, RowTokens, Timing};

use crate::LabError;
use crate::engine_runner::EngineRunner;
use crate::runner::{Drawn, Ended, Prefilled, Runner};
use crate::work::ClockedRequest;

/// One request, as the clock saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// Handing the request to the engine.
    pub setup_ns: u64,
    /// From then to the first token on the host; admission and cache set-up are in it.
    pub prefill_ns: u64,
    /// From each token to the next: `output_tokens - 1` of them.
    pub decode_ns: Vec<u64>,
    /// Indices of `decode_ns` that are the first of a turn after another arm had its turn: in no figure.
    pub untimed: Vec<u32>,
    /// From the last token until the engine had nothing left to do; the storage was released in the last token's step.
    pub release_ns: u64,
    /// Processor time of the thread that drives the engine, over the request.
    pub main_thread_cpu_ns: Reading<u64>,
    /// The most bytes that were allocated at once between submitting and release, whatever was allocated before included.
    pub allocator_peak_bytes: Reading<u64>,
    /// The tokens drawn.
    pub ids: Vec<u32>,
    /// The F32 logit of each; empty when the engine does not give them out.
    pub logits: Vec<f32>,
    /// Rows that went through the layers and through the head.
    pub rows: Reading<(u64, u64)>,
    /// Prefill and decode by the device's own clock; none where nothing has one.
    pub device: Option<DeviceTiming>,
}

/// Runs `request` once on the clock of `engine`, in one turn.
///
/// # Errors
/// When the engine refuses or fails, draws another number of tokens than was asked for, or did not start at the depth
/// that was asked for.
pub fn clock(engine: &mut Engine, request: &ClockedRequest) -> Result<Timed, LabError> {
    let mut runner = EngineRunner::new(engine);
    let mut run = Turns::begin(&mut runner, request)?;
    run.decode(&mut runner, request.output_tokens - 1, Baton::Kept)?;
    run.end(&mut runner)
}

/// A request that is run in turns, and what was drawn so far.
#[derive(Debug)]
pub struct Turns {
    prefilled: Prefilled,
    drawn: Vec<Drawn>,
    untimed: Vec<u32>,
}

/// Whether another arm had its turn since the last token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baton {
    /// This arm went on.
    Kept,
    /// This arm comes back: caches, clocks and threads are another's, so that its first token is not timed.
    Returned,
}

impl Turns {
    /// The prompt and the first token.
    ///
    /// # Errors
    /// As [`Runner::prefill`].
    pub fn begin(runner: &mut dyn Runner, request: &ClockedRequest) -> Result<Self, LabError> {
        let prefilled = runner.prefill(request)?;
        Ok(Self { prefilled, drawn: Vec::with_capacity(request.output_tokens), untimed: Vec::new() })
    }

    /// One turn of `tokens`.
    ///
    /// # Errors
    /// As [`Runner::decode`].
    pub fn decode(&mut self, runner: &mut dyn Runner, tokens: usize, baton: Baton) -> Result<(), LabError> {
        if baton == Baton::Returned && tokens > 0 {
            self.untimed.push(self.drawn.len() as u32);
        }
        runner.decode(tokens, &mut self.drawn)
    }

    /// Tokens after the first that were drawn so far.
    pub fn drawn(&self) -> usize {
        self.drawn.len()
    }

    /// Ends the request.
    ///
    /// # Errors
    /// As [`Runner::finish`].
    pub fn end(self, runner: &mut dyn Runner) -> Result<Timed, LabError> {
        let Ended { release_ns, main_thread_cpu_ns, allocator_peak_bytes, rows } = runner.finish()?;
        let Self { prefilled: Prefilled { setup_ns, first }, drawn, untimed } = self;
        let all = || std::iter::once(&first).chain(&drawn);
        let device = first.device_ns.zip(drawn.iter().map(|d| d.device_ns).collect::<Option<Vec<u64>>>());
        Ok(Timed {
            setup_ns,
            prefill_ns: first.ns,
            decode_ns: drawn.iter().map(|d| d.ns).collect(),
            untimed,
            release_ns,
            main_thread_cpu_ns,
            allocator_peak_bytes,
            ids: all().map(|d| d.id).collect(),
            logits: all().map(|d| d.logit).collect::<Option<Vec<f32>>>().unwrap_or_default(),
            rows,
            device: device.map(|(prefill_ns, token_ns)| DeviceTiming { prefill_ns, token_ns }),
        })
    }
}

impl Timed {
    /// What a record keeps of it whether or not the gate passes.
    pub fn emitted(&self, round: usize) -> Emitted {
        let row = RowTokens { ids: self.ids.clone(), logits: self.logits.clone() };
        Emitted { round: round as u32, rows: vec![row] }
    }

    /// What a record keeps of it behind a passed gate.
    pub fn timing(&self) -> Timing {
        Timing {
            setup_ns: self.setup_ns,
            prefill_ns: self.prefill_ns,
            token_ns: self.decode_ns.clone(),
            release_ns: self.release_ns,
            main_thread_cpu_ns: self.main_thread_cpu_ns.clone(),
            untimed: self.untimed.clone(),
            device: self.device.clone(),
        }
    }
}
