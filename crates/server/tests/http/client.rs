//! The smallest HTTP client that these tests need, so that they see the bytes.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A response whose body is still on its way.
pub(crate) struct Open {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
}

/// A response that is all there.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// Sends a request and reads the head of the response.
pub(crate) fn send(address: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> Open {
    open(post(address, method, path, headers, body))
}

/// Sends a request and does not wait.
pub(crate) fn post(address: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).expect("the request goes out");
    stream
}

/// Reads the head of a response.
pub(crate) fn open(stream: TcpStream) -> Open {
    let mut reader = BufReader::new(stream);
    let status_line = line(&mut reader);
    let status = status_line.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status line");
    let mut headers = Vec::new();
    loop {
        let header = line(&mut reader);
        let Some((name, value)) = header.split_once(": ") else { break };
        headers.push((name.to_owned(), value.to_owned()));
    }
    Open { status, headers, reader }
}

fn line(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line of text");
    line.trim_end().to_owned()
}

impl Open {
    fn chunked(&self) -> bool {
        header(&self.headers, "transfer-encoding") == Some("chunked")
    }

    /// The next chunk of a chunked body; empty at the end.
    fn chunk(&mut self) -> String {
        let size = usize::from_str_radix(&line(&mut self.reader), 16).expect("the size of a chunk");
        let mut bytes = vec![0; size + 2];
        self.reader.read_exact(&mut bytes).expect("a chunk");
        bytes.truncate(size);
        String::from_utf8(bytes).expect("UTF-8")
    }

    /// Reads on until the body holds `text`, and gives what was read.
    pub(crate) fn read_until(&mut self, text: &str) -> String {
        let mut body = String::new();
        while !body.contains(text) {
            let chunk = self.chunk();
            assert!(!chunk.is_empty(), "the body ended without {text:?}: {body}");
            body.push_str(&chunk);
        }
        body
    }

    /// The rest of the body.
    pub(crate) fn whole(mut self) -> Whole {
        let mut body = String::new();
        if self.chunked() {
            loop {
                let chunk = self.chunk();
                if chunk.is_empty() {
                    break;
                }
                body.push_str(&chunk);
            }
        } else {
            self.reader.read_to_string(&mut body).expect("a body in UTF-8");
        }
        Whole { status: self.status, headers: self.headers, body }
    }
}

impl Whole {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// The events of a stream; the last one is `[DONE]` and left out.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!((self.status, self.header("content-type")), (200, Some("text/event-stream")), "{}", self.body);
        let mut data: Vec<&str> = self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"));
        data.into_iter().map(|event| serde_json::from_str(event).expect("an event of JSON")).collect()
    }
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}
