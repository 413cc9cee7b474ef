//! One HTTP client with a clock: when a connection was made, when each chunk of a stream was there.

use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tare_core::Fault;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{ConnectionDetails, Connector, DefaultConnector, Transport};

use super::sse::EventReader;
use super::wire::{Chunk, Said, Usage, message, read, shortened};
use crate::LabError;

/// Bytes taken from the connection at once.
const PORTION: usize = 16 << 10;
/// The longest answer that is no stream.
const LONGEST_PLAIN: u64 = 1 << 20;

/// A server and how it is reached.
#[derive(Clone)]
pub struct Address {
    /// `http://host:port`, with or without `/v1`.
    pub url: String,
    /// Sent as a bearer token.
    pub key: Option<String>,
    /// The longest that the server may say nothing.
    pub silence: Duration,
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Address").field("url", &self.url).field("silence", &self.silence).finish_non_exhaustive()
    }
}

/// A chunk and when it was there.
#[derive(Clone, Debug)]
pub(crate) struct Stamped {
    /// From the start of the request. Chunks that came in one portion have one time.
    pub(crate) ns: u64,
    pub(crate) chunk: Chunk,
}

/// An answer from its first to its last byte.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    /// Before the request was written.
    pub(crate) start: Instant,
    pub(crate) chunks: Vec<Stamped>,
    /// When `[DONE]` was there.
    pub(crate) end_ns: u64,
    pub(crate) usage: Option<Usage>,
    pub(crate) finish: Option<String>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The server answered something else than 200.
    Status { status: u16, retry_after: Option<String>, message: String },
    /// Anything else.
    Other(LabError),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Other(fault.into())
    }
}

impl Refusal {
    /// The refusal for a person.
    pub(crate) fn into_error(self, at: &str) -> LabError {
        let (status, retry_after, message) = match self {
            Self::Other(e) => return e,
            Self::Status { status, retry_after, message } => (status, retry_after, message),
        };
        let wait = retry_after.map(|s| format!(" (Retry-After: {s})")).unwrap_or_default();
        let fault = Fault::new(at, "200", format!("{status}{wait}: {message}"));
        let remedy = match status {
            401 | 403 => "give the server's key: --api-key-env VAR names the variable that holds it",
            404 => "check the address and the model's name; GET /v1/models lists what is served",
            429 | 503 => "the server is busy: wait as long as it asks, and measure when nobody else uses it",
            _ => return fault.into(),
        };
        fault.remedy(remedy).into()
    }
}

/// Counts and times the connections that are made.
#[derive(Debug)]
struct TimedConnector {
    inner: DefaultConnector,
    made_ns: Arc<Mutex<Vec<u64>>>,
}

impl Connector<()> for TimedConnector {
    type Out = Box<dyn Transport>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<()>) -> Result<Option<Self::Out>, ureq::Error> {
        let start = Instant::now();
        let made = self.inner.connect(details, chained)?;
        let ns = start.elapsed().as_nanos() as u64;
        self.made_ns.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(ns);
        Ok(made)
    }
}

/// Talks to one server over as few connections as it allows.
#[derive(Debug)]
pub(crate) struct Client {
    agent: ureq::Agent,
    address: Address,
    made_ns: Arc<Mutex<Vec<u64>>>,
}

impl Client {
    pub(crate) fn new(address: &Address) -> Result<Self, Fault> {
        let url = address.url.trim_end_matches('/').trim_end_matches("/v1").to_string();
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Fault::new("--url", "http://HOST:PORT or https://HOST", format!("`{}`", address.url)));
        }
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(address.silence))
            .timeout_recv_response(Some(address.silence))
            .timeout_per_read(Some(address.silence))
            .http_status_as_error(false)
            // Else one that the environment names would be in every time, and nothing would say so.
            .proxy(None)
            .max_redirects(0)
            .user_agent(concat!("tare/", env!("CARGO_PKG_VERSION")))
            .build();
        let made_ns = Arc::new(Mutex::new(Vec::new()));
        let connector = TimedConnector { inner: DefaultConnector::new(), made_ns: Arc::clone(&made_ns) };
        let agent = ureq::Agent::with_parts(config, connector, DefaultResolver::default());
        Ok(Self { agent, address: Address { url, ..address.clone() }, made_ns })
    }

    /// How long each connection so far took to make.
    pub(crate) fn connections_ns(&self) -> Vec<u64> {
        self.made_ns.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// The JSON at `path`.
    pub(crate) fn get(&self, path: &str) -> Result<serde_json::Value, Refusal> {
        let url = format!("{}{path}", self.address.url);
        let mut request = self.agent.get(&url);
        if let Some(key) = &self.address.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut answer = request.call().map_err(|e| self.unreachable(&url, &e))?;
        let text = plain(&mut answer);
        if answer.status().as_u16() != 200 {
            return Err(refused(&answer, &text));
        }
        serde_json::from_str(&text).map_err(|_| Fault::new(url, "JSON", format!("`{}`", shortened(&text))).into())
    }

    /// Sends `body` to `path` and reads the stream of its answer; `go_on` is asked after every portion.
    pub(crate) fn stream(
        &self,
        path: &str,
        body: &serde_json::Value,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Stream, Refusal> {
        let url = format!("{}{path}", self.address.url);
        let bytes = body.to_string();
        let mut request = self.agent.post(&url).header("content-type", "application/json");
        if let Some(key) = &self.address.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let start = Instant::now();
        let mut answer = request.send(bytes.as_bytes()).map_err(|e| self.unreachable(&url, &e))?;
        if answer.status().as_u16() != 200 {
            let text = plain(&mut answer);
            return Err(refused(&answer, &text));
        }
        let kind = header(&answer, "content-type").unwrap_or_else(|| "nothing".to_string());
        if !kind.starts_with("text/event-stream") {
            let text = plain(&mut answer);
            let found = format!("content-type {kind}: `{}`", shortened(&text));
            return Err(Fault::new(url, "a stream of events (text/event-stream)", found)
                .remedy("without a stream only the end of an answer can be timed: use a server that streams")
                .into());
        }
        let mut collected = Collected { events: EventReader::default(), chunks: Vec::new(), end_ns: None };
        let mut reader = answer.body_mut().as_reader();
        let mut portion = vec![0; PORTION];
        loop {
            let n = match reader.read(&mut portion) {
                Ok(n) => n,
                Err(e) => return Err(self.broken(&url, &collected, &e)),
            };
            let ns = start.elapsed().as_nanos() as u64;
            if n == 0 {
                return collected.finish(start, &url);
            }
            collected.take(&portion[..n], ns, &url)?;
            if !go_on() {
                return Err(Refusal::Other(LabError::Interrupted));
            }
        }
    }

    fn unreachable(&self, url: &str, e: &ureq::Error) -> Refusal {
        let found = match e {
            ureq::Error::Timeout(_) => self.silent(),
            other => other.to_string(),
        };
        Fault::new(url, "a server that answers", found)
            .remedy("check that it runs and listens on this address; --timeout gives a slow one more time")
            .into()
    }

    fn broken(&self, url: &str, so_far: &Collected, e: &std::io::Error) -> Refusal {
        let cause = e.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>());
        let timed_out = e.kind() == std::io::ErrorKind::TimedOut || matches!(cause, Some(ureq::Error::Timeout(_)));
        let why = if timed_out { self.silent() } else { e.to_string() };
        Fault::new(url, "a stream that ends with [DONE]", format!("{why}, after {} chunks", so_far.chunks.len()))
            .remedy("nothing of this round counts; --timeout gives a slow server more time")
            .into()
    }

    fn silent(&self) -> String {
        format!("nothing for {} s", self.address.silence.as_secs_f64())
    }
}

/// What of a stream has come.
#[derive(Debug)]
struct Collected {
    events: EventReader,
    chunks: Vec<Stamped>,
    end_ns: Option<u64>,
}

impl Collected {
    fn take(&mut self, bytes: &[u8], ns: u64, url: &str) -> Result<(), Fault> {
        for data in self.events.feed(bytes) {
            match read(&data).map_err(|f| f.within(url))? {
                Said::Chunk(chunk) => self.chunks.push(Stamped { ns, chunk }),
                Said::Done => self.end_ns = Some(ns),
                Said::Error(why) => {
                    let found = format!("an error after {} chunks: {why}", self.chunks.len());
                    return Err(Fault::new(url, "an answer", found).remedy("the server's log says more"));
                }
            }
        }
        Ok(())
    }

    fn finish(self, start: Instant, url: &str) -> Result<Stream, Refusal> {
        let Some(end_ns) = self.end_ns else {
            let torn = if self.events.is_torn() { ", the last one torn" } else { "" };
            let found = format!("the end of the connection after {} chunks{torn}", self.chunks.len());
            return Err(Fault::new(url, "a stream that ends with [DONE]", found)
                .remedy("the server closed early: its log says why")
                .into());
        };
        let usage = self.chunks.iter().rev().find_map(|s| s.chunk.usage);
        let finish = self.chunks.iter().rev().find_map(|s| s.chunk.finish.clone());
        Ok(Stream { start, chunks: self.chunks, end_ns, usage, finish })
    }
}

fn header(answer: &ureq::http::Response<ureq::Body>, name: &str) -> Option<String> {
    Some(answer.headers().get(name)?.to_str().ok()?.to_string())
}

fn plain(answer: &mut ureq::http::Response<ureq::Body>) -> String {
    answer.body_mut().with_config().limit(LONGEST_PLAIN).lossy_utf8(true).read_to_string().unwrap_or_default()
}

fn refused(answer: &ureq::http::Response<ureq::Body>, text: &str) -> Refusal {
    let message = serde_json::from_str(text).map_or_else(|_| shortened(text), |v| message(&v));
    Refusal::Status { status: answer.status().as_u16(), retry_after: header(answer, "retry-after"), message }
}
