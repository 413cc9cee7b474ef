//! What hostile bytes can reach: one function a parser, called by the fuzz target and by the test over the corpus.
//!
//! They return nothing; a panic, an endless loop or an allocation out of proportion is the finding.

use crate::wire::{ChatCall, CompletionCall};

/// Ids are below it, as for a model of this size.
const VOCABULARY: usize = 512;

/// The body of a chat completion, and the same bytes as that of a completion.
pub fn chat_request(bytes: &[u8]) {
    let _ = ChatCall::read(bytes, VOCABULARY);
    let _ = CompletionCall::read(bytes, VOCABULARY);
}
