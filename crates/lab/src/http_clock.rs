//! View 1 over HTTP: what one request costs at any server that speaks the OpenAI API, as its client sees it.
//!
//! The clock starts before the request is written and stops when the end of the stream was read. Inside: the network,
//! the server's queue, its template and tokenizer, the client's own time ([`Overhead`], measured apart). Outside: making
//! the connection, which the first, untimed request does. Rounds reuse it.

mod client;
mod figures;
mod overhead;
mod series;
mod sse;
mod wire;

use std::time::Duration;
use tare_core::Fault;

pub use client::Address;
pub use figures::Figures;
pub use overhead::Overhead;
pub use series::Round;
pub use wire::{Ask, Endpoint, Extra, Usage};

use crate::LabError;
use client::{Client, Refusal, Stream};

/// The longest silence of a server, unless somebody says otherwise.
pub const SILENCE: Duration = Duration::from_secs(120);

/// A server with which was settled how it is asked.
#[derive(Debug)]
pub struct HttpClock {
    client: Client,
    /// The name under which the model is served.
    pub model: String,
    /// What the server says of the model: its entry in `/v1/models`.
    pub listed: serde_json::Value,
    endpoint: Endpoint,
    extras: Vec<Extra>,
}

impl HttpClock {
    /// Reaches the server and finds the model: the one named, or the only one that is served.
    ///
    /// # Errors
    /// When the server cannot be reached, or the model's name cannot be known.
    pub fn reach(address: &Address, model: Option<&str>) -> Result<Self, LabError> {
        let client = Client::new(address)?;
        let listed = match client.get("/v1/models") {
            Ok(v) => v["data"].as_array().cloned().unwrap_or_default(),
            // Not every server lists its models; whether it is there at all shows at the first request.
            Err(Refusal::Status { status: 404 | 405 | 501, .. }) => Vec::new(),
            Err(e) => return Err(e.into_error("GET /v1/models")),
        };
        let names: Vec<&str> = listed.iter().filter_map(|m| m["id"].as_str()).collect();
        let name = match (model, &names[..]) {
            (Some(name), _) => name.to_string(),
            (None, [only]) => (*only).to_string(),
            (None, several) => {
                let found = if several.is_empty() { "none".to_string() } else { several.join(", ") };
                return Err(Fault::new("GET /v1/models", "one served model", found)
                    .remedy("name the one to be measured: --model NAME")
                    .into());
            }
        };
        let entry = listed.iter().find(|m| m["id"].as_str() == Some(&name)).cloned().unwrap_or_default();
        Ok(Self { client, model: name, listed: entry, endpoint: Endpoint::Completions, extras: Extra::ALL.to_vec() })
    }

    /// Finds out how the server takes the request, by making it untimed: with token ids before text, `preferred` alone
    /// when it is given, without the parameters that the server does not know. It is the first warm-up.
    ///
    /// # Errors
    /// When the server takes it in no way, is busy, wants a key, or its stream breaks.
    pub fn settle(
        &mut self,
        ask: &Ask,
        preferred: Option<Endpoint>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Round, LabError> {
        let candidates = preferred.map_or(Endpoint::ALL.to_vec(), |one| vec![one]);
        let mut refused = Vec::new();
        for endpoint in candidates {
            self.endpoint = endpoint;
            self.extras = Extra::ALL.to_vec();
            loop {
                match self.stream(ask, go_on) {
                    Ok(stream) => return self.round_of(&stream, ask),
                    Err(Refusal::Status { status: 400 | 422, message, .. }) if self.give_up(&message) => {}
                    Err(Refusal::Status { status: status @ (400 | 404 | 405 | 422 | 501), message, .. }) => {
                        refused.push((endpoint, status, message));
                        break;
                    }
                    Err(e) => return Err(e.into_error(endpoint.path())),
                }
            }
        }
        Err(in_no_way(&refused))
    }

    /// Makes the request untimed, for what it leaves in the server's caches: an answer without a token is one too.
    ///
    /// # Errors
    /// As [`Self::round`], but for that.
    pub fn prime(&self, ask: &Ask, go_on: &dyn Fn() -> bool) -> Result<(), LabError> {
        self.stream(ask, go_on).map(drop).map_err(|e| e.into_error(self.endpoint.path()))
    }

    /// Makes the request once on the clock.
    ///
    /// # Errors
    /// When the server refuses, its stream breaks or brings no token, or `go_on` says no.
    pub fn round(&self, ask: &Ask, go_on: &dyn Fn() -> bool) -> Result<Round, LabError> {
        let stream = self.stream(ask, go_on).map_err(|e| e.into_error(self.endpoint.path()))?;
        self.round_of(&stream, ask)
    }

    /// The client's own time, with `ask` as this server is asked.
    ///
    /// # Errors
    /// When loopback does not work.
    pub fn overhead(&self, ask: &Ask) -> Result<Overhead, LabError> {
        overhead::measure(self.endpoint, &ask.body(&self.model, self.endpoint, &self.extras))
    }

    /// How the server is asked.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Parameters that it did not take.
    pub fn given_up(&self) -> Vec<Extra> {
        Extra::ALL.into_iter().filter(|e| !self.extras.contains(e)).collect()
    }

    /// How long each connection so far took to make: one, when the server keeps it open.
    pub fn connections_ns(&self) -> Vec<u64> {
        self.client.connections_ns()
    }

    fn stream(&self, ask: &Ask, go_on: &dyn Fn() -> bool) -> Result<Stream, Refusal> {
        let body = ask.body(&self.model, self.endpoint, &self.extras);
        self.client.stream(self.endpoint.path(), &body, go_on)
    }

    fn round_of(&self, stream: &Stream, ask: &Ask) -> Result<Round, LabError> {
        let sent = self.endpoint.sends_ids().then_some(ask.ids.len());
        let round = Round::of(stream, sent);
        let finish = stream.finish.clone().unwrap_or_else(|| "nothing".to_string());
        round.ok_or_else(|| {
            let found = format!("{} chunks without a token, finish_reason {finish}", stream.chunks.len());
            Fault::new(self.endpoint.path(), "an answer with tokens", found)
                .remedy("the model ended at once: another --seed gives another prompt")
                .into()
        })
    }

    /// Leaves out the parameter that a refusal names, else the least usual one; false when none is left.
    fn give_up(&mut self, message: &str) -> bool {
        let named = self.extras.iter().position(|e| message.contains(e.name()));
        if self.extras.is_empty() {
            return false;
        }
        self.extras.remove(named.unwrap_or(0));
        true
    }
}

/// What each way of asking was answered with. The first that is there at all names the status: a server that has no chat
/// template refuses chat too, and that is not the reason.
fn in_no_way(refused: &[(Endpoint, u16, String)]) -> LabError {
    let said =
        |(endpoint, status, message): &(Endpoint, u16, String)| format!("{}: {status}: {message}", endpoint.way());
    let Some((endpoint, status, message)) = refused.iter().find(|r| r.1 == 400 || r.1 == 422).or(refused.first())
    else {
        return Fault::new("the server", "a way to ask it", "none").into();
    };
    let others = refused.iter().filter(|r| r.0 != *endpoint).map(said);
    let others: String = others.map(|other| format!("; {other}")).collect();
    let message = format!("{message} ({}{others})", endpoint.way());
    Refusal::Status { status: *status, retry_after: None, message }.into_error(endpoint.path())
}
