//! What can go wrong with text, in kinds that callers tell apart.

use tare_core::Fault;

/// An error of this crate. Every kind carries what was expected, what was found and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The tokenizer's file or vocabulary is missing something, malformed or of a kind that is not supported.
    #[error("tokenizer: {0}")]
    Tokenizer(Fault),
    /// The text cannot be encoded, or an id cannot be decoded, with this vocabulary.
    #[error("tokens: {0}")]
    Tokens(Fault),
    /// The chat template does not compile, fails while rendering or exceeds its budget.
    #[error("chat template: {0}")]
    Template(Fault),
    /// The template itself refused the conversation (`raise_exception`); the text is the template author's.
    #[error("the chat template refuses this conversation: {0}; change the order or the roles of the messages")]
    Refused(String),
    /// The request cannot be rendered as it is.
    #[error("chat request: {0}")]
    Request(Fault),
}
