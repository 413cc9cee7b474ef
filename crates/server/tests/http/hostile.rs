//! Bodies that nobody means well with: each is refused, and the server goes on.

use crate::client::send;
use crate::rig::{Rig, chat};
use std::fs;
use std::path::Path;

#[test]
fn malformed_bodies_are_refused_and_the_server_goes_on() {
    let server = Rig::default().start();
    let deep = "[".repeat(100_000);
    let bodies: [&[u8]; 9] = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"{\"temperature\": NaN}",
        b"{\"temperature\": 1e999}",
        b"{\"model\": \"tiny/qwen3\", \"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}",
        deep.as_bytes(),
    ];
    for body in bodies {
        for path in ["/v1/chat/completions", "/v1/completions"] {
            let response = send(server.address, "POST", path, "content-type: application/json\r\n", body).whole();
            let shown = String::from_utf8_lossy(&body[..body.len().min(60)]);
            assert_eq!(response.status, 400, "{shown}: {}", response.body);
            assert_eq!(response.json()["error"]["type"], "invalid_request_error");
        }
    }
    server.chat(&chat("abc", 1));
}

#[test]
fn a_body_beyond_the_limit_is_refused() {
    let server = Rig::default().start();
    // Only the length is announced: the refusal comes before the bytes.
    let headers = "content-type: application/json\r\nexpect: 100-continue\r\n";
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: 99999999\r\n\r\n"
    );
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    let response = crate::client::open(stream).whole();
    assert_eq!((response.status, &response.json()["error"]["code"]), (413, &"body_too_large".into()));
    server.chat(&chat("abc", 1));
}

/// Every file of the corpus: what fuzzing found once stays found.
#[test]
fn the_corpus_runs_without_a_panic() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/chat_request");
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(!files.is_empty(), "no corpus");
    for file in files {
        tare_server::fuzz::chat_request(&fs::read(file).unwrap());
    }
}

/// Each beginning of a body with every parameter, and each of its bytes replaced by a few others.
#[test]
fn torn_and_damaged_bodies_do_not_panic() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/chat_request/all-parameters.json");
    let whole = fs::read(file).unwrap();
    for at in 0..whole.len() {
        tare_server::fuzz::chat_request(&whole[..at]);
        for byte in [0, b'"', b'{', b'[', b'9', b'-', 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            tare_server::fuzz::chat_request(&damaged);
        }
    }
}
