//! What a server is made of.

use std::net::SocketAddr;
use tare_text::{ChatTemplate, Tokenizer};

/// The model behind the API, as text sees it.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// The name that requests must give in `model`.
    pub name: String,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// Without one, `/v1/chat/completions` refuses and `/v1/completions` still works.
    pub template: Option<ChatTemplate>,
    /// Tokens that end an answer unless `ignore_eos`.
    pub eos: Vec<u32>,
    /// Tokens that a request may have, prompt and output together: the engine's context.
    pub context: usize,
    /// V: ids below it are in the model.
    pub vocabulary: usize,
}

/// Where a server listens. What it takes in is the engine's to say: [`tare_engine::EngineConfig::max_queue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Address to listen on; port 0 takes a free one.
    pub address: SocketAddr,
}
