//! What is asked of a server and what its events say.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tare_core::Fault;

/// The words that a prompt is made of where a server takes no token ids.
const WORDS: [&str; 16] = [
    "river", "stone", "garden", "winter", "letter", "window", "morning", "paper", "mountain", "silver", "kitchen",
    "forest", "music", "harbor", "yellow", "number",
];

/// How a prompt is put to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Endpoint {
    /// `/v1/completions` with token ids: the tokens are ours.
    Completions,
    /// `/v1/completions` with text: the tokens are the server's.
    CompletionsText,
    /// `/v1/chat/completions`: the tokens and the template are the server's.
    Chat,
}

impl Endpoint {
    /// All, the one that says most about the work first.
    pub const ALL: [Self; 3] = [Self::Completions, Self::CompletionsText, Self::Chat];

    /// The path under the server's address.
    pub fn path(self) -> &'static str {
        match self {
            Self::Completions | Self::CompletionsText => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }

    /// How the prompt goes out, for a person.
    pub(crate) fn way(self) -> &'static str {
        match self {
            Self::Completions => "ids to /v1/completions",
            Self::CompletionsText => "text to /v1/completions",
            Self::Chat => "text to /v1/chat/completions",
        }
    }

    /// Whether the prompt goes out as token ids.
    pub fn sends_ids(self) -> bool {
        self == Self::Completions
    }
}

/// Parameters that a server may not know. They are left out one by one, the least usual first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Extra {
    /// The ids of the tokens in each chunk.
    ReturnTokenIds,
    /// Go on past the end-of-sequence token: exact lengths.
    IgnoreEos,
    /// Tokens counted by the server, in the last chunk.
    StreamOptions,
}

impl Extra {
    /// All, in the order in which they are given up.
    pub const ALL: [Self; 3] = [Self::ReturnTokenIds, Self::IgnoreEos, Self::StreamOptions];

    /// The parameter's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReturnTokenIds => "return_token_ids",
            Self::IgnoreEos => "ignore_eos",
            Self::StreamOptions => "stream_options",
        }
    }

    /// What is lost without it.
    pub fn loss(self) -> &'static str {
        match self {
            Self::ReturnTokenIds => "the emitted ids are not known",
            Self::IgnoreEos => "an answer may end before its length",
            Self::StreamOptions => "nobody counts the tokens: chunks are all that is seen",
        }
    }
}

/// One request: which tokens go in, how many come out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Prefix and prompt.
    pub ids: Vec<u32>,
    /// Tokens to draw.
    pub output_tokens: usize,
}

impl Ask {
    /// The JSON of the request.
    pub(crate) fn body(&self, model: &str, endpoint: Endpoint, extras: &[Extra]) -> Value {
        let mut body = json!({ "model": model, "max_tokens": self.output_tokens, "temperature": 0, "stream": true });
        match endpoint {
            Endpoint::Completions => body["prompt"] = json!(self.ids),
            Endpoint::CompletionsText => body["prompt"] = json!(self.text()),
            Endpoint::Chat => body["messages"] = json!([{ "role": "user", "content": self.text() }]),
        }
        for extra in extras {
            body[extra.name()] = match extra {
                Extra::StreamOptions => json!({ "include_usage": true }),
                Extra::ReturnTokenIds | Extra::IgnoreEos => json!(true),
            };
        }
        body
    }

    /// As many words as there are ids.
    fn text(&self) -> String {
        let word = |id: &u32| WORDS[*id as usize % WORDS.len()];
        self.ids.iter().map(word).collect::<Vec<_>>().join(" ")
    }
}

/// Tokens as the server counted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the prompt, template and begin-of-text included.
    pub prompt_tokens: u64,
    /// Of the answer.
    pub completion_tokens: u64,
    /// Of the prompt, found in the server's prefix cache; absent when it does not say.
    pub cached_tokens: Option<u64>,
}

/// One chunk of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Bytes of text in it, reasoning and tool calls included.
    pub(crate) text_bytes: usize,
    /// Ids of its tokens, where the server sends them.
    pub(crate) ids: Option<Vec<u32>>,
    /// Why the answer ended.
    pub(crate) finish: Option<String>,
    /// The count of all tokens.
    pub(crate) usage: Option<Usage>,
}

impl Chunk {
    /// Whether a token came with it. The chunk that names the role and the one that names the end bring none.
    pub(crate) fn has_tokens(&self) -> bool {
        self.text_bytes > 0 || self.ids.as_ref().is_some_and(|ids| !ids.is_empty())
    }
}

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Chunk(Chunk),
    Error(String),
    Done,
}

/// Reads the data of one event.
///
/// # Errors
/// When it is neither `[DONE]` nor a JSON object.
pub(crate) fn read(data: &str) -> Result<Said, Fault> {
    if data.trim() == "[DONE]" {
        return Ok(Said::Done);
    }
    let wrong = |found: String| Fault::new("the server's stream", "events that hold JSON objects or [DONE]", found);
    let event: Value = serde_json::from_str(data).map_err(|e| wrong(format!("{e} in `{}`", shortened(data))))?;
    if !event.is_object() {
        return Err(wrong(format!("`{}`", shortened(data))));
    }
    if let Some(error) = event.get("error").filter(|e| !e.is_null()) {
        return Ok(Said::Error(message(error)));
    }
    let choice = &event["choices"][0];
    Ok(Said::Chunk(Chunk {
        text_bytes: text_bytes(choice),
        ids: serde_json::from_value(choice["token_ids"].clone()).ok(),
        finish: choice["finish_reason"].as_str().map(str::to_string),
        usage: usage(&event["usage"]),
    }))
}

fn text_bytes(choice: &Value) -> usize {
    let delta = &choice["delta"];
    let texts = [&choice["text"], &delta["content"], &delta["reasoning_content"], &delta["reasoning"]];
    let shown: usize = texts.iter().filter_map(|t| t.as_str()).map(str::len).sum();
    let calls = delta["tool_calls"].as_array().into_iter().flatten();
    shown + calls.filter_map(|c| c["function"]["arguments"].as_str()).map(str::len).sum::<usize>()
}

fn usage(value: &Value) -> Option<Usage> {
    Some(Usage {
        prompt_tokens: value["prompt_tokens"].as_u64()?,
        completion_tokens: value["completion_tokens"].as_u64()?,
        cached_tokens: value["prompt_tokens_details"]["cached_tokens"].as_u64(),
    })
}

/// The message of an error object, or the whole of it.
pub(crate) fn message(error: &Value) -> String {
    let inner = error.get("error").filter(|e| !e.is_null()).unwrap_or(error);
    let text = inner.get("message").or_else(|| inner.get("detail")).unwrap_or(inner);
    shortened(&text.as_str().map_or_else(|| text.to_string(), str::to_string))
}

/// Enough of a text to recognise it.
pub(crate) fn shortened(text: &str) -> String {
    const SHOWN: usize = 300;
    let mut short: String = text.trim().chars().take(SHOWN).collect();
    if text.trim().chars().count() > SHOWN {
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(data: Value) -> Chunk {
        match read(&data.to_string()).unwrap() {
            Said::Chunk(c) => c,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_chunks_that_bring_something_have_tokens() {
        for (delta, has) in [
            (json!({ "role": "assistant", "content": "" }), false),
            (json!({ "role": "assistant", "content": null }), false),
            (json!({}), false),
            (json!({ "content": "a" }), true),
            (json!({ "reasoning_content": "a" }), true),
            (json!({ "tool_calls": [{ "function": { "arguments": "{" } }] }), true),
        ] {
            assert_eq!(chunk(json!({ "choices": [{ "delta": delta }] })).has_tokens(), has, "{delta}");
        }
        assert!(chunk(json!({ "choices": [{ "text": "", "token_ids": [7] }] })).has_tokens(), "a token without text");
        assert!(!chunk(json!({ "choices": [{ "text": "", "token_ids": [] }] })).has_tokens());
        assert!(!chunk(json!({ "choices": [], "usage": null })).has_tokens());
    }

    #[test]
    fn usage_is_read_and_what_it_lacks_stays_unknown() {
        let u = chunk(json!({ "choices": [], "usage": { "prompt_tokens": 5, "completion_tokens": 3 } })).usage.unwrap();
        assert_eq!((u.prompt_tokens, u.completion_tokens, u.cached_tokens), (5, 3, None));
        assert_eq!(chunk(json!({ "choices": [], "usage": { "prompt_tokens": 5 } })).usage, None);
    }

    #[test]
    fn errors_and_rubbish_are_told_apart() {
        let said = read(r#"{"error":{"message":"out of memory","code":500}}"#).unwrap();
        assert_eq!(said, Said::Error("out of memory".into()));
        assert!(read("<html>").unwrap_err().to_string().contains("<html>"));
        assert!(read("7").is_err());
    }

    #[test]
    fn a_text_prompt_depends_on_the_ids() {
        let ask = |ids: &[u32]| Ask { ids: ids.to_vec(), output_tokens: 2 };
        let body = |a: &Ask| a.body("m", Endpoint::CompletionsText, &Extra::ALL);
        assert_ne!(body(&ask(&[1, 2]))["prompt"], body(&ask(&[1, 3]))["prompt"]);
        assert_eq!(body(&ask(&[1, 2]))["stream_options"]["include_usage"], true);
        assert_eq!(ask(&[1, 2]).body("m", Endpoint::Completions, &[])["prompt"], json!([1, 2]));
    }
}
