//! The laboratory through the binary, on models so small that only the order of things matters: records, what rejects
//! them, the gate that voids times, and Ctrl-C.

mod home;

use home::Home;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tare_core::digest::sha256_hex;
use tare_evidence::canonical;

/// Weighs the tiny model: 24 in, 6 out, 2 rounds.
fn clock(home: &Home, more: &[&str]) -> Value {
    home.json(&clock_args("2", more))
}

fn clock_args<'a>(rounds: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let args = "clock -m synthetic:qwen3-tiny -p 24 -n 6 --threads 2 --json --rounds";
    args.split(' ').chain([rounds]).chain(more.iter().copied()).collect()
}

fn record_of(clocked: &Value) -> PathBuf {
    PathBuf::from(clocked["record"].as_str().expect("the path of the record"))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Every file under `folder`, by name.
fn files(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for item in std::fs::read_dir(folder).into_iter().flatten() {
        let path = item.unwrap().path();
        if path.is_dir() {
            names.extend(files(&path));
        } else {
            names.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    names
}

#[test]
fn a_clocked_request_is_gated_timed_and_kept() {
    let home = Home::new();
    // The one that measures the ceilings itself.
    std::fs::remove_file(home.path("ceilings.json")).ok();
    let v = clock(&home, &[]);
    assert_eq!(v["gate"]["passed"], true, "{}", v["gate"]);
    let (tokens, cache) =
        (["emulation-logit", "emulation-rank", "accuracy-logit", "accuracy-rank"], ["kv", "kv-token"]);
    for name in [&["rounds-agree"][..], &tokens, &cache].concat() {
        let check = v["gate"]["checks"].as_array().unwrap().iter().find(|c| c["name"] == name);
        assert!(check.is_some_and(|c| c["compared"].as_u64() > Some(0)), "{name}: {check:?}");
    }
    assert_eq!(canonical::digest(&v["work"]), v["work_sha256"]);
    assert_eq!(canonical::digest(&v["arm"]), v["arm_sha256"]);
    for (field, value) in [("prompt_lengths", json!([24])), ("output_lengths", json!([6])), ("depth", json!(0))] {
        assert_eq!(v["work"][field], value, "{field}");
    }
    let rounds = v["samples"]["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    for round in rounds {
        assert_eq!(round["rows"][0]["ids"].as_array().unwrap().len(), 6);
        assert_eq!(round["rows"][0]["logits"].as_array().unwrap().len(), 6);
        assert_eq!(round["timing"]["token_ns"].as_array().unwrap().len(), 5);
    }
    for phase in ["prefill", "decode"] {
        let rate = v[phase]["rate_tokens_per_s"]["median"].as_f64();
        assert!(rate > Some(0.0), "{phase}: {}", v[phase]);
        let percent = &v[phase]["percent_of_floor"];
        assert!(percent.as_f64() > Some(0.0) || percent["unavailable"].is_string(), "{phase}: {percent}");
    }
    assert!(v["ttft_ns"]["median"].as_f64() > Some(0.0));
    let why = "this process measured the ceilings of the host before it loaded the model";
    for moment in ["ready_ns", "first_token_ns"] {
        assert_eq!(v["startup"][moment], json!({ "unavailable": why }), "{moment}");
    }
    let parts =
        ["allocator_peak_bytes", "anonymous_rss_bytes", "file_rss_bytes", "device_bytes", "kv_bytes", "peak_rss_bytes"];
    for part in parts {
        let reading = &v["memory"][part];
        assert!(reading.as_u64() > Some(0) || reading["unavailable"].is_string(), "{part}: {reading}");
    }
    let cpu = &v["main_thread_cpu_ns"];
    assert!(cpu["median"].as_f64() > Some(0.0) || cpu["unavailable"].is_string(), "{cpu}");

    let record = record_of(&v);
    let written: Value = tare_testkit::json(&record);
    assert_eq!(written["id"], v["id"]);
    assert_eq!(written["derived"]["prefill"], v["prefill"], "what is shown is what is written");
    for path in [&record, &home.path("records")] {
        let report = home.json(&["ledger", "verify", text(path), "--json"]);
        assert_eq!((&report["ok"], &report["files"]), (&json!(true), &json!(1)), "{report}");
    }
    let listed = home.json(&["ledger", "list", "--json"]);
    assert_eq!((&listed[0]["id"], &listed[0]["passed"]), (&v["id"], &json!(true)));
}

#[test]
fn a_process_that_loads_and_answers_says_when_its_first_token_came() {
    let home = Home::new();
    if !home.path("ceilings.json").exists() {
        eprintln!("skipped: no ceilings of this host are kept, so that every process measures them first");
        return;
    }
    let startup = &clock(&home, &[])["startup"];
    if cfg!(target_os = "linux") {
        let (ready, first) = (startup["ready_ns"].as_u64().unwrap(), startup["first_token_ns"].as_u64().unwrap());
        assert!(0 < ready && ready < first, "{startup}");
    } else {
        assert!(startup["ready_ns"]["unavailable"].is_string(), "{startup}");
    }
    let deep = &clock(&home, &["--depth", "4"])["startup"];
    assert!(deep["ready_ns"]["unavailable"].as_str().is_some_and(|why| why.contains("prefix")), "{deep}");
}

#[test]
fn sequences_that_run_together_are_one_record_of_all() {
    let home = Home::new();
    let v = clock(&home, &["--sequences", "3", "--depth", "4"]);
    assert_eq!(v["gate"]["passed"], true, "{}", v["gate"]);
    let work = &v["work"];
    assert_eq!((&work["rows"], &work["prompt_lengths"]), (&json!(3), &json!([24, 24, 24])));
    let round = &v["samples"]["rounds"][0];
    let rows = round["rows"].as_array().unwrap();
    assert!(rows.len() == 3 && rows.iter().all(|r| r["logits"].as_array().unwrap().len() == 6), "{rows:?}");
    assert_eq!(round["timing"]["token_ns"].as_array().unwrap().len(), 5, "a time for a step");
    let ns: f64 = round["timing"]["token_ns"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).sum();
    let rates = &v["decode"]["rate_tokens_per_s"];
    let rate = 15.0 * 1e9 / ns;
    let (low, high) = (rates["min"].as_f64().unwrap(), rates["max"].as_f64().unwrap());
    assert!(low * 0.999 <= rate && rate <= high * 1.001, "tokens of all three: {rate} in {rates}");
    let notes = v["about"]["notes"].to_string();
    assert!(notes.contains("3 sequences") && notes.contains("the bucket of 3 rows"), "{notes}");
    let report = home.json(&["ledger", "verify", text(&home.path("records")), "--json"]);
    assert_eq!(report["ok"], true, "{report}");
    let mut args = clock_args("1", &["--sequences", "2"]);
    args.retain(|a| *a != "--json");
    let said = String::from_utf8_lossy(&home.run(&args).success().get_output().stdout).into_owned();
    assert!(said.contains("2 sequences of 24 in") && said.contains("of 2 sequences together"), "{said}");
    for (more, says) in [
        (&["--sequences", "0"][..], "at least 1"),
        (&["--sequences", "2", "--ids", "x.json"], "cannot be used with"),
        (&["--sequences", "2", "--plan", "recompute"], "this plan keeps no cache"),
    ] {
        let said = home.refused(&clock_args("1", more));
        assert!(said.contains(says), "{more:?}: {said}");
    }
}

#[test]
fn a_request_that_cannot_be_weighed_is_refused_before_it_runs() {
    let home = Home::new();
    assert!(home.refused(&clock_args("0", &[])).contains("at least 1"));
    for endless in ["10000000000000", "18446744073709551615"] {
        let said = home.refused(&clock_args("1", &["--depth", endless]));
        assert!(said.contains("context: expected at most 40960"), "{said}");
    }
    let error = home.refused(&clock_args("1", &["--ids", "prompt.json"]));
    assert!(error.contains("cannot be used with"), "{error}");
    let error = home.refused(&clock_args("1", &["-d", "8", "--prefill-logits", "all"]));
    assert!(error.contains("0 tokens in the cache where its depth is 8"), "{error}");
    assert!(files(&home.path("records")).is_empty());
}

/// Changes a written record, gives it the id that its content has now and signs the folder anew.
fn forge(record: &Path, change: impl FnOnce(&mut Value)) -> PathBuf {
    let mut v: Value = tare_testkit::json(record);
    change(&mut v);
    let moment = v["id"].as_str().unwrap().split('-').next().unwrap().to_string();
    v.as_object_mut().unwrap().remove("id");
    let id = format!("{moment}-{}", &canonical::digest(&v)[..16]);
    v["id"] = json!(id);
    let forged = record.with_file_name(format!("{id}.json"));
    let content = serde_json::to_string_pretty(&v).unwrap();
    std::fs::remove_file(record).unwrap();
    std::fs::write(&forged, &content).unwrap();
    let sums = format!("{}  {id}.json\n", sha256_hex(content.as_bytes()));
    std::fs::write(record.with_file_name("SHA256SUMS"), sums).unwrap();
    forged
}

#[test]
fn an_edited_record_is_rejected_by_a_figure_that_no_longer_follows() {
    let home = Home::new();
    let ledger = home.path("evidence");
    let record = record_of(&clock(&home, &["-o", text(&ledger)]));
    let record = forge(&record, |_| {});
    home.run(&["ledger", "verify", text(&ledger)]).success();
    let record = forge(&record, |v| {
        for round in v["samples"]["rounds"].as_array_mut().unwrap() {
            let ns = round["timing"]["prefill_ns"].as_u64().unwrap();
            round["timing"]["prefill_ns"] = json!(ns / 2);
        }
    });
    let report = home.run(&["ledger", "verify", text(&ledger), "--json"]).failure();
    let report: Value = serde_json::from_slice(&report.get_output().stdout).unwrap();
    let faults: Vec<&str> =
        report["findings"].as_array().unwrap().iter().map(|f| f["fault"].as_str().unwrap()).collect();
    assert!(faults.iter().any(|f| f.contains("derived.prefill")), "{faults:?}");
    assert!(faults.iter().all(|f| f.contains("derived")), "checksum and id are in order: {faults:?}");
    // Without the effort, the checksum already says so.
    let content = std::fs::read_to_string(&record).unwrap();
    std::fs::write(&record, content.replacen("\"prefill_ns\": ", "\"prefill_ns\": 1", 1)).unwrap();
    home.run(&["ledger", "verify", text(&record)]).failure();
}

#[test]
fn other_work_is_not_compared() {
    let home = Home::new();
    let base = record_of(&clock(&home, &[]));
    let all = record_of(&clock(&home, &["--prefill-logits", "all"]));
    let said = home.refused(&["ledger", "diff", text(&base), text(&all)]);
    assert!(said.contains("not the same work: prefill_logits") && !said.contains("depth"), "{said}");
    let deep = clock(&home, &["--depth", "8", "--class", "f32", "--plan", "capacity-cache"]);
    assert_eq!((&deep["gate"]["passed"], &deep["work"]["depth"]), (&json!(true), &json!(8)));
    assert_eq!((&deep["arm"]["class"], &deep["arm"]["plan"]), (&json!("f32"), &json!("capacity-cache")));
    let said = home.refused(&["ledger", "diff", text(&base), text(&record_of(&deep))]);
    assert!(said.contains("depth: 0 against 8"), "{said}");
    // The same work of another campaign: what may differ is named, and times are still not divided.
    let again = record_of(&clock(&home, &[]));
    let said = home.refused(&["ledger", "diff", text(&base), text(&again)]);
    assert!(said.contains("campaign") && !said.contains("not the same work"), "{said}");
    home.run(&["ledger", "diff", text(&base), text(&base)]).success();
}

/// Turns the sign of every kept reference logit and signs the file anew: from then on the judge says something else.
fn disturb_references(home: &Home) -> usize {
    let folder = home.path("references");
    let mut disturbed = 0;
    for name in files(&folder) {
        let kept = std::fs::read_to_string(folder.join(&name)).unwrap();
        let start = kept.find("\"scores\":").unwrap() + "\"scores\":".len();
        let end = kept.find(",\"scores_sha256\"").unwrap();
        let scores = kept[start..end].replace("\"logit\":", "\"logit\":-").replace("\"logit\":--", "\"logit\":");
        let signed = format!("{}{scores},\"scores_sha256\":\"{}\"}}", &kept[..start], sha256_hex(scores.as_bytes()));
        std::fs::write(folder.join(&name), signed).unwrap();
        disturbed += 1;
    }
    disturbed
}

#[test]
fn a_failed_gate_keeps_the_record_without_times() {
    let home = Home::new();
    clock(&home, &[]);
    let before = files(&home.path("references"));
    assert_eq!(disturb_references(&home), 2, "one in the model's class, one in f32: {before:?}");
    let done = home.run(&clock_args("2", &[])).failure();
    let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(said.contains("the gate failed: times are void"), "{said}");
    assert_eq!(files(&home.path("references")), before, "kept scores were used and not made again");
    let v: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let record: Value = tare_testkit::json(record_of(&v));
    assert_eq!(record["gate"]["passed"], false);
    assert!(record["gate"]["misses"].as_array().unwrap().iter().any(|m| m["check"] == "emulation-logit"));
    assert_eq!(record["samples"]["rounds"][0]["rows"][0]["ids"].as_array().unwrap().len(), 6);
    let written = record["samples"].to_string();
    assert!(!written.contains("timing") && !written.contains("_ns"), "{written}");
    for absent in ["derived", "demands", "ceilings", "startup"] {
        assert!(record.get(absent).is_none(), "{absent}");
    }
    home.run(&["ledger", "verify", text(&home.path("records"))]).success();
    let said = home.refused(&["ledger", "diff", text(&record_of(&v)), text(&record_of(&v))]);
    assert!(said.contains("a record with timings"), "{said}");
}

#[test]
fn next_names_a_phase_and_writes_a_record() {
    let home = Home::new();
    let v = home.json(&[
        "next",
        "-m",
        "synthetic:qwen3-tiny",
        "-p",
        "24",
        "-n",
        "6",
        "--rounds",
        "2",
        "--threads",
        "2",
        "--json",
    ]);
    assert_eq!(v["gate"]["passed"], true);
    let findings = &v["findings"];
    let (phases, unknown) = (findings["phases"].as_array().unwrap(), findings["unknown"].as_array().unwrap());
    assert_eq!(phases.len() + unknown.len(), 2, "{findings}");
    for p in phases {
        assert!(p["floor_ns"].as_f64() > Some(0.0) && p["measured_ns"].as_f64() > Some(0.0), "{p}");
        assert!(findings["advice"].as_str().unwrap().contains("attack"), "{findings}");
    }
    let report = home.json(&["ledger", "verify", text(&record_of(&v)), "--json"]);
    assert_eq!(report["ok"], true, "{report}");
    assert!(record_of(&v).to_string_lossy().contains("/next/"));
}

/// In the reference's order, with activations in F32 and in integers, and in a class whose kernels have orders of their own.
#[test]
fn planted_faults_are_caught_and_the_control_passes() {
    for class in ["w4a16", "w4a15", "w4a16-free"] {
        let model = ["-m", "synthetic:qwen3-tiny?format=w4g128", "--class", class];
        let v = Home::new().json(&[&["mutate"], &model[..], &["--threads", "2", "--json"]].concat());
        let verdicts = v["verdicts"].as_array().unwrap();
        assert_eq!(verdicts.len(), 13);
        assert_eq!((&verdicts[0]["mutation"], &verdicts[0]["caught"]), (&json!("none"), &json!(false)), "{class}");
        for fault in &verdicts[1..] {
            assert_eq!((&fault["planted"], &fault["caught"]), (&json!(true), &json!(true)), "{class}: {fault}");
            // What is wrong in decoded rows is seen in the cache as well, behind a prompt of hundreds of right ones.
            let decoded = ["position-off-by-one", "wrong-kv-head", "residual-dropped"];
            let in_cache = fault["by"].as_array().unwrap().contains(&json!("kv"));
            let expected = decoded.iter().any(|name| fault["mutation"] == *name);
            assert!(in_cache || !expected, "{class}: {fault}");
        }
        assert_eq!(v["holds"], true, "{class}");
    }
}

/// What `tare args` leaves and says when Ctrl-C is pressed as soon as it listens for that.
#[cfg(target_os = "linux")]
fn interrupted(home: &Home, args: &[&str]) -> std::process::Output {
    use std::process::Stdio;
    let mut child = home.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    // The second bit of the mask is SIGINT's: set once the program listens for it.
    let listens = || {
        let text = std::fs::read_to_string(&status).unwrap();
        let mask = text.lines().find_map(|l| l.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() & 0b10 != 0
    };
    while !listens() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was interrupted");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let sent = std::process::Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(sent.success());
    // Nobody waits for ever for what was not heard.
    for _ in 0..6000 {
        if child.try_wait().unwrap().is_some() {
            return child.wait_with_output().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    panic!("it goes on two minutes after it was interrupted")
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_leaves_nothing_behind() {
    let home = Home::new();
    let done = interrupted(&home, &clock_args("1000000", &[]));
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(130), "{said}");
    assert!(said.contains("nothing was recorded"), "{said}");
    assert!(done.stdout.is_empty());
    let left: Vec<String> = files(&home.path("")).into_iter().filter(|n| n != "ceilings.json").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The passes would take days: it ends before its first operator is whole, and says so.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_ends_a_study_of_operators() {
    let home = Home::new();
    let model = "synthetic:qwen3-tiny?format=q4_0";
    let asked = ["study", "ops", "-m", model, "--warm", "--op", "linear", "--rows", "1", "--passes", "100000000"];
    let done = interrupted(&home, &[&asked[..], &["--json"]].concat());
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(130), "{said}");
    assert!(said.contains("it ended after 0 of"), "{said}");
    let shown: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&shown["complete"], &shown["warm"]), (&json!(false), &json!([])), "{shown}");
}
