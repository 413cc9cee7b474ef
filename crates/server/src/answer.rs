//! From a request's updates to text that may be shown.
//!
//! ```text
//! tokens --Detokenizer--> whole characters --StopMatcher--> pieces, each with the tokens that begin in it
//! ```
//! The whole answer is its pieces joined, so that streaming and not streaming cannot differ.

use std::collections::VecDeque;
use std::task::{Context, Poll, ready};
use tare_engine::{FinishReason, Usage};
use tare_text::{Detokenizer, StopMatcher, Tokenizer};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::driver::{Drawn, Update};
use crate::problem::Problem;

/// A token beside the text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reported {
    /// The token.
    pub(crate) token: u32,
    /// Natural logarithm of its probability before sampling changed it.
    pub(crate) logprob: f32,
    /// The most likely tokens, best first.
    pub(crate) top: Vec<(u32, f32)>,
    /// Characters of the answer before it.
    pub(crate) offset: usize,
    /// Bytes of the answer before it.
    start: usize,
}

/// Text that may be shown now.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Piece {
    /// Whole characters; empty only where the answer ends.
    pub(crate) text: String,
    /// Tokens that begin in the text, when they are reported.
    pub(crate) tokens: Vec<Reported>,
    /// Set on the last piece.
    pub(crate) end: Option<End>,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct End {
    /// `stop` or `length`.
    pub(crate) reason: &'static str,
    /// Tokens in and out.
    pub(crate) usage: Usage,
}

/// What an answer needs to know about its request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: usize,
    /// Tokens that end it; they are not text.
    pub(crate) stop_tokens: Vec<u32>,
    /// Texts that end it.
    pub(crate) stop: Vec<String>,
    /// Whether tokens are reported beside the text.
    pub(crate) report: bool,
}

/// An answer on its way. Dropping it tells the engine that nobody reads any more.
#[derive(Debug)]
pub(crate) struct Answer {
    updates: UnboundedReceiver<Update>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    asked: Asked,
    /// Tokens that begin in text that is not shown yet.
    held: VecDeque<Reported>,
    output_tokens: usize,
    /// Characters and bytes of the answer so far, and how many of the bytes are shown.
    chars: usize,
    bytes: usize,
    shown: usize,
}

impl Answer {
    /// The answer to a request that the engine has taken.
    pub(crate) fn new(asked: Asked, tokenizer: &Tokenizer, updates: UnboundedReceiver<Update>) -> Self {
        Self {
            updates,
            detokenizer: Detokenizer::new(tokenizer.clone(), true),
            stop: StopMatcher::new(asked.stop.clone()),
            asked,
            held: VecDeque::new(),
            output_tokens: 0,
            chars: 0,
            bytes: 0,
            shown: 0,
        }
    }

    /// All pieces joined, up to the end.
    ///
    /// # Errors
    /// When the engine fails or stops first.
    pub(crate) async fn whole(mut self) -> Result<Piece, Problem> {
        let mut whole = Piece::default();
        while whole.end.is_none() {
            let piece = std::future::poll_fn(|context| self.poll_piece(context)).await?;
            whole.text.push_str(&piece.text);
            whole.tokens.extend(piece.tokens);
            whole.end = piece.end;
        }
        Ok(whole)
    }

    /// The next piece. Not to be asked for after the last one.
    ///
    /// # Errors
    /// When the engine fails or stops first.
    pub(crate) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<Piece, Problem>> {
        loop {
            let piece = match ready!(self.updates.poll_recv(context)) {
                Some(Update::Token(drawn)) => self.take(drawn),
                Some(Update::Finished { reason, usage }) => return Poll::Ready(self.finish(reason, usage)),
                Some(Update::Failed(why)) => return Poll::Ready(Err(Problem::internal(why))),
                Some(Update::Stopped) => return Poll::Ready(Err(Problem::stopping())),
                // Both come before everything else and were taken before the answer was made.
                Some(Update::Accepted | Update::Refused(_)) => None,
                None => return Poll::Ready(Err(Problem::engine_gone())),
            };
            if let Some(piece) = piece {
                return Poll::Ready(Ok(piece));
            }
        }
    }

    fn take(&mut self, drawn: Drawn) -> Option<Piece> {
        self.output_tokens += 1;
        // The token that ends an answer is counted, and is neither text nor reported.
        if self.asked.stop_tokens.contains(&drawn.token) {
            return None;
        }
        let text = self.detokenizer.push(drawn.token);
        if self.asked.report {
            let Drawn { token, logprob, top } = drawn;
            self.held.push_back(Reported { token, logprob, top, offset: self.chars, start: self.bytes });
        }
        let (text, stopped) = self.watch(&text);
        let end = stopped.then(|| {
            // What was drawn meanwhile is not wanted: the engine sees the closed channel before its next step.
            self.updates.close();
            let (prompt_tokens, output_tokens) = (self.asked.prompt_tokens, self.output_tokens);
            End { reason: "stop", usage: Usage { prompt_tokens, cached_tokens: 0, output_tokens } }
        });
        let silent = text.is_empty() && end.is_none();
        (!silent).then(|| Piece { tokens: self.begun(), text, end })
    }

    fn finish(&mut self, reason: FinishReason, usage: Usage) -> Result<Piece, Problem> {
        let reason = match reason {
            FinishReason::StopToken => "stop",
            FinishReason::Length | FinishReason::Context => "length",
            FinishReason::Cancelled => return Err(Problem::internal("the request was cancelled")),
        };
        let rest = self.detokenizer.finish();
        let (mut text, stopped) = self.watch(&rest);
        if stopped {
            return Ok(Piece { tokens: self.begun(), text, end: Some(End { reason: "stop", usage }) });
        }
        text.push_str(&self.stop.finish());
        Ok(Piece { tokens: self.held.drain(..).collect(), text, end: Some(End { reason, usage }) })
    }

    /// What of further text may be shown, and whether a stop string ended it.
    fn watch(&mut self, text: &str) -> (String, bool) {
        self.chars += text.chars().count();
        self.bytes += text.len();
        let step = self.stop.push(text);
        self.shown += step.emit.len();
        (step.emit, step.stopped.is_some())
    }

    /// The tokens that begin in text that is shown by now.
    fn begun(&mut self) -> Vec<Reported> {
        let shown = self.held.iter().take_while(|token| token.start < self.shown).count();
        self.held.drain(..shown).collect()
    }
}
