//! Streams: the same answer in pieces.

use crate::rig::{NAME, Rig, Running, chat, with};
use serde_json::{Value, json};

fn events(server: &Running, body: &Value) -> Vec<Value> {
    server.post("/v1/chat/completions", &with(body.clone(), json!({"stream": true}))).events()
}

fn joined(events: &[Value], of: impl Fn(&Value) -> &Value) -> String {
    events.iter().filter_map(|e| of(&e["choices"][0]).as_str()).collect()
}

#[test]
fn the_pieces_joined_are_the_answer() {
    let server = Rig::default().start();
    for keys in [json!({}), json!({"temperature": 1.7, "seed": 3}), json!({"logprobs": true, "top_logprobs": 2})] {
        let body = with(chat("abc", 60), keys);
        let (whole, events) = (server.chat(&body), events(&server, &body));
        let choice = &whole["choices"][0];
        assert_eq!(joined(&events, |c| &c["delta"]["content"]), choice["message"]["content"].as_str().unwrap());
        let content = |e: &Value| e["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default();
        let tokens: Vec<Value> = events.iter().flat_map(content).collect();
        assert_eq!(tokens, choice["logprobs"]["content"].as_array().cloned().unwrap_or_default());
    }
}

#[test]
fn a_stream_opens_with_the_role_and_closes_with_reason_and_usage() {
    let server = Rig::default().start();
    let with_usage = json!({"stream_options": {"include_usage": true}});
    let events = events(&server, &with(chat("abc", 4), with_usage));
    let (first, reason, last) = (&events[0], &events[events.len() - 2], &events[events.len() - 1]);
    assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let choice = &reason["choices"][0];
    assert_eq!((&choice["delta"], &choice["finish_reason"]), (&json!({}), &json!("length")));
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(4)));
    for event in &events {
        assert_eq!((&event["object"], &event["id"]), (&json!("chat.completion.chunk"), &first["id"]));
    }
    for event in &events[..events.len() - 1] {
        assert_eq!(event.get("usage"), Some(&Value::Null));
    }
    for event in &events[1..events.len() - 2] {
        assert_eq!(event["choices"][0]["finish_reason"], Value::Null);
    }
}

#[test]
fn without_the_option_no_chunk_has_a_usage() {
    let server = Rig::default().start();
    assert!(events(&server, &chat("abc", 3)).iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn completions_stream_too() {
    let server = Rig::default().start();
    let body = json!({"model": NAME, "prompt": "abc", "temperature": 0, "max_tokens": 20, "logprobs": 1});
    let whole = server.complete(&body);
    let events = server.post("/v1/completions", &with(body, json!({"stream": true}))).events();
    assert_eq!(joined(&events, |c| &c["text"]), whole["choices"][0]["text"].as_str().unwrap());
    assert!(events.iter().all(|event| event["object"] == "text_completion"));
    let offsets = |e: &Value| e["choices"][0]["logprobs"]["text_offset"].as_array().cloned().unwrap_or_default();
    let streamed: Vec<Value> = events.iter().flat_map(offsets).collect();
    assert_eq!(json!(streamed), whole["choices"][0]["logprobs"]["text_offset"]);
}

#[test]
fn ids_that_are_asked_for_are_all_there_also_where_text_is_held_back() {
    let server = Rig::default().start();
    let body = json!({"model": NAME, "prompt": [97, 98], "temperature": 0, "max_tokens": 40, "ignore_eos": true,
        "return_token_ids": true});
    let whole = server.complete(&body);
    let choice = &whole["choices"][0];
    assert_eq!(choice["token_ids"].as_array().map(Vec::len), Some(40));
    assert_eq!(choice["logprobs"], Value::Null, "only what was asked for");
    let events = server.post("/v1/completions", &with(body, json!({"stream": true}))).events();
    let ids = |e: &Value| e["choices"][0]["token_ids"].as_array().cloned().unwrap_or_default();
    assert_eq!(json!(events.iter().flat_map(ids).collect::<Vec<_>>()), choice["token_ids"]);
    let without = server.complete(&json!({"model": NAME, "prompt": "ab", "max_tokens": 2}));
    assert_eq!(without["choices"][0].get("token_ids"), None);
}

/// The bytes of `text` in order, one token each: a bias that falls from byte to byte, and a repetition penalty that takes
/// a byte out once it was drawn.
fn spelled(server: &Running, text: &str, tokens: usize) -> Vec<String> {
    let bias: serde_json::Map<String, Value> =
        text.bytes().zip([100, 75, 50, 25]).map(|(byte, bias)| (byte.to_string(), bias.into())).collect();
    let body = json!({"model": NAME, "prompt": "ab", "temperature": 0, "max_tokens": tokens, "stream": true,
        "logit_bias": bias, "repetition_penalty": 100});
    let events = server.post("/v1/completions", &body).events();
    let pieces = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
    pieces.filter(|piece| !piece.is_empty()).map(str::to_owned).collect()
}

#[test]
fn no_chunk_has_half_a_character() {
    let server = Rig::default().start();
    for text in ["\u{1f600}", "\u{10f}", "\u{6f22}"] {
        assert_eq!(spelled(&server, text, text.len()), [text], "a character comes when its last byte does");
        assert_eq!(spelled(&server, text, text.len() - 1), ["\u{fffd}"], "only the end shows that one is incomplete");
    }
}
