//! Ids to text while they arrive.

use crate::tokenizer::Tokenizer;

/// Turns ids into text one by one. It never shows half a character: bytes wait until the character is complete, and
/// U+FFFD stands only for bytes that no later id can complete.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tok: Tokenizer,
    skip_special: bool,
    pending: Vec<u8>,
    at_start: bool,
}

impl Detokenizer {
    /// A stream of its own for one answer.
    pub fn new(tok: Tokenizer, skip_special: bool) -> Self {
        Self { tok, skip_special, pending: Vec::new(), at_start: true }
    }

    /// The text that `id` completes; empty while a character is incomplete, for skipped special tokens, and for ids
    /// that no token has (a model may have more rows than its vocabulary has tokens).
    pub fn push(&mut self, id: u32) -> String {
        if self.skip_special && self.tok.is_special(id) {
            return String::new();
        }
        let bytes = self.tok.token_bytes(id).unwrap_or_default();
        let mut bytes = bytes.as_slice();
        if self.at_start && !bytes.is_empty() {
            self.at_start = false;
            if self.tok.strips_first_space() {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
        }
        self.pending.extend_from_slice(bytes);
        self.take_complete()
    }

    /// What is left when no id follows: nothing, or U+FFFD for a character that was never completed.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        rest
    }

    /// Removes and returns everything but an incomplete character at the end. The pieces joined equal
    /// `String::from_utf8_lossy` of all bytes.
    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        let mut at = 0;
        while at < self.pending.len() {
            match std::str::from_utf8(&self.pending[at..]) {
                Ok(rest) => {
                    text.push_str(rest);
                    at = self.pending.len();
                }
                Err(e) => {
                    let (good, bad) = self.pending[at..].split_at(e.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(good));
                    at += good.len();
                    match e.error_len() {
                        Some(n) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            at += n.min(bad.len());
                        }
                        None => break,
                    }
                }
            }
        }
        self.pending.drain(..at);
        text
    }
}
