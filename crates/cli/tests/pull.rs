//! `tare pull` against a hub that drops, truncates and corrupts.

mod stand_in;

use assert_cmd::Command;
use stand_in::{Fault, Hub, REPOSITORY};
use std::path::{Path, PathBuf};

fn weights() -> Vec<u8> {
    (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn hub() -> Hub {
    Hub::start(&[
        ("config.json", b"{\"model_type\": \"qwen3\"}".to_vec()),
        ("model.safetensors", weights()),
        ("README.md", b"not needed".to_vec()),
    ])
}

fn tare(home: &Path) -> Command {
    let mut c = Command::cargo_bin("tare").unwrap();
    c.env_clear().env("PATH", std::env::var("PATH").unwrap_or_default()).env("TARE_HOME", home);
    c
}

fn pull(home: &Path, hub: &Hub) -> assert_cmd::assert::Assert {
    tare(home).args(["pull", REPOSITORY, "--endpoint", &hub.endpoint]).assert()
}

fn folder(home: &Path) -> PathBuf {
    home.join("models/org--model")
}

#[test]
fn a_model_arrives_whole_and_only_what_it_needs() {
    let (home, hub) = (tempfile::tempdir().unwrap(), hub());
    pull(home.path(), &hub).success();
    assert_eq!(std::fs::read(folder(home.path()).join("model.safetensors")).unwrap(), weights());
    assert!(folder(home.path()).join("config.json").exists());
    assert!(!folder(home.path()).join("README.md").exists());
    assert!(hub.seen("README.md").is_empty());
    // Again: nothing is fetched, and --offline is enough.
    pull(home.path(), &hub).success();
    tare(home.path()).args(["pull", REPOSITORY, "--offline"]).assert().success();
    assert_eq!(hub.seen("model.safetensors").len(), 1);
}

#[test]
fn a_dropped_connection_is_continued_where_it_broke() {
    let (home, hub) = (tempfile::tempdir().unwrap(), hub());
    hub.fault("model.safetensors", &[Fault::DropAfter(70_000), Fault::Unavailable, Fault::DropAfter(50_000)]);
    pull(home.path(), &hub).success();
    assert_eq!(std::fs::read(folder(home.path()).join("model.safetensors")).unwrap(), weights());
    let from: Vec<u64> = hub.seen("model.safetensors").iter().map(|s| s.from).collect();
    assert_eq!(from.len(), 4);
    assert!(from[1] > 0 && from[1] <= 70_000 && from[3] > from[1], "ranges {from:?} continue");
}

#[test]
fn a_hub_that_ignores_ranges_is_started_over() {
    let (home, hub) = (tempfile::tempdir().unwrap(), hub());
    hub.fault("model.safetensors", &[Fault::DropAfter(70_000), Fault::IgnoreRange]);
    pull(home.path(), &hub).success();
    assert_eq!(std::fs::read(folder(home.path()).join("model.safetensors")).unwrap(), weights());
}

#[test]
fn a_corrupt_file_is_fetched_once_more_and_then_refused() {
    let (home, hub) = (tempfile::tempdir().unwrap(), hub());
    hub.fault("model.safetensors", &[Fault::Corrupt]);
    pull(home.path(), &hub).success();
    assert_eq!(std::fs::read(folder(home.path()).join("model.safetensors")).unwrap(), weights());

    let home = tempfile::tempdir().unwrap();
    hub.fault("model.safetensors", &[Fault::Corrupt, Fault::Corrupt]);
    let out = pull(home.path(), &hub).failure();
    let error = String::from_utf8_lossy(&out.get_output().stderr).to_string();
    assert!(error.contains("model.safetensors: expected digest"), "{error}");
    assert!(!folder(home.path()).exists(), "a model that is not whole must not look like one");

    hub.fault("config.json", &[Fault::Corrupt, Fault::Corrupt]);
    let out = pull(home.path(), &hub).failure();
    let error = String::from_utf8_lossy(&out.get_output().stderr).to_string();
    assert!(error.contains("config.json: expected digest"), "small files are checked too: {error}");
    pull(home.path(), &hub).success();
}

#[test]
fn a_hub_that_stays_down_is_given_up_and_continued_later() {
    let (home, hub) = (tempfile::tempdir().unwrap(), hub());
    hub.fault(
        "model.safetensors",
        &[
            Fault::DropAfter(90_000),
            Fault::Unavailable,
            Fault::Unavailable,
            Fault::Unavailable,
            Fault::Unavailable,
            Fault::Unavailable,
        ],
    );
    let out = pull(home.path(), &hub).failure();
    let error = String::from_utf8_lossy(&out.get_output().stderr).to_string();
    assert!(error.contains("gave up after 5 attempts") && error.contains("503"), "{error}");
    pull(home.path(), &hub).success();
    let last = hub.seen("model.safetensors").last().unwrap().from;
    assert!(last > 0, "the second pull continues");
}

#[test]
fn refusals_say_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let stderr = |args: &[&str]| {
        let out = tare(home.path()).args(args).assert().failure();
        String::from_utf8_lossy(&out.get_output().stderr).to_string()
    };
    assert!(stderr(&["pull", "qwen9"]).contains("smollm2-135m"), "the aliases are listed");
    assert!(stderr(&["pull", "smollm2-135m", "--offline"]).contains("without --offline"));
    let hub = Hub::start(&[("a-Q4.gguf", vec![1]), ("a-Q8.gguf", vec![2])]);
    let error = stderr(&["pull", REPOSITORY, "--endpoint", &hub.endpoint]);
    assert!(error.contains("a-Q4.gguf") && error.contains("org/model:FILE"), "{error}");
    tare(home.path()).args(["pull", "org/model:a-Q8.gguf", "--endpoint", &hub.endpoint]).assert().success();
}

#[test]
fn a_token_goes_to_the_hub() {
    let (home, hub) = (tempfile::tempdir().unwrap(), hub());
    tare(home.path())
        .env("HF_TOKEN", "secret")
        .env("HF_ENDPOINT", &hub.endpoint)
        .args(["pull", REPOSITORY])
        .assert()
        .success();
    assert_eq!(hub.seen("config.json")[0].authorization.as_deref(), Some("Bearer secret"));
}
