//! The engine under test on the clock, in turns.
//!
//! The clock starts before the request is submitted and stops when its storage is released. Inside: admission, cache
//! set-up, every forward, sampling, handing the token's id and logit to the host. Outside: loading, packing, compiling,
//! tokenizing, and at a depth the prefix that was in the cache before. The engine releases the storage in the step that
//! draws the last token, so that the last token's time holds the release and `release_ns` what is left after it.
//!
//! Of several sequences the prompts are computed one after the other, all of them inside `prefill_ns`; that they then go
//! on together is handed to the engine in the first step after it, and is in that step's time.

use std::borrow::BorrowMut;
use std::fmt::Debug;
use std::time::Instant;
use tare_core::Reading;
use tare_engine::{Counters, Engine};
use tare_probe::allocator;
use tare_probe::clock::thread_cpu_ns;

use crate::LabError;
use crate::runner::{Drawn, Ended, Runner, Step};
use crate::sequences::{Sequences, step};
use crate::work::ClockedRequest;

/// A [`Runner`] on an engine that it owns or borrows. Nothing else may run on the engine between its calls.
#[derive(Debug)]
pub struct EngineRunner<E> {
    engine: E,
    live: Option<Live>,
}

/// The request that is under way.
#[derive(Debug)]
struct Live {
    /// Counters when it was submitted.
    before: Counters,
    cpu_ns: Reading<u64>,
    sequences: Sequences,
}

impl<E: BorrowMut<Engine>> EngineRunner<E> {
    /// A runner on `engine`, which has nothing to do yet.
    pub fn new(engine: E) -> Self {
        Self { engine, live: None }
    }

    /// The engine, between two requests.
    pub fn engine(&mut self) -> &mut Engine {
        self.engine.borrow_mut()
    }
}

impl<E: BorrowMut<Engine> + Debug> Runner for EngineRunner<E> {
    fn prefill(&mut self, requests: &[ClockedRequest], out: &mut Drawn) -> Result<u64, LabError> {
        let engine = self.engine.borrow_mut();
        let mut sequences = Sequences::begin(engine, requests, false)?;
        let before = engine.counters();
        allocator::reset_peak();
        let cpu = thread_cpu_ns();
        let start = Instant::now();
        sequences.submit(engine)?;
        let submitted = Instant::now();
        let live = self.live.insert(Live { before, cpu_ns: Reading::Available(0), sequences });
        let device_ns = live.sequences.prefill(engine, &mut step, &mut out.tokens)?;
        out.steps.push(Step { ns: submitted.elapsed().as_nanos() as u64, device_ns });
        self.count_cpu(cpu);
        Ok((submitted - start).as_nanos() as u64)
    }

    fn decode(&mut self, steps: usize, out: &mut Drawn) -> Result<(), LabError> {
        let cpu = thread_cpu_ns();
        let start = Instant::now();
        let engine = self.engine.borrow_mut();
        let live = self.live.as_mut().ok_or_else(none_runs)?;
        let mut last_ns = 0;
        for _ in 0..steps {
            let device_ns = live.sequences.draw(engine, &mut step, &mut out.tokens)?;
            let now_ns = start.elapsed().as_nanos() as u64;
            out.steps.push(Step { ns: now_ns - last_ns, device_ns });
            last_ns = now_ns;
        }
        self.count_cpu(cpu);
        Ok(())
    }

    fn finish(&mut self) -> Result<Ended, LabError> {
        let cpu = thread_cpu_ns();
        let start = Instant::now();
        let engine = self.engine.borrow_mut();
        let live = self.live.as_mut().ok_or_else(none_runs)?;
        live.sequences.end(engine, &mut step)?;
        let release_ns = start.elapsed().as_nanos() as u64;
        self.count_cpu(cpu);
        let allocator_peak_bytes = allocator::peak_bytes();
        let after = self.engine.borrow_mut().counters();
        let live = self.live.take().ok_or_else(none_runs)?;
        let rows = (after.layer_rows - live.before.layer_rows, after.head_rows - live.before.head_rows);
        Ok(Ended { release_ns, main_thread_cpu_ns: live.cpu_ns, allocator_peak_bytes, rows: Reading::Available(rows) })
    }

    fn rest(&mut self) -> Result<(), LabError> {
        self.engine.borrow_mut().rest();
        Ok(())
    }
}

impl<E> EngineRunner<E> {
    /// Adds what this thread used since `before`.
    fn count_cpu(&mut self, before: Reading<u64>) {
        let now = thread_cpu_ns();
        let Some(live) = &mut self.live else { return };
        let so_far = std::mem::replace(&mut live.cpu_ns, Reading::Available(0));
        live.cpu_ns = match (so_far, before, now) {
            (Reading::Available(sum), Reading::Available(b), Reading::Available(n)) => {
                Reading::Available(sum + n.saturating_sub(b))
            }
            (missing @ Reading::Unavailable { .. }, _, _)
            | (_, missing @ Reading::Unavailable { .. }, _)
            | (_, _, missing) => missing,
        };
    }
}

fn none_runs() -> LabError {
    LabError::Request("is not there: it was not prefilled, or is finished".to_string())
}
