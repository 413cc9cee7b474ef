//! Vocabularies for GGUF files: from tokenizer.json, or a stand-in for models without one.

use crate::config::ModelConfig;
use crate::error::FormatError;
use crate::gguf::GgufVocab;
use crate::json::{self, Fields};
use crate::regular::read;
use serde_json::Value;
use std::path::Path;
use tare_core::Fault;

/// Longest tokenizer.json that is read.
const LIMIT: usize = 256 << 20;

/// `tokenizer.ggml.token_type` of llama.cpp.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// How a pre-tokenizer cuts text, in the fields that tell the known ones apart.
#[derive(Debug, PartialEq)]
enum Cut {
    Regex(String),
    Digits,
    ByteLevel { use_regex: bool },
    Other(String),
}

/// The pattern of Qwen2 and Qwen3: digits one by one. Llama 3's takes up to three.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// llama.cpp's name for a sequence of cuts.
fn pre_name(cuts: &[Cut]) -> Option<&'static str> {
    match cuts {
        [Cut::Regex(r), Cut::ByteLevel { use_regex: false }] if r == QWEN2 => Some("qwen2"),
        [Cut::Regex(r), Cut::ByteLevel { use_regex: false }] if *r == QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|") => {
            Some("llama-bpe")
        }
        [Cut::Digits, Cut::ByteLevel { use_regex: true }] => Some("smollm"),
        [Cut::ByteLevel { use_regex: true }] => Some("gpt-2"),
        _ => None,
    }
}

fn cuts(pre: &Value, out: &mut Vec<Cut>) {
    let flag = |name: &str, default| pre[name].as_bool().unwrap_or(default);
    match pre["type"].as_str() {
        Some("Sequence") => pre["pretokenizers"].as_array().into_iter().flatten().for_each(|p| cuts(p, out)),
        Some("Split") if pre["behavior"] == "Isolated" && !flag("invert", false) => {
            let regex = pre["pattern"]["Regex"].as_str();
            out.push(regex.map_or_else(|| Cut::Other(pre.to_string()), |r| Cut::Regex(r.into())));
        }
        Some("Digits") if flag("individual_digits", false) => out.push(Cut::Digits),
        Some("ByteLevel") if !flag("add_prefix_space", true) => {
            out.push(Cut::ByteLevel { use_regex: flag("use_regex", true) });
        }
        _ => out.push(Cut::Other(pre.to_string())),
    }
}

/// The vocabulary of `folder` (tokenizer.json, tokenizer_config.json) in GGUF's terms.
///
/// # Errors
/// When it is not byte-level BPE, llama.cpp has no name for its pre-tokenizer, or ids lie outside the embedding.
pub fn from_folder(folder: &Path, config: &ModelConfig) -> Result<GgufVocab, FormatError> {
    let path = folder.join("tokenizer.json");
    let bytes = read(&path, LIMIT as u64)?;
    let map = json::object("tokenizer.json", &bytes, LIMIT)?;
    let settings = settings(folder)?;
    vocabulary(Fields::new("", &map), &settings, config).map_err(|e| e.within("tokenizer.json"))
}

/// tokenizer_config.json, or an empty object.
fn settings(folder: &Path) -> Result<Value, FormatError> {
    let path = folder.join("tokenizer_config.json");
    if !path.exists() {
        return Ok(Value::Null);
    }
    Ok(Value::Object(json::object("tokenizer_config.json", &read(&path, LIMIT as u64)?, LIMIT)?))
}

fn vocabulary(file: Fields<'_>, settings: &Value, config: &ModelConfig) -> Result<GgufVocab, FormatError> {
    let model = file.need("model", "an object", file.object("model")?)?;
    if model.text("type")? != Some("BPE") || model.flag("byte_fallback")? == Some(true) {
        return Err(FormatError::Unsupported(model.fault("type", "BPE without byte_fallback")));
    }
    let mut found = Vec::new();
    cuts(file.get("pre_tokenizer").unwrap_or(&Value::Null), &mut found);
    let pre = pre_name(&found).ok_or_else(|| {
        let known = "that of Qwen2, Llama 3, SmolLM or GPT-2";
        FormatError::Unsupported(Fault::new("pre_tokenizer", known, format!("{found:?}")))
    })?;
    let mut tokens = Tokens::new(config.vocab);
    let vocab = model.need("vocab", "tokens and their ids", model.get("vocab").and_then(Value::as_object))?;
    for (text, id) in vocab {
        tokens.put(text, id, NORMAL)?;
    }
    for added in file.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
        let text =
            added["content"].as_str().ok_or_else(|| Fault::new("added_tokens", "a content", added.to_string()))?;
        let special = added["special"].as_bool().unwrap_or(false);
        tokens.put(text, &added["id"], if special { CONTROL } else { USER_DEFINED })?;
    }
    let (tokens, token_types) = tokens.finish();
    // A special token of tokenizer_config.json: its text, or an object with the text.
    let named = |field: &str| {
        let text = settings[field].as_str().or_else(|| settings[field]["content"].as_str())?;
        tokens.iter().position(|t| t == text).map(|id| id as u32)
    };
    let eos = named("eos_token").or(config.eos.first().copied());
    let mut others = config.eos.iter().copied().filter(|&id| Some(id) != eos);
    let bos = named("bos_token").or(config.bos);
    Ok(GgufVocab {
        model: "gpt2".into(),
        pre: pre.into(),
        merges: merges(model)?,
        token_types,
        bos,
        eos,
        eot: others.next(),
        eom: others.next(),
        unk: named("unk_token"),
        pad: named("pad_token"),
        add_bos: Some(settings["add_bos_token"].as_bool().unwrap_or_else(|| starts_with_bos(file, &tokens, bos))),
        add_eos: None,
        add_space_prefix: None,
        tokens,
    })
}

/// Whether the post-processor puts the token `bos` in front of a single text.
fn starts_with_bos(file: Fields<'_>, tokens: &[String], bos: Option<u32>) -> bool {
    let Some(text) = bos.and_then(|id| tokens.get(id as usize)) else { return false };
    let is_template = |p: &&Value| p["type"] == "TemplateProcessing";
    let Some(post) = file.get("post_processor") else { return false };
    let parts = post["processors"].as_array().map_or(std::slice::from_ref(post), Vec::as_slice);
    parts.iter().find(is_template).is_some_and(|t| t["single"][0]["SpecialToken"]["id"] == text.as_str())
}

/// Merges as `left right`; the file has them so, or as pairs.
fn merges(model: Fields<'_>) -> Result<Vec<String>, FormatError> {
    let list = model.need("merges", "a list of merges", model.get("merges").and_then(Value::as_array))?;
    let text = |v: &Value| match v {
        Value::String(s) => Some(s.clone()),
        Value::Array(pair) => match pair.as_slice() {
            [Value::String(a), Value::String(b)] => Some(format!("{a} {b}")),
            _ => None,
        },
        _ => None,
    };
    let all = list.iter().map(text).collect::<Option<Vec<_>>>();
    all.ok_or_else(|| model.fault("merges", "`left right` or [left, right] each").into())
}

/// Token texts by id, with gaps.
struct Tokens(Vec<Option<(String, i32)>>);

impl Tokens {
    fn new(count: usize) -> Self {
        Self(vec![None; count])
    }

    fn put(&mut self, text: &str, id: &Value, kind: i32) -> Result<(), Fault> {
        let count = self.0.len();
        let slot = id.as_u64().and_then(|n| usize::try_from(n).ok()).and_then(|n| self.0.get_mut(n));
        let expected = || format!("an id below the {count} rows of the embedding");
        let slot = slot.ok_or_else(|| Fault::new(format!("the token `{text}`"), expected(), id.to_string()))?;
        match slot {
            Some((other, _)) if other != text => {
                Err(Fault::new(format!("the token `{text}`"), "an id of its own", format!("{id}, that of `{other}`")))
            }
            _ => {
                *slot = Some((text.to_owned(), kind));
                Ok(())
            }
        }
    }

    /// Texts and types; rows of the embedding without a token get a name that no text can match.
    fn finish(self) -> (Vec<String>, Vec<i32>) {
        let fill = |(i, t): (usize, Option<_>)| t.unwrap_or_else(|| (format!("[PAD{i}]"), UNUSED));
        self.0.into_iter().enumerate().map(fill).unzip()
    }
}

/// A stand-in for models whose ids mean nothing: the bytes in GPT-2's alphabet as far as they fit, two merges,
/// padding, and four control tokens at the end. It lets loaders that insist on a vocabulary open the file.
pub fn byte_level(config: &ModelConfig) -> GgufVocab {
    const CONTROLS: [&str; 4] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"];
    let mut texts: Vec<(String, i32)> = byte_alphabet().map(|c| (c.to_string(), NORMAL)).collect();
    let controls = CONTROLS.len().min(config.vocab);
    let merges: Vec<String> = vec!["t h".into(), "h e".into()];
    let merged = merges.iter().map(|m| (m.replace(' ', ""), NORMAL));
    let room = config.vocab - controls;
    texts.truncate(room.saturating_sub(merges.len()));
    texts.extend(merged.take(room.saturating_sub(texts.len())));
    texts.extend((texts.len()..room).map(|i| (format!("[PAD{i}]"), UNUSED)));
    texts.extend(CONTROLS[..controls].iter().map(|t| ((*t).to_owned(), CONTROL)));
    let (tokens, token_types) = texts.into_iter().unzip();
    let inside = |id: Option<u32>| id.filter(|&n| (n as usize) < config.vocab);
    GgufVocab {
        model: "gpt2".into(),
        pre: if config.arch.gguf() == "llama" { "llama-bpe" } else { "qwen2" }.into(),
        tokens,
        merges,
        token_types,
        bos: inside(config.bos),
        eos: inside(config.eos.first().copied()),
        eot: inside(config.eos.get(1).copied()),
        eom: inside(config.eos.get(2).copied()),
        pad: inside(config.vocab.checked_sub(1).map(|n| n as u32)),
        add_bos: Some(false),
        ..GgufVocab::default()
    }
}

/// GPT-2's 256 characters for bytes: printable Latin-1 stands for itself, the rest begins at U+0100.
fn byte_alphabet() -> impl Iterator<Item = char> {
    let printable = |b: &u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let rest = (0..256u32).filter(move |b| !printable(b)).enumerate().map(|(n, _)| 256 + n as u32);
    (0..256u32).filter(printable).chain(rest).filter_map(char::from_u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pre_tokenizers_are_known_by_their_cuts() {
        let of = |text: &str| {
            let mut out = Vec::new();
            cuts(&serde_json::from_str(text).unwrap(), &mut out);
            pre_name(&out)
        };
        let split = |regex: &str| {
            let regex = serde_json::to_string(regex).unwrap();
            format!(
                r#"{{"type": "Sequence", "pretokenizers": [
                    {{"type": "Split", "pattern": {{"Regex": {regex}}}, "behavior": "Isolated", "invert": false}},
                    {{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}]}}"#
            )
        };
        assert_eq!(of(&split(QWEN2)), Some("qwen2"));
        assert_eq!(of(&split(&QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|"))), Some("llama-bpe"));
        assert_eq!(of(&split("a|b")), None);
        let bytes = r#"{"type": "ByteLevel", "add_prefix_space": false}"#;
        assert_eq!(of(bytes), Some("gpt-2"));
        let digits = r#"{"type": "Digits", "individual_digits": true}"#;
        let smol = format!(r#"{{"type": "Sequence", "pretokenizers": [{digits}, {bytes}]}}"#);
        assert_eq!(of(&smol), Some("smollm"));
        assert_eq!(of(r#"{"type": "Metaspace"}"#), None);
    }
}
