//! A server that does what a test says: each request is answered with a list of acts.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One thing that the server does.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Writes these bytes at once.
    Write(String),
    /// Says nothing for so many milliseconds.
    Wait(u64),
    /// Closes the connection.
    Close,
}

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) body: Value,
}

#[derive(Debug, Default)]
struct State {
    connections: usize,
    seen: Vec<Seen>,
}

/// The server. It serves until the test process ends.
#[derive(Debug)]
pub(crate) struct StandIn {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
}

impl StandIn {
    /// A server that answers `/v1/models` with one model and everything else as `script` says.
    pub(crate) fn start(script: impl Fn(&Seen) -> Vec<Act> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let (shared, script) = (Arc::clone(&state), Arc::new(script));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                shared.lock().unwrap().connections += 1;
                let (shared, script) = (Arc::clone(&shared), Arc::clone(&script));
                // A client that goes away ends its own connection only.
                std::thread::spawn(move || drop(serve(stream, &shared, &*script)));
            }
        });
        Self { url, state }
    }

    pub(crate) fn connections(&self) -> usize {
        self.state.lock().unwrap().connections
    }

    /// Requests for completions so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.iter().filter(|s| s.path != "/v1/models").cloned().collect()
    }
}

fn serve(stream: TcpStream, state: &Mutex<State>, script: &dyn Fn(&Seen) -> Vec<Act>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut out = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some(seen) = request(&mut reader)? {
        state.lock().unwrap().seen.push(seen.clone());
        let acts = match seen.path.as_str() {
            "/v1/models" => vec![plain("200 OK", "", &json!({ "data": [{ "id": "the-model" }] }))],
            _ => script(&seen),
        };
        for act in acts {
            match act {
                Act::Write(text) => out.write_all(text.as_bytes())?,
                Act::Wait(ms) => std::thread::sleep(Duration::from_millis(ms)),
                Act::Close => return out.shutdown(std::net::Shutdown::Both),
            }
        }
    }
    Ok(())
}

fn request(reader: &mut impl BufRead) -> std::io::Result<Option<Seen>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_string();
    let (mut length, mut authorization) = (0, None);
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap(),
            "authorization" => authorization = Some(value.trim().to_string()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(Seen { path, authorization, body: serde_json::from_slice(&body).unwrap_or_default() }))
}

/// An answer in one piece.
pub(crate) fn plain(status: &str, headers: &str, body: &Value) -> Act {
    let body = body.to_string();
    let length = body.len();
    Act::Write(format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    ))
}

/// The head of a stream.
pub(crate) fn head() -> Act {
    Act::Write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".into())
}

/// One event, written alone.
pub(crate) fn event(data: &Value) -> Act {
    chunk(&format!("data: {data}\n\n"))
}

/// `[DONE]` and the end of the answer.
pub(crate) fn done() -> Act {
    let Act::Write(text) = chunk("data: [DONE]\n\n") else { unreachable!("a chunk is written") };
    Act::Write(text + "0\r\n\r\n")
}

/// Bytes as a chunk of the transfer encoding.
pub(crate) fn chunk(text: &str) -> Act {
    Act::Write(format!("{:x}\r\n{text}\r\n", text.len()))
}

/// The last event before `[DONE]`: tokens as the server counts them.
pub(crate) fn usage(prompt: u64, completion: u64) -> Act {
    event(&json!({ "choices": [], "usage": { "prompt_tokens": prompt, "completion_tokens": completion,
        "prompt_tokens_details": { "cached_tokens": 0 } } }))
}
