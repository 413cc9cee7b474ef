//! Chat templates against Hugging Face's renderings (`goldens/chat`).

use serde::Deserialize;
use tare_text::{ChatRequest, ChatTemplate, Json};

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    messages: Vec<Json>,
    #[serde(default)]
    tools: Vec<Json>,
    add_generation_prompt: bool,
    enable_thinking: Option<bool>,
    rendered: Option<String>,
}

impl Case {
    fn request(&self) -> ChatRequest {
        ChatRequest {
            messages: self.messages.clone(),
            tools: self.tools.clone(),
            add_generation_prompt: self.add_generation_prompt,
            enable_thinking: self.enable_thinking,
            ..ChatRequest::default()
        }
    }
}

fn rendered_equals(name: &str) {
    let folder = tare_testkit::goldens().join("chat");
    let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
    let golden: Golden = serde_json::from_slice(&std::fs::read(folder.join(format!("{name}.json"))).unwrap()).unwrap();
    let template = ChatTemplate::new(&source, None, Some("<|im_end|>")).unwrap();
    assert_eq!(golden.cases.len(), 30);
    for case in &golden.cases {
        // Null content is taken as empty text: the same conversation as this other case.
        let want = case.rendered.as_ref().or_else(|| {
            assert_eq!(case.name, "content null with tool_calls");
            golden.cases.iter().find(|c| c.name == "tool call and response").and_then(|c| c.rendered.as_ref())
        });
        let got = template.render(&case.request()).unwrap_or_else(|e| panic!("{name}: {}: {e}", case.name));
        assert_eq!(Some(&got), want, "{name}: {}", case.name);
    }
}

#[test]
fn qwen3_renders_as_hugging_face_does() {
    rendered_equals("qwen3");
}

#[test]
fn smollm2_renders_as_hugging_face_does() {
    rendered_equals("smollm2");
}
