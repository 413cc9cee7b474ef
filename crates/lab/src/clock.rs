//! View 1, the request clock: what one request costs, token by token, or several of one length that run together.
//!
//! A request on the clock is a [`Runner`] driven through one request. Alone it has one turn; in a duet the same calls
//! come in many. What is inside and outside the clock is said where the clock is read: [`crate::engine_runner`] for the
//! engine under test.

use tare_core::Reading;
use tare_engine::Engine;
use tare_evidence::samples::{DeviceTiming, Emitted, RowTokens, Timing};

use crate::LabError;
use crate::engine_runner::EngineRunner;
use crate::runner::{Drawn, Ended, Runner};
use crate::work::ClockedRequest;

/// One request, as the clock saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// Handing the request to the engine.
    pub setup_ns: u64,
    /// From then to the first token of every sequence on the host; admission and cache set-up are in it.
    pub prefill_ns: u64,
    /// From each step to the next: `output_tokens - 1` of them, each a token of every sequence.
    pub decode_ns: Vec<u64>,
    /// Indices of `decode_ns` that are the first of a turn after another arm had its turn: in no figure.
    pub untimed: Vec<u32>,
    /// From the last token until the engine had nothing left to do; the storage was released in the last token's step.
    pub release_ns: u64,
    /// Processor time of the thread that drives the engine, over the request.
    pub main_thread_cpu_ns: Reading<u64>,
    /// The most bytes that were allocated at once between submitting and release, whatever was allocated before included.
    pub allocator_peak_bytes: Reading<u64>,
    /// The tokens drawn, `[sequences]`; without logits when the engine does not give them out.
    pub tokens: Vec<RowTokens>,
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
    clock_together(engine, std::slice::from_ref(request))
}

/// Runs `requests` once on the clock of `engine`, all of them in the same steps, in one turn.
///
/// # Errors
/// As [`clock`], or when they are not of one length or the engine does not run as many together.
pub fn clock_together(engine: &mut Engine, requests: &[ClockedRequest]) -> Result<Timed, LabError> {
    let mut runner = EngineRunner::new(engine);
    let mut run = Turns::begin(&mut runner, requests)?;
    run.decode(&mut runner, requests[0].output_tokens - 1, Baton::Kept)?;
    run.end(&mut runner)
}

/// A request that is run in turns, and what was drawn so far.
#[derive(Debug)]
pub struct Turns {
    setup_ns: u64,
    drawn: Drawn,
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
    /// The prompts and the first token of each.
    ///
    /// # Errors
    /// As [`Runner::prefill`].
    pub fn begin(runner: &mut dyn Runner, requests: &[ClockedRequest]) -> Result<Self, LabError> {
        let steps = requests.first().map_or(0, |r| r.output_tokens);
        let mut drawn = Drawn::with_room(steps, requests.len());
        let setup_ns = runner.prefill(requests, &mut drawn)?;
        Ok(Self { setup_ns, drawn, untimed: Vec::new() })
    }

    /// One turn of `steps`.
    ///
    /// # Errors
    /// As [`Runner::decode`].
    pub fn decode(&mut self, runner: &mut dyn Runner, steps: usize, baton: Baton) -> Result<(), LabError> {
        if baton == Baton::Returned && steps > 0 {
            self.untimed.push(self.drawn() as u32);
        }
        runner.decode(steps, &mut self.drawn)
    }

    /// Steps after the first that were drawn so far.
    pub fn drawn(&self) -> usize {
        self.drawn.steps.len().saturating_sub(1)
    }

    /// Ends the request.
    ///
    /// # Errors
    /// As [`Runner::finish`], or when nothing was drawn.
    pub fn end(self, runner: &mut dyn Runner) -> Result<Timed, LabError> {
        let Ended { release_ns, main_thread_cpu_ns, allocator_peak_bytes, rows } = runner.finish()?;
        let Self { setup_ns, drawn, untimed } = self;
        let none = || LabError::Request("drew no token".to_string());
        let (first, steps) = drawn.steps.split_first().ok_or_else(none)?;
        let device = first.device_ns.zip(steps.iter().map(|s| s.device_ns).collect::<Option<Vec<u64>>>());
        Ok(Timed {
            setup_ns,
            prefill_ns: first.ns,
            decode_ns: steps.iter().map(|s| s.ns).collect(),
            untimed,
            release_ns,
            main_thread_cpu_ns,
            allocator_peak_bytes,
            tokens: drawn.rows(),
            rows,
            device: device.map(|(prefill_ns, token_ns)| DeviceTiming { prefill_ns, token_ns }),
        })
    }
}

impl Timed {
    /// What a record keeps of it whether or not the gate passes.
    pub fn emitted(&self, round: usize) -> Emitted {
        Emitted { round: round as u32, rows: self.tokens.clone() }
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
