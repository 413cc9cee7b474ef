//! One answer, token by token: from the engine's events to text that may be shown.

use anyhow::{Result, anyhow};
use tare_engine::{Engine, Event, FinishReason, Request, Retained, Usage};
use tare_text::{Detokenizer, StopMatcher, Tokenizer};

use crate::interrupt::Interrupt;

/// What came of a request.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Tokens drawn; a stop token is among them.
    pub(crate) ids: Vec<u32>,
    /// The text shown.
    pub(crate) text: String,
    /// `length`, `stop`, `context` or `cancelled`.
    pub(crate) finish: &'static str,
    /// Tokens in and out.
    pub(crate) usage: Usage,
    /// From the start to the first token.
    pub(crate) ttft_ns: u64,
    /// From the first token to the last.
    pub(crate) decode_ns: u64,
    /// The kept sequence, when asked for.
    pub(crate) retained: Option<Retained>,
}

/// How an answer becomes text.
#[derive(Debug)]
pub(crate) struct Text<'a> {
    /// Turns ids into text; with none, only ids are given.
    pub(crate) tokenizer: Option<&'a Tokenizer>,
    /// Texts that end the answer.
    pub(crate) stop: &'a [String],
}

/// Runs `request` alone, handing pieces of text to `show` as they become whole.
pub(crate) fn answer(
    engine: &mut Engine,
    request: Request,
    text: &Text<'_>,
    interrupt: &Interrupt,
    show: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Answer> {
    let stop_tokens = request.stop_tokens.clone();
    let mut writer = Writer::new(text);
    let start = std::time::Instant::now();
    let id = engine.submit(request)?;
    let mut at_ns = Vec::new();
    let mut ids = Vec::new();
    let mut stopped = false;
    let mut end = None;
    while engine.has_work() {
        if interrupt.pressed() && !stopped {
            engine.cancel(id);
        }
        for event in engine.step()?.events {
            match event {
                Event::Token { token, .. } if !stopped => {
                    at_ns.push(start.elapsed().as_nanos() as u64);
                    ids.push(token);
                    if !stop_tokens.contains(&token) && writer.push(token, show)? {
                        stopped = true;
                        engine.cancel(id);
                    }
                }
                Event::Finished { reason, usage, retained, .. } => end = Some((reason, usage, retained)),
                _ => {}
            }
        }
    }
    writer.finish(stopped, show)?;
    let (reason, usage, retained) = end.ok_or_else(|| anyhow!("the engine ended without finishing the request"))?;
    let finish = match reason {
        _ if stopped => "stop",
        FinishReason::Length => "length",
        FinishReason::StopToken => "stop",
        FinishReason::Context => "context",
        FinishReason::Cancelled => "cancelled",
    };
    let ttft_ns = at_ns.first().copied().unwrap_or(0);
    let decode_ns = at_ns.last().copied().unwrap_or(0) - ttft_ns;
    Ok(Answer { ids, text: writer.shown, finish, usage, ttft_ns, decode_ns, retained })
}

struct Writer {
    detokenizer: Option<Detokenizer>,
    stop: StopMatcher,
    shown: String,
}

impl Writer {
    fn new(text: &Text<'_>) -> Self {
        Self {
            detokenizer: text.tokenizer.map(|t| Detokenizer::new(t.clone(), true)),
            stop: StopMatcher::new(text.stop.to_vec()),
            shown: String::new(),
        }
    }

    /// Shows what `token` completes; true when a stop text appeared.
    fn push(&mut self, token: u32, show: &mut dyn FnMut(&str) -> Result<()>) -> Result<bool> {
        let Some(detokenizer) = &mut self.detokenizer else { return Ok(false) };
        let step = self.stop.push(&detokenizer.push(token));
        self.emit(&step.emit, show)?;
        Ok(step.stopped.is_some())
    }

    fn finish(&mut self, stopped: bool, show: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        let Some(detokenizer) = &mut self.detokenizer else { return Ok(()) };
        if stopped {
            return Ok(());
        }
        let step = self.stop.push(&detokenizer.finish());
        self.emit(&step.emit, show)?;
        if step.stopped.is_none() {
            let rest = self.stop.finish();
            self.emit(&rest, show)?;
        }
        Ok(())
    }

    fn emit(&mut self, piece: &str, show: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        if !piece.is_empty() {
            self.shown.push_str(piece);
            show(piece)?;
        }
        Ok(())
    }
}
