//! What is refused, and how it is said.

use crate::client::send;
use crate::rig::{CONTEXT, NAME, Rig, Running, chat, with};
use serde_json::{Value, json};

/// Status, `param` and `code` of a refusal, whose shape is checked.
fn refusal(server: &Running, path: &str, body: &Value) -> (u16, Value, Value) {
    let response = server.post(path, body);
    let error = response.json()["error"].clone();
    assert_eq!(error["type"], "invalid_request_error", "{body}: {}", response.body);
    assert!(!error["message"].as_str().unwrap().is_empty());
    (response.status, error["param"].clone(), error["code"].clone())
}

fn chat_refusal(server: &Running, keys: Value) -> (u16, Value, Value) {
    refusal(server, "/v1/chat/completions", &with(chat("abc", 3), keys))
}

#[test]
fn every_wrong_value_names_its_parameter() {
    let server = Rig::default().start();
    let wrong = [
        ("temperature", json!(-0.1)),
        ("temperature", json!(2.1)),
        ("temperature", json!("hot")),
        ("temperature", json!(1e300)),
        ("top_p", json!(1.5)),
        ("top_k", json!(-2)),
        ("top_k", json!(1.5)),
        ("min_p", json!(-1)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-3)),
        ("repetition_penalty", json!(0)),
        ("repetition_penalty", json!(1e-45)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(1u64 << 63)),
        ("max_tokens", json!("5")),
        ("max_completion_tokens", json!(4)),
        ("n", json!(2)),
        ("n", json!(0)),
        ("seed", json!(1.5)),
        ("stop", json!([""])),
        ("stop", json!(7)),
        ("stop", json!(["a", "b", "c", "d", "e"])),
        ("stream", json!("yes")),
        ("logit_bias", json!({"512": 1})),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias.7", json!({"7": 101})),
        ("logit_bias", json!([1])),
        ("logprobs", json!(1)),
        ("top_logprobs", json!(21)),
        ("top_logprobs", json!(2)),
        ("min_tokens", json!(4)),
        ("ignore_eos", json!(1)),
        ("messages", json!([])),
        ("messages", json!("hi")),
        ("messages[0]", json!(["hi"])),
        ("messages[0].role", json!([{"content": "hi"}])),
        ("messages[0].role", json!([{"role": "robot", "content": "hi"}])),
        ("messages[0].content", json!([{"role": "user"}])),
        ("messages[0].content", json!([{"role": "user", "content": 1}])),
        ("messages[0].mood", json!([{"role": "user", "content": "hi", "mood": "good"}])),
        ("messages[0].content[0].text", json!([{"role": "user", "content": [{"type": "text"}]}])),
        ("stream_options", json!({"include_usage": true})),
        ("user", json!(1)),
        ("metadata", json!("x")),
        ("tools[0].function", json!([{"type": "function"}])),
        ("model", json!(3)),
        ("model", Value::Null),
        ("colour", json!("red")),
        (
            "messages[0].tool_calls[0].function.arguments",
            json!([{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "no"}}]}]),
        ),
    ];
    for (param, value) in wrong {
        let key = param.split(['[', '.']).next().unwrap();
        let found = chat_refusal(&server, json!({key: value}));
        assert_eq!((found.0, &found.1), (400, &json!(param)), "{value}");
    }
    let message = server.post("/v1/chat/completions", &with(chat("abc", 3), json!({"top_p": 7}))).json();
    assert_eq!(message["error"]["message"], "top_p: expected a number from 0 to 1, found 7");
    server.chat(&chat("abc", 1));
}

#[test]
fn what_is_not_built_says_so() {
    let server = Rig::default().start();
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {}}});
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    let strict = json!([{"type": "function", "function": {"name": "f", "strict": true}}]);
    for (param, value) in [
        ("response_format.type", schema),
        ("tool_choice", json!("required")),
        ("reasoning_effort", json!("low")),
        ("functions", json!([])),
        ("store", json!(true)),
        ("parallel_tool_calls", json!(false)),
        ("audio", json!({})),
        ("messages[0].content[0].type", image),
        ("modalities", json!(["audio"])),
        ("service_tier", json!("flex")),
        ("tools[0].function.strict", strict),
    ] {
        let key = param.split(['[', '.']).next().unwrap();
        let found = chat_refusal(&server, json!({key: value}));
        assert_eq!(found, (400, json!(param), json!("unsupported_parameter")), "{value}");
    }
    for (key, value) in [("echo", json!(true)), ("suffix", json!("x")), ("prompt", json!(["a", "b"]))] {
        let body = with(json!({"model": NAME, "prompt": "a"}), json!({key: value}));
        assert_eq!(refusal(&server, "/v1/completions", &body), (400, json!(key), json!("unsupported_parameter")));
    }
}

#[test]
fn completions_refuse_prompts_that_are_none() {
    let server = Rig::default().start();
    for (param, prompt) in [
        ("prompt", json!([])),
        ("prompt", json!("")),
        ("prompt", json!({})),
        ("prompt[1]", json!([1, -1])),
        ("prompt[0]", json!([1.5])),
        ("prompt[2]", json!([1, 2, 512])),
        ("prompt", Value::Null),
    ] {
        let body = json!({"model": NAME, "prompt": prompt});
        let found = refusal(&server, "/v1/completions", &body);
        assert_eq!((found.0, found.1), (400, json!(param)), "{prompt}");
    }
}

#[test]
fn a_prompt_beyond_the_context_is_refused_with_the_counts() {
    let server = Rig::default().start();
    let response = server.post("/v1/chat/completions", &chat(&"x".repeat(CONTEXT), 1));
    let error = &response.json()["error"];
    assert_eq!(
        (response.status, &error["code"], &error["param"]),
        (400, &json!("context_length_exceeded"), &json!("messages"))
    );
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&format!("the context is {CONTEXT} tokens")) && message.contains("41"), "{message}");
    // A stream is refused the same way, before it begins.
    let streamed = server.post("/v1/chat/completions", &with(chat(&"x".repeat(CONTEXT), 1), json!({"stream": true})));
    assert_eq!((streamed.status, &streamed.json()["error"]), (400, error));
    server.chat(&chat("abc", 1));
}

#[test]
fn other_models_paths_methods_and_types_are_refused() {
    let server = Rig::default().start();
    let found = chat_refusal(&server, json!({"model": "gpt-4"}));
    assert_eq!(found, (404, json!("model"), json!("model_not_found")));
    assert_eq!((server.get("/v1/nothing").status, server.get("/v1/chat/completions").status), (404, 405));
    assert_eq!(server.get("/v1/nothing").json()["error"]["type"], "invalid_request_error");
    let body = chat("abc", 1).to_string();
    let plain = send(server.address, "POST", "/v1/chat/completions", "content-type: text/plain\r\n", body.as_bytes());
    assert_eq!(plain.whole().status, 415);
    let models = server.get("/v1/models").json();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!(NAME), &json!(CONTEXT)));
    assert_eq!(server.get(&format!("/v1/models/{NAME}")).json(), models["data"][0]);
    assert_eq!(server.get("/v1/models/other").status, 404);
}

#[test]
fn responses_carry_a_request_id() {
    let server = Rig::default().start();
    assert!(server.get("/v1/models").header("x-request-id").is_some());
    assert!(server.post("/v1/chat/completions", &json!({})).header("x-request-id").is_some());
    let named = send(server.address, "GET", "/v1/models", "x-request-id: mine-7\r\n", b"").whole();
    assert_eq!(named.header("x-request-id"), Some("mine-7"));
}
