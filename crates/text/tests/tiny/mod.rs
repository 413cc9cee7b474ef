//! A byte-level tokenizer of a few hundred tokens, for tests that need no download.

use proptest::test_runner::{Config, RngSeed};
use serde_json::{Value, json};
use tare_text::{BpeVocab, Tokenizer};

/// Words that are one token each, with every beginning of theirs. Other text is spelled byte by byte, so that most
/// characters outside ASCII span tokens.
const WORDS: [&str; 12] =
    ["Ġthe", "Ġand", "hello", "Ġworld", "user", "assistant", "system", "Ġis", "ĠĠ", "ĊĊ", "Ã©", "ðŁĺ"];

/// Control tokens, then tokens that are recognised but not special.
pub(crate) const CONTROL: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|im_end|><|x|>"];
pub(crate) const DEFINED: [&str; 4] = ["<think>", "</think>", "<tool_response>", "</tool_response>"];

/// The character that stands for a byte in GPT-2's alphabet.
fn letter(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    match printable(byte) {
        true => char::from(byte),
        false => char::from_u32(256 + (0..byte).filter(|b| !printable(*b)).count() as u32).expect("a character"),
    }
}

/// The vocabulary with the rules of `smollm`.
pub(crate) fn vocab() -> BpeVocab {
    let mut v = BpeVocab { model: "gpt2".into(), pre: "smollm".into(), ..BpeVocab::default() };
    v.tokens = (0..=255).map(|b| letter(b).to_string()).collect();
    for word in WORDS {
        let ends: Vec<usize> = word.char_indices().map(|(i, _)| i).chain([word.len()]).collect();
        for pair in ends[1..].windows(2) {
            let (left, token) = (&word[..pair[0]], &word[..pair[1]]);
            if !v.tokens.iter().any(|t| t == token) {
                v.merges.push(format!("{left} {}", &word[pair[0]..pair[1]]));
                v.tokens.push(token.to_owned());
            }
        }
    }
    v.token_types = vec![1; v.tokens.len()];
    for (names, kind) in [(CONTROL.as_slice(), 3), (DEFINED.as_slice(), 4)] {
        v.tokens.extend(names.iter().map(|n| (*n).to_owned()));
        v.token_types.resize(v.tokens.len(), kind);
    }
    v
}

/// The same vocabulary as a `tokenizer.json`.
pub(crate) fn file() -> Value {
    let v = vocab();
    let is_added = |i: usize| v.token_types[i] != 1;
    let vocab: serde_json::Map<String, Value> =
        v.tokens.iter().enumerate().filter(|(i, _)| !is_added(*i)).map(|(i, t)| (t.clone(), i.into())).collect();
    let added: Vec<Value> = v
        .tokens
        .iter()
        .enumerate()
        .filter(|(i, _)| is_added(*i))
        .map(|(i, t)| {
            json!({"id": i, "content": t, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": v.token_types[i] == 3})
        })
        .collect();
    let merges: Vec<Vec<&str>> = v.merges.iter().map(|m| m.split(' ').collect()).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges}
    })
}

/// The tokenizer.
pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::from_json(file().to_string().as_bytes()).expect("the tiny tokenizer loads")
}

/// Property tests that try the same cases in every run.
pub(crate) fn same_cases_every_time() -> Config {
    Config { rng_seed: RngSeed::Fixed(0x7a7e), failure_persistence: None, ..Config::default() }
}
