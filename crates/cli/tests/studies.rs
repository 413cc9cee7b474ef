//! Campaigns through the binary, on a model so small that only the order of things matters: documents, Ctrl-C and going
//! on, refusals before anything runs, a build against itself.

mod home;

use home::Home;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A study of the tiny model with `more` lines before its tables, and its arms.
fn study(home: &Home, name: &str, more: &str, arms: &str) -> PathBuf {
    let text = format!(
        "name = \"{name}\"\nquestion = \"q?\"\nhypothesis = \"h\"\nfalsifier = \"f\"\nmisleads = \"m\"\n\
         metric = \"decode\"\nrole = \"diagnostic\"\n{more}\n\
         [work]\nmodel = \"synthetic:qwen3-tiny\"\nprompt_tokens = 12\noutput_tokens = 9\n{arms}"
    );
    let path = home.path(&format!("{name}.toml"));
    std::fs::write(&path, text).unwrap();
    path
}

const ALONE: &str = "[[arms]]\nlabel = \"paged\"\nthreads = 2\n";
const TWO: &str =
    "[[arms]]\nlabel = \"paged\"\nthreads = 2\n[[arms]]\nlabel = \"kv\"\nthreads = 2\nplan = \"kv-cache\"\n";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The documents of a kind in the scratch ledger.
fn documents(home: &Home, kind: &str) -> Vec<Value> {
    let mut found = Vec::new();
    let mut open = vec![home.path("records")];
    while let Some(folder) = open.pop() {
        for item in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = item.path();
            if path.is_dir() {
                open.push(path);
            } else if text(&path).ends_with(&format!(".{kind}.json")) {
                found.push(tare_testkit::json(&path));
            }
        }
    }
    found
}

fn verified(home: &Home) {
    home.run(&["ledger", "verify", text(&home.path("records"))]).success();
}

#[test]
fn a_duet_leaves_an_opening_records_and_a_closing_that_verify() {
    let home = Home::new();
    let path = study(&home, "twin", "under_study = []\ndesign = \"duet\"\nrounds = 2", ALONE);
    let v = home.json(&["study", text(&path), "--json"]);
    let body = &v["campaign"]["body"];
    assert_eq!(body["rounds"][0]["order"], serde_json::json!(["paged", "a-a"]));
    assert_eq!(body["rounds"][1]["order"], serde_json::json!(["a-a", "paged"]));
    assert_eq!(v["records"].as_array().unwrap().len(), 2);
    let ratios = body["outcome"]["ruled"]["a_a"]["log_ratios"].as_array().unwrap();
    assert_eq!(ratios.len(), 1, "two rounds, one in each order, are one sample");
    assert!(body["control"][0]["drift"].is_number(), "{}", body["control"]);
    assert_eq!(documents(&home, "opening").len(), 1);
    let name = format!("{}.json", v["records"][0].as_str().unwrap());
    let record: Value = tare_testkit::json(PathBuf::from(v["path"].as_str().unwrap()).with_file_name(name));
    let round = &record["samples"]["rounds"][0];
    assert_eq!(round["timing"]["untimed"], serde_json::json!([0, 4]), "the first token of each turn");
    let why = record["ceilings"][0]["samples"]["unavailable"].as_str().unwrap();
    assert_eq!(why, "the study has no ceiling arm");
    assert!(record["derived"]["decode"]["percent_of_floor"]["unavailable"].as_str().unwrap().contains(why));
    assert!(v["campaign"]["body"].get("floors").is_none());
    let pages = &record["provenance"]["host"]["state"]["pages_after_requests"];
    assert_eq!(pages.as_array().map(Vec::len), Some(2), "how each process's memory lay: {pages}");
    assert!(pages[0]["weights"]["bytes"].is_u64() || pages[0]["unavailable"].is_string(), "{pages}");
    verified(&home);
}

#[test]
fn arms_that_dispatch_the_same_kernels_are_drawn_once() {
    let home = Home::new();
    let arms = "[[arms]]\nlabel = \"capacity\"\nplan = \"capacity-cache\"\n[[arms]]\nlabel = \"rung\"\nplan = \"decode-attention\"\n\
                [[arms]]\nlabel = \"below\"\nplan = \"tiled-prefill\"\n";
    let path = study(&home, "twins", "under_study = [\"plan\"]\ndesign = \"balanced\"\nrounds = 8", arms);
    let v = home.json(&["study", text(&path), "--rounds", "2", "--json"]);
    let body = &v["campaign"]["body"];
    let twin = |arm: &str| {
        let pair = body["pairs"].as_array().unwrap().iter().find(|p| p["arm"] == arm).unwrap();
        pair["identical_to"].clone()
    };
    assert_eq!((twin("rung"), twin("below")), ("capacity".into(), Value::Null), "{}", body["pairs"]);
    let ruled = body["outcome"]["ruled"]["rulings"].as_array().unwrap();
    assert!(ruled.iter().all(|r| r["arm"] != "rung"), "nothing is ruled on it: {ruled:?}");
    verified(&home);
}

#[test]
fn the_shipped_ladder_shows_its_arms_without_starting_any() {
    let home = Home::new();
    let said = home.run(&["study", "ladder-cpu", "--dry-run"]).success().get_output().stdout.clone();
    let said = String::from_utf8(said).unwrap();
    for arm in ["readable-kv-cache", "quantized-matvec", "simd-matmul", "decode-attention", "selected", "10 rounds"] {
        assert!(said.contains(arm), "{said}");
    }
}

#[test]
fn arms_of_other_plans_are_compared_in_balanced_rounds() {
    let home = Home::new();
    let path = study(&home, "plans", "under_study = [\"plan\"]\ndesign = \"balanced\"\nrounds = 4", TWO);
    let v = home.json(&["study", text(&path), "--rounds", "2", "--json"]);
    let body = &v["campaign"]["body"];
    assert_eq!(body["rounds"][1]["order"], serde_json::json!(["kv", "a-a", "paged"]));
    assert_eq!((&body["study"]["role"], &body["study"]["rounds"]), (&"screening".into(), &2.into()));
    let ruling = &body["outcome"]["ruled"]["rulings"][0];
    assert_eq!(ruling["arm"], "kv");
    assert!(ruling["verdict"]["inconclusive"]["needs_rounds"].as_u64() > Some(2), "two rounds tell nothing: {ruling}");
    verified(&home);
    let done = home.run(&["study", text(&path), "--rounds", "2"]).success();
    let said = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    for word in ["plans: q?", "kv", "a-a", "% of floor", "inconclusive", "closing"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn several_sequences_run_together_in_every_arm() {
    let home = Home::new();
    for (name, more) in [
        ("rows-duet", "under_study = [\"plan\"]\ndesign = \"duet\"\nturn_tokens = 2\nrounds = 2"),
        ("rows-balanced", "under_study = [\"plan\"]\ndesign = \"balanced\"\nrounds = 2"),
    ] {
        let path = study(&home, name, more, TWO);
        let text_of = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text_of.replace("[work]", "[work]\nsequences = 3")).unwrap();
        let v = home.json(&["study", text(&path), "--json"]);
        let body = &v["campaign"]["body"];
        assert_eq!(body["study"]["work"]["sequences"], 3);
        assert!(body["outcome"]["ruled"]["rulings"][0]["effect"].is_number(), "{}", body["outcome"]);
        for id in v["records"].as_array().unwrap() {
            let file = format!("{}.json", id.as_str().unwrap());
            let record: Value = tare_testkit::json(PathBuf::from(v["path"].as_str().unwrap()).with_file_name(file));
            assert_eq!(record["work"]["rows"], 3);
            let rows = record["samples"]["rounds"][1]["rows"].as_array().unwrap();
            assert!(rows.len() == 3 && rows.iter().all(|r| r["ids"].as_array().unwrap().len() == 9), "{rows:?}");
        }
    }
    verified(&home);
    let peer = format!("{ALONE}[[arms]]\nlabel = \"other\"\npeer = \"candle\"\nthreads = 2\n");
    let path = study(&home, "alone", "under_study = [\"peer\"]\ndesign = \"balanced\"\nrounds = 2", &peer);
    let text_of = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text_of.replace("[work]", "[work]\nsequences = 8")).unwrap();
    let said = home.refused(&["study", text(&path)]);
    assert!(
        said.contains("peer candle") && said.contains("8 sequences together") && said.contains("measure one"),
        "{said}"
    );
}

/// In one campaign: a ceiling beside every meeting, and what follows for every arm.
#[test]
fn a_ceiling_arm_gives_every_arm_its_percent_of_floor() {
    let home = Home::new();
    let arms = format!("{TWO}[[arms]]\nlabel = \"top\"\nceiling = \"read\"\n");
    let path = study(&home, "floors", "under_study = [\"plan\"]\ndesign = \"balanced\"\nrounds = 2", &arms);
    let v = home.json(&["study", text(&path), "--json"]);
    let body = &v["campaign"]["body"];
    assert_eq!(body["rounds"][0]["order"], serde_json::json!(["paged", "a-a", "kv"]), "it is in no order");
    assert_eq!(body["pairs"].as_array().unwrap().len(), 2, "and in no pair");
    let record = format!("{}.json", v["records"][0].as_str().unwrap());
    let record: Value = tare_testkit::json(PathBuf::from(v["path"].as_str().unwrap()).with_file_name(record));
    let read = &record["ceilings"][0];
    assert_eq!((&read["name"], &read["arm"]), (&"memory-read".into(), &"top".into()));
    let decode = &body["floors"]["arms"][2]["decode"];
    match read["samples"].as_array() {
        Some(samples) => {
            let at = |s: &Value| (s["round"].as_u64().unwrap(), s["turn"].as_u64().unwrap());
            let turns: std::collections::BTreeSet<_> = samples.iter().map(at).collect();
            assert_eq!(turns.len(), 6, "three turns in each of two rounds");
            let l3 = tare_probe::Host::read().cpu.caches.l3.available().map_or(0, |l3| l3.bytes());
            assert!(read["working_set_bytes"].as_u64().unwrap() > l3, "{read}");
            assert!(samples.iter().all(|s| s["amount"] == read["working_set_bytes"]), "each is a pass over all of it");
            assert!(decode["percent_of_floor"].as_f64() > Some(0.0), "{decode}");
            assert!(decode["bytes_per_s"].as_f64() > Some(0.0), "{decode}");
        }
        // A host that has no room for a buffer past its caches.
        None => assert!(decode["percent_of_floor"]["unavailable"].is_string(), "{decode}"),
    }
    verified(&home);
    let shown = home.run(&["ledger", "show", v["campaign"]["id"].as_str().unwrap()]).success();
    let shown = String::from_utf8_lossy(&shown.get_output().stdout).into_owned();
    assert!(shown.contains("floor    top: ") && shown.contains("floor    kv: prefill"), "{shown}");
    let said = home.run(&["study", text(&path), "--dry-run"]).success();
    let said = String::from_utf8_lossy(&said.get_output().stdout).into_owned();
    assert!(said.contains("the ceiling `memory-read`"), "{said}");
}

#[test]
fn nothing_starts_for_a_study_that_cannot_answer() {
    let home = Home::new();
    let said =
        home.refused(&["study", text(&study(&home, "a", "under_study = []\ndesign = \"duet\"\nrounds = 2", TWO))]);
    assert!(said.contains("arms.kv.plan") && said.contains("under_study"), "{said}");
    let wrong = TWO.replace("kv-cache", "no-such-plan");
    let path = study(&home, "b", "under_study = [\"plan\"]\ndesign = \"duet\"\nrounds = 2", &wrong);
    let said = home.refused(&["study", text(&path)]);
    assert!(said.contains("arm `kv`") && said.contains("no-such-plan"), "{said}");
    let path = study(&home, "c", "under_study = []\ndesign = \"duet\"\nrounds = 2\nround = 1", ALONE);
    assert!(home.refused(&["study", text(&path)]).contains("unknown field `round`"));
    let peer = format!("{ALONE}[[arms]]\nlabel = \"other\"\npeer = \"llama.cpp\"\nthreads = 2\n");
    let path = study(&home, "e", "under_study = [\"peer\"]\ndesign = \"balanced\"\nrounds = 2", &peer);
    let said = home.refused(&["study", text(&path)]);
    assert!(said.contains("arm `other`") && said.contains("tare peers install llama.cpp"), "{said}");
    let cuda = ALONE.replace("threads = 2", "backend = \"cuda\"");
    let path = study(&home, "f", "under_study = []\ndesign = \"balanced\"\nrounds = 2", &cuda);
    if let tare_core::Reading::Unavailable { why } = tare_cuda::probe(0) {
        let said = home.refused(&["study", text(&path)]);
        assert!(said.contains("a CUDA device that can be used") && said.contains(&why), "{said}");
    }
    let path = study(
        &home,
        "g",
        "under_study = []\ndesign = \"duet\"\nrounds = 2",
        &ALONE.replace("2", "2\nbackend = \"gpu\""),
    );
    assert!(home.refused(&["study", text(&path)]).contains("cpu or cuda, found `gpu`"));
    let elsewhere = format!("{ALONE}[[arms]]\nlabel = \"other\"\npeer = \"llama.cpp-cuda\"\nthreads = 2\n");
    let path = study(&home, "h", "under_study = [\"peer\"]\ndesign = \"balanced\"\nrounds = 2", &elsewhere);
    let said = home.refused(&["study", text(&path)]);
    assert!(said.contains("arm `other`") && said.contains("tare peers install llama.cpp-cuda"), "{said}");
    assert!(home.refused(&["study", "no-such-study"]).contains("aa-duet"));
    let path = study(&home, "d", "under_study = []\ndesign = \"duet\"\nrounds = 2", ALONE);
    assert!(home.refused(&["study", text(&path), "--resume"]).contains("an unfinished one of `d`, found none"));
    assert!(documents(&home, "opening").is_empty());
}

/// What the ledger refuses to open leaves nothing that would have to be closed.
#[test]
fn a_campaign_that_cannot_be_opened_leaves_no_journal() {
    let home = Home::new();
    let power =
        "under_study = []\ndesign = \"duet\"\n[power]\neffect = 0.5\npower = 0.5\nspread = 0.01\nfrom = \"words\"";
    let path = study(&home, "planned", power, ALONE);
    let said = home.refused(&["study", text(&path)]);
    assert!(said.contains("spread_from: expected `words` in this ledger"), "{said}");
    let left = std::fs::read_dir(home.path("studies/planned")).unwrap().count();
    assert_eq!((left, documents(&home, "opening").len()), (0, 0));
}

#[test]
fn what_would_run_is_shown_without_running_it() {
    let home = Home::new();
    let done = home.run(&["study", "aa-duet", "--dry-run"]).success();
    let said = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    for word in ["hypothesis", "falsifier", "misleads", "a-a", "round 2  a-a, paged"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let listed = home.json(&["study", "--list", "--json"]);
    assert!(listed.as_array().unwrap().iter().any(|s| s["name"] == "ladder"));
    assert!(documents(&home, "opening").is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_keeps_the_rounds_and_the_next_attempt_goes_on() {
    let home = Home::new();
    let path = study(&home, "long", "under_study = []\ndesign = \"duet\"\nrounds = 4", ALONE);
    let mut child = home.command(&["study", text(&path)]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let folder = home.path("studies/long");
    let journal = || {
        let file = std::fs::read_dir(&folder).ok()?.flatten().next()?.path();
        std::fs::read_to_string(file).ok()
    };
    while !journal().is_some_and(|j| j.contains("\"line\":\"round\"")) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was interrupted");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let sent = std::process::Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(sent.success());
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(130), "{said}");
    assert!(said.contains("`--resume` goes on"), "{said}");
    assert!(documents(&home, "campaign").is_empty());
    let elsewhere = home.path("elsewhere");
    for how in ["--resume", "--close"] {
        let said = home.refused(&["study", text(&path), how, "-o", text(&elsewhere)]);
        assert!(said.contains("ledger") || said.contains("where it was opened"), "{how}: {said}");
    }
    let v = home.json(&["study", text(&path), "--resume", "--json"]);
    let body = &v["campaign"]["body"];
    assert_eq!(body["attempts"][0]["ended"], "interrupted");
    assert_eq!(body["attempts"][1]["ended"], "complete");
    let of: Vec<u64> = body["rounds"].as_array().unwrap().iter().map(|r| r["attempt"].as_u64().unwrap()).collect();
    assert!(of.first() == Some(&1) && of.last() == Some(&2) && of.len() == 4, "{of:?}");
    assert_eq!(documents(&home, "opening").len(), 2);
    verified(&home);
    let said = home.refused(&["study", text(&path), "--resume"]);
    assert!(said.contains("found none"), "a closed campaign is over: {said}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_campaign_that_cannot_go_on_is_closed_without_a_verdict() {
    let home = Home::new();
    let path = study(&home, "gone", "under_study = [\"build\"]\ndesign = \"balanced\"\nrounds = 2", &two_builds(&home));
    // The build answers the greeting of the check and is gone when it should run.
    let said = home.refused(&["study", text(&path)]);
    assert!(said.contains("other: ") && said.contains("--resume"), "{said}");
    assert!(documents(&home, "campaign").is_empty());
    let done = home.run(&["study", text(&path), "--close", "--json"]).failure();
    let v: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let why = v["campaign"]["body"]["outcome"]["unruled"]["why"].as_str().unwrap();
    assert!(why.starts_with("0 of 2 rounds ran; attempt 1: other"), "{why}");
    verified(&home);
}

/// This build, and one that greets and then ends.
#[cfg(target_os = "linux")]
fn two_builds(home: &Home) -> String {
    use std::os::unix::fs::PermissionsExt;
    let tare = env!("CARGO_BIN_EXE_tare");
    let script = home.path("other");
    let text = format!("#!/bin/sh\nread hello\necho \"$hello\" | {tare} arm\nread load\nexit 3\n");
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!(
        "[[arms]]\nlabel = \"this\"\nbuild = \"{tare}\"\nthreads = 2\n[[arms]]\nlabel = \"other\"\nbuild = \"{}\"\nthreads = 2\n",
        script.display()
    )
}

#[test]
fn a_build_is_not_compared_with_itself() {
    let home = Home::new();
    let tare = env!("CARGO_BIN_EXE_tare");
    let said = home.refused(&["compare", tare, tare]);
    assert!(said.contains("both are the same binary"), "{said}");
}

/// The same program in a file of another digest: a byte after the end of an executable is never read.
#[test]
fn two_builds_are_compared_in_a_duet_and_each_record_names_its_binary() {
    let home = Home::new();
    let tare = env!("CARGO_BIN_EXE_tare");
    let other = home.path("tare-other");
    std::fs::copy(tare, &other).unwrap();
    let mut bytes = std::fs::OpenOptions::new().append(true).open(&other).unwrap();
    std::io::Write::write_all(&mut bytes, b"x").unwrap();
    drop(bytes);
    let args = ["compare", tare, text(&other), "-m", "synthetic:qwen3-tiny", "-p", "12", "-n", "9", "--rounds", "2"];
    let v = home.json(&[&args[..], &["--class", "f32", "--json"]].concat());
    let body = &v["campaign"]["body"];
    assert_eq!((&body["study"]["rule"], &body["study"]["design"]), (&"no_regression".into(), &"duet".into()));
    assert_eq!(body["study"]["arms"][1]["what"]["build"], "tare-other", "a name and no path");
    assert_eq!([0, 1].map(|i| body["study"]["arms"][i]["what"]["class"].clone()), ["f32", "f32"]);
    let folder = PathBuf::from(v["path"].as_str().unwrap());
    let binary = |side: &str| -> Value {
        let id = body["pairs"][1][side]["id"].as_str().unwrap();
        let record: Value = tare_testkit::json(folder.with_file_name(format!("{id}.json")));
        record["provenance"]["binary_sha256"].clone()
    };
    assert_ne!(binary("baseline"), binary("candidate"));
    verified(&home);
}

#[test]
fn an_arm_speaks_its_lines_and_keeps_its_times_until_it_is_judged() {
    let home = Home::new();
    let ask = concat!(
        "{\"op\":\"hello\",\"protocol\":1}\n",
        "{\"op\":\"prefill\"}\n",
        "{\"op\":\"load\",\"arm\":{\"label\":\"x\",\"threads\":1},\"model\":\"synthetic:qwen3-tiny\",",
        "\"request\":{\"prefix\":[],\"prompt\":[1,2,3],\"output_tokens\":3,\"all_prompt_logits\":false}}\n",
        "{\"op\":\"judge\",\"full\":true}\n",
        "{\"op\":\"warm_up\",\"tokens\":2}\n{\"op\":\"prefill\"}\n{\"op\":\"decode\",\"tokens\":2,\"returned\":true}\n",
        "{\"op\":\"rest\"}\n{\"op\":\"finish\"}\n{\"op\":\"judge\",\"full\":true}\n{\"op\":\"quit\"}\n",
    );
    let done = assert_cmd::Command::from_std(home.command(&["arm"])).write_stdin(ask).assert().success();
    let out = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    let said: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let kinds: Vec<&str> = said.iter().map(|v| v["is"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["hello", "failed", "loaded", "failed", "done", "done", "done", "done", "done", "judged"]);
    assert!(said[3]["why"].as_str().unwrap().contains("prefill, decode, finish and judge"), "{}", said[3]);
    let before: String = out.lines().take(9).collect();
    assert!(!before.contains("_ns\""), "no time leaves before the gate: {before}");
    let judged = &said[9];
    assert_eq!(judged["timing"]["token_ns"].as_array().unwrap().len(), 2);
    assert_eq!(judged["timing"]["untimed"], serde_json::json!([0]));
    let names: Vec<&str> =
        judged["gate"]["checks"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"warm-ups") && names.contains(&"kv") && names.contains(&"emulation-logit"), "{names:?}");
}

#[test]
fn another_version_of_the_lines_is_refused_with_both_numbers() {
    let home = Home::new();
    let asked = assert_cmd::Command::from_std(home.command(&["arm"]))
        .write_stdin("{\"op\":\"hello\",\"protocol\":9}\n")
        .assert();
    let out = String::from_utf8_lossy(&asked.success().get_output().stdout).into_owned();
    assert!(out.contains("version 1, which this build speaks") && out.contains("version 9"), "{out}");
}
