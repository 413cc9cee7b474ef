//! From the spelling of a token in a vocabulary to the bytes that it stands for.

use serde_json::Value;
use tare_core::Fault;

/// How a vocabulary spells bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surface {
    /// Every byte is one printable character, as in GPT-2: space is `Ġ`.
    ByteLevel,
    /// SentencePiece style: space is `▁`, and `<0xE2>` is one byte.
    Spaced {
        /// The space that encoding puts before the text is removed again.
        strip_first: bool,
    },
}

impl Surface {
    /// Reads the `decoder` of a `tokenizer.json`.
    pub(crate) fn from_decoder(decoder: Option<&Value>) -> Result<Self, Fault> {
        let kind = |v: &Value| v["type"].as_str().unwrap_or("nothing").to_owned();
        let Some(decoder) = decoder else { return Err(unsupported("nothing")) };
        match kind(decoder).as_str() {
            "ByteLevel" => Ok(Surface::ByteLevel),
            "Metaspace" => {
                // Older files say it with `add_prefix_space`.
                let never = decoder["prepend_scheme"] == "never" || decoder["add_prefix_space"] == false;
                Ok(Surface::Spaced { strip_first: !never })
            }
            "Sequence" => {
                let parts = decoder["decoders"].as_array().map(Vec::as_slice).unwrap_or_default();
                let names: Vec<String> = parts.iter().map(kind).collect();
                match names.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
                    ["ByteLevel"] => Ok(Surface::ByteLevel),
                    ["Replace", "ByteFallback", "Fuse"] => Ok(Surface::Spaced { strip_first: false }),
                    ["Replace", "ByteFallback", "Fuse", "Strip"] => Ok(Surface::Spaced { strip_first: true }),
                    _ => Err(unsupported(&names.join(", "))),
                }
            }
            other => Err(unsupported(other)),
        }
    }

    /// The bytes of a token of the vocabulary.
    ///
    /// A byte-level token with a character outside the byte alphabet stands for its own UTF-8, as in `tokenizers`.
    pub(crate) fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            Surface::ByteLevel => {
                token.chars().map(byte_of).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Surface::Spaced { .. } => match byte_token(token) {
                Some(byte) => vec![byte],
                None => token.replace('\u{2581}', " ").into_bytes(),
            },
        }
    }
}

fn unsupported(found: &str) -> Fault {
    Fault::new("decoder", "ByteLevel, Metaspace, or Replace + ByteFallback + Fuse (+ Strip)", found)
        .remedy("use the tokenizer.json of a model of the Qwen, Llama, SmolLM or Mistral families")
}

/// The byte behind a character of GPT-2's byte alphabet: printable Latin-1 stands for itself, the other 68 bytes are
/// numbered upwards from U+0100.
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        c @ (33..=126 | 161..=172 | 174..=255) => u8::try_from(c).ok(),
        c @ 256..=288 => u8::try_from(c - 256).ok(),
        c @ 289..=322 => u8::try_from(c - 289 + 127).ok(),
        323 => Some(173),
        _ => None,
    }
}

/// `<0xNN>` of a vocabulary with byte fallback.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn byte_alphabet_is_a_bijection_known_to_the_pre_tokenizer() {
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let mut seen: Vec<u8> = alphabet.iter().map(|c| byte_of(*c).expect("in the alphabet")).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
        assert_eq!(Surface::ByteLevel.bytes("Ġa"), b" a");
        assert_eq!(Surface::ByteLevel.bytes("Ġ€"), "Ġ€".as_bytes(), "not all in the alphabet: its own UTF-8");
    }

    #[test]
    fn spaced_tokens() {
        let s = Surface::Spaced { strip_first: true };
        assert_eq!(s.bytes("\u{2581}a"), b" a");
        assert_eq!(s.bytes("<0xE2>"), [0xE2]);
        assert_eq!(s.bytes("<0xE2F>"), b"<0xE2F>");
    }

    #[test]
    fn unknown_decoders_are_refused_by_name() {
        let e = Surface::from_decoder(Some(&json!({"type": "WordPiece"}))).unwrap_err();
        assert!(e.to_string().contains("found WordPiece"), "{e}");
        assert!(Surface::from_decoder(None).is_err());
        let llama = json!({"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip"}]});
        assert_eq!(Surface::from_decoder(Some(&llama)), Ok(Surface::Spaced { strip_first: true }));
    }
}
