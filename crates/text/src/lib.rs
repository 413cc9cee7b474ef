//! Text in and out: tokenizers, chat templates, incremental detokenizing, stop strings.
//!
//! ```text
//! messages --ChatTemplate--> text with the template's special tokens --Tokenizer--> ids
//! ids --Detokenizer--> whole characters --StopMatcher--> text that may be shown
//! ```
//!
//! The crate takes plain inputs (bytes of a `tokenizer.json`, the vocabulary of a GGUF as [`BpeVocab`], a template's
//! source) and reads neither files nor a clock nor the environment.
//!
//! **Special tokens in user text stay text.** [`Special`] says so for plain prompts; [`ChatTemplate::encode`] does it
//! for conversations, where only the template's own special tokens become ids.

#![forbid(unsafe_code)]

mod added;
mod chat;
mod detokenize;
mod error;
mod json;
mod stop;
mod surface;
mod tokenizer;
mod tokenizer_json;
mod vocab;

pub use chat::{ChatRequest, ChatTemplate};
pub use detokenize::Detokenizer;
pub use error::TextError;
pub use json::Json;
pub use stop::{StopMatcher, StopStep};
pub use tokenizer::{Special, Tokenizer};
pub use vocab::{BpeVocab, PRE_TOKENIZERS};
