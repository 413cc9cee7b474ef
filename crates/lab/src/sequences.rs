//! The sequences of a request on an engine, step by step: as they are timed, and in the same steps for whoever looks into
//! them afterwards.
//!
//! One sequence is one request of the engine. Several have their prompts computed one after the other, each by a request
//! that draws the first token and keeps its keys and values. From then on each goes on by a request of its own from what
//! was kept, all of them at once, so that every step has one row of every sequence: nothing is computed twice, and the
//! rows are those that the engine's scheduler makes of requests that decode together.

use tare_engine::{Engine, Event, FinishReason, Request, RequestId, Retained, StepReport};

use crate::LabError;
use crate::runner::Token;
use crate::work::ClockedRequest;

/// Runs one forward of the engine, or does with it what it likes; it is told which sequences have rows in it, in the
/// order of the batch's tables.
pub(crate) type Forward<'a> = dyn FnMut(&mut Engine, &[usize]) -> Result<StepReport, LabError> + 'a;

/// A forward as it is timed.
pub(crate) fn step(engine: &mut Engine, _running: &[usize]) -> Result<StepReport, LabError> {
    Ok(engine.step()?)
}

/// Sequences of equal lengths that run together. Nothing else may run on the engine meanwhile.
#[derive(Debug)]
pub(crate) struct Sequences {
    all: Vec<One>,
    /// Places of all of them.
    everyone: Vec<usize>,
    output_tokens: usize,
    /// Whether keys and values are kept at the end.
    retain: bool,
    /// Tokens of each that were drawn.
    drawn: usize,
    /// Whether they run in one batch already; one alone always does.
    together: bool,
    /// Tokens of the step under way, by sequence.
    step: Vec<Option<Token>>,
}

/// One of them.
#[derive(Debug)]
struct One {
    request: ClockedRequest,
    /// Keys and values from which its next request goes on.
    kept: Option<Retained>,
    /// The engine's request that runs for it.
    running: Option<RequestId>,
    first: u32,
    /// Why its last request ended, and how many tokens that had in the cache when it began.
    end: Option<(FinishReason, usize)>,
}

impl Sequences {
    /// Puts the prefixes in the cache. With `retain` keys and values are kept when the sequences are finished.
    ///
    /// # Errors
    /// When there are none, they are of different lengths, or the plan keeps no cache to start from.
    pub(crate) fn begin(engine: &mut Engine, requests: &[ClockedRequest], retain: bool) -> Result<Self, LabError> {
        let lengths = |r: &ClockedRequest| (r.prefix.len(), r.prompt.len(), r.output_tokens);
        let Some(first) = requests.first() else {
            return Err(LabError::Request("has no sequence".to_string()));
        };
        if let Some(other) = requests.iter().find(|r| lengths(r) != lengths(first)) {
            let (a, b) = (lengths(first), lengths(other));
            return Err(LabError::Request(format!(
                "has sequences of depth, prompt and output {a:?} and {b:?}: only equal lengths run in the same steps"
            )));
        }
        let mut all = Vec::with_capacity(requests.len());
        for request in requests {
            let kept = cache_prefix(engine, request)?;
            all.push(One { request: request.clone(), kept, running: None, first: 0, end: None });
        }
        Ok(Self {
            everyone: (0..all.len()).collect(),
            output_tokens: first.output_tokens,
            retain,
            drawn: 0,
            together: all.len() == 1,
            step: vec![None; all.len()],
            all,
        })
    }

    /// Hands over what the first step needs: the whole of one sequence, the prompt of the first of several.
    ///
    /// # Errors
    /// When the engine refuses it.
    pub(crate) fn submit(&mut self, engine: &mut Engine) -> Result<(), LabError> {
        self.submit_prompt(engine, 0)
    }

    fn submit_prompt(&mut self, engine: &mut Engine, n: usize) -> Result<(), LabError> {
        let alone = self.together;
        let one = &mut self.all[n];
        let mut asked = Request { resume: one.kept.take(), retain: self.retain, ..one.request.greedy() };
        if !alone {
            (asked.max_tokens, asked.retain) = (1, true);
        }
        one.running = Some(engine.submit(asked)?);
        Ok(())
    }

    /// Runs the prompts to the first token of each, which go to `tokens`. Gives the time of the forwards by the device's
    /// own clock.
    ///
    /// # Errors
    /// When the engine fails, or ends a sequence early, or keeps no cache from which several could go on.
    pub(crate) fn prefill(
        &mut self,
        engine: &mut Engine,
        forward: &mut Forward<'_>,
        tokens: &mut Vec<Token>,
    ) -> Result<Option<u64>, LabError> {
        if self.together {
            return self.draw(engine, forward, tokens);
        }
        let mut device_ns = Some(0);
        for n in 0..self.all.len() {
            if n > 0 {
                self.submit_prompt(engine, n)?;
            }
            while self.all[n].end.is_none() && engine.has_work() {
                let report = forward(engine, &[n])?;
                device_ns = device_ns.zip(report.device_ns).map(|(sum, ns)| sum + ns);
                self.take(report.events);
            }
            let Some(token) = self.step[n].take() else { return Err(self.ended_early(n)) };
            self.check_end(n, self.all[n].request.prefix.len())?;
            let one = &mut self.all[n];
            one.end = None;
            if one.kept.is_none() {
                return Err(LabError::Request(
                    "cannot run beside others: this plan keeps no cache; take one that does, or one sequence".into(),
                ));
            }
            one.first = token.id;
            tokens.push(token);
        }
        self.drawn = 1;
        Ok(device_ns)
    }

    /// Draws the next token of each. Gives the time of the forwards by the device's own clock.
    ///
    /// # Errors
    /// When the engine fails, ends a sequence early, or does not run all of them in one step.
    pub(crate) fn draw(
        &mut self,
        engine: &mut Engine,
        forward: &mut Forward<'_>,
        tokens: &mut Vec<Token>,
    ) -> Result<Option<u64>, LabError> {
        if !self.together {
            self.gather(engine)?;
        }
        let mut device_ns = Some(0);
        while engine.has_work() {
            let report = forward(engine, &self.everyone)?;
            device_ns = device_ns.zip(report.device_ns).map(|(sum, ns)| sum + ns);
            self.take(report.events);
            let there = self.step.iter().flatten().count();
            if there == self.all.len() {
                tokens.extend(self.step.iter_mut().filter_map(Option::take));
                self.drawn += 1;
                return Ok(device_ns);
            }
            if there > 0 {
                let all = self.all.len();
                return Err(LabError::Request(format!("drew tokens of {there} of {all} sequences in one step")));
            }
        }
        Err(self.ended_early(0))
    }

    /// Lets every sequence go on from what was kept of its prompt.
    fn gather(&mut self, engine: &mut Engine) -> Result<(), LabError> {
        for one in &mut self.all {
            let mut prompt = one.request.input();
            prompt.push(one.first);
            let asked = Request::greedy(prompt, self.output_tokens - 1);
            one.running = Some(engine.submit(Request { resume: one.kept.take(), retain: self.retain, ..asked })?);
        }
        self.together = true;
        Ok(())
    }

    /// Runs what is left when every token is drawn, until the storage is released.
    ///
    /// # Errors
    /// When tokens are missing, the engine fails, or a sequence did not start with what it was to start with.
    pub(crate) fn end(&mut self, engine: &mut Engine, forward: &mut Forward<'_>) -> Result<(), LabError> {
        if self.drawn < self.output_tokens {
            return Err(self.ended_early(0));
        }
        if !self.together && !self.retain {
            self.all.iter_mut().filter_map(|one| one.kept.take()).for_each(|kept| engine.release_retained(kept));
        }
        while engine.has_work() {
            let events = forward(engine, &self.everyone)?.events;
            self.take(events);
        }
        let cached = |one: &One| if self.all.len() > 1 { one.request.input().len() } else { one.request.prefix.len() };
        let mut ends = self.all.iter().enumerate().filter(|_| self.together);
        ends.try_for_each(|(n, one)| self.check_end(n, cached(one)))
    }

    /// What is kept of each when they are finished; none when the plan keeps no cache.
    pub(crate) fn kept(&self) -> Option<Vec<Retained>> {
        self.all.iter().map(|one| one.kept).collect()
    }

    /// Ends all of them where they are.
    pub(crate) fn cancel(&self, engine: &mut Engine) {
        self.all.iter().filter_map(|one| one.running).for_each(|id| engine.cancel(id));
        self.all.iter().filter_map(|one| one.kept).for_each(|kept| engine.release_retained(kept));
    }

    /// What a step says of each.
    fn take(&mut self, events: Vec<Event>) {
        for event in events {
            let request = match &event {
                Event::Token { request, .. } | Event::Finished { request, .. } => *request,
                Event::PromptLogits { .. } => continue,
            };
            let Some(n) = self.all.iter().position(|one| one.running == Some(request)) else { continue };
            match event {
                Event::Token { token, logit, .. } => self.step[n] = Some(Token { id: token, logit: Some(logit) }),
                Event::Finished { reason, usage, retained, .. } => {
                    let one = &mut self.all[n];
                    (one.end, one.kept, one.running) = (Some((reason, usage.cached_tokens)), retained, None);
                }
                Event::PromptLogits { .. } => {}
            }
        }
    }

    /// Whether the last request of sequence `n` ended as it was asked to, and began with `expected` tokens in the cache.
    fn check_end(&self, n: usize, expected: usize) -> Result<(), LabError> {
        let Some((FinishReason::Length, cached)) = self.all[n].end else { return Err(self.ended_early(n)) };
        if cached == expected {
            return Ok(());
        }
        let which = if self.all.len() > 1 { format!(" in sequence {n}") } else { String::new() };
        Err(LabError::Request(format!(
            "started with {cached} tokens in the cache where its depth is {expected}{which}; a prompt whose every logit is \
             wanted reuses nothing: ask for the logits of the last token, or for depth 0"
        )))
    }

    fn ended_early(&self, n: usize) -> LabError {
        let why = self.all[n].end.map(|(reason, _)| reason);
        LabError::Request(format!("drew {} of {} tokens and ended with {why:?}", self.drawn, self.output_tokens))
    }
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
