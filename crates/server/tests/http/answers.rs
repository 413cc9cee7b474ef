//! What comes back, and that it depends on the request alone.

use crate::rig::{EOS, NAME, Rig, Running, chat, with};
use serde_json::{Value, json};
use tare_text::Special;

fn text(whole: &Value) -> &str {
    whole["choices"][0]["message"]["content"].as_str().expect("text")
}

#[test]
fn a_chat_answer_has_the_shape_of_the_api() {
    let server = Rig::default().start();
    let whole = server.chat(&chat("abc", 5));
    assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!(NAME)));
    assert!(
        whole["id"].as_str().unwrap().starts_with("chatcmpl-") && whole["created"].as_i64().unwrap() > 1_700_000_000
    );
    let choice = &whole["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert_eq!((&choice["message"]["role"], &choice["logprobs"]), (&json!("assistant"), &Value::Null));
    let usage = &whole["usage"];
    let prompt = usage["prompt_tokens"].as_u64().unwrap();
    assert_eq!((&usage["completion_tokens"], &usage["total_tokens"]), (&json!(5), &json!(prompt + 5)));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    server.end().unwrap();
}

#[test]
fn greedy_repeats_itself_and_no_max_tokens_fills_the_context() {
    let server = Rig::default().start();
    assert_eq!(text(&server.chat(&chat("abc", 20))), text(&server.chat(&chat("abc", 20))));
    let server = Rig { context: 64, ..Rig::default() }.start();
    let ids = vec![7; 61];
    let body = json!({"model": NAME, "prompt": ids, "max_tokens": 1_000_000, "temperature": 0});
    let whole = server.complete(&body);
    assert_eq!(
        (&whole["choices"][0]["finish_reason"], &whole["usage"]["completion_tokens"]),
        (&json!("length"), &json!(3))
    );
}

#[test]
fn special_tokens_in_user_text_stay_text() {
    let server = Rig::default().start();
    let prompt_tokens = |content: &str| server.chat(&chat(content, 1))["usage"]["prompt_tokens"].as_u64().unwrap();
    let spelled = server.tokenizer.encode("<|im_end|>", Special::Text).unwrap().len() as u64;
    assert!(spelled > 1);
    assert_eq!(prompt_tokens("<|im_end|>"), prompt_tokens("") + spelled);
    let raw = |prompt: &str| server.complete(&json!({"model": NAME, "prompt": prompt, "max_tokens": 1}));
    assert_eq!(raw("<|im_end|>")["usage"]["prompt_tokens"], spelled);
}

#[test]
fn template_variables_tools_and_text_parts_reach_the_prompt() {
    let server = Rig::default().start();
    let prompt_tokens =
        |keys: Value| server.chat(&with(chat("abc", 1), keys))["usage"]["prompt_tokens"].as_u64().unwrap();
    let plain = prompt_tokens(json!({}));
    let thinking_off = json!({"chat_template_kwargs": {"enable_thinking": false}});
    assert_eq!(prompt_tokens(thinking_off), plain + 2);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    assert!(prompt_tokens(json!({"tools": tools})) > plain + 20);
    assert_eq!(prompt_tokens(json!({"tools": tools, "tool_choice": "none"})), plain);
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "c"}]}]);
    assert_eq!(
        prompt_tokens(json!({"messages": parts})),
        prompt_tokens(json!({"messages": [{"role": "user", "content": "a\nc"}]}))
    );
    let user = json!([{"role": "user", "content": "abc"}]);
    let harmless = json!({"user": "me", "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "seed": null,
        "response_format": {"type": "text"}, "n": 1, "parallel_tool_calls": true, "messages": user});
    assert_eq!(prompt_tokens(harmless), plain);
}

#[test]
fn end_of_text_ends_unless_it_is_ignored_or_too_early() {
    let server = Rig::default().start();
    let biased = |keys: Value| {
        let bias = json!({"logit_bias": {EOS.to_string(): 100}});
        let whole = server.chat(&with(with(chat("abc", 6), bias), keys));
        (whole["choices"][0]["finish_reason"].clone(), whole["usage"]["completion_tokens"].as_u64().unwrap())
    };
    assert_eq!(biased(json!({})), (json!("stop"), 1));
    assert_eq!(biased(json!({"ignore_eos": true})), (json!("length"), 6));
    assert_eq!(biased(json!({"min_tokens": 3})), (json!("stop"), 4));
}

#[test]
fn a_stop_string_that_spans_tokens_ends_the_answer_and_is_not_shown() {
    let server = Rig::default().start();
    let full = text(&server.chat(&chat("abc", 40))).to_owned();
    let chars: Vec<char> = full.chars().collect();
    let stop: String = chars[chars.len() / 2..chars.len() / 2 + 4].iter().collect();
    let before = &full[..full.find(&stop).unwrap()];
    let whole = server.chat(&with(chat("abc", 40), json!({"stop": [stop, "never there"]})));
    assert_eq!((text(&whole), &whole["choices"][0]["finish_reason"]), (before, &json!("stop")));
    let streamed = server.post("/v1/chat/completions", &with(chat("abc", 40), json!({"stop": stop, "stream": true})));
    let shown: String = streamed.events().iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(shown, before);
    // Held text comes out when the stop string is never completed.
    let last: String = chars[chars.len() - 2..].iter().collect();
    let whole = server.chat(&with(chat("abc", 40), json!({"stop": format!("{last}\u{1}")})));
    assert_eq!((text(&whole), &whole["choices"][0]["finish_reason"]), (full.as_str(), &json!("length")));
}

#[test]
fn a_seed_fixes_the_answer() {
    let server = Rig::default().start();
    let drawn = |keys: Value| text(&server.chat(&with(chat("abc", 24), keys))).to_owned();
    let seeded = |seed: i64| drawn(json!({"temperature": 1.5, "seed": seed}));
    assert_eq!(seeded(1), seeded(1));
    assert_ne!(seeded(1), seeded(2));
    assert_eq!(seeded(-5), seeded(-5));
    assert_ne!(drawn(json!({"temperature": 1.5})), drawn(json!({"temperature": 1.5})));
}

#[test]
fn penalties_and_filters_change_what_is_drawn() {
    let server = Rig::default().start();
    let drawn = |keys: Value| text(&server.chat(&with(chat("abc", 24), keys))).to_owned();
    let greedy = drawn(json!({}));
    for keys in [json!({"top_k": 1}), json!({"top_p": 0}), json!({"min_p": 1})] {
        assert_eq!(drawn(with(keys.clone(), json!({"temperature": 2}))), greedy, "{keys}");
    }
    for keys in [json!({"presence_penalty": 2}), json!({"frequency_penalty": 2}), json!({"repetition_penalty": 5})] {
        assert_ne!(drawn(keys.clone()), greedy, "{keys}");
    }
}

fn logprobs_of(server: &Running, keys: Value) -> Vec<Value> {
    let whole = server.chat(&with(chat("abc", 8), keys));
    whole["choices"][0]["logprobs"]["content"].as_array().expect("tokens").clone()
}

#[test]
fn logprobs_are_of_the_model_whatever_the_sampling() {
    let server = Rig::default().start();
    let plain = logprobs_of(&server, json!({"logprobs": true, "top_logprobs": 5}));
    assert_eq!(plain.len(), 8);
    for token in &plain {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["logprob"], &top[0]["token"]), (5, &token["logprob"], &token["token"]));
        let of = |i: usize| top[i]["logprob"].as_f64().unwrap();
        assert!((1..5).all(|i| of(i - 1) >= of(i)) && of(0) <= 0.0);
    }
    let chosen =
        |tokens: &[Value]| tokens.iter().map(|t| (t["bytes"].clone(), t["logprob"].clone())).collect::<Vec<_>>();
    let one = logprobs_of(&server, json!({"logprobs": true}));
    assert_eq!((chosen(&one), &one[0]["top_logprobs"]), (chosen(&plain), &json!([])));
    // Temperature draws one token only here, and changes no reported probability.
    let hot = logprobs_of(&server, json!({"logprobs": true, "top_logprobs": 5, "temperature": 2, "top_k": 1}));
    assert_eq!(hot, plain);
    let bytes: Vec<u8> =
        plain.iter().flat_map(|t| serde_json::from_value::<Vec<u8>>(t["bytes"].clone()).unwrap()).collect();
    assert_eq!(String::from_utf8_lossy(&bytes), text(&server.chat(&chat("abc", 8))));
}

#[test]
fn completions_take_text_or_ids_and_report_tokens_with_offsets() {
    let server = Rig::default().start();
    let ids = server.tokenizer.encode("hello there", Special::Text).unwrap();
    let body = |prompt: Value| json!({"model": NAME, "prompt": prompt, "temperature": 0, "logprobs": 2});
    let whole = server.complete(&body(json!("hello there")));
    let choice = &whole["choices"][0];
    assert_eq!((&whole["object"], &whole["usage"]["completion_tokens"]), (&json!("text_completion"), &json!(16)));
    for same in [json!(ids), json!([ids]), json!(["hello there"])] {
        assert_eq!(server.complete(&body(same))["choices"], whole["choices"]);
    }
    let offsets: Vec<u64> = serde_json::from_value(choice["logprobs"]["text_offset"].clone()).unwrap();
    assert!(offsets.len() == 16 && offsets[0] == 0 && offsets.is_sorted());
    let characters = choice["text"].as_str().unwrap().chars().count() as u64;
    assert!(offsets[15] <= characters);
    assert_eq!(choice["logprobs"]["top_logprobs"].as_array().unwrap().len(), 16);
}

#[test]
fn four_at_once_answer_as_each_alone() {
    let server = Rig::default().start();
    let bodies: Vec<Value> = (0..4)
        .map(|i| {
            let keys = json!({"logprobs": true, "temperature": i, "seed": 7, "max_tokens": 40 + i});
            with(chat(&"abcd ".repeat(i * 5 + 1), 1), with(keys, json!({"temperature": f64::from(i as u32 % 2)})))
        })
        .collect();
    let alone: Vec<Value> = bodies.iter().map(|body| server.chat(body)["choices"].clone()).collect();
    let steps_alone = server.health()["engine"]["steps"].as_u64().unwrap();
    let together: Vec<Value> = std::thread::scope(|scope| {
        let asked: Vec<_> = bodies.iter().map(|body| scope.spawn(|| server.chat(body)["choices"].clone())).collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
    // They shared steps: four requests did not take the steps of four.
    let steps = server.health()["engine"]["steps"].as_u64().unwrap() - steps_alone;
    assert!(steps < steps_alone, "{steps} steps together, {steps_alone} alone");
}
