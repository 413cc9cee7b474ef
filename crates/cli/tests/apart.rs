//! Steps taken apart, through the binary: replay, operators alone, what to attack next.

mod home;

use home::Home;
use serde_json::{Value, json};

const TINY: &str = "synthetic:qwen3-tiny?format=w4g128";

#[test]
fn replay_shows_every_group_and_that_they_are_the_step() {
    let v = Home::new().json(&["replay", "-m", TINY, "--depth", "24", "-i", "3", "--threads", "2", "--json"]);
    assert_eq!((&v["phase"], &v["depth"], &v["rows"]), (&json!("decode"), &json!(24), &json!(1)));
    assert_eq!(v["coverage"]["complete"], true);
    assert_eq!(v["coverage"]["step_sha256"], v["coverage"]["groups_sha256"]);
    let groups: Vec<&str> = v["groups"].as_array().unwrap().iter().map(|g| g["group"].as_str().unwrap()).collect();
    let all = "embedding norm qkv norm+rope+kv-append attention o gate+up activation down head sampling";
    assert_eq!(groups, all.split(' ').collect::<Vec<_>>());
    let prefill = ["replay", "-m", TINY, "--phase", "prefill", "-p", "9", "--depth", "5", "-i", "1", "--json"];
    let v = Home::new().json(&prefill);
    assert_eq!((&v["phase"], &v["depth"], &v["rows"]), (&json!("prefill"), &json!(5), &json!(9)));
}

#[test]
fn replay_for_people_names_kernels_and_shares() {
    let home = Home::new();
    let replay = |delay| ["replay", "-m", TINY, "-i", "2", "--threads", "2", "--calls", "--delay", delay];
    let said = home.run(&replay("norm+rope+kv-append=50")).success();
    let said = String::from_utf8(said.get_output().stdout.clone()).unwrap();
    for part in [
        "planted  norm+rope+kv-append=50 %",
        "planted delay",
        "+kv_append.",
        "coverage complete",
        "weight rows",
        "gate+up",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(home.refused(&replay("nowhere=5")).contains("gate+up"));
    let parted = home.refused(&replay("rope=50"));
    assert!(parted.contains("norm+rope+kv-append") && parted.contains("found `rope`"), "{parted}");
    assert!(home.refused(&["replay", "-m", TINY, "--warm", "--cold"]).contains("--cold"));
    assert!(home.refused(&["replay", "-m", TINY, "-i", "0"]).contains("at least 1"));
}

#[test]
fn operators_are_measured_and_a_guard_that_was_not_earned_is_refused() {
    let home = Home::new();
    let ops = ["study", "ops", "-m", TINY, "--op", "rope,linear", "--rows", "1,4", "--passes", "2", "--threads", "1"];
    let with = |more: &[&'static str]| [&ops[..], more].concat();
    let v = home.json(&with(&["--warm", "--json"]));
    let warm = v["warm"].as_array().unwrap();
    assert_eq!(v["complete"], true);
    let said = home.refused(&with(&["--rows", "300"]));
    assert!(said.contains("1 to 256") && !said.contains("ended after"), "nothing had begun: {said}");
    assert!(warm.iter().any(|m| m["operator"] == "rope") && warm.iter().any(|m| m["operator"] == "linear"));
    assert!(warm.iter().all(|m| m["kernels"].as_array().is_some_and(|k| k.len() >= 2)));
    // The plan asks for the slow kernel, so that the fast one wins: still no study of whole requests stands behind it.
    let plan = home.path("slow.toml");
    let text = std::fs::read_to_string(tare_testkit::workspace().join("plans/paged.toml")).unwrap();
    let slow = text.replace("[states]", "[operators]\nrope = \"portable\"\n\n[states]");
    std::fs::write(&plan, &slow).unwrap();
    let path = plan.to_str().unwrap();
    let said = home.refused(&[&ops[..], &["--plan", path, "--write-guard", path]].concat());
    assert!(said.contains("--passes") && said.contains("at least 3"), "{said}");
    let ops = ["study", "ops", "-m", TINY, "--op", "rope", "--rows", "1", "--passes", "3", "--threads", "1"];
    let said = home.refused(&[&ops[..], &["--write-guard", path]].concat());
    assert!(said.contains("the plan that is studied"), "{said}");
    let said = home.refused(&[&ops[..], &["--plan", path, "--write-guard", path]].concat());
    assert!(said.contains("guard") && said.contains("expected"), "{said}");
    assert_eq!(std::fs::read_to_string(&plan).unwrap(), slow, "nothing was written");
    assert!(home.refused(&["study", "ops", "-m", TINY, "--op", "matmul"]).contains("one of embedding"));
}

#[test]
fn next_keeps_what_it_saw_and_an_open_decision() {
    let home = Home::new();
    let records = home.path("records");
    let folder = records.to_str().unwrap();
    let args = ["next", "-m", TINY, "-p", "24", "-n", "6", "--rounds", "2", "--threads", "2", "-o", folder, "--json"];
    let v = home.json(&args);
    let list = |v: &Value| v.as_array().unwrap().clone();
    assert_eq!(list(&v["replays"]).len(), 2);
    let ranking = &v["ranking"];
    assert!(list(&ranking["groups"]).len() + list(&ranking["withheld"]).len() > 0, "{ranking}");
    if let Some(top) = list(&ranking["groups"]).first() {
        assert!(v["decision"].is_string() && top["replay"].is_string(), "{v}");
    }
    let report = home.json(&["ledger", "verify", folder, "--json"]);
    assert_eq!(report["ok"], true, "{report}");
}
