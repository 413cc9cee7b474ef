//! What the client itself costs: the same client against an echo in this process, which takes no time to think.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tare_core::Fault;
use tare_evidence::stats;

use super::client::{Address, Client};
use super::wire::Endpoint;
use crate::LabError;

/// Answers that count; the first, on a new connection, does not.
const ANSWERS: usize = 5;
/// Chunks of an answer.
const CHUNKS: usize = 32;
/// Between chunks, so that each is read alone.
const PAUSE: Duration = Duration::from_micros(300);
const SILENCE: Duration = Duration::from_secs(10);

/// Time that a measured figure contains and that is the client's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// How it was measured.
    pub how: String,
    /// Median time to the first token of a server that answers at once, over loopback: it is in every TTFT.
    pub ttft_ns: f64,
    /// From the server's write of a chunk until the client has its time: median.
    pub chunk_p50_ns: f64,
    /// 99th percentile.
    pub chunk_p99_ns: f64,
}

/// Measures the client with requests of this `body` to the path of `endpoint`.
///
/// # Errors
/// When loopback does not work.
pub(crate) fn measure(endpoint: Endpoint, body: &Value) -> Result<Overhead, LabError> {
    let (first, delays) = with_echo(|address, stamps| drive(address, endpoint, body, stamps))?;
    let none = || Fault::new("the client's own time", "samples", "none");
    Ok(Overhead {
        how: format!(
            "{ANSWERS} answers of {CHUNKS} chunks from an echo in this process over loopback, the same client and body"
        ),
        ttft_ns: stats::median(&first).ok_or_else(none)?,
        chunk_p50_ns: stats::nearest_rank(&delays, 0.5).ok_or_else(none)?,
        chunk_p99_ns: stats::nearest_rank(&delays, 0.99).ok_or_else(none)?,
    })
}

/// Runs `ask` while an echo serves one connection at the address that it is given. The echo is gone when this returns.
fn with_echo<T>(ask: impl FnOnce(SocketAddr, &Receiver<Vec<Instant>>) -> Result<T, LabError>) -> Result<T, LabError> {
    let failed = |e: std::io::Error| Fault::new("the client's own time", "a connection over loopback", e.to_string());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let (written, stamps) = channel();
    let echo = std::thread::spawn(move || listener.accept().and_then(|(stream, _)| echo(stream, &written)));
    let seen = ask(address, &stamps);
    if seen.is_err() {
        // A client that failed before it connected has left the echo waiting for it.
        drop(TcpStream::connect(address));
    }
    let ended = echo.join();
    let seen = seen?;
    match ended {
        Ok(Ok(())) => Ok(seen),
        _ => Err(Fault::new("the client's own time", "an echo that ends in good order", "an error").into()),
    }
}

/// Times to the first token, and delays of all chunks.
fn drive(
    address: SocketAddr,
    endpoint: Endpoint,
    body: &Value,
    stamps: &Receiver<Vec<Instant>>,
) -> Result<(Vec<f64>, Vec<f64>), LabError> {
    let client = Client::new(&Address { url: format!("http://{address}"), key: None, silence: SILENCE })?;
    let (mut first, mut delays) = (Vec::new(), Vec::new());
    for n in 0..=ANSWERS {
        let stream = client.stream(endpoint.path(), body, &|| true).map_err(|r| r.into_error("the echo"))?;
        let written = stamps
            .recv_timeout(SILENCE)
            .map_err(|e| Fault::new("the client's own time", "times of the echo", e.to_string()))?;
        if n == 0 {
            continue;
        }
        first.extend(stream.chunks.first().map(|s| s.ns as f64));
        let there = stream.chunks.iter().map(|s| stream.start + Duration::from_nanos(s.ns));
        delays.extend(there.zip(written).map(|(t, w)| t.saturating_duration_since(w).as_nanos() as f64));
    }
    Ok((first, delays))
}

/// Answers requests on one connection until the client leaves.
fn echo(stream: TcpStream, written: &Sender<Vec<Instant>>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut out = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some(length) = head(&mut reader)? {
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
        out.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")?;
        let mut stamps = Vec::with_capacity(CHUNKS);
        for _ in 0..CHUNKS {
            stamps.push(Instant::now());
            out.write_all(&http_chunk("data: {\"choices\":[{\"text\":\" a\",\"token_ids\":[1]}]}\n\n"))?;
            std::thread::sleep(PAUSE);
        }
        // A client that has left needs no times.
        let _gone = written.send(stamps);
        out.write_all(&[http_chunk("data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat())?;
    }
    Ok(())
}

/// The length of the body that follows a request's head; none when the connection is over.
fn head(reader: &mut impl BufRead) -> std::io::Result<Option<u64>> {
    let mut length = 0;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        if line == "\r\n" {
            return Ok(Some(length));
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
        line.clear();
    }
    Ok(None)
}

fn http_chunk(data: &str) -> Vec<u8> {
    format!("{:x}\r\n{data}\r\n", data.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_client_has_a_cost_of_its_own() {
        for endpoint in Endpoint::ALL {
            let o = measure(endpoint, &json!({ "prompt": vec![1; 64] })).unwrap();
            assert!(o.ttft_ns > 0.0 && o.chunk_p50_ns > 0.0, "{o:?}");
            assert!(o.chunk_p99_ns >= o.chunk_p50_ns, "{o:?}");
        }
    }

    #[test]
    fn a_client_that_fails_ends_the_measurement() {
        let failed = |at: &str| LabError::from(Fault::new(at, "an answer", "none"));
        let before = with_echo::<()>(|_, _| Err(failed("before it connects")));
        assert!(before.unwrap_err().to_string().contains("before it connects"));
        let after = with_echo::<()>(|address, _| {
            let mut half = TcpStream::connect(address).unwrap();
            half.write_all(b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n").unwrap();
            Err(failed("after it connected"))
        });
        assert!(after.unwrap_err().to_string().contains("after it connected"));
    }
}
