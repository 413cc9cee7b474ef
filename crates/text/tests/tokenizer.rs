//! Encoding, decoding and streaming with the tiny tokenizer.

mod tiny;

use proptest::prelude::*;
use serde_json::json;
use tare_text::{BpeVocab, Detokenizer, Special, StopMatcher, TextError, Tokenizer};

/// Text with much of what breaks tokenizers: look-alikes, white space, several bytes a character, combining marks.
fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("<|im_end|>".to_owned()),
        Just("<think>".to_owned()),
        Just("<|im_".to_owned()),
        Just(" the world".to_owned()),
        Just("e\u{301}👩‍👧".to_owned()),
        Just("  \n\n".to_owned()),
        "\\PC{0,6}",
    ];
    prop::collection::vec(piece, 0..8).prop_map(|p| p.concat())
}

fn ids() -> impl Strategy<Value = Vec<u32>> {
    let size = u32::try_from(tiny::tokenizer().vocab_size()).unwrap();
    prop::collection::vec(0..size, 0..40)
}

fn bytes(tok: &Tokenizer, ids: &[u32], skip: bool) -> Vec<u8> {
    ids.iter().filter(|i| !(skip && tok.is_special(**i))).flat_map(|i| tok.token_bytes(*i).unwrap()).collect()
}

proptest! {
    #![proptest_config(tiny::same_cases_every_time())]

    #[test]
    fn decoding_gives_the_text_back(text in texts()) {
        let tok = tiny::tokenizer();
        for special in [Special::Text, Special::Parse] {
            let ids = tok.encode(&text, special).unwrap();
            prop_assert_eq!(&tok.decode(&ids, false).unwrap(), &text);
            if special == Special::Text {
                prop_assert!(ids.iter().all(|i| !tok.is_special(*i) && *i != tok.id_of("<think>").unwrap()));
            }
        }
    }

    #[test]
    fn both_sources_of_a_vocabulary_agree(text in texts()) {
        let (json, gguf) = (tiny::tokenizer(), Tokenizer::from_vocab(&tiny::vocab()).unwrap());
        for special in [Special::Text, Special::Parse] {
            prop_assert_eq!(json.encode(&text, special).unwrap(), gguf.encode(&text, special).unwrap());
        }
    }

    #[test]
    fn streams_join_to_the_whole_and_show_no_broken_character_early(ids in ids(), skip: bool) {
        let tok = tiny::tokenizer();
        let mut stream = Detokenizer::new(tok.clone(), skip);
        let mut shown = String::new();
        for i in 0..ids.len() {
            shown.push_str(&stream.push(ids[i]));
            // An unfinished character shows as one U+FFFD where bytes are decoded too early, and as nothing here.
            let eager = String::from_utf8_lossy(&bytes(&tok, &ids[..=i], skip)).into_owned();
            prop_assert!(eager == shown || eager == format!("{}\u{fffd}", shown), "{:?} at {:?}", shown, eager);
        }
        shown.push_str(&stream.finish());
        let all = bytes(&tok, &ids, skip);
        prop_assert_eq!(&shown, &String::from_utf8_lossy(&all));
        prop_assert_eq!(shown, tok.decode(&ids, skip).unwrap());
    }

    #[test]
    fn text_is_shown_as_soon_as_it_is_whole(text in texts()) {
        let tok = tiny::tokenizer();
        let mut stream = Detokenizer::new(tok.clone(), false);
        let shown: String = tok.encode(&text, Special::Parse).unwrap().into_iter().map(|i| {
            let piece = stream.push(i);
            assert!(text.contains('\u{fffd}') || !piece.contains('\u{fffd}'), "U+FFFD shown for {text:?}");
            piece
        }).collect();
        prop_assert_eq!(shown, text);
        prop_assert_eq!(stream.finish(), "");
    }

    #[test]
    fn stops_do_not_depend_on_how_text_is_cut(
        text in "[ab<é]{0,24}", stops in prop::collection::vec("[ab<é]{0,4}", 0..4), cuts in prop::collection::vec(0usize..24, 0..8)
    ) {
        let run = |pieces: &[&str]| {
            let mut m = StopMatcher::new(stops.clone());
            let steps: Vec<_> = pieces.iter().map(|p| m.push(p)).collect();
            let mut out: String = steps.iter().map(|s| s.emit.as_str()).collect();
            out.push_str(&m.finish());
            (out, steps.iter().find_map(|s| s.stopped))
        };
        let mut at: Vec<usize> = cuts.into_iter().filter(|c| text.is_char_boundary(*c)).chain([0, text.len()]).collect();
        at.sort_unstable();
        let pieces: Vec<&str> = at.windows(2).map(|w| &text[w[0]..w[1]]).collect();
        let (out, stopped) = run(&[&text]);
        prop_assert_eq!(run(&pieces), (out.clone(), stopped));
        let real: Vec<&String> = stops.iter().filter(|s| !s.is_empty()).collect();
        prop_assert!(real.iter().all(|s| !out.contains(s.as_str())), "{:?} contains a stop string", out);
        match stopped {
            Some(i) => prop_assert!(text.starts_with(&(out + &stops[i]))),
            None => prop_assert_eq!(out, text),
        }
    }
}

#[test]
fn the_shipped_file_is_what_the_code_makes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny-tokenizer.json");
    let (shipped, made) = (tare_testkit::json(path), tiny::file());
    assert!(shipped == made, "{path} is not what tests/tiny makes; write this into it:\n{made}");
}

#[test]
fn special_tokens_are_parsed_only_when_asked() {
    let tok = tiny::tokenizer();
    let id = |t: &str| tok.id_of(t).unwrap();
    let parsed = tok.encode("<|im_start|>user<think><|im_end|><|x|>", Special::Parse).unwrap();
    assert_eq!(parsed, [id("<|im_start|>"), id("user"), id("<think>"), id("<|im_end|><|x|>")], "longest first");
    assert_eq!(tok.decode(&parsed, true).unwrap(), "user<think>", "only control tokens are skipped");
    assert!(tok.is_special(id("<|im_start|>")) && !tok.is_special(id("<think>")));
    assert_eq!(tok.encode("<think>", Special::Text).unwrap().len(), 7);
}

#[test]
fn half_a_character_waits() {
    let tok = tiny::tokenizer();
    let ids = tok.encode("中", Special::Text).unwrap();
    assert_eq!(ids.len(), 3);
    let mut stream = Detokenizer::new(tok.clone(), false);
    assert_eq!([0, 1, 2].map(|i| stream.push(ids[i])), ["", "", "中"]);
    stream.push(ids[0]);
    assert_eq!(stream.finish(), "\u{fffd}");
    stream.push(ids[0]);
    assert_eq!(stream.push(tok.id_of("A").unwrap()), "\u{fffd}A", "an A cannot complete it");
}

#[test]
fn unknown_ids_are_an_error_in_whole_texts_and_silence_in_streams() {
    let tok = tiny::tokenizer();
    let beyond = u32::try_from(tok.vocab_size()).unwrap();
    assert!(matches!(tok.decode(&[beyond], false), Err(TextError::Tokens(_))));
    assert_eq!(Detokenizer::new(tok.clone(), false).push(beyond), "");
    assert_eq!(tok.token_bytes(beyond), None);
}

#[test]
fn a_byte_that_the_vocabulary_lacks_is_an_error() {
    let mut v = tiny::vocab();
    let z = v.tokens.iter().position(|t| t == "z").unwrap();
    v.tokens[z] = "zz".into();
    let tok = Tokenizer::from_vocab(&v).unwrap();
    assert!(tok.encode("hello", Special::Text).is_ok());
    let e = tok.encode("size", Special::Text).unwrap_err().to_string();
    assert!(e.contains("without a token") && e.contains("use the tokenizer"), "{e}");
}

#[test]
fn begin_of_text() {
    let with = |change: fn(&mut BpeVocab)| {
        let mut v = BpeVocab { bos: Some(300), ..tiny::vocab() };
        change(&mut v);
        Tokenizer::from_vocab(&v).map(|t| t.add_bos())
    };
    assert_eq!(with(|_| ()).unwrap(), None);
    assert_eq!(with(|v| v.add_bos = Some(true)).unwrap(), Some(300));
    assert_eq!(with(|v| v.pre = "llama-bpe".into()).unwrap(), Some(300));
    assert!(with(|v| (v.add_bos, v.bos) = (Some(true), None)).is_err());
    let mut file = tiny::file();
    file["post_processor"] =
        json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|im_start|>"}}]});
    let tok = Tokenizer::from_json(file.to_string().as_bytes()).unwrap();
    assert_eq!(tok.add_bos(), tok.id_of("<|im_start|>"));
}

#[test]
fn splitting_rules_by_name() {
    let mut tokens = tiny::vocab().tokens[..256].to_vec();
    tokens.extend(["11".to_owned(), "111".to_owned()]);
    let merges = vec!["1 1".to_owned(), "11 1".to_owned()];
    let pieces = |pre: &str, text: &str| -> Vec<String> {
        let (model, pre) = ("gpt2".to_owned(), pre.to_owned());
        let v = BpeVocab { model, pre, tokens: tokens.clone(), merges: merges.clone(), ..BpeVocab::default() };
        let tok = Tokenizer::from_vocab(&v).unwrap();
        let ids = tok.encode(text, Special::Text).unwrap();
        ids.iter().map(|i| String::from_utf8_lossy(&tok.token_bytes(*i).unwrap()).into_owned()).collect()
    };
    assert_eq!(pieces("qwen2", "1111"), ["1", "1", "1", "1"]);
    assert_eq!(pieces("smollm", "1111"), ["1", "1", "1", "1"]);
    assert_eq!(pieces("llama-bpe", "1111"), ["111", "1"]);
    assert_eq!(pieces("default", "1111"), ["111", "1"]);
    assert_eq!(pieces("qwen2", "e\u{301}").len(), 2, "normal form C: one character of two bytes");
    assert_eq!(pieces("llama-bpe", "e\u{301}").len(), 3);
}

#[test]
fn types_decide_what_is_special_where_the_file_has_them() {
    let tok = Tokenizer::from_vocab(&BpeVocab { pad: Some(u32::from(b'!')), ..tiny::vocab() }).unwrap();
    assert!(!tok.is_special(u32::from(b'!')));
    let eos = tok.id_of("<|im_end|>");
    let untyped = BpeVocab { token_types: vec![], eos, ..tiny::vocab() };
    let tok = Tokenizer::from_vocab(&untyped).unwrap();
    assert_eq!(tok.encode("<|im_end|>", Special::Parse).unwrap(), [eos.unwrap()]);
    assert!(tok.encode("<think>", Special::Parse).unwrap().len() > 1);
}

#[test]
fn sentencepiece_like_files_with_byte_fallback() {
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let file = json!({
        "added_tokens": [{"id": 0, "content": "<s>", "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>", "merges": ["▁ a"],
            "vocab": {"<s>": 0, "<unk>": 1, "▁": 2, "a": 3, "▁a": 4, "<0xE4>": 5, "<0xB8>": 6, "<0xAD>": 7}}
    });
    let tok = Tokenizer::from_json(file.to_string().as_bytes()).unwrap();
    let ids = tok.encode("a中 a", Special::Text).unwrap();
    assert_eq!(ids, [4, 5, 6, 7, 4]);
    assert_eq!(tok.decode(&ids, false).unwrap(), "a中 a");
    let mut stream = Detokenizer::new(tok, false);
    assert_eq!(ids.iter().map(|i| stream.push(*i)).collect::<Vec<_>>(), ["a", "", "", "中", " a"]);
}

#[test]
fn contradictory_vocabularies_are_refused_with_a_reason() {
    let refuse = |change: fn(&mut BpeVocab), says: &str| {
        let mut v = tiny::vocab();
        change(&mut v);
        let e = Tokenizer::from_vocab(&v).expect_err(says).to_string();
        assert!(e.contains(says), "{e:?} does not say {says:?}");
    };
    refuse(|v| v.model = "llama".into(), "expected gpt2");
    refuse(|v| v.pre = "tekken".into(), "expected qwen2, llama-bpe, smollm, gpt-2, default, found \"tekken\"");
    refuse(|v| v.tokens.clear(), "at least one token");
    refuse(|v| v.token_types.truncate(3), "3 types for");
    refuse(|v| v.tokens[7] = v.tokens[8].clone(), "every token once");
    refuse(|v| v.merges.push("nospace".into()), "parted by a space");
    refuse(|v| v.merges.push("Ġthe Ġworld".into()), "ĠtheĠworld");
    refuse(|v| v.bos = Some(9999), "tokenizer.ggml.bos_token_id");
    refuse(|v| v.add_space_prefix = Some(true), "add_space_prefix");
}

#[test]
fn malformed_files_are_refused_with_a_reason() {
    let refuse = |change: fn(&mut serde_json::Value), says: &str| {
        let mut file = tiny::file();
        change(&mut file);
        let e = Tokenizer::from_json(file.to_string().as_bytes()).expect_err(says).to_string();
        assert!(e.contains(says), "{e:?} does not say {says:?}");
    };
    refuse(|f| f["model"]["type"] = "WordLevel".into(), "expected BPE, found WordLevel");
    refuse(|f| f["model"]["vocab"] = json!([["a", 0.1]]), "Unigram models are not supported");
    refuse(|f| f["model"]["merges"] = json!(["Ġthe Ġworld"]), "ĠtheĠworld");
    refuse(|f| f["model"]["end_of_word_suffix"] = "</w>".into(), "end_of_word_suffix");
    refuse(|f| f["decoder"] = json!({"type": "WordPiece"}), "found WordPiece");
    refuse(|f| f["added_tokens"][0]["content"] = "user".into(), "as the vocabulary has it");
    let e = Tokenizer::from_json(b"{").unwrap_err().to_string();
    assert!(e.contains("fetch the file again"), "{e}");
}
