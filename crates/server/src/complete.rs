//! POST /v1/chat/completions and POST /v1/completions: from a body to an answer.

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::Duration;
use tare_text::{ChatTemplate, Special, TextError};

use crate::answer::{Answer, Asked};
use crate::app::{App, now};
use crate::config::ServedModel;
use crate::envelope::{Api, Envelope};
use crate::events::Events;
use crate::problem::Problem;
use crate::routes::Name;
use crate::wire::{ChatCall, CompletionCall, Generation, Prompt};

/// A comment goes out when nothing else has for this long, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A body, or why it could not be read.
type Body = Result<Bytes, BytesRejection>;

/// POST /v1/chat/completions
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    Extension(name): Extension<Name>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let call = ChatCall::read(&json(&headers, body)?, app.model.vocabulary)?;
    check_model(&call.model, &app.model)?;
    let template = app.model.template.clone().ok_or_else(no_template)?;
    let render = move |model: &ServedModel| encode_chat(&template, &call.chat, model);
    let asked = Ask { api: Api::Chat, parameter: "messages", logprobs: call.logprobs, generation: call.generation };
    complete(&app, name, asked, render).await
}

/// POST /v1/completions
pub(crate) async fn completion(
    State(app): State<Arc<App>>,
    Extension(name): Extension<Name>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let call = CompletionCall::read(&json(&headers, body)?, app.model.vocabulary)?;
    check_model(&call.model, &app.model)?;
    let encode = move |model: &ServedModel| encode_prompt(call.prompt, model);
    let asked = Ask { api: Api::Completion, parameter: "prompt", logprobs: call.logprobs, generation: call.generation };
    complete(&app, name, asked, encode).await
}

/// What both APIs ask for.
struct Ask {
    api: Api,
    /// The parameter that the prompt comes from.
    parameter: &'static str,
    logprobs: Option<u32>,
    generation: Generation,
}

async fn complete(
    app: &Arc<App>,
    name: Name,
    ask: Ask,
    encode: impl FnOnce(&ServedModel) -> Result<Vec<u32>, TextError> + Send + 'static,
) -> Result<Response, Problem> {
    let ticket = app.enter()?;
    let model = Arc::clone(&app.model);
    // Long prompts take a while, and the threads of the runtime are few.
    let encoded = tokio::task::spawn_blocking(move || encode(&model)).await;
    let encoded = encoded.map_err(|e| Problem::internal(format!("encoding the prompt failed: {e}")))?;
    let prompt = encoded.map_err(|e| Problem::text(&e, ask.parameter))?;

    let request = ask.generation.request(prompt, ask.logprobs.unwrap_or(0), &app.model);
    let asked = Asked {
        prompt_tokens: request.prompt.len(),
        stop_tokens: request.stop_tokens.clone(),
        stop: ask.generation.stop,
        report: ask.logprobs.is_some() || ask.generation.return_token_ids,
    };
    let envelope = Envelope {
        api: ask.api,
        id: format!("{}-{}", if ask.api == Api::Chat { "chatcmpl" } else { "cmpl" }, name.0),
        created: now(),
        model: app.model.name.clone(),
        tokenizer: app.model.tokenizer.clone(),
        report: ask.logprobs.is_some(),
        token_ids: ask.generation.return_token_ids,
        include_usage: ask.generation.include_usage,
    };
    let updates = app.submit(request, ask.parameter).await?;
    let answer = Answer::new(asked, &app.model.tokenizer, updates);
    if ask.generation.stream {
        let events = Sse::new(Events::new(envelope, answer, ticket));
        return Ok(events.keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response());
    }
    // A client that leaves drops this future, and with it the answer.
    let whole = answer.whole().await?;
    Ok(axum::Json(envelope.whole(&whole)).into_response())
}

fn encode_chat(
    template: &ChatTemplate,
    chat: &tare_text::ChatRequest,
    model: &ServedModel,
) -> Result<Vec<u32>, TextError> {
    template.encode(chat, &model.tokenizer)
}

fn encode_prompt(prompt: Prompt, model: &ServedModel) -> Result<Vec<u32>, TextError> {
    match prompt {
        Prompt::Ids(ids) => Ok(ids),
        Prompt::Text(text) => {
            let ids = model.tokenizer.encode(&text, Special::Text)?;
            Ok(model.tokenizer.add_bos().into_iter().chain(ids).collect())
        }
    }
}

/// The bytes of a body that says it is JSON. Browsers ask before they send that type to another site, so that a page
/// cannot use a server on its reader's machine.
fn json(headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("nothing");
    let essence = given.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        let message = format!("content-type: expected application/json, found {given}");
        return Err(Problem::request(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, message));
    }
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::too_large("more"),
        status => Problem::request(status, None, format!("body: {rejection}")),
    })
}

fn check_model(found: &str, model: &ServedModel) -> Result<(), Problem> {
    if found == model.name { Ok(()) } else { Err(Problem::model(found, &model.name)) }
}

fn no_template() -> Problem {
    let message = "this model has no chat template: use /v1/completions";
    Problem::request(StatusCode::BAD_REQUEST, Some("no_chat_template"), message)
}
