//! `tare clock --url` at our own server: tiny weights, two processes, one judge.

mod home;

use home::Home;
use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// `tare serve` until the test is over.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn start(home: &Home, model: &Path) -> Self {
        let model = model.to_str().unwrap();
        let args = ["serve", "-m", model, "--port", "0", "--served-name", "tiny", "--context", "256", "--threads", "1"];
        let mut child = home.command(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.rsplit(' ').next().unwrap().trim().to_string();
        assert!(url.starts_with("http://"), "{line}");
        Self { child, url }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Its process alone is ended; that it is gone already is as well.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A golden model of 512 ids with a tokenizer: bytes, and pairs of letters that no merge reaches.
fn model(home: &Home, golden: &str) -> PathBuf {
    let folder = home.path(golden);
    std::fs::create_dir(&folder).unwrap();
    for item in std::fs::read_dir(tare_testkit::goldens().join("models").join(golden)).unwrap() {
        let path = item.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
        }
    }
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut shifted = 256..;
    let byte = |b: u8, next: &mut std::ops::RangeFrom<u32>| match printable(b) {
        true => char::from(b),
        false => char::from_u32(next.next().unwrap()).unwrap(),
    };
    let mut vocab: Map<String, Value> = (0..=255).map(|b| (byte(b, &mut shifted).to_string(), b.into())).collect();
    let pairs = (b'a'..=b'p').flat_map(|a| (b'a'..=b'p').map(move |b| (a, b)));
    vocab.extend(pairs.zip(256..512).map(|((a, b), id)| (format!("{}{}", a as char, b as char), json!(id))));
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true });
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": byte_level, "decoder": byte_level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [] }
    });
    std::fs::write(folder.join("tokenizer.json"), file.to_string()).unwrap();
    folder
}

fn clock(home: &Home, url: &str, more: &[&str]) -> Value {
    let args = ["clock", "--url", url, "-p", "24", "-n", "6", "-r", "2", "--json"];
    home.json(&[&args, more].concat())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_server_of_the_same_weights_is_judged_and_timed() {
    let home = Home::new();
    let model = model(&home, "qwen3-tiny");
    let server = Served::start(&home, &model);
    let v = clock(&home, &server.url, &["--gate-model", text(&model), "--threads", "1", "--depths", "0,16"]);
    assert_eq!((&v["endpoint"], &v["role"]), (&json!("completions"), &json!("diagnostic")));
    assert_eq!(v["parameters_not_taken"], json!([]));
    assert_eq!(v["client"]["connections_ns"].as_array().map(Vec::len), Some(1));
    assert!(v["client"]["overhead"]["ttft_ns"].as_f64() > Some(0.0));
    assert_eq!(v["depths"].as_array().map(Vec::len), Some(2));
    for at in v["depths"].as_array().unwrap() {
        assert_eq!(at["gate"]["passed"], true, "{}", at["gate"]);
        let checks = at["gate"]["checks"].as_array().unwrap();
        assert!(checks.iter().any(|c| c["name"] == "accuracy-rank" && c["compared"] == 6), "{checks:?}");
        for round in at["rounds"].as_array().unwrap() {
            assert_eq!((&round["tokens"], round["ids"].as_array().map(Vec::len)), (&json!(6), Some(6)));
            assert_eq!(round["template_tokens"], 0, "ids go in as they are");
            assert!(round["ttft_ns"].as_u64() <= round["end_to_end_ns"].as_u64());
        }
        assert!(at["figures"]["ttft_ns"]["median"].as_f64() > Some(0.0));
    }
    let kept: Value = tare_testkit::json(Path::new(v["document"].as_str().unwrap()));
    assert_eq!(kept["depths"], v["depths"]);
    assert!(!home.path("records").exists(), "a diagnostic is no record");
}

#[test]
fn a_server_of_other_weights_fails_the_gate_and_loses_its_times() {
    let home = Home::new();
    let (served, held) = (model(&home, "qwen3-tiny"), model(&home, "qwen3-tiny-untied"));
    let server = Served::start(&home, &served);
    let args = ["clock", "--url", &server.url, "-p", "24", "-n", "6", "-r", "2", "--gate-model", text(&held)];
    let done = home.run(&args).failure();
    let out = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(out.contains("FAILED") && said.contains("times are void"), "{out}{said}");
    assert!(!out.contains("TTFT     "), "{out}");
    let path = said.rsplit(' ').next().unwrap().trim();
    let kept: Value = tare_testkit::json(Path::new(path));
    let at = &kept["depths"][0];
    assert_eq!((at.get("rounds"), at.get("figures")), (None, None));
    assert_eq!(at["emitted_ids"].as_array().map(Vec::len), Some(2));
}

#[test]
fn the_limits_are_those_of_the_class_that_the_server_computes_in() {
    let home = Home::new();
    let model = model(&home, "qwen3-tiny");
    let server = Served::start(&home, &model);
    let held = ["--gate-model", text(&model), "--threads", "1"];
    let limit = |more: &[&str]| {
        let gate = clock(&home, &server.url, &[&held, more].concat())["depths"][0]["gate"].clone();
        let rank = gate["checks"].as_array().unwrap().iter().find(|c| c["name"] == "accuracy-rank").cloned();
        (gate["class"].as_str().unwrap().to_string(), rank.unwrap()["limit"].as_f64().unwrap())
    };
    let (own, own_limit) = limit(&[]);
    let (packed, packed_limit) = limit(&["--gate-class", "w4a8"]);
    assert_ne!(own, "w4a8");
    assert_eq!(packed, "w4a8");
    assert!(packed_limit > own_limit, "{packed_limit} {own_limit}");
    let args = [&["clock", "--url", &server.url][..], &held, &["--gate-class", "fp8"]].concat();
    let said = home.refused(&args);
    assert!(said.contains("accuracy.fp8") && said.contains("w4a8"), "{said}");
}

#[test]
fn a_proxy_of_the_environment_is_not_asked() {
    let home = Home::new();
    let model = model(&home, "qwen3-tiny");
    let server = Served::start(&home, &model);
    let mut command = home.command(&["clock", "--url", &server.url, "-p", "8", "-n", "3", "-r", "1", "--json"]);
    for name in ["ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "http_proxy"] {
        command.env(name, "http://127.0.0.1:1");
    }
    assert_cmd::Command::from_std(command).assert().success();
}

#[test]
fn without_the_weights_there_is_no_verdict() {
    let home = Home::new();
    let model = model(&home, "qwen3-tiny");
    let server = Served::start(&home, &model);
    let v = clock(&home, &server.url, &["--vocabulary", "512"]);
    let at = &v["depths"][0];
    assert!(at["gate"]["unavailable"].as_str().unwrap().contains("--gate-model"), "{}", at["gate"]);
    assert_eq!(at["one_prompt_for_all_rounds"], false, "no prefix cache can answer");
    let again = clock(&home, &server.url, &["--vocabulary", "512"]);
    assert_ne!(
        again["depths"][0]["prompts_sha256"], at["prompts_sha256"],
        "the server has seen those of the first run"
    );
    let nonce = at["nonce"].as_u64().unwrap().to_string();
    let same = clock(&home, &server.url, &["--vocabulary", "512", "--nonce", &nonce]);
    assert_eq!(same["depths"][0]["prompts_sha256"], at["prompts_sha256"]);
    let text = clock(&home, &server.url, &["--endpoint", "completions-text"]);
    let notes = text["depths"][0]["notes"].to_string();
    assert!(notes.contains("its tokens are the server's"), "{notes}");
}

#[test]
fn flags_that_a_server_cannot_honour_are_refused() {
    let home = Home::new();
    for (more, named) in [
        (["--backend", "cuda"], "--backend cuda"),
        (["--plan", "paged"], "--plan"),
        (["--class", "f32"], "--class"),
        (["-o", "x"], "--output"),
        (["--prefill-logits", "all"], "--prefill-logits"),
    ] {
        let said = home.refused(&[&["clock", "--url", "http://127.0.0.1:1"], &more[..]].concat());
        assert!(said.contains("flags that a server can honour") && said.contains(named), "{said}");
    }
    assert!(home.refused(&["clock", "-m", "synthetic:qwen3-tiny", "--gate-model", "x"]).contains("--url"));
    assert!(home.refused(&["clock"]).contains("--model"));
    let unset = ["clock", "--url", "http://127.0.0.1:1", "--api-key-env", "TARE_TEST_NO_SUCH_KEY"];
    assert!(home.refused(&unset).contains("TARE_TEST_NO_SUCH_KEY is not set"));
}
