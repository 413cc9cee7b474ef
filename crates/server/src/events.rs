//! An answer as server-sent events.

use axum::response::sse::Event;
use futures_core::Stream;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::answer::Answer;
use crate::app::Ticket;
use crate::envelope::Envelope;

/// Chunks as they become known, then `[DONE]`. An error after the first chunk is an event of its own.
#[derive(Debug)]
pub(crate) struct Events {
    envelope: Envelope,
    /// None once the last piece is there.
    answer: Option<Answer>,
    ready: VecDeque<Event>,
    _ticket: Ticket,
}

impl Events {
    /// The events of an answer; `ticket` is held until the last one is taken.
    pub(crate) fn new(envelope: Envelope, answer: Answer, ticket: Ticket) -> Self {
        let ready = envelope.opening().iter().map(event).collect();
        Self { envelope, answer: Some(answer), ready, _ticket: ticket }
    }
}

impl Stream for Events {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while this.ready.is_empty()
            && let Some(answer) = &mut this.answer
        {
            let over = match ready!(answer.poll_piece(context)) {
                Ok(piece) => {
                    this.ready.extend(this.envelope.chunks(&piece).iter().map(event));
                    piece.end.is_some()
                }
                Err(problem) => {
                    this.ready.push_back(event(&problem.body()));
                    true
                }
            };
            if over {
                this.answer = None;
                this.ready.push_back(Event::default().data("[DONE]"));
            }
        }
        Poll::Ready(this.ready.pop_front().map(Ok))
    }
}

/// JSON without line breaks, which an event may hold.
fn event(value: &Value) -> Event {
    Event::default().data(value.to_string())
}
