//! Answers as JSON: whole or in chunks, in the shape of either API.

use serde_json::{Map, Value, json};
use tare_engine::Usage;
use tare_text::Tokenizer;

use crate::answer::{End, Piece, Reported};

/// The API's number for a token without any probability; JSON has no negative infinity.
const NO_LOGPROB: f32 = -9999.0;

/// Which API is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    /// POST /v1/chat/completions
    Chat,
    /// POST /v1/completions
    Completion,
}

/// What stands around every part of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    /// Which API.
    pub(crate) api: Api,
    /// Identifies the answer; the same in each chunk.
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: i64,
    /// The served model's name.
    pub(crate) model: String,
    /// Spells reported tokens.
    pub(crate) tokenizer: Tokenizer,
    /// Whether tokens are reported.
    pub(crate) report: bool,
    /// Whether their ids are.
    pub(crate) token_ids: bool,
    /// Whether a stream ends with its usage.
    pub(crate) include_usage: bool,
}

impl Envelope {
    /// The answer in one object.
    pub(crate) fn whole(&self, piece: &Piece) -> Value {
        let mut choice = self.choice(piece);
        let object = match self.api {
            Api::Chat => {
                choice["message"] = json!({"role": "assistant", "content": piece.text, "refusal": null});
                "chat.completion"
            }
            Api::Completion => {
                choice["text"] = json!(piece.text);
                "text_completion"
            }
        };
        let mut whole = self.around(object, vec![choice]);
        whole["usage"] = usage(piece.end.map_or_else(Usage::default, |end| end.usage));
        whole
    }

    /// The chunk that comes before any token: the role, where there is one.
    pub(crate) fn opening(&self) -> Option<Value> {
        (self.api == Api::Chat).then(|| {
            let mut choice = self.choice(&Piece::default());
            choice["delta"] = json!({"role": "assistant", "content": ""});
            choice["logprobs"] = Value::Null;
            self.chunk(vec![choice])
        })
    }

    /// The chunks of a piece: its text, and at the end the reason and the usage.
    pub(crate) fn chunks(&self, piece: &Piece) -> Vec<Value> {
        let mut chunks = Vec::new();
        if !piece.text.is_empty() || !piece.tokens.is_empty() {
            chunks.push(self.delta(&Piece { end: None, ..piece.clone() }, json!({"content": piece.text})));
        }
        if let Some(End { usage: used, .. }) = piece.end {
            let mut last = self.delta(&Piece { end: piece.end, ..Piece::default() }, json!({}));
            last["choices"][0]["logprobs"] = Value::Null;
            chunks.push(last);
            if self.include_usage {
                let mut closing = self.chunk(Vec::new());
                closing["usage"] = usage(used);
                chunks.push(closing);
            }
        }
        chunks
    }

    fn delta(&self, piece: &Piece, delta: Value) -> Value {
        let mut choice = self.choice(piece);
        match self.api {
            Api::Chat => choice["delta"] = delta,
            Api::Completion => choice["text"] = json!(piece.text),
        }
        self.chunk(vec![choice])
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let object = match self.api {
            Api::Chat => "chat.completion.chunk",
            Api::Completion => "text_completion",
        };
        let mut chunk = self.around(object, choices);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn around(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices})
    }

    fn choice(&self, piece: &Piece) -> Value {
        let logprobs = match (self.report, self.api) {
            (false, _) => Value::Null,
            (true, Api::Chat) => self.chat_logprobs(&piece.tokens),
            (true, Api::Completion) => self.completion_logprobs(&piece.tokens),
        };
        let mut choice = json!({"index": 0, "logprobs": logprobs, "finish_reason": piece.end.map(|end| end.reason)});
        if self.token_ids {
            choice["token_ids"] = piece.tokens.iter().map(|reported| reported.token).collect();
        }
        choice
    }

    fn chat_logprobs(&self, tokens: &[Reported]) -> Value {
        let one = |(token, logprob): (u32, f32)| {
            let bytes = self.tokenizer.token_bytes(token).unwrap_or_default();
            json!({"token": String::from_utf8_lossy(&bytes), "logprob": finite(logprob), "bytes": bytes})
        };
        let content = tokens.iter().map(|reported| {
            let mut entry = one((reported.token, reported.logprob));
            entry["top_logprobs"] = reported.top.iter().copied().map(one).collect();
            entry
        });
        json!({"content": content.collect::<Vec<_>>(), "refusal": null})
    }

    fn completion_logprobs(&self, tokens: &[Reported]) -> Value {
        let spell = |token: u32| {
            let bytes = self.tokenizer.token_bytes(token).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        // Tokens that are parts of characters can be spelled alike; the most likely of them is the one shown.
        let top = |reported: &Reported| {
            let mut map = Map::new();
            for (token, logprob) in &reported.top {
                map.entry(spell(*token)).or_insert_with(|| json!(finite(*logprob)));
            }
            map
        };
        json!({
            "tokens": tokens.iter().map(|t| spell(t.token)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|t| finite(t.logprob)).collect::<Vec<_>>(),
            "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
            "text_offset": tokens.iter().map(|t| t.offset).collect::<Vec<_>>(),
        })
    }
}

fn finite(logprob: f32) -> f32 {
    logprob.max(NO_LOGPROB)
}

fn usage(used: Usage) -> Value {
    json!({
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.output_tokens,
        "total_tokens": used.prompt_tokens + used.output_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
    })
}
