//! OpenAI-compatible HTTP in front of the engine.

#![forbid(unsafe_code)]

mod config;
mod server;

pub use config::{ServedModel, ServerConfig};
pub use server::{Server, ServerError};
