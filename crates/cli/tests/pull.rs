//! `tare pull` against a hub that drops, truncates and corrupts.

mod home;
mod stand_in;

use assert_cmd::assert::Assert;
use home::Home;
use stand_in::{Fault, Hub, REPOSITORY};
use std::path::PathBuf;

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

fn pull(home: &Home, hub: &Hub) -> Assert {
    home.run(&["pull", REPOSITORY, "--endpoint", &hub.endpoint])
}

fn refused(home: &Home, hub: &Hub) -> String {
    home.refused(&["pull", REPOSITORY, "--endpoint", &hub.endpoint])
}

fn folder(home: &Home) -> PathBuf {
    home.path("models/org--model")
}

#[test]
fn a_model_arrives_whole_and_only_what_it_needs() {
    let (home, hub) = (Home::new(), hub());
    pull(&home, &hub).success();
    assert_eq!(std::fs::read(folder(&home).join("model.safetensors")).unwrap(), weights());
    assert!(folder(&home).join("config.json").exists());
    assert!(!folder(&home).join("README.md").exists());
    assert!(hub.seen("README.md").is_empty());
    // Again: nothing is fetched, and --offline is enough.
    pull(&home, &hub).success();
    home.json(&["pull", REPOSITORY, "--offline", "--json"]);
    assert_eq!(hub.seen("model.safetensors").len(), 1);
    // Another revision is not what lies here, and is not taken for it.
    let error = home.refused(&["pull", REPOSITORY, "--offline", "--revision", "v2"]);
    assert!(error.contains("expected revision v2") && error.contains("remove that folder"), "{error}");
}

#[test]
fn a_dropped_connection_is_continued_where_it_broke() {
    let (home, hub) = (Home::new(), hub());
    hub.fault("model.safetensors", &[Fault::DropAfter(70_000), Fault::Unavailable, Fault::DropAfter(50_000)]);
    pull(&home, &hub).success();
    assert_eq!(std::fs::read(folder(&home).join("model.safetensors")).unwrap(), weights());
    let from: Vec<u64> = hub.seen("model.safetensors").iter().map(|s| s.from).collect();
    assert_eq!(from.len(), 4);
    assert!(from[1] > 0 && from[1] <= 70_000 && from[3] > from[1], "ranges {from:?} continue");
}

#[test]
fn a_hub_that_ignores_ranges_is_started_over() {
    let (home, hub) = (Home::new(), hub());
    hub.fault("model.safetensors", &[Fault::DropAfter(70_000), Fault::IgnoreRange]);
    pull(&home, &hub).success();
    assert_eq!(std::fs::read(folder(&home).join("model.safetensors")).unwrap(), weights());
}

#[test]
fn a_corrupt_file_is_fetched_once_more_and_then_refused() {
    let (home, hub) = (Home::new(), hub());
    hub.fault("model.safetensors", &[Fault::Corrupt]);
    pull(&home, &hub).success();
    assert_eq!(std::fs::read(folder(&home).join("model.safetensors")).unwrap(), weights());

    let home = Home::new();
    hub.fault("model.safetensors", &[Fault::Corrupt, Fault::Corrupt]);
    let error = refused(&home, &hub);
    assert!(error.contains("model.safetensors: expected digest"), "{error}");
    assert!(!folder(&home).exists(), "a model that is not whole must not look like one");

    let home = Home::new();
    hub.fault("config.json", &[Fault::Corrupt, Fault::Corrupt]);
    let error = refused(&home, &hub);
    assert!(error.contains("config.json: expected digest"), "small files are checked too: {error}");
    pull(&home, &hub).success();
}

#[test]
fn a_hub_that_stays_down_is_given_up_and_continued_later() {
    let (home, hub) = (Home::new(), hub());
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
    let error = refused(&home, &hub);
    assert!(error.contains("gave up after 5 attempts") && error.contains("503"), "{error}");
    pull(&home, &hub).success();
    let last = hub.seen("model.safetensors").last().unwrap().from;
    assert!(last > 0, "the second pull continues");
}

#[test]
fn refusals_say_what_to_do() {
    let home = Home::new();
    assert!(home.refused(&["pull", "qwen9"]).contains("smollm2-135m"), "the aliases are listed");
    assert!(home.refused(&["pull", "smollm2-135m", "--offline"]).contains("without --offline"));
    let hub = Hub::start(&[("a-Q4.gguf", vec![1]), ("a-Q8.gguf", vec![2])]);
    let error = home.refused(&["pull", REPOSITORY, "--endpoint", &hub.endpoint]);
    assert!(error.contains("a-Q4.gguf") && error.contains("org/model:FILE"), "{error}");
    home.run(&["pull", "org/model:a-Q8.gguf", "--endpoint", &hub.endpoint]).success();
}

#[test]
fn a_token_goes_to_the_hub() {
    let (home, hub) = (Home::new(), hub());
    let mut command = home.command(&["pull", REPOSITORY]);
    command.env("HF_TOKEN", "secret").env("HF_ENDPOINT", &hub.endpoint);
    assert_cmd::Command::from_std(command).assert().success();
    assert_eq!(hub.seen("config.json")[0].authorization.as_deref(), Some("Bearer secret"));
}
