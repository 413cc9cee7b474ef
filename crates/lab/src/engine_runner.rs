//! The engine under test on the clock, in turns.
//!
//! The clock starts before the request is submitted and stops when its storage is released. Inside: admission, cache
//! set-up, every forward, sampling, handing the token's id and logit to the host. Outside: loading, packing, compiling,
//! tokenizing, and at a depth the prefix that was in the cache before. The engine releases the storage in the step that
//! draws the last token, so that the last token's time holds the release and `release_ns` what is left after it.

use std::borrow::BorrowMut;
use std::fmt::Debug;
use std::time::Instant;
use tare_core::Reading;
use tare_engine::{Counters, Engine, Event, FinishReason, Request, Retained};
use tare_probe::allocator;
use tare_probe::clock::thread_cpu_ns;

use crate::LabError;
use crate::runner::{Drawn, Ended, Prefilled, Runner};
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
    /// Tokens in the cache when it began, tokens to draw, tokens drawn.
    depth: usize,
    wanted: usize,
    drawn: usize,
    end: Option<(FinishReason, usize)>,
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

    /// Steps until `tokens` more are drawn or nothing is left to do; their times count from `start`.
    fn draw(&mut self, tokens: usize, start: Instant, out: &mut Vec<Drawn>) -> Result<(), LabError> {
        let engine = self.engine.borrow_mut();
        let live = self.live.as_mut().ok_or_else(none_runs)?;
        let (wanted, mut last_ns, mut device_ns) = (live.drawn + tokens, 0, Some(0));
        while live.drawn < wanted && engine.has_work() {
            let report = engine.step()?;
            let now_ns = start.elapsed().as_nanos() as u64;
            device_ns = device_ns.zip(report.device_ns).map(|(sum, step)| sum + step);
            for event in report.events {
                match event {
                    Event::Token { token, logit, .. } => {
                        out.push(Drawn { id: token, logit: Some(logit), ns: now_ns - last_ns, device_ns });
                        (last_ns, live.drawn, device_ns) = (now_ns, live.drawn + 1, Some(0));
                    }
                    Event::Finished { reason, usage, .. } => live.end = Some((reason, usage.cached_tokens)),
                    Event::PromptLogits { .. } => {}
                }
            }
        }
        if live.drawn == wanted { Ok(()) } else { Err(live.ended_early()) }
    }
}

impl<E: BorrowMut<Engine> + Debug> Runner for EngineRunner<E> {
    fn prefill(&mut self, request: &ClockedRequest) -> Result<Prefilled, LabError> {
        let engine = self.engine.borrow_mut();
        let prefix = cache_prefix(engine, request)?;
        let asked = Request { resume: prefix, ..request.greedy() };
        let before = engine.counters();
        allocator::reset_peak();
        let cpu = thread_cpu_ns();
        let start = Instant::now();
        engine.submit(asked)?;
        let submitted = Instant::now();
        let mut first = Vec::with_capacity(1);
        self.live = Some(Live {
            before,
            cpu_ns: Reading::Available(0),
            depth: request.prefix.len(),
            wanted: request.output_tokens,
            drawn: 0,
            end: None,
        });
        self.draw(1, submitted, &mut first)?;
        self.count_cpu(cpu);
        Ok(Prefilled { setup_ns: (submitted - start).as_nanos() as u64, first: first[0] })
    }

    fn decode(&mut self, tokens: usize, out: &mut Vec<Drawn>) -> Result<(), LabError> {
        let cpu = thread_cpu_ns();
        self.draw(tokens, Instant::now(), out)?;
        self.count_cpu(cpu);
        Ok(())
    }

    fn finish(&mut self) -> Result<Ended, LabError> {
        let cpu = thread_cpu_ns();
        let start = Instant::now();
        let engine = self.engine.borrow_mut();
        let live = self.live.as_mut().ok_or_else(none_runs)?;
        if live.drawn < live.wanted {
            return Err(live.ended_early());
        }
        while engine.has_work() {
            for event in engine.step()?.events {
                if let Event::Finished { reason, usage, .. } = event {
                    live.end = Some((reason, usage.cached_tokens));
                }
            }
        }
        let release_ns = start.elapsed().as_nanos() as u64;
        self.count_cpu(cpu);
        let allocator_peak_bytes = allocator::peak_bytes();
        let after = self.engine.borrow_mut().counters();
        let live = self.live.take().ok_or_else(none_runs)?;
        live.check()?;
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

impl Live {
    fn ended_early(&self) -> LabError {
        let why = self.end.map(|(reason, _)| reason);
        LabError::Request(format!("drew {} of {} tokens and ended with {why:?}", self.drawn, self.wanted))
    }

    /// Whether it ended as it was asked to.
    fn check(&self) -> Result<(), LabError> {
        let Some((FinishReason::Length, cached)) = self.end else { return Err(self.ended_early()) };
        if cached == self.depth {
            return Ok(());
        }
        Err(LabError::Request(format!(
            "started with {cached} tokens in the cache where its depth is {}; a prompt whose every logit is wanted \
             reuses nothing: ask for the logits of the last token, or for depth 0",
            self.depth
        )))
    }
}

fn none_runs() -> LabError {
    LabError::Request("is not there: it was not prefilled, or is finished".to_string())
}

/// Puts the prefix in the cache, off the clock.
pub(crate) fn cache_prefix(engine: &mut Engine, request: &ClockedRequest) -> Result<Option<Retained>, LabError> {
    if request.prefix.is_empty() {
        return Ok(None);
    }
    let kept = run_and_retain(engine, request.prefix.clone(), 0)?;
    if kept.is_none() {
        return Err(LabError::Request("cannot start at a depth: this plan keeps no cache".to_string()));
    }
    Ok(kept)
}

/// Runs `prompt` and `tokens` more, and keeps their keys and values; none when the plan keeps no cache.
pub(crate) fn run_and_retain(
    engine: &mut Engine,
    prompt: Vec<u32>,
    tokens: usize,
) -> Result<Option<Retained>, LabError> {
    engine.submit(Request { retain: true, ..Request::greedy(prompt, tokens) })?;
    let mut kept = None;
    while engine.has_work() {
        for event in engine.step()?.events {
            if let Event::Finished { retained, .. } = event {
                kept = retained;
            }
        }
    }
    Ok(kept)
}
