//! What may come in over HTTP: bodies of requests, read field by field.

mod chat;
mod completion;
mod fields;
mod generation;
mod messages;

pub(crate) use chat::ChatCall;
pub(crate) use completion::{CompletionCall, Prompt};
pub(crate) use generation::Generation;

use axum::http::StatusCode;
use tare_text::Json;

use crate::problem::Problem;
use fields::Fields;

/// A body as an object.
fn body(bytes: &[u8]) -> Result<Fields, Problem> {
    let value: Json = serde_json::from_slice(bytes).map_err(|e| {
        let message = format!("body: expected a JSON object, found something else: {e}");
        Problem::request(StatusCode::BAD_REQUEST, Some("invalid_json"), message)
    })?;
    Fields::new("", value)
}

/// The model that the body names.
fn model(fields: &mut Fields) -> Result<String, Problem> {
    let name = fields.string("model")?;
    fields.required("model", "the name of the served model", name)
}

/// Fields of both APIs that change nothing here: who asks, and how the provider is to run it.
fn harmless(fields: &mut Fields) -> Result<(), Problem> {
    fields.string("user")?;
    fields.string("safety_identifier")?;
    fields.string("prompt_cache_key")?;
    fields.object("metadata")?;
    fields.one_of("service_tier", &["auto", "default"])?;
    match fields.flag("store")? {
        Some(true) => Err(Problem::not_built("store", "false", "true")),
        _ => Ok(()),
    }
}
