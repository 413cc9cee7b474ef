//! The parameters that both kinds of completion share: how tokens are drawn and when they end.

use std::hash::{BuildHasher, Hasher, RandomState};
use tare_core::Fault;
use tare_engine::Request;
use tare_text::Json;

use super::fields::{Fields, as_f32, mismatch, shown};
use crate::config::ServedModel;
use crate::problem::Problem;

/// Stop strings of a request, as many as the OpenAI API takes.
const MAX_STOPS: usize = 4;
/// The longest list of most likely tokens.
pub(crate) const MAX_TOP_LOGPROBS: i64 = 20;
/// Repetition penalties that leave logits of any model finite.
const REPETITION: std::ops::RangeInclusive<f32> = 0.01..=100.0;
/// The smallest `top_p` and the smallest temperature that is not greedy.
const SMALLEST: f32 = 1e-6;

/// How a request wants its tokens. Defaults are those of the OpenAI API, temperature 1 among them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Generation {
    /// The most tokens to draw; as many as the context holds when absent.
    pub(crate) max_tokens: Option<usize>,
    /// While fewer are out, the answer does not end by itself.
    pub(crate) min_tokens: usize,
    /// Whether the model's end-of-text tokens are tokens like any other.
    pub(crate) ignore_eos: bool,
    /// Texts that end the answer.
    pub(crate) stop: Vec<String>,
    /// Chosen at random when absent.
    pub(crate) seed: Option<u64>,
    /// Whether the answer comes as events.
    pub(crate) stream: bool,
    /// Whether the last event brings the usage.
    pub(crate) include_usage: bool,
    /// Whether the ids of the tokens stand beside their text.
    pub(crate) return_token_ids: bool,
    temperature: f32,
    top_p: f32,
    top_k: u32,
    min_p: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    repetition_penalty: f32,
    logit_bias: Vec<(u32, f32)>,
}

impl Generation {
    /// Takes the shared parameters out of a body. Ids in `logit_bias` are below `vocabulary`.
    pub(crate) fn read(fields: &mut Fields, vocabulary: usize) -> Result<Self, Problem> {
        fields.integer("n", 1..=1)?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let max_tokens = max_tokens(fields)?;
        let min_tokens = fields.integer("min_tokens", 0..=i64::from(u32::MAX))?.unwrap_or(0) as usize;
        if let Some(most) = max_tokens.filter(|most| *most < min_tokens) {
            let expected = format!("at most max_tokens, which is {most}");
            return Err(Problem::parameter(Fault::new("min_tokens", expected, min_tokens.to_string())));
        }
        Ok(Self {
            max_tokens,
            min_tokens,
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            stop: stop(fields)?,
            // A negative seed is as good as any: its bits count.
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
            stream,
            include_usage: include_usage(fields, stream)?,
            return_token_ids: fields.flag("return_token_ids")?.unwrap_or(false),
            temperature: fields.number("temperature", 0.0..=2.0)?.map_or(1.0, small_is_greedy),
            top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0).max(SMALLEST),
            // -1 is vLLM's way of saying all.
            top_k: u32::try_from(fields.integer("top_k", -1..=i64::from(u32::MAX))?.unwrap_or(0)).unwrap_or(0),
            min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0),
            presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
            frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
            repetition_penalty: fields.number("repetition_penalty", REPETITION)?.unwrap_or(1.0),
            logit_bias: logit_bias(fields, vocabulary)?,
        })
    }

    /// The engine's request for a prompt, with the `top` most likely tokens beside each token drawn.
    pub(crate) fn request(&self, prompt: Vec<u32>, top: u32, model: &ServedModel) -> Request {
        // The engine ends a sequence that fills the context, so that more than fits is no error.
        let max_tokens = self.max_tokens.unwrap_or(usize::MAX).min(model.context);
        let mut request = Request::greedy(prompt, max_tokens);
        request.min_tokens = self.min_tokens;
        request.seed = self.seed.unwrap_or_else(random_seed);
        request.stop_tokens = if self.ignore_eos { Vec::new() } else { model.eos.clone() };
        request.sampling.temperature = self.temperature;
        request.sampling.top_p = self.top_p;
        request.sampling.top_k = self.top_k;
        request.sampling.min_p = self.min_p;
        request.sampling.presence_penalty = self.presence_penalty;
        request.sampling.frequency_penalty = self.frequency_penalty;
        request.sampling.repetition_penalty = self.repetition_penalty;
        request.sampling.logit_bias = self.logit_bias.clone();
        request.sampling.top_logprobs = top.min(u32::try_from(model.vocabulary).unwrap_or(u32::MAX));
        request
    }
}

fn small_is_greedy(temperature: f32) -> f32 {
    if temperature < SMALLEST { 0.0 } else { temperature }
}

/// Hash maps are keyed by random numbers of the system: the one source of them in the standard library.
fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, Problem> {
    let range = || 1..=i64::from(u32::MAX);
    let old = fields.integer("max_tokens", range())?;
    let new = fields.integer("max_completion_tokens", range())?;
    match (old, new) {
        (Some(a), Some(b)) if a != b => {
            let fault = Fault::new("max_completion_tokens", format!("{a}, as max_tokens says"), b.to_string());
            Err(Problem::parameter(fault.remedy("give one of the two")))
        }
        (a, b) => Ok(b.or(a).map(|n| n as usize)),
    }
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Problem> {
    let expected = format!("a string or a list of up to {MAX_STOPS} strings, none of them empty");
    let wrong = |value: &Json| mismatch("stop", &expected, value);
    let Some(value) = fields.take("stop") else { return Ok(Vec::new()) };
    let items = match value {
        Json::Array(items) if items.len() <= MAX_STOPS => items,
        value @ Json::String(_) => vec![value],
        other => return Err(wrong(&other)),
    };
    let text = |item: Json| match item {
        Json::String(s) if !s.is_empty() => Ok(s),
        other => Err(wrong(&other)),
    };
    items.into_iter().map(text).collect()
}

fn include_usage(fields: &mut Fields, stream: bool) -> Result<bool, Problem> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        let fault = Fault::new("stream_options", "stream to be true", "stream off");
        return Err(Problem::parameter(fault.remedy("leave stream_options out")));
    }
    let include = options.flag("include_usage")?.unwrap_or(false);
    if options.flag("include_obfuscation")? == Some(true) {
        return Err(Problem::not_built("stream_options.include_obfuscation", "false", "true"));
    }
    options.finish()?;
    Ok(include)
}

fn logit_bias(fields: &mut Fields, vocabulary: usize) -> Result<Vec<(u32, f32)>, Problem> {
    let pairs = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Json::Object(pairs)) => pairs,
        Some(other) => return Err(mismatch("logit_bias", "an object of token ids and numbers", &other)),
    };
    let pair = |(key, value): (String, Json)| {
        let id = key.parse::<u32>().ok().filter(|id| (*id as usize) < vocabulary);
        let id = id.ok_or_else(|| {
            Problem::parameter(Fault::new("logit_bias", format!("keys that are token ids below {vocabulary}"), {
                shown(&Json::String(key.clone()))
            }))
        })?;
        let bias = as_f32(&value).filter(|bias| (-100.0..=100.0).contains(bias));
        Ok((id, bias.ok_or_else(|| mismatch(&format!("logit_bias.{id}"), "a number from -100 to 100", &value))?))
    };
    pairs.into_iter().map(pair).collect()
}
