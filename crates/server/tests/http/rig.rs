//! A server over the tiny Qwen3 and the reference backend, and a tokenizer that spells all of its 512 ids.

use crate::client::{Open, Whole, send};
use serde_json::{Map, Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tare_engine::{Engine, EngineConfig};
use tare_model::{Model, PlanSpec};
use tare_ops::{Backend, Class, ReferenceBackend};
use tare_server::{ServedModel, Server, ServerConfig, ServerError};
use tare_text::{ChatTemplate, Tokenizer};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) const NAME: &str = "tiny/qwen3";
pub(crate) const CONTEXT: usize = 4096;
pub(crate) const EOS: u32 = 510;

/// ChatML, with thinking switched off as Qwen3 does it.
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n\
    {% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}";

/// What differs between servers of these tests.
pub(crate) struct Rig {
    pub(crate) context: usize,
    pub(crate) max_sequences: usize,
    /// Of the engine and of the server.
    pub(crate) max_queue: usize,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) drain_limit: Duration,
}

impl Default for Rig {
    fn default() -> Self {
        let backend = Box::new(ReferenceBackend::new());
        Self { context: CONTEXT, max_sequences: 4, max_queue: 16, backend, drain_limit: Duration::from_secs(30) }
    }
}

/// A server that runs.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) tokenizer: Tokenizer,
    runtime: Runtime,
    shutdown: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Result<(), ServerError>>,
}

impl Rig {
    pub(crate) fn start(self) -> Running {
        let tokenizer = tokenizer();
        let template = ChatTemplate::new(TEMPLATE, None, None).expect("the template compiles");
        let served = ServedModel {
            name: NAME.to_owned(),
            tokenizer: tokenizer.clone(),
            template: Some(template),
            eos: vec![EOS],
            context: self.context,
            vocabulary: 512,
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = ServerConfig { address };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let drain_limit = self.drain_limit;
        let engine = self.engine();
        let server = runtime.block_on(Server::bind(config, served, engine)).expect("a free port");
        let address = server.address();
        let (shutdown, stop) = oneshot::channel();
        let run = server.with_drain_limit(drain_limit).run(async {
            let _either_way = stop.await;
        });
        let ended = runtime.spawn(run);
        Running { address, tokenizer, runtime, shutdown: Some(shutdown), ended }
    }

    fn engine(self) -> Engine {
        let path = tare_testkit::goldens().join("models/qwen3-tiny");
        let model = Model::open(path.to_str().expect("a path in UTF-8")).expect("the tiny model opens");
        let config = EngineConfig {
            plan: PlanSpec::find("paged").expect("the plan exists"),
            class: Class::by_name("f32").expect("class f32"),
            context: self.context,
            kv_tokens: self.context * self.max_sequences,
            max_rows: 64,
            max_sequences: self.max_sequences,
            max_queue: self.max_queue,
        };
        Engine::new(&model, self.backend, config).expect("the engine starts")
    }
}

impl Running {
    pub(crate) fn send(&self, path: &str, body: &Value) -> Open {
        send(self.address, "POST", path, "content-type: application/json\r\n", body.to_string().as_bytes())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Whole {
        self.send(path, body).whole()
    }

    pub(crate) fn get(&self, path: &str) -> Whole {
        send(self.address, "GET", path, "", b"").whole()
    }

    /// A chat completion that has to work.
    pub(crate) fn chat(&self, body: &Value) -> Value {
        let response = self.post("/v1/chat/completions", body);
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    }

    /// A completion that has to work.
    pub(crate) fn complete(&self, body: &Value) -> Value {
        let response = self.post("/v1/completions", body);
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    }

    pub(crate) fn health(&self) -> Value {
        self.get("/health").json()
    }

    /// Waits until the health report says so. The limit only ends a test that has failed.
    pub(crate) fn wait_for(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..3000 {
            let health = self.health();
            if is(&health) {
                return health;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("never happened: {what}; {}", self.health());
    }

    /// Asks the server to end.
    pub(crate) fn shut_down(&mut self) {
        self.shutdown.take().expect("asked once").send(()).expect("the server runs");
    }

    /// Waits for the end and says how the server ended.
    pub(crate) fn end(mut self) -> Result<(), ServerError> {
        if self.shutdown.is_some() {
            self.shut_down();
        }
        self.runtime.block_on(self.ended).expect("no panic")
    }
}

/// A greedy chat request.
pub(crate) fn chat(content: &str, max_tokens: usize) -> Value {
    let messages = json!([{"role": "user", "content": content}]);
    json!({"model": NAME, "messages": messages, "max_tokens": max_tokens, "temperature": 0})
}

/// The same value with some keys set.
pub(crate) fn with(mut value: Value, keys: Value) -> Value {
    let (Value::Object(to), Value::Object(from)) = (&mut value, keys) else { panic!("two objects") };
    to.extend(from);
    value
}

/// Ids 0 to 255 are bytes, 256 to 507 pairs of letters, and the last four are added tokens, of which `<think>` and
/// `</think>` are no control tokens.
fn tokenizer() -> Tokenizer {
    let letters: Vec<char> = ('a'..='p').collect();
    let pairs = letters.iter().flat_map(|a| letters.iter().map(move |b| (a, b))).take(252);
    let mut vocab: Map<String, Value> = (0..=255u8).map(|b| (letter(b).to_string(), b.into())).collect();
    let mut merges = Vec::new();
    for (i, (a, b)) in pairs.enumerate() {
        vocab.insert(format!("{a}{b}"), (256 + i).into());
        merges.push([a.to_string(), b.to_string()]);
    }
    let added = [(508, "<|im_start|>"), (509, "<think>"), (510, "<|im_end|>"), (511, "</think>")];
    let added: Vec<Value> = added.iter().map(|(id, text)| added_token(*id, text)).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges}
    });
    Tokenizer::from_json(file.to_string().as_bytes()).expect("the tokenizer loads")
}

fn added_token(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": content.starts_with("<|")})
}

/// The character that stands for a byte in GPT-2's alphabet.
fn letter(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let shift = (0..byte).filter(|b| !printable(*b)).count() as u32;
    if printable(byte) { char::from(byte) } else { char::from_u32(256 + shift).expect("a character") }
}
