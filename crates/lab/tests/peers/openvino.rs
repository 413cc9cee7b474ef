//! The shim of OpenVINO over a stand-in for its runtime, whose next token follows from everything in its state: what is fed
//! wrongly, or kept from another request, draws another token.

use serde_json::{Map, Value, json};
use std::path::Path;
use std::process::Command;
use tare_lab::peers::runner::{Limits, Load};
use tare_lab::peers::{PeerRunner, entry};
use tare_lab::runner::{Drawn, Runner};
use tare_lab::{ClockedRequest, Lengths};

const VOCAB: usize = 97;

/// A folder with a graph for the stand-in.
fn folder(about: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("openvino_model.xml"), about.to_string()).unwrap();
    folder
}

fn int4() -> Value {
    json!({ "vocab": VOCAB, "element": "i4", "head": "product" })
}

fn start(model: &Path, context: usize, sequences: usize, settings: &str) -> Result<PeerRunner, tare_lab::LabError> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let peers = here.join("../../peers");
    let mut command = Command::new("python3");
    let paths = std::env::join_paths([here.join("tests/peers/stand_in"), peers.clone()]).unwrap();
    command.arg(peers.join("openvino/shim.py")).env("PYTHONPATH", paths).env("PYTHONDONTWRITEBYTECODE", "1");
    let mut settings: Map<String, Value> = serde_json::from_str(settings).unwrap();
    settings.remove("threads");
    let load = Load { model: model.into(), threads: 2, context, sequences, settings };
    PeerRunner::start("openvino", command, &load, Limits::default())
}

/// What the stand-in draws after `tokens`.
fn next(tokens: &[u32]) -> u32 {
    let sum: usize = tokens.iter().enumerate().map(|(i, &t)| (i + 1) * t as usize).sum();
    (sum % VOCAB) as u32
}

fn request(seed: u64) -> ClockedRequest {
    ClockedRequest::drawn(Lengths { depth: 3, prompt_tokens: 5, output_tokens: 6 }, VOCAB, seed).unwrap()
}

fn expected(request: &ClockedRequest) -> Vec<u32> {
    let mut tokens = request.input();
    let before = tokens.len();
    for _ in 0..request.output_tokens {
        tokens.push(next(&tokens));
    }
    tokens.split_off(before)
}

fn drawn(peer: &mut PeerRunner, request: &ClockedRequest) -> Vec<u32> {
    let mut drawn = Drawn::default();
    peer.prefill(std::slice::from_ref(request), &mut drawn).unwrap();
    peer.decode(2, &mut drawn).unwrap();
    peer.rest().unwrap();
    peer.decode(3, &mut drawn).unwrap();
    peer.finish().unwrap();
    assert!(drawn.tokens.iter().all(|t| t.logit == Some(1.0)) && drawn.steps.len() == 6);
    drawn.tokens.iter().map(|t| t.id).collect()
}

#[test]
fn the_graph_is_fed_as_it_wants_and_begins_anew_with_each_request() {
    let folder = folder(&int4());
    let mut peer = start(folder.path(), 14, 1, "{}").unwrap();
    for seed in [1, 2, 1] {
        assert_eq!(drawn(&mut peer, &request(seed)), expected(&request(seed)), "seed {seed}");
    }
    let mut peer = start(folder.path(), 12, 1, "{}").unwrap();
    let mut some = Drawn::default();
    peer.prefill(&[request(1)], &mut some).unwrap();
    let full = peer.decode(5, &mut some).unwrap_err().to_string();
    assert!(full.contains("the context of 12 tokens is full"), "{full}");
}

#[test]
fn it_says_what_its_graph_holds_and_how_it_computes() {
    let folder = folder(&int4());
    let peer = start(folder.path(), 14, 1, "{}").unwrap();
    assert_eq!(peer.class().unwrap(), "w4a16-kv8");
    let declared = peer.declared().unwrap();
    // A scale of F16 for 128 quants of 4 bits; one and a zero point of 8 bits for a row of 64 quants of 8 bits.
    assert_eq!((declared.weight_bits, declared.head_bits, declared.kv.as_str()), (4.125, 8.375, "u8"));
    let bytes = 64 * 256 / 2 + 64 * 2 * 2 + VOCAB * (64 + 3);
    assert_eq!(peer.streamed_bytes().available(), Some(&(bytes as u64)));
    assert_eq!(peer.proof(), ["2 x FullyConnected brgemm_bf16 i4"]);
    let settings = &peer.identity().settings["engine"];
    assert_eq!((&settings["hint"], &settings["found"]["NUM_STREAMS"]), (&json!("LATENCY"), &json!(1)));
    assert_eq!(settings["found"]["INFERENCE_NUM_THREADS"], 2);

    let wide = json!({ "vocab": VOCAB, "element": "u8", "head": "product" });
    let folder = self::folder(&wide);
    let peer = start(folder.path(), 14, 1, r#"{"kv":"bf16"}"#).unwrap();
    assert_eq!(peer.class().unwrap(), "w8a16");
    for (settings, class) in
        [(r#"{"precision":"f32"}"#, "w8a8-kv8"), (r#"{"precision":"f32","groups":0}"#, "w8a32-kv8")]
    {
        assert_eq!(start(folder.path(), 14, 1, settings).unwrap().class().unwrap(), class);
    }
}

#[test]
fn every_candidate_is_a_setting_of_the_shim() {
    let folder = folder(&int4());
    for candidate in entry("openvino").unwrap().candidates {
        let mut peer = start(folder.path(), 14, 1, candidate).unwrap();
        assert_eq!(drawn(&mut peer, &request(3)), expected(&request(3)), "{candidate}");
    }
    let unknown = start(folder.path(), 14, 1, r#"{"flash":"off"}"#).unwrap_err().to_string();
    assert!(unknown.contains("flash"), "{unknown}");
}

#[test]
fn what_is_no_graph_of_this_kind_is_refused() {
    let empty = tempfile::tempdir().unwrap();
    let said = start(empty.path(), 14, 1, "{}").unwrap_err().to_string();
    assert!(said.contains("openvino_model.xml") && said.contains("--written-as"), "{said}");
    let plain = folder(&json!({ "vocab": VOCAB, "element": "f16", "head": "product" }));
    let said = start(plain.path(), 14, 1, "{}").unwrap_err().to_string();
    assert!(said.contains("packed layers"), "{said}");
    let other = folder(&json!({ "vocab": VOCAB, "element": "i4", "head": "Softmax" }));
    let said = start(other.path(), 14, 1, "{}").unwrap_err().to_string();
    assert!(said.contains("found Softmax"), "{said}");
    let two = folder(&int4());
    let said = start(two.path(), 14, 2, "{}").unwrap_err().to_string();
    assert!(said.contains("expected 1"), "{said}");
}
