//! OpenAI-compatible HTTP in front of the engine.
//!
//! ```text
//! body --wire--> call --template, tokenizer--> prompt --App::submit--> driver thread: Engine::step
//! client <--envelope-- piece <--Answer: whole characters, stop strings-- update <--channel--'
//! ```
//! One thread owns the engine and never waits for a client; handlers are asynchronous and never wait for a step other
//! than by reading their channel. Text is made on the handler's side, so that the token loop knows only ids.
//!
//! Every parameter of the API is honoured or refused: docs/reference/http.md lists them.

#![forbid(unsafe_code)]

mod answer;
mod app;
mod complete;
mod config;
mod driver;
mod envelope;
mod events;
pub mod fuzz;
mod problem;
mod routes;
mod server;
mod wire;

pub use config::{ServedModel, ServerConfig};
pub use server::{Server, ServerError};
