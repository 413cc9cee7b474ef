//! `tare ledger` and `tare decide` on a ledger with a whole campaign.

mod home;
use home::Home;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The committed ledger of the `tare-evidence` tests: a campaign of three records, a replay, a sensitivity, a decision.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../evidence/tests/data/ledger/vm-2core/attention");

/// A home whose scratch ledger holds the campaign; gives its closing.
fn campaign() -> (Home, Value) {
    let home = Home::new();
    let folder = home.path("records").join("vm-2core/attention");
    fs::create_dir_all(&folder).unwrap();
    let mut closing = Value::Null;
    for file in fs::read_dir(KEPT).unwrap().map(|f| f.unwrap().path()) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        fs::copy(&file, folder.join(&name)).unwrap();
        if name.ends_with(".campaign.json") {
            closing = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        }
    }
    (home, closing)
}

fn id(document: &Value) -> &str {
    document["id"].as_str().unwrap()
}

fn text(home: &Home, args: &[&str]) -> String {
    String::from_utf8_lossy(&home.run(args).success().get_output().stdout).into_owned()
}

#[test]
fn list_and_show_name_kinds_verdicts_and_states() {
    let (home, closing) = campaign();
    let id = id(&closing);
    let lines = home.json(&["ledger", "list", "--json"]);
    let kinds: Vec<&str> = lines.as_array().unwrap().iter().map(|l| l["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds.iter().filter(|k| **k == "record").count(), 3, "{kinds:?}");
    let listed = lines.as_array().unwrap().iter().find(|l| l["id"] == json!(id)).unwrap();
    assert_eq!((&listed["verdicts"]["fused"], &listed["state"]), (&json!("keep"), &json!("valid")));
    assert!(listed["reopened_here"][0].as_str().unwrap().contains("another host class: vm-2core"));
    assert!(text(&home, &["ledger", "list"]).contains("fused keep"));

    let page = text(&home, &["ledger", "show", id]);
    assert!(page.contains("fused    keep: +") && page.contains("A/A      detectable effect"), "{page}");
    let file = home.json(&["ledger", "show", id, "--json"]);
    assert_eq!(file["kind"], "campaign");
    for line in lines.as_array().unwrap() {
        let shown = text(&home, &["ledger", "show", line["id"].as_str().unwrap()]);
        assert!(shown.contains("file     "), "{shown}");
    }
    let unknown = home.refused(&["ledger", "show", "nothing"]);
    assert!(unknown.contains("`nothing`: expected in the ledger, found none"), "{unknown}");
}

#[test]
fn diff_says_what_differs_and_whether_times_may_be_compared() {
    let (home, closing) = campaign();
    let pair = &closing["body"]["pairs"][1];
    let (a, b) = (id(&pair["baseline"]), id(&pair["candidate"]));
    let diff = home.json(&["ledger", "diff", a, b, "--json"]);
    assert_eq!((&diff["work"], &diff["comparable"]), (&json!({}), &json!(true)));
    assert_eq!(diff["arm"]["plan"], json!(["\"paged\"", "\"fused\""]));
    assert!(text(&home, &["ledger", "diff", a, b]).contains("may be compared"));
    let alone = Path::new(KEPT).join("../../../record-v2-laboratory.json");
    let said = home.refused(&["ledger", "diff", a, &alone.to_string_lossy()]);
    assert!(said.contains("may not be compared") && said.contains("campaign"), "{said}");
}

#[test]
fn a_new_state_is_written_beside_and_read_back() {
    let (home, closing) = campaign();
    let id = id(&closing);
    for (command, state) in [("reopen", "reopened"), ("stale", "stale"), ("retract", "retracted")] {
        assert!(text(&home, &["ledger", command, id, "--why", "a reason"]).contains(state));
        assert!(text(&home, &["ledger", "show", id]).contains(state));
    }
    assert!(home.refused(&["ledger", "retract", id, "--why", " "]).contains("expected a reason"));
    home.run(&["ledger", "verify", &home.path("records").to_string_lossy()]).success();
}

#[test]
fn merge_brings_a_ledger_into_another() {
    let (home, _) = campaign();
    let (from, into) = (home.path("records"), home.path("other"));
    let args = ["ledger", "merge", &from.to_string_lossy(), &into.to_string_lossy()];
    assert_eq!(text(&home, &args).lines().count(), 9);
    assert_eq!(text(&home, &args).lines().count(), 0);
    home.run(&["ledger", "verify", &into.to_string_lossy()]).success();
}

#[test]
fn the_noise_of_a_campaign_plans_the_next() {
    let (home, closing) = campaign();
    let id = id(&closing);
    let simulated = home.json(&["ledger", "simulate", id, "--studies", "2000", "--json"]);
    assert!(simulated["false_share"].as_f64().unwrap() <= 0.05, "{simulated}");
    assert_eq!(simulated["samples"], 6);
    let plan = home.json(&["ledger", "plan", "--effect", "0.03", "--power", "0.9", "--from", id, "--json"]);
    assert!(plan["power"].as_f64().unwrap() >= 0.9 && plan["rounds"].as_u64().unwrap() >= 6, "{plan}");
    let rounds = plan["rounds"].to_string();
    let power = home.json(&["ledger", "plan", "--effect", "0.03", "--rounds", &rounds, "--from", id, "--json"]);
    assert_eq!(power["power"], plan["power"]);
    assert!(home.refused(&["ledger", "simulate", "nothing"]).contains("closing of a campaign"));
}

#[test]
fn a_decision_needs_every_part_and_the_verdict_of_its_campaign() {
    let (home, closing) = campaign();
    let id = id(&closing);
    let decide = |support: &str, verdict: &str| {
        let parts = ["decide", "--dominant", "attention", "--mechanism", "read twice", "--support", support];
        let more = ["--hypothesis", "halves", "--falsifier", "as before", "--observed", "1.3x", "--verdict", verdict];
        let rest = ["--next-experiment", "fuse more", "--campaign", id, "--arm", "fused", "--json"];
        [&parts[..], &more[..], &rest[..]].concat().into_iter().map(String::from).collect::<Vec<_>>()
    };
    fn args(owned: &[String]) -> Vec<&str> {
        owned.iter().map(String::as_str).collect()
    }
    assert_eq!(home.json(&args(&decide(id, "keep")))["verdict"], "keep");
    let error = home.refused(&args(&decide(id, "reject")));
    assert!(error.contains("verdict: expected keep"), "{error}");
    let error = home.refused(&args(&decide("nothing", "keep")));
    assert!(error.contains("support: expected `nothing` in this ledger"), "{error}");
    assert!(home.refused(&["decide", "--dominant", "attention"]).contains("--mechanism"));
}

#[test]
fn a_record_is_made_again_and_judged() {
    let home = Home::new();
    let model = "synthetic:qwen3-tiny";
    let args = ["clock", "-m", model, "-p", "8", "-n", "5", "--rounds", "3", "--seed", "3", "--threads", "1", "--json"];
    let first = home.json(&args);
    let id = first["id"].as_str().unwrap();
    let other = home.refused(&["ledger", "reproduce", id]);
    assert!(other.contains("prompt_ids_sha256") && other.contains("--seed"), "{other}");
    // Whether it replicates is a matter of time; what was asked and what is kept is not.
    let done = home.run(&["ledger", "reproduce", id, "--seed", "3", "--json"]);
    let answer: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let again = home.json(&["ledger", "show", answer["again"].as_str().unwrap(), "--json"]);
    assert_eq!(again["work_sha256"], first["work_sha256"]);
    let known = answer["answer"] == "replicates" || answer["answer"]["does_not_replicate"].is_object();
    assert!(known, "{answer}");
}

#[test]
fn what_cannot_be_made_again_says_why() {
    let (home, closing) = campaign();
    let opening = closing["body"]["openings"][0].as_str().unwrap();
    let said = home.refused(&["ledger", "reproduce", opening]);
    assert!(said.contains("expected a record or a campaign, found a document of kind opening"), "{said}");
    let said = home.refused(&["ledger", "reproduce", id(&closing)]);
    assert!(said.contains("study.arms: paged: expected an arm of a study"), "{said}");
    assert_eq!(home.json(&["ledger", "list", "--json"]).as_array().unwrap().len(), 9, "nothing was run");
}

/// Two rounds give no interval, so that the answer is known; the study is the one that ran before.
#[test]
fn a_campaign_is_run_again_with_its_own_study() {
    let home = Home::new();
    let path = home.path("plans.toml");
    let study = "name = \"plans\"\nquestion = \"q?\"\nhypothesis = \"h\"\nfalsifier = \"f\"\nmisleads = \"m\"\n\
        metric = \"decode\"\nrole = \"diagnostic\"\nunder_study = [\"plan\"]\ndesign = \"balanced\"\nrounds = 2\n\
        [work]\nmodel = \"synthetic:qwen3-tiny\"\nprompt_tokens = 12\noutput_tokens = 5\nseed = 4\n\
        [[arms]]\nlabel = \"paged\"\nthreads = 1\n[[arms]]\nlabel = \"kv\"\nthreads = 1\nplan = \"kv-cache\"\n";
    fs::write(&path, study).unwrap();
    let first = home.json(&["study", &path.to_string_lossy(), "--json"]);
    let campaign = id(&first["campaign"]);
    let done = home.run(&["ledger", "reproduce", campaign, "--json"]).failure();
    let answer: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let why = answer["answer"]["does_not_replicate"]["why"][0].as_str().unwrap();
    assert!(why.starts_with("kv: no interval") && answer["other_host_class"] == json!(false), "{answer}");
    let again = home.json(&["ledger", "show", answer["again"].as_str().unwrap(), "--json"]);
    let pairs = &first["campaign"]["body"]["pairs"];
    let record = home.json(&["ledger", "show", id(&pairs[0]["baseline"]), "--json"]);
    let mut study = first["campaign"]["body"]["study"].clone();
    for arm in study["arms"].as_array_mut().unwrap() {
        arm["what"]["class"] = record["arm"]["class"].clone();
    }
    assert_eq!(again["body"]["study"], study, "every arm by name in the class that it ran in");
    home.run(&["ledger", "verify", &home.path("records").to_string_lossy()]).success();
    let lost = format!("{}.json", id(&pairs[1]["candidate"]));
    fs::remove_file(Path::new(first["path"].as_str().unwrap()).with_file_name(lost)).unwrap();
    let said = home.refused(&["ledger", "reproduce", campaign]);
    assert!(said.contains("study.arms: kv: class: expected the record of the arm"), "{said}");
}
