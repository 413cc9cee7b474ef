//! Chat templates: their environment, and whose special tokens become ids.

mod tiny;

use proptest::prelude::*;
use serde_json::json;
use tare_text::{ChatRequest, ChatTemplate, Json, Special, TextError, Tokenizer};

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, Some("<|im_start|>"), Some("<|im_end|>")).unwrap()
}

fn golden(name: &str) -> ChatTemplate {
    template(&std::fs::read_to_string(tare_testkit::goldens().join("chat").join(name)).unwrap())
}

fn messages(turns: &[(&str, &str)]) -> ChatRequest {
    ChatRequest {
        messages: turns.iter().map(|(role, content)| Json::message(role, content)).collect(),
        add_generation_prompt: true,
        ..ChatRequest::default()
    }
}

/// Renders with one variable `x` and no messages.
fn show(source: &str, x: serde_json::Value) -> Result<String, TextError> {
    template(source).render(&ChatRequest { extra: vec![("x".into(), x.into())], ..ChatRequest::default() })
}

#[test]
fn tojson_is_that_of_python() {
    let x = json!(["<é>\u{7f}\u{1}\n\"'&", 1, 2.0, 1e16, 1e-5, -0.5, null, true, {"k": []}]);
    let want = "[\"<é>\u{7f}\\u0001\\n\\\"'&\", 1, 2.0, 1e+16, 1e-05, -0.5, null, true, {\"k\": []}]";
    assert_eq!(show("{{ x | tojson }}", x).unwrap(), want);
    let x = json!({"b": [1, {}], "a": "é😀"});
    let indented = show("{{ x | tojson(indent=2, sort_keys=true, ensure_ascii=true) }}", x.clone()).unwrap();
    assert_eq!(indented, "{\n  \"a\": \"\\u00e9\\ud83d\\ude00\",\n  \"b\": [\n    1,\n    {}\n  ]\n}");
    assert_eq!(show("{{ x.b | tojson(separators=(',', ':')) }}", x.clone()).unwrap(), "[1,{}]");
    assert!(show("{{ x | tojson(indent=99999) }}", x.clone()).is_err());
    assert!(show("{{ x | tojson(colour=1) }}", x).is_err());
}

#[test]
fn keys_keep_their_order_and_unknown_keys_reach_the_template() {
    let message: Json =
        serde_json::from_str(r#"{"role":"user","zeta":1,"content":"x","alpha":{"z":1,"a":2}}"#).unwrap();
    let r = ChatRequest { messages: vec![message], ..ChatRequest::default() };
    let want = r#"{"role": "user", "zeta": 1, "content": "x", "alpha": {"z": 1, "a": 2}}"#;
    assert_eq!(template("{{ messages[0] | tojson }}").render(&r).unwrap(), want);
}

#[test]
fn environment_of_hugging_face() {
    assert_eq!(show("  {% if true %}\n a\n  {% endif %}\nb\n", json!(0)).unwrap(), " a\nb");
    assert_eq!(
        show("{% for i in x %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", json!([1, 2, 3])).unwrap(),
        "13"
    );
    let python = "{{ x.strip().split(',')[-1].upper() }}{{ x.startswith(' a') }}{{ none }}{{ x.items is defined }}";
    assert_eq!(show(python, json!(" a,b ")).unwrap(), "BTrueNoneFalse");
    assert_eq!(show("{% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}", json!({"a": 1})).unwrap(), "a=1;");
    assert_eq!(
        show("{{ bos_token }}{{ eos_token }}{{ x }}{{ undefined_thing }}", json!("<&>")).unwrap(),
        "<|im_start|><|im_end|><&>"
    );
    assert_eq!(
        show(
            "{% set ns = namespace(n=0) %}{% for i in x[::-1] %}{% set ns.n = ns.n * 10 + i %}{% endfor %}{{ ns.n }}",
            json!([1, 2])
        )
        .unwrap(),
        "21"
    );
    assert_eq!(
        show("{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m(x) }}{%- generation -%} y {%- endgeneration %}", json!(1))
            .unwrap(),
        "[1]y"
    );
    assert_eq!(show("{{ tools is none }}{{ enable_thinking is defined }}", json!(0)).unwrap(), "TrueFalse");
}

#[test]
fn the_date_is_that_of_the_request() {
    let t = template("{{ strftime_now('%d %b %Y') }}");
    let now = Some(jiff::civil::date(2025, 3, 9).at(1, 2, 3, 0));
    assert_eq!(t.render(&ChatRequest { now, ..ChatRequest::default() }).unwrap(), "09 Mar 2025");
    let e = t.render(&ChatRequest::default()).unwrap_err().to_string();
    assert!(e.contains("pass it as `now`"), "{e}");
}

#[test]
fn errors_say_what_to_do() {
    assert!(matches!(ChatTemplate::new(" \n", None, None), Err(TextError::Template(_))));
    let e = ChatTemplate::new("a\n{% if %}", None, None).unwrap_err().to_string();
    assert!(e.contains("line 2") && e.contains("another chat template"), "{e}");
    let refused = show("{{ raise_exception('roles must alternate') }}", json!(0)).unwrap_err();
    assert_eq!(refused, TextError::Refused("roles must alternate".into()));
    let e = golden("qwen3.jinja")
        .render(&ChatRequest { messages: vec![json!({"role": "user"}).into()], ..ChatRequest::default() });
    assert!(e.unwrap_err().to_string().contains("check that each message has a role and text content"));
    assert!(
        golden("qwen3.jinja").render(&ChatRequest { messages: vec![Json::Null], ..ChatRequest::default() }).is_err()
    );
    let taken = ChatRequest { extra: vec![("messages".into(), Json::Null)], ..ChatRequest::default() };
    assert!(matches!(template("x").render(&taken), Err(TextError::Request(_))));
}

#[test]
fn hostile_templates_run_out_of_fuel() {
    for source in [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{{ 'x' * 9999999999 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ] {
        assert!(show(source, json!(0)).is_err(), "{source}");
    }
}

/// Ids of `parts` in turn: specials by name (`!` before it), other parts as text joined between specials.
fn ids(tok: &Tokenizer, parts: &[&str]) -> Vec<u32> {
    let mut out = Vec::new();
    for part in parts {
        match part.strip_prefix('!') {
            Some(name) => out.push(tok.id_of(name).unwrap()),
            None => out.extend(tok.encode(part, Special::Text).unwrap()),
        }
    }
    out
}

#[test]
fn look_alikes_in_messages_stay_text() {
    let (tok, t) = (tiny::tokenizer(), golden("smollm2.jinja"));
    let r = messages(&[("system", "<|im_end|>"), ("user", "a<|im_start|>b</think>")]);
    let want = [
        "!<|im_start|>",
        "system\n<|im_end|>",
        "!<|im_end|>",
        "\n",
        "!<|im_start|>",
        "user\na<|im_start|>b</think>",
        "!<|im_end|>",
        "\n",
        "!<|im_start|>",
        "assistant\n",
    ];
    assert_eq!(t.encode(&r, &tok).unwrap(), ids(&tok, &want));
    let plain = messages(&[("system", "x"), ("user", "y")]);
    let parsed = tok.encode(&t.render(&plain).unwrap(), Special::Parse).unwrap();
    assert_eq!(t.encode(&plain, &tok).unwrap(), parsed, "nothing to keep apart: as Hugging Face does it");
}

#[test]
fn tokens_inside_and_across_look_alikes_stay_text() {
    let tok = tiny::tokenizer();
    let t =
        template("{{ bos_token }}{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}");
    let parts = |texts: &[&str]| {
        let content: Vec<_> = texts.iter().map(|t| json!({"type": "text", "text": t})).collect();
        ChatRequest { messages: vec![json!({"role": "user", "content": content}).into()], ..ChatRequest::default() }
    };
    for texts in [
        &["<|im_", "end|>"][..],
        &["<", "|im_end|>"],
        &["<|im_end|", ">"],
        &["<|im_end|><|x|>"],
        &["<<|im_end|>"],
        &["<|i", "m_", "end|>"],
    ] {
        let want = ids(&tok, &["!<|im_start|>", &texts.concat()]);
        assert_eq!(t.encode(&parts(texts), &tok).unwrap(), want, "{texts:?}");
    }
}

#[test]
fn look_alikes_in_tools_names_and_keys_stay_text() {
    let tok = tiny::tokenizer();
    let t = template("{{ bos_token }}{{ tools | tojson }}{{ x }}");
    let tool: Json = serde_json::from_str(r#"{"<|im_end|>": {"enum": ["<think>", "<"]}}"#).unwrap();
    let r = ChatRequest {
        tools: vec![tool],
        extra: vec![("x".into(), json!("<|im_end|>").into())],
        ..ChatRequest::default()
    };
    let want = ids(&tok, &["!<|im_start|>", "[{\"<|im_end|>\": {\"enum\": [\"<think>\", \"<\"]}}]<|im_end|>"]);
    assert_eq!(t.encode(&r, &tok).unwrap(), want);
}

#[test]
fn the_models_own_messages_keep_their_thinking_but_no_control_tokens() {
    let (tok, t) = (tiny::tokenizer(), golden("qwen3.jinja"));
    let r = ChatRequest {
        add_generation_prompt: false,
        ..messages(&[("user", "a"), ("assistant", "<think>\nb\n</think>\n\nc<|im_end|>d")])
    };
    let want = [
        "!<|im_start|>",
        "user\na",
        "!<|im_end|>",
        "\n",
        "!<|im_start|>",
        "assistant\n",
        "!<think>",
        "\nb\n",
        "!</think>",
        "\n\nc<|im_end|>d",
        "!<|im_end|>",
        "\n",
    ];
    assert_eq!(t.encode(&r, &tok).unwrap(), ids(&tok, &want));
}

#[test]
fn templates_that_look_into_messages_see_what_is_there() {
    // Qwen3 takes a user message wrapped in tool_response for a tool's answer, and then keeps earlier thinking.
    let (tok, t) = (tiny::tokenizer(), golden("qwen3.jinja"));
    let answer = "<tool_response>d<|im_end|></tool_response>";
    let r = messages(&[("user", "a"), ("assistant", "<think>b</think>c"), ("user", answer)]);
    let got = t.encode(&r, &tok).unwrap();
    assert_eq!(tok.decode(&got, false).unwrap(), t.render(&r).unwrap());
    let count = |name: &str| got.iter().filter(|i| **i == tok.id_of(name).unwrap()).count();
    assert_eq!(["<think>", "<tool_response>", "<|im_end|>"].map(count), [1, 1, 3]);
}

#[test]
fn a_template_that_acts_on_control_tokens_is_refused_rather_than_guessed_at() {
    let tok = tiny::tokenizer();
    let t = template("{{ bos_token }}{{ messages[0].content | length }}");
    assert_eq!(t.encode(&messages(&[("user", "abc")]), &tok).unwrap(), ids(&tok, &["!<|im_start|>", "3"]));
    let e = t.encode(&messages(&[("user", "<|im_end|>")]), &tok).unwrap_err();
    assert!(matches!(e, TextError::Request(_)) && e.to_string().contains("take strings such as"), "{e}");
}

#[test]
fn marks_are_never_confused_with_the_text() {
    let (tok, t) = (tiny::tokenizer(), golden("smollm2.jinja"));
    let r = messages(&[("user", "\u{fdd0}<|im_end|>\u{fdd1}\u{e000}")]);
    let got = t.encode(&r, &tok).unwrap();
    assert_eq!(tok.decode(&got, false).unwrap(), t.render(&r).unwrap());
}

proptest! {
    #![proptest_config(tiny::same_cases_every_time())]

    #[test]
    fn only_the_templates_own_tokens_become_ids(
        user in "(<\\|im_end\\|>|<\\|im_|end\\|>|<think>|</think>|<tool_response>|</tool_response>| |\n|a|<|>|中){0,7}",
        qwen: bool,
    ) {
        let (tok, t) = (tiny::tokenizer(), golden(if qwen { "qwen3.jinja" } else { "smollm2.jinja" }));
        let r = messages(&[("system", &user), ("user", &user), ("user", "x")]);
        let got = t.encode(&r, &tok).unwrap();
        prop_assert_eq!(tok.decode(&got, false).unwrap(), t.render(&r).unwrap());
        // The one thing that Qwen3's template looks for in user messages.
        let wrapped = user.starts_with("<tool_response>") && user.ends_with("</tool_response>");
        let added = |ids: &[u32]| -> Vec<u32> {
            let names = tiny::CONTROL.iter().chain(tiny::DEFINED.iter().filter(|_| !(qwen && wrapped)));
            let added: Vec<u32> = names.map(|n| tok.id_of(n).unwrap()).collect();
            ids.iter().copied().filter(|i| added.contains(i)).collect()
        };
        let harmless = t.encode(&messages(&[("system", "s"), ("user", "u"), ("user", "x")]), &tok).unwrap();
        prop_assert_eq!(added(&got), added(&harmless));
    }
}
