//! Which paths there are, and what every response has.

use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use serde_json::{Value, json};
use std::sync::Arc;

use crate::app::App;
use crate::complete;
use crate::problem::{MAX_BODY_BYTES, Problem};

/// The longest request id that is taken over from a client.
const MAX_NAME: usize = 128;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The name of a request in responses and in the log.
#[derive(Clone, Debug)]
pub(crate) struct Name(pub(crate) String);

/// All paths.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(complete::chat))
        .route("/v1/completions", post(complete::completion))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/health", get(health))
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn(bounded))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), named))
        .with_state(app)
}

/// Gives every request a name and writes one line of log for it, when the response begins.
async fn named(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let name = given_name(request.headers()).unwrap_or_else(|| app.name());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    request.extensions_mut().insert(Name(name.clone()));
    let begun = std::time::Instant::now();
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&name) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let (status, elapsed_ms) = (response.status().as_u16(), begun.elapsed().as_millis() as u64);
    tracing::info!(request = name, %method, path, status, elapsed_ms, "response begun");
    response
}

/// Refuses a body by the length it announces, before any of it is read. Bodies that announce none are cut at the same
/// limit while they are read.
async fn bounded(request: Request, next: Next) -> Result<Response, Problem> {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match length.and_then(|digits| digits.parse::<u64>().ok()) {
        Some(bytes) if bytes > MAX_BODY_BYTES as u64 => Err(Problem::too_large(format!("{bytes}"))),
        _ => Ok(next.run(request).await),
    }
}

/// The client's own name for its request, when it is short and printable.
fn given_name(headers: &HeaderMap) -> Option<String> {
    let name = headers.get(REQUEST_ID)?.to_str().ok()?;
    ((1..=MAX_NAME).contains(&name.len())).then(|| name.to_owned())
}

/// GET /health: 200 while requests can be answered.
async fn health(State(app): State<Arc<App>>) -> Response {
    let (status, word) = match (app.gauges.alive(), app.is_draining()) {
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "engine stopped"),
        (true, true) => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        (true, false) => (StatusCode::OK, "ok"),
    };
    let benched = app.gauges.benched();
    let engine = json!({
        "requests": app.gauges.requests(),
        "live_pages": app.gauges.live_pages(),
        "steps": app.gauges.steps(),
        "regions": benched.map(|b| b.regions),
        "short_regions": benched.map(|b| b.short),
        "most_threads_out": benched.map(|b| b.most),
    });
    (status, Json(json!({"status": word, "engine": engine}))).into_response()
}

/// GET /v1/models
async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [card(&app)]}))
}

/// GET /v1/models/{id}
async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    if id == app.model.name { Ok(Json(card(&app))) } else { Err(Problem::model(&id, &app.model.name)) }
}

fn card(app: &App) -> Value {
    json!({
        "id": app.model.name,
        "object": "model",
        "created": app.started,
        "owned_by": "tare",
        "max_model_len": app.model.context,
    })
}

async fn no_path(request: Request) -> Problem {
    let message = format!("path: expected one of this server's, found {}", request.uri().path());
    Problem::request(StatusCode::NOT_FOUND, None, message)
}

async fn no_method(request: Request) -> Problem {
    let message = format!("method: expected another one for {}, found {}", request.uri().path(), request.method());
    Problem::request(StatusCode::METHOD_NOT_ALLOWED, None, message)
}
