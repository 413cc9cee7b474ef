//! View 1, the request clock: what one request costs, token by token.
//!
//! The clock starts before the request is submitted and stops when its storage is released. Inside: admission, cache
//! set-up, every forward, sampling, handing the token's id and logit to the host. Outside: loading, packing, compiling,
//! tokenizing, and at a depth the prefix that was in the cache before. The engine releases the storage in the step that
//! draws the last token, so that the last token's time holds the release and `release_ns` what is left after it.

use std::time::Instant;
use tare_core::Reading;
use tare_engine::{Engine, Event, FinishReason, Request, Retained};
use tare_probe::allocator;
use tare_probe::clock::thread_cpu_ns;

use crate::LabError;
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
    /// From the last token until the engine had nothing left to do; the storage was released in the last token's step.
    pub release_ns: u64,
    /// Processor time of the thread that drives the engine, over the request.
    pub main_thread_cpu_ns: Reading<u64>,
    /// The most bytes that were allocated at once between submitting and release, whatever was allocated before included.
    pub allocator_peak_bytes: Reading<u64>,
    /// The tokens drawn.
    pub ids: Vec<u32>,
    /// The F32 logit of each.
    pub logits: Vec<f32>,
    /// Prompt tokens that were found in the cache: the depth.
    pub cached_tokens: usize,
    /// Rows that went through the layers and through the head.
    pub rows: (u64, u64),
}

/// Runs `request` once on the clock.
///
/// # Errors
/// When the engine refuses or fails, draws another number of tokens than was asked for, or did not start at the depth
/// that was asked for.
pub fn clock(engine: &mut Engine, request: &ClockedRequest) -> Result<Timed, LabError> {
    let prefix = cache_prefix(engine, request)?;
    let asked = Request { resume: prefix, ..request.greedy() };
    let mut seen = Seen::with_capacity(request.output_tokens);
    let before = engine.counters();
    allocator::reset_peak();
    let cpu = thread_cpu_ns();
    let start = Instant::now();
    engine.submit(asked)?;
    let setup_ns = start.elapsed().as_nanos() as u64;
    while engine.has_work() {
        let report = engine.step()?;
        let now = start.elapsed().as_nanos() as u64;
        for event in report.events {
            seen.take(event, now);
        }
    }
    let end_ns = start.elapsed().as_nanos() as u64;
    let cpu_after = thread_cpu_ns();
    let allocator_peak_bytes = allocator::peak_bytes();
    let after = engine.counters();
    if seen.ids.len() != request.output_tokens || seen.reason != Some(FinishReason::Length) {
        return Err(LabError::Request(format!(
            "drew {} of {} tokens and ended with {:?}",
            seen.ids.len(),
            request.output_tokens,
            seen.reason
        )));
    }
    if seen.cached_tokens != request.prefix.len() {
        return Err(LabError::Request(format!(
            "started with {} tokens in the cache where its depth is {}; a prompt whose every logit is wanted reuses \
             nothing: ask for the logits of the last token, or for depth 0",
            seen.cached_tokens,
            request.prefix.len()
        )));
    }
    Ok(Timed {
        setup_ns,
        prefill_ns: seen.at_ns[0] - setup_ns,
        decode_ns: seen.at_ns.windows(2).map(|w| w[1] - w[0]).collect(),
        release_ns: end_ns - seen.at_ns[seen.at_ns.len() - 1],
        main_thread_cpu_ns: difference(cpu, cpu_after),
        allocator_peak_bytes,
        ids: seen.ids,
        logits: seen.logits,
        cached_tokens: seen.cached_tokens,
        rows: (after.layer_rows - before.layer_rows, after.head_rows - before.head_rows),
    })
}

/// Puts the prefix in the cache, off the clock.
fn cache_prefix(engine: &mut Engine, request: &ClockedRequest) -> Result<Option<Retained>, LabError> {
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

fn difference(before: Reading<u64>, after: Reading<u64>) -> Reading<u64> {
    match (before, after) {
        (Reading::Available(b), Reading::Available(a)) => Reading::Available(a.saturating_sub(b)),
        (Reading::Unavailable { why }, _) | (_, Reading::Unavailable { why }) => Reading::Unavailable { why },
    }
}

#[derive(Default)]
struct Seen {
    at_ns: Vec<u64>,
    ids: Vec<u32>,
    logits: Vec<f32>,
    reason: Option<FinishReason>,
    cached_tokens: usize,
}

impl Seen {
    fn with_capacity(tokens: usize) -> Self {
        Self {
            at_ns: Vec::with_capacity(tokens),
            ids: Vec::with_capacity(tokens),
            logits: Vec::with_capacity(tokens),
            ..Self::default()
        }
    }

    fn take(&mut self, event: Event, now_ns: u64) {
        match event {
            Event::Token { token, logit, .. } => {
                self.at_ns.push(now_ns);
                self.ids.push(token);
                self.logits.push(logit);
            }
            Event::Finished { reason, usage, .. } => {
                self.reason = Some(reason);
                self.cached_tokens = usage.cached_tokens;
            }
            Event::PromptLogits { .. } => {}
        }
    }
}
