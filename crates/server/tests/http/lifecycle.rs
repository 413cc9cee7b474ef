//! Clients that leave, queues that are full, engines that fail, servers that end.

use crate::client::{open, post};
use crate::rig::{Rig, Running, chat, with};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;
use tare_core::{Fault, Reading};
use tare_ops::{Backend, Batch, Benched, Executable, OpError, ReferenceBackend, StepOutput};

/// More tokens than any of these tests waits for.
const LONG: usize = 4000;

fn streamed(content: &str, max_tokens: usize) -> Value {
    with(chat(content, max_tokens), json!({"stream": true}))
}

/// Sends a chat request without waiting for an answer.
fn posted(server: &Running, body: &Value) -> TcpStream {
    let headers = "content-type: application/json\r\n";
    post(server.address, "POST", "/v1/chat/completions", headers, body.to_string().as_bytes())
}

fn requests(health: &Value) -> u64 {
    health["engine"]["requests"].as_u64().expect("a number")
}

/// After clients left: nothing runs, nothing is held, and the answers were not worked off to their end.
fn is_freed(server: &Running) {
    let health = server.wait_for("an engine without requests", |h| requests(h) == 0 && h["engine"]["live_pages"] == 0);
    assert!(health["engine"]["steps"].as_u64().unwrap() < LONG as u64, "{health}");
    server.chat(&chat("abc", 2));
}

#[test]
fn a_client_that_leaves_a_stream_frees_its_request() {
    let server = Rig::default().start();
    let mut stream = server.send("/v1/chat/completions", &streamed("abc", LONG));
    stream.read_until("\"content\":\"");
    server.wait_for("a running request", |h| requests(h) == 1);
    drop(stream);
    is_freed(&server);
}

#[test]
fn a_client_that_leaves_without_a_stream_frees_its_request() {
    let server = Rig::default().start();
    let waiting = posted(&server, &chat("abc", LONG));
    server.wait_for("a running request", |h| requests(h) == 1);
    drop(waiting);
    is_freed(&server);
}

#[test]
fn a_stop_string_frees_the_request_too() {
    let server = Rig::default().start();
    let first = server.chat(&chat("abc", 12))["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let stop: String = first.chars().skip(4).take(2).collect();
    server.chat(&with(chat("abc", LONG), json!({"stop": stop})));
    is_freed(&server);
}

#[test]
fn a_full_queue_turns_requests_away() {
    let server = Rig { max_sequences: 1, max_queue: 1, ..Rig::default() }.start();
    let mut running = server.send("/v1/chat/completions", &streamed("abc", LONG));
    running.read_until("\"content\":\"");
    let waiting = posted(&server, &chat("abc", 2));
    server.wait_for("a request that waits", |h| requests(h) == 2);
    let away = server.post("/v1/chat/completions", &chat("abc", 2));
    let error = &away.json()["error"];
    assert_eq!((away.status, &error["type"], &error["code"]), (429, &json!("rate_limit_error"), &json!("queue_full")));
    assert_eq!(away.header("retry-after"), Some("1"));
    // The one that waited gets its turn as soon as the first client leaves.
    drop(running);
    assert_eq!(open(waiting).whole().status, 200);
}

#[test]
fn a_drain_refuses_new_requests_and_lets_running_ones_end() {
    let mut server = Rig::default().start();
    let mut running = server.send("/v1/chat/completions", &streamed("abc", 300));
    running.read_until("\"content\":\"");
    server.shut_down();
    let draining = server.wait_for("a drain", |h| h["status"] != "ok");
    assert_eq!((&draining["status"], server.get("/health").status), (&json!("draining"), 503));
    let refused = server.post("/v1/chat/completions", &chat("abc", 1));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["error"]["code"], "shutting_down");
    let rest = running.whole().body;
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.ends_with("data: [DONE]\n\n"), "{rest}");
    server.end().unwrap();
}

#[test]
fn a_drain_beyond_its_limit_ends_streams_with_an_error() {
    let mut server = Rig { drain_limit: Duration::from_millis(50), ..Rig::default() }.start();
    let mut running = server.send("/v1/chat/completions", &streamed("abc", LONG));
    running.read_until("\"content\":\"");
    server.shut_down();
    let rest = running.whole().body;
    assert!(rest.contains("\"code\":\"shutting_down\"") && rest.ends_with("data: [DONE]\n\n"), "{rest}");
    server.end().unwrap();
}

#[test]
fn a_request_that_fails_the_engine_gets_500_and_the_next_one_an_answer() {
    let failures = Arc::new(AtomicIsize::new(0));
    let server = Rig { backend: Flaky::boxed(&failures), ..Rig::default() }.start();
    let fine = server.chat(&chat("abc", 3))["choices"].clone();
    failures.store(1, Ordering::SeqCst);
    assert_eq!(server.chat(&chat("abc", 3))["choices"], fine, "one failed step is made good");
    failures.store(2, Ordering::SeqCst);
    let failed = server.post("/v1/chat/completions", &chat("abc", 3));
    assert_eq!((failed.status, &failed.json()["error"]["type"]), (500, &json!("server_error")));
    assert_eq!(server.chat(&chat("abc", 3))["choices"], fine);
    failures.store(isize::MAX, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(server.post("/v1/chat/completions", &chat("abc", 3)).status, 500);
    }
    let health = server.wait_for("an engine that is given up", |h| h["status"] != "ok");
    assert_eq!((&health["status"], server.get("/health").status), (&json!("engine stopped"), 503));
    assert_eq!(server.post("/v1/chat/completions", &chat("abc", 3)).json()["error"]["code"], "engine_stopped");
    server.end().unwrap();
}

#[test]
fn health_says_how_often_threads_sat_out() {
    let server = Rig::default().start();
    server.chat(&chat("abc", 3));
    let stepped = server.wait_for("a step", |h| h["engine"]["steps"].as_u64() > Some(0));
    for field in ["regions", "short_regions", "most_threads_out"] {
        let said = stepped["engine"].get(field);
        assert_eq!(said, Some(&Value::Null), "no thread of this backend ever does: {stepped}");
    }
    server.end().unwrap();

    let server = Rig { backend: Box::new(Short(ReferenceBackend::new())), ..Rig::default() }.start();
    assert_eq!(server.health()["engine"]["regions"], Value::Null, "before the first step");
    server.chat(&chat("abc", 3));
    let told = |h: &Value| h["engine"]["regions"] == 7 && h["engine"]["short_regions"] == 3;
    let health = server.wait_for("what the backend says", told);
    assert_eq!(health["engine"]["most_threads_out"], 2);
    server.end().unwrap();
}

/// A backend whose threads sat out.
struct Short(ReferenceBackend);

impl Backend for Short {
    tare_ops::hand_on!(
        this => this.0;
        describe, variants, device_bytes, pack, alloc_kv, free_kv, copy_kv, read_kv, write_kv, rest, pages, compile, release,
        run, run_apart
    );

    fn benched(&self) -> Reading<Benched> {
        Reading::Available(Benched { regions: 7, short: 3, most: 2 })
    }
}

/// A backend whose next so many forwards fail.
struct Flaky {
    inner: ReferenceBackend,
    failures: Arc<AtomicIsize>,
}

impl Flaky {
    fn boxed(failures: &Arc<AtomicIsize>) -> Box<dyn Backend> {
        Box::new(Self { inner: ReferenceBackend::new(), failures: Arc::clone(failures) })
    }
}

impl Backend for Flaky {
    tare_ops::hand_on!(
        this => this.inner;
        describe, variants, device_bytes, pack, alloc_kv, free_kv, copy_kv, read_kv, write_kv, rest, benched, pages,
        compile, release, run_apart
    );

    fn run(&mut self, exe: Executable, batch: &Batch, out: &mut StepOutput) -> Result<(), OpError> {
        if self.failures.fetch_sub(1, Ordering::SeqCst) > 0 {
            return Err(Fault::new("device", "a working device", "a planted fault").into());
        }
        self.failures.store(0, Ordering::SeqCst);
        self.inner.run(exe, batch, out)
    }
}
