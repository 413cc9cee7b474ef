//! `tare run`: one prompt, one answer.

use anyhow::{Result, bail};
use serde_json::json;
use std::io::Write;
use tare_engine::Request;
use tare_model::Model;
use tare_ops::SamplingParams;
use tare_probe::ResidentMemory;
use tare_text::{ChatRequest, Json, Tokenizer};

use crate::args::{RunArgs, SampleArgs};
use crate::generate::{Answer, Text, answer};
use crate::interrupt::{Cancelled, Interrupt};
use crate::settings::Settings;
use crate::setup::{How, chat_template, open_model, plain_prompt, read_ids, text_argument, tokenizer};

/// Runs the command.
pub(crate) fn run(args: &RunArgs, settings: &Settings) -> Result<()> {
    let model = open_model(&args.model.model, settings)?;
    let tokenizer = if args.ids.is_some() { tokenizer(&model).ok() } else { Some(tokenizer(&model)?) };
    let prompt = prompt(args, &model, tokenizer.as_ref())?;
    let how = How::of(&args.model.how, &model, None, settings)?;
    let room = how.context.saturating_sub(prompt.len()).max(1);
    let mut engine = how.engine(&model)?;
    let interrupt = Interrupt::listen()?;
    let request = Request {
        sampling: sampling(&args.sample),
        seed: args.sample.seed,
        stop_tokens: if args.ignore_eos { Vec::new() } else { model.config().eos.clone() },
        ..Request::greedy(prompt, args.max_tokens.min(room))
    };
    let mut out = std::io::stdout().lock();
    let text = Text { tokenizer: tokenizer.as_ref(), stop: &args.stop };
    let mut done = answer(&mut engine, request, &text, &interrupt, &mut |piece| {
        if !args.json {
            out.write_all(piece.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    })?;
    // Fewer tokens than were asked for, because no more fit: the context ended the answer, not the length.
    if done.finish == "length" && args.max_tokens > room {
        done.finish = "context";
    }
    if args.json {
        writeln!(out, "{}", as_json(&done, tokenizer.is_some()))?;
    } else {
        if tokenizer.is_none() {
            write!(out, "{}", serde_json::to_string(&done.ids)?)?;
        }
        writeln!(out)?;
        eprintln!("{}", summary(&done));
    }
    if done.finish == "cancelled" { Err(Cancelled.into()) } else { Ok(()) }
}

fn prompt(args: &RunArgs, model: &Model, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>> {
    if let Some(path) = &args.ids {
        return read_ids(path);
    }
    let Some(tokenizer) = tokenizer else { bail!("this model has no tokenizer: give token ids with --ids FILE.json") };
    let Some(text) = args.text.as_ref().or(args.prompt.as_ref()) else {
        bail!("there is no prompt: give it as an argument, or `-` to read standard input");
    };
    let text = text_argument(text)?;
    if args.raw || model.chat_template().is_none() {
        return plain_prompt(&text, tokenizer);
    }
    let system = args.system.iter().map(|s| Json::message("system", s));
    let messages = system.chain([Json::message("user", &text)]).collect();
    let request =
        ChatRequest { messages, add_generation_prompt: true, enable_thinking: args.thinking, ..ChatRequest::default() };
    Ok(chat_template(model, tokenizer)?.encode(&request, tokenizer)?)
}

/// The sampling that the flags ask for.
pub(crate) fn sampling(args: &SampleArgs) -> SamplingParams {
    SamplingParams {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        repetition_penalty: args.repetition_penalty,
        ..SamplingParams::default()
    }
}

fn as_json(a: &Answer, has_text: bool) -> serde_json::Value {
    let text = if has_text { json!(a.text) } else { json!({ "unavailable": "this model has no tokenizer" }) };
    json!({
        "ids": a.ids,
        "text": text,
        "finish_reason": a.finish,
        "usage": a.usage,
        "ttft_ns": a.ttft_ns,
        "decode_ns": a.decode_ns,
        "memory": ResidentMemory::read(),
    })
}

/// Tokens and rates of an answer, in one line.
pub(crate) fn summary(a: &Answer) -> String {
    let rate = |tokens: usize, ns: u64| if ns == 0 { 0.0 } else { tokens as f64 * 1e9 / ns as f64 };
    let computed = a.usage.prompt_tokens - a.usage.cached_tokens;
    format!(
        "[{} prompt tokens ({} cached), {:.1} tok/s | {} written, {:.1} tok/s | {}]",
        a.usage.prompt_tokens,
        a.usage.cached_tokens,
        rate(computed, a.ttft_ns),
        a.ids.len(),
        rate(a.ids.len().saturating_sub(1), a.decode_ns),
        a.finish
    )
}
