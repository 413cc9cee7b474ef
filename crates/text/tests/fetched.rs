//! Real vocabularies against `goldens/tokenizer` and `goldens/chat`.

use serde::Deserialize;
use std::sync::LazyLock;
use tare_formats::TokenizerSource;
use tare_text::{BpeVocab, ChatRequest, ChatTemplate, Detokenizer, Json, Special, Tokenizer};

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    ids_parsed: Option<Vec<u32>>,
    decoded: Option<String>,
    decoded_skip_special: Option<String>,
    stream: Option<Vec<String>>,
    prefix_decode: Option<Vec<String>>,
    pieces_hex: Option<Vec<String>>,
}

static QWEN3: LazyLock<Tokenizer> = LazyLock::new(|| {
    let bytes = std::fs::read(tare_testkit::assets().join("qwen3-tokenizer.json")).expect("cargo xtask fetch");
    Tokenizer::from_json(&bytes).unwrap()
});

static SMOLLM2: LazyLock<Tokenizer> = LazyLock::new(|| {
    let model = tare_formats::open(&tare_testkit::assets().join("smollm2-135m.gguf")).expect("cargo xtask fetch");
    let TokenizerSource::Gguf(v) = model.tokenizer() else { panic!("the GGUF has a vocabulary") };
    let v = BpeVocab {
        model: v.model.clone(),
        pre: v.pre.clone(),
        tokens: v.tokens.clone(),
        merges: v.merges.clone(),
        token_types: v.token_types.clone(),
        bos: v.bos,
        eos: v.eos,
        unk: v.unk,
        pad: v.pad,
        add_bos: v.add_bos,
        add_space_prefix: v.add_space_prefix,
    };
    Tokenizer::from_vocab(&v).unwrap()
});

fn cases(name: &str) -> Vec<Case> {
    let bytes = std::fs::read(tare_testkit::goldens().join("tokenizer").join(name)).unwrap();
    let golden: Golden = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(golden.cases.len(), 386);
    golden.cases
}

fn check(tok: &Tokenizer, c: &Case) {
    let text = &c.text;
    assert_eq!(tok.encode(text, Special::Text).unwrap(), c.ids, "text of {text:?}");
    let parsed = c.ids_parsed.as_ref().unwrap_or(&c.ids);
    assert_eq!(&tok.encode(text, Special::Parse).unwrap(), parsed, "parsed {text:?}");
    let decoded = c.decoded.as_ref().unwrap_or(text);
    assert_eq!(&tok.decode(parsed, false).unwrap(), decoded);
    if let Some(pieces) = &c.pieces_hex {
        let hex = |id: &u32| tok.token_bytes(*id).unwrap().iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(&c.ids.iter().map(hex).collect::<Vec<_>>(), pieces, "{text:?}");
    }
    for (i, want) in c.prefix_decode.iter().flatten().enumerate() {
        assert_eq!(&tok.decode(&c.ids[..=i], false).unwrap(), want, "first {} ids of {text:?}", i + 1);
    }
    check_stream(tok, c);
}

/// Joined, the stream is the text; what is shown at any step is a beginning of it, never less than Hugging Face shows.
fn check_stream(tok: &Tokenizer, c: &Case) {
    let mut stream = Detokenizer::new(tok.clone(), false);
    let whole = tok.decode(&c.ids, false).unwrap();
    let (mut shown, mut theirs) = (String::new(), String::new());
    for (i, id) in c.ids.iter().enumerate() {
        shown.push_str(&stream.push(*id));
        assert!(whole.starts_with(&shown), "{:?} after {} ids of {:?}", shown, i + 1, c.text);
        if let Some(steps) = &c.stream {
            theirs.push_str(&steps[i]);
            assert!(shown.starts_with(&theirs), "{shown:?} is behind {theirs:?}");
        }
    }
    shown.push_str(&stream.finish());
    assert_eq!(shown, whole);
}

#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_qwen3_equals_hugging_face() {
    assert_eq!(QWEN3.vocab_size(), 151_669);
    assert_eq!(QWEN3.add_bos(), None);
    for c in &cases("qwen3.json") {
        check(&QWEN3, c);
        let parsed = c.ids_parsed.as_ref().unwrap_or(&c.ids);
        let skipped = c.decoded_skip_special.as_ref().or(c.decoded.as_ref()).unwrap_or(&c.text);
        assert_eq!(&QWEN3.decode(parsed, true).unwrap(), skipped, "{:?} without specials", c.text);
    }
}

#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_smollm2_equals_llama_cpp() {
    assert_eq!(SMOLLM2.vocab_size(), 49_152);
    cases("smollm2.json").iter().for_each(|c| check(&SMOLLM2, c));
}

#[derive(Deserialize)]
struct Chats {
    cases: Vec<Chat>,
}

#[derive(Deserialize)]
struct Chat {
    name: String,
    messages: Vec<Json>,
    #[serde(default)]
    tools: Vec<Json>,
    add_generation_prompt: bool,
    enable_thinking: Option<bool>,
    ids: Option<Vec<u32>>,
}

#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_qwen3_conversations_have_the_ids_of_hugging_face() {
    let folder = tare_testkit::goldens().join("chat");
    let template =
        ChatTemplate::new(&std::fs::read_to_string(folder.join("qwen3.jinja")).unwrap(), None, None).unwrap();
    let chats: Chats = serde_json::from_slice(&std::fs::read(folder.join("qwen3.json")).unwrap()).unwrap();
    for c in chats.cases {
        let r = ChatRequest {
            messages: c.messages,
            tools: c.tools,
            add_generation_prompt: c.add_generation_prompt,
            enable_thinking: c.enable_thinking,
            ..ChatRequest::default()
        };
        let got = template.encode(&r, &QWEN3).unwrap();
        match c.ids {
            Some(ids) if c.name == "special tokens in user text" => {
                assert_ne!(got, ids, "user text must not end a turn");
                assert_eq!(QWEN3.decode(&got, false).unwrap(), template.render(&r).unwrap());
                let end = QWEN3.id_of("<|im_end|>").unwrap();
                assert_eq!(got.iter().filter(|id| **id == end).count(), 3, "one for each message");
            }
            Some(ids) => assert_eq!(got, ids, "{}", c.name),
            None => assert_eq!(c.name, "content null with tool_calls"),
        }
    }
}
