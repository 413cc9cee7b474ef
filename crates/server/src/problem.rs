//! Errors as the OpenAI API writes them: `{"error": {"message", "type", "param", "code"}}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tare_core::Fault;
use tare_engine::Refused;
use tare_text::TextError;

/// The largest body that is read.
pub(crate) const MAX_BODY_BYTES: usize = 8 << 20;

/// Seconds after which a client that was turned away may try again.
const RETRY_AFTER_S: u16 = 1;

/// Why a request got no answer, or lost it half way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
}

impl Problem {
    /// Something in the request is wrong: the fault's place is the parameter.
    pub(crate) fn parameter(fault: Fault) -> Self {
        Self { param: Some(fault.at.clone()), ..Self::request(StatusCode::BAD_REQUEST, None, fault.to_string()) }
    }

    /// A parameter of the OpenAI API that this server does not honour, or not with this value.
    pub(crate) fn not_built(param: impl Into<String>, expected: &str, found: impl Into<String>) -> Self {
        let fault = Fault::new(param, expected, found).remedy("anything else is not built yet: leave it out");
        Self { code: Some("unsupported_parameter"), ..Self::parameter(fault) }
    }

    /// The request as a whole is wrong.
    pub(crate) fn request(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status, kind: "invalid_request_error", code, param: None, message: message.into() }
    }

    /// A body beyond the limit.
    pub(crate) fn too_large(found: impl std::fmt::Display) -> Self {
        let message = format!("body: expected at most {MAX_BODY_BYTES} bytes, found {found}");
        Self::request(StatusCode::PAYLOAD_TOO_LARGE, Some("body_too_large"), message)
    }

    /// Another model than the one served.
    pub(crate) fn model(found: &str, served: &str) -> Self {
        let message = format!("model: expected \"{served}\", found {found:?}; GET /v1/models names what is served");
        let param = Some("model".to_owned());
        Self { param, ..Self::request(StatusCode::NOT_FOUND, Some("model_not_found"), message) }
    }

    /// Too many requests wait.
    pub(crate) fn queue_full(message: impl Into<String>) -> Self {
        let (status, kind) = (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error");
        Self { status, kind, code: Some("queue_full"), param: None, message: message.into() }
    }

    /// The server is on its way out.
    pub(crate) fn stopping() -> Self {
        Self::unavailable("shutting_down", "the server is shutting down")
    }

    /// No request can be answered any more.
    pub(crate) fn engine_gone() -> Self {
        Self::unavailable("engine_stopped", "the engine has stopped: restart the server; its log says why")
    }

    fn unavailable(code: &'static str, message: &str) -> Self {
        let (status, kind) = (StatusCode::SERVICE_UNAVAILABLE, "server_error");
        Self { status, kind, code: Some(code), param: None, message: message.to_owned() }
    }

    /// The server's own fault.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let (status, kind) = (StatusCode::INTERNAL_SERVER_ERROR, "server_error");
        Self { status, kind, code: None, param: None, message: message.into() }
    }

    /// The engine did not take the request; its prompt came from the parameter `prompt`.
    pub(crate) fn refused(refused: &Refused, prompt: &str) -> Self {
        let message = refused.to_string();
        let of = |code, param: &str| Self {
            param: Some(param.to_owned()),
            ..Self::request(StatusCode::BAD_REQUEST, code, &message)
        };
        match refused {
            Refused::PromptEmpty => of(None, prompt),
            Refused::ContextExceeded { .. } => of(Some("context_length_exceeded"), prompt),
            Refused::NeverFits { .. } => of(Some("kv_capacity_exceeded"), "max_tokens"),
            Refused::OutOfVocabulary { place, .. } => of(None, place),
            Refused::Sampling(fault) => of(None, &fault.at),
            Refused::QueueFull { .. } => Self::queue_full(message),
        }
    }

    /// The text of the request, from the parameter `prompt`, could not be turned into ids.
    pub(crate) fn text(error: &TextError, prompt: &str) -> Self {
        match error {
            TextError::Tokenizer(_) => Self::internal(error.to_string()),
            _ => Self {
                param: Some(prompt.to_owned()),
                ..Self::request(StatusCode::BAD_REQUEST, None, error.to_string())
            },
        }
    }

    /// The body, also sent as an event where a stream had begun.
    pub(crate) fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}
