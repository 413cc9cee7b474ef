//! A stand-in for a model hub: one repository over HTTP on loopback, with faults on demand.

use sha1::Digest as _;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// What the hub does wrong with the next answers to one file, in order; afterwards it behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Sends this many bytes of the body, then closes the connection.
    DropAfter(usize),
    /// Answers 503.
    Unavailable,
    /// Sends the right number of wrong bytes.
    Corrupt,
    /// Answers a range with the whole file and 200.
    IgnoreRange,
}

/// A request as the hub saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Path without query.
    pub(crate) path: String,
    /// First byte asked for.
    pub(crate) from: u64,
    /// The authorization header.
    pub(crate) authorization: Option<String>,
}

struct State {
    files: BTreeMap<String, Vec<u8>>,
    faults: BTreeMap<String, Vec<Fault>>,
    seen: Vec<Seen>,
}

/// The hub. It serves until the test process ends.
pub(crate) struct Hub {
    state: Arc<Mutex<State>>,
    /// Its address: `http://127.0.0.1:PORT`.
    pub(crate) endpoint: String,
}

/// The only repository.
pub(crate) const REPOSITORY: &str = "org/model";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

impl Hub {
    /// A hub with these files. Files that end in `.safetensors` are listed by SHA-256, others by git's object id.
    pub(crate) fn start(files: &[(&str, Vec<u8>)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let files = files.iter().map(|(n, b)| (n.to_string(), b.clone())).collect();
        let state = Arc::new(Mutex::new(State { files, faults: BTreeMap::new(), seen: Vec::new() }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                // A client that goes away ends its own connection only.
                std::thread::spawn(move || drop(answer(stream, &shared)));
            }
        });
        Self { state, endpoint }
    }

    /// Plans the faults of a file.
    pub(crate) fn fault(&self, file: &str, faults: &[Fault]) {
        self.state.lock().unwrap().faults.insert(file.into(), faults.to_vec());
    }

    /// Requests for `file` so far.
    pub(crate) fn seen(&self, file: &str) -> Vec<Seen> {
        self.state.lock().unwrap().seen.iter().filter(|s| s.path.ends_with(file)).cloned().collect()
    }
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

fn listing(files: &BTreeMap<String, Vec<u8>>) -> String {
    let entry = |(name, bytes): (&String, &Vec<u8>)| {
        let mut git = sha1::Sha1::new();
        git.update(format!("blob {}\0", bytes.len()));
        git.update(bytes);
        let mut v = serde_json::json!({ "rfilename": name, "size": bytes.len(), "blobId": hex(git.finalize()) });
        if name.ends_with(".safetensors") {
            v["lfs"] = serde_json::json!({ "sha256": tare_core::digest::sha256_hex(bytes), "size": bytes.len(), "pointerSize": 134 });
        }
        v
    };
    serde_json::json!({ "id": REPOSITORY, "sha": COMMIT, "siblings": files.iter().map(entry).collect::<Vec<_>>() })
        .to_string()
}

fn answer(stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or("").split('?').next().unwrap_or("").to_string();
    let mut seen = Seen { path: path.clone(), from: 0, authorization: None };
    let mut ranged = false;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header == "\r\n" {
            break;
        }
        if let Some((name, value)) = header.trim().split_once(": ") {
            match name.to_ascii_lowercase().as_str() {
                "range" => {
                    ranged = true;
                    seen.from = value.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap();
                }
                "authorization" => seen.authorization = Some(value.into()),
                _ => {}
            }
        }
    }
    let from = seen.from as usize;
    let (body, fault) = {
        let mut s = state.lock().unwrap();
        s.seen.push(seen);
        let name = path.strip_prefix(&format!("/{REPOSITORY}/resolve/{COMMIT}/")).unwrap_or("").to_string();
        let body = if path == format!("/api/models/{REPOSITORY}/revision/main") {
            Some(listing(&s.files).into_bytes())
        } else {
            s.files.get(&name).cloned()
        };
        let planned = s.faults.get_mut(&name).filter(|f| !f.is_empty()).map(|f| f.remove(0));
        (body, planned)
    };
    let mut out = stream;
    let Some(mut body) = body else {
        return out.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    };
    let total = body.len();
    let ignore = matches!(fault, Some(Fault::IgnoreRange));
    let head = if ranged && !ignore {
        body.drain(..from);
        format!("HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {from}-{}/{total}\r\n", total - 1)
    } else {
        "HTTP/1.1 200 OK\r\n".to_string()
    };
    match fault {
        Some(Fault::Unavailable) => {
            return out
                .write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
        Some(Fault::Corrupt) => body.iter_mut().for_each(|b| *b ^= 0xFF),
        _ => {}
    }
    out.write_all(format!("{head}content-length: {}\r\nconnection: close\r\n\r\n", body.len()).as_bytes())?;
    let sent = if let Some(Fault::DropAfter(n)) = fault { n.min(body.len()) } else { body.len() };
    out.write_all(&body[..sent])?;
    out.flush()
}
