//! The body of POST /v1/completions.

use tare_core::Fault;
use tare_text::Json;

use super::fields::{Fields, mismatch};
use super::generation::MAX_TOP_LOGPROBS;
use super::{Generation, body, harmless, model};
use crate::problem::Problem;

/// Tokens when `max_tokens` is absent, as the OpenAI API has it.
const DEFAULT_MAX_TOKENS: usize = 16;

/// What is to be continued.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    /// Text; whatever in it spells a special token stays text.
    Text(String),
    /// Token ids, taken as they are.
    Ids(Vec<u32>),
}

/// A prompt to continue.
#[derive(Clone, Debug)]
pub(crate) struct CompletionCall {
    /// The model asked for.
    pub(crate) model: String,
    /// The prompt.
    pub(crate) prompt: Prompt,
    /// How tokens are drawn.
    pub(crate) generation: Generation,
    /// Whether tokens are reported, and beside each how many of the most likely ones.
    pub(crate) logprobs: Option<u32>,
}

impl CompletionCall {
    /// Reads a body. Ids in it are below `vocabulary`.
    pub(crate) fn read(bytes: &[u8], vocabulary: usize) -> Result<Self, Problem> {
        let mut fields = body(bytes)?;
        let mut call = Self {
            model: model(&mut fields)?,
            prompt: prompt(&mut fields)?,
            generation: Generation::read(&mut fields, vocabulary)?,
            logprobs: fields.integer("logprobs", 0..=MAX_TOP_LOGPROBS)?.map(|n| n as u32),
        };
        call.generation.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS.max(call.generation.min_tokens));
        harmless(&mut fields)?;
        fields.integer("best_of", 1..=1)?;
        if fields.flag("echo")? == Some(true) {
            return Err(Problem::not_built("echo", "false", "true"));
        }
        fields.refuse(&["suffix"])?;
        fields.finish()?;
        Ok(call)
    }
}

/// A string or a list of ids, or a list of one of these.
fn prompt(fields: &mut Fields) -> Result<Prompt, Problem> {
    let value = fields.take("prompt");
    match fields.required("prompt", EXPECTED, value)? {
        Json::Array(mut items) if matches!(items[..], [Json::String(_) | Json::Array(_)]) => single(items.remove(0)),
        other => single(other),
    }
}

const EXPECTED: &str = "one string or one list of token ids";

fn single(value: Json) -> Result<Prompt, Problem> {
    match value {
        Json::String(text) => Ok(Prompt::Text(text)),
        Json::Array(items) if items.iter().any(|item| matches!(item, Json::String(_) | Json::Array(_))) => {
            Err(Problem::not_built("prompt", EXPECTED, format!("a list of {}", items.len())))
        }
        Json::Array(items) => items.iter().enumerate().map(id).collect::<Result<_, _>>().map(Prompt::Ids),
        other => Err(mismatch("prompt", EXPECTED, &other)),
    }
}

fn id((i, item): (usize, &Json)) -> Result<u32, Problem> {
    let id = match item {
        Json::Number(n) => n.as_u64().and_then(|n| u32::try_from(n).ok()),
        _ => None,
    };
    id.ok_or_else(|| {
        let fault = Fault::new(format!("prompt[{i}]"), "a token id", super::fields::shown(item));
        Problem::parameter(fault)
    })
}
