//! The campaign runner without processes and without time: orders, turns, what is kept, and what takes a verdict away.

use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use tare_core::Reading;
use tare_evidence::Utc;
use tare_evidence::gate::{Check, GateReport, Miss};
use tare_evidence::record::Memory;
use tare_evidence::samples::{RowTokens, Timing};
use tare_lab::arm::process::Lost;
use tare_lab::arm::protocol::Judged;
use tare_lab::campaign::bench::CeilingPass;
use tare_lab::campaign::journal::{Attempt, Opened, When};
use tare_lab::campaign::{Bench, Campaign, Ended, Journal, LiveArm, Seating};
use tare_lab::clock::Baton;
use tare_lab::{ArmFacts, Study};
use tare_probe::Quietness;

/// What went on, one word a call.
type Log = Rc<RefCell<Vec<String>>>;

/// What goes wrong: in which process, counted from 1, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    None,
    /// The process is gone when it should decode.
    Gone(usize),
    /// A person stops the campaign while it decodes.
    Stopped(usize),
    /// Its gate fails.
    Wrong(usize),
    /// It gives no times behind a passed gate.
    Mute(usize),
    /// It draws other tokens.
    Other(usize),
    /// It is another plan than before.
    Replanned(usize),
    /// Another work than the control's.
    OtherWork(usize),
    /// A binary changed on disk.
    Rebuilt,
}

/// A world that answers by script.
struct Scripted {
    labels: Vec<String>,
    log: Log,
    started: usize,
    trouble: Trouble,
}

struct ScriptedArm {
    facts: ArmFacts,
    label: String,
    log: Log,
    number: usize,
    trouble: Trouble,
}

fn facts(label: &str) -> ArmFacts {
    let record: serde_json::Value = tare_testkit::json(specimen());
    let part = |name: &str| record[name].clone();
    let mut facts: ArmFacts = serde_json::from_value(json!({
        "work": part("work"),
        "arm": part("arm"),
        "plan": { "name": label },
        "demands": part("demands"),
        "config": { "context": 4096 },
        "build": {
            "software": record["provenance"]["software"],
            "source": record["provenance"]["source"],
            "binary_sha256": record["provenance"]["binary_sha256"],
        },
        "threads": 1,
        "streamed_bytes": 100,
        "notes": [],
    }))
    .unwrap();
    facts.work.output_lengths = vec![9];
    facts
}

/// A committed record, whose parts are those of a real arm.
fn specimen() -> std::path::PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../evidence/amd-epyc-2t/next");
    let files = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path());
    files.filter(|f| f.extension().is_some_and(|e| e == "json")).min().unwrap()
}

impl Bench for Scripted {
    fn start(&mut self, arm: usize) -> Result<Box<dyn LiveArm>, Lost> {
        self.started += 1;
        let label = self.labels[arm].clone();
        self.log.borrow_mut().push(format!("start {label}"));
        let mut facts = facts(&label);
        if self.trouble == Trouble::Replanned(self.started) {
            facts.plan = json!({ "name": "another" });
        }
        if self.trouble == Trouble::OtherWork(self.started) {
            facts.work.depth += 1;
        }
        let (log, number, trouble) = (Rc::clone(&self.log), self.started, self.trouble);
        Ok(Box::new(ScriptedArm { facts, label, log, number, trouble }))
    }
    fn quietness(&mut self) -> Quietness {
        Quietness::observe(std::time::Duration::ZERO)
    }
    fn ceilings(&mut self, _facts: &ArmFacts) -> Vec<CeilingPass> {
        self.log.borrow_mut().push("ceilings".to_string());
        Vec::new()
    }
    fn changed(&mut self) -> Option<String> {
        (self.trouble == Trouble::Rebuilt).then(|| "base was changed while it was measured".to_string())
    }
    fn now(&mut self) -> Result<Utc, tare_core::Fault> {
        Utc::from_unix_seconds(1_800_000_000)
    }
}

impl ScriptedArm {
    fn say(&self, what: &str) {
        self.log.borrow_mut().push(format!("{what} {}", self.label));
    }
}

impl Drop for ScriptedArm {
    fn drop(&mut self) {
        self.say("end");
    }
}

impl LiveArm for ScriptedArm {
    fn facts(&self) -> &ArmFacts {
        &self.facts
    }
    fn warm_up(&mut self, tokens: usize) -> Result<(), Lost> {
        self.say(&format!("warm-up {tokens}"));
        Ok(())
    }
    fn prefill(&mut self) -> Result<(), Lost> {
        self.say("prefill");
        Ok(())
    }
    fn decode(&mut self, tokens: usize, baton: Baton) -> Result<(), Lost> {
        if self.trouble == Trouble::Gone(self.number) {
            return Err(Lost::Child("the process ended (signal: 9)".to_string()));
        }
        if self.trouble == Trouble::Stopped(self.number) {
            return Err(Lost::Interrupted);
        }
        self.say(&format!("decode {tokens}{}", if baton == Baton::Returned { "r" } else { "" }));
        Ok(())
    }
    fn finish(&mut self) -> Result<(), Lost> {
        self.say("finish");
        Ok(())
    }
    fn rest(&mut self) -> Result<(), Lost> {
        self.say("rest");
        Ok(())
    }
    fn judge(&mut self, full: bool) -> Result<Judged, Lost> {
        self.say(if full { "judge-all" } else { "judge" });
        let is = |trouble: fn(usize) -> Trouble| self.trouble == trouble(self.number);
        let first = if is(Trouble::Other) { 99 } else { 0 };
        let ids: Vec<u32> = (0..9).map(|i| if i == 0 { first } else { i }).collect();
        let check = Check { name: "emulation-logit".into(), compared: 9, max_error: 0.0, limit: 0.0 };
        let miss = Miss { check: "emulation-logit".into(), at: "t".into(), expected: "e".into(), found: "f".into() };
        let wrong = is(Trouble::Wrong);
        let none = || Reading::unavailable("a script has no memory");
        Ok(Judged {
            gate: GateReport {
                thresholds_version: "2".into(),
                checks: vec![check],
                misses: if wrong { vec![miss] } else { Vec::new() },
            },
            tokens: RowTokens { logits: vec![1.0; ids.len()], ids },
            timing: (!wrong && !is(Trouble::Mute)).then(|| Timing {
                setup_ns: 1,
                prefill_ns: 100,
                token_ns: vec![10; 8],
                release_ns: 1,
                main_thread_cpu_ns: none(),
                untimed: Vec::new(),
            }),
            memory: Memory {
                allocator_peak_bytes: none(),
                anonymous_rss_bytes: none(),
                file_rss_bytes: none(),
                device_bytes: none(),
                kv_bytes: none(),
            },
            rows: None,
        })
    }
}

/// A study of the given design with one candidate, its folder, and what went on.
struct Scene {
    study: Study,
    seating: Seating,
    folder: tempfile::TempDir,
    log: Log,
}

impl Scene {
    fn new(design: &str, rounds: u32) -> Self {
        let text = format!(
            "name = \"s\"\nquestion = \"q\"\nhypothesis = \"h\"\nfalsifier = \"f\"\nmisleads = \"m\"\n\
             under_study = [\"plan\"]\ndesign = \"{design}\"\nmetric = \"decode\"\nrounds = {rounds}\n\
             role = \"screening\"\n[work]\nmodel = \"synthetic:qwen3-tiny\"\nprompt_tokens = 4\noutput_tokens = 9\n\
             [[arms]]\nlabel = \"base\"\n[[arms]]\nlabel = \"new\"\nplan = \"kv-cache\"\n"
        );
        let study = Study::parse(&text).unwrap();
        let seating = Seating::new(&study.plan().unwrap());
        Self { study, seating, folder: tempfile::tempdir().unwrap(), log: Log::default() }
    }

    fn opened(&self) -> Opened {
        Opened {
            campaign: "c".into(),
            at: Utc::from_unix_seconds(1_800_000_000).unwrap(),
            study: self.study.clone(),
            study_sha256: self.study.digest().unwrap(),
            plan: self.study.plan().unwrap(),
            host_class_sha256: "h".into(),
            sources: BTreeMap::from([("base".to_string(), "binary 1".to_string())]),
        }
    }

    fn journal(&self) -> Journal {
        Journal::create(self.folder.path(), self.opened()).unwrap()
    }

    fn run(&self, journal: &mut Journal, trouble: Trouble) -> Ended {
        let labels = self.study.cast().into_iter().map(|a| a.label).collect();
        let mut bench = Scripted { labels, log: Rc::clone(&self.log), started: 0, trouble };
        let planned_rounds = self.study.planned_rounds().unwrap();
        let (number, at) = (journal.attempts().count() as u32 + 1, Utc::from_unix_seconds(1_800_000_000).unwrap());
        let attempt = Attempt { number, at, opening: format!("opening-{number}") };
        let campaign = Campaign { study: &self.study, seating: &self.seating, planned_rounds };
        campaign.run(attempt, &mut bench, journal, &mut |_| {}).unwrap()
    }

    fn said(&self, what: &str) -> Vec<String> {
        self.log.borrow().iter().filter(|l| l.starts_with(what)).cloned().collect()
    }
}

#[test]
fn every_arm_runs_once_a_round_in_a_fresh_process_between_two_controls() {
    let scene = Scene::new("balanced", 2);
    let mut journal = scene.journal();
    assert_eq!(scene.run(&mut journal, Trouble::None), Ended::Complete);
    let starts: Vec<String> = scene.said("start").iter().map(|s| s.replace("start ", "")).collect();
    assert_eq!(starts, ["base", "base", "a-a", "new", "new", "a-a", "base", "base"]);
    assert_eq!(scene.said("end").len(), starts.len(), "no process outlives its turn");
    assert_eq!(scene.said("ceilings").len(), 2);
    // One process at a time.
    let mut live = 0;
    for line in scene.log.borrow().iter() {
        live += i32::from(line.starts_with("start")) - i32::from(line.starts_with("end"));
        assert!(live <= 1, "{line}");
    }
    let one: Vec<String> = scene.log.borrow()[..6].to_vec();
    assert_eq!(one, ["start base", "warm-up 3 base", "prefill base", "decode 8 base", "finish base", "judge-all base"]);
    assert_eq!(journal.rounds().count(), 2);
    let controls: Vec<When> = journal.controls().map(|c| c.when).collect();
    assert_eq!(controls, [When::Start, When::End]);
}

#[test]
fn the_cache_is_compared_in_the_first_and_last_round_and_tokens_in_all() {
    let scene = Scene::new("balanced", 4);
    assert_eq!(scene.run(&mut scene.journal(), Trouble::None), Ended::Complete);
    assert_eq!(scene.said("judge-all new").len(), 2);
    assert_eq!(scene.said("judge new").len(), 2);
}

#[test]
fn in_a_duet_two_live_arms_take_turns_and_rest_in_between() {
    let scene = Scene::new("duet", 2);
    assert_eq!(scene.run(&mut scene.journal(), Trouble::None), Ended::Complete);
    let log = scene.log.borrow();
    let first = log.iter().position(|l| l == "start a-a").unwrap();
    let end = first + log[first..].iter().position(|l| l.starts_with("end")).unwrap();
    let turns: Vec<&str> = log[first..end].iter().map(String::as_str).filter(|l| !l.starts_with("warm")).collect();
    assert_eq!(
        turns,
        [
            "start a-a",
            "rest a-a",
            "prefill base",
            "rest base",
            "prefill a-a",
            "rest a-a",
            "decode 4r base",
            "rest base",
            "decode 4r a-a",
            "rest a-a",
            "decode 4r base",
            "rest base",
            "decode 4r a-a",
            "rest a-a",
            "finish base",
            "judge-all base",
            "rest base",
            "finish a-a",
            "judge-all a-a",
            "rest a-a",
        ]
    );
}

#[test]
fn a_lost_process_ends_the_attempt_and_the_next_one_goes_on() {
    let scene = Scene::new("balanced", 3);
    let mut journal = scene.journal();
    // Processes: control, round 0 (3), then the second of round 1.
    let Ended::Stopped(s) = scene.run(&mut journal, Trouble::Gone(6)) else { panic!("it went on") };
    assert_eq!((s.attempt, s.round, s.resumable, s.interrupted), (1, 1, true, false));
    assert!(s.why.starts_with("a-a: the process ended"), "{}", s.why);
    assert_eq!(journal.rounds().count(), 1, "a round without all of its arms is no round");
    drop(journal);
    let mut journal = Journal::last_open(scene.folder.path()).unwrap().unwrap();
    journal.can_go_on(&scene.opened()).unwrap();
    assert_eq!(scene.run(&mut journal, Trouble::None), Ended::Complete);
    let of: Vec<(u32, u32)> = journal.rounds().map(|r| (r.attempt, r.round)).collect();
    assert_eq!(of, [(1, 0), (2, 1), (2, 2)]);
    assert_eq!((journal.attempts().count(), journal.controls().count()), (2, 3));
}

#[test]
fn an_interrupt_keeps_the_finished_rounds() {
    let scene = Scene::new("duet", 3);
    let mut journal = scene.journal();
    // Processes: control, round 0 (4), round 1.
    assert_eq!(scene.run(&mut journal, Trouble::Stopped(6)), Ended::Interrupted);
    assert_eq!(journal.rounds().count(), 1);
    assert!(journal.stops().all(|s| s.resumable && s.interrupted));
    assert_eq!(scene.said("start").len(), scene.said("end").len());
    drop(journal);
    let journal = Journal::last_open(scene.folder.path()).unwrap().unwrap();
    journal.can_go_on(&scene.opened()).unwrap();
}

#[test]
fn what_was_measured_is_no_longer_the_same_and_no_attempt_goes_on() {
    // Processes: control, round 0 (base, a-a, new), round 1 (new, a-a, base).
    for (trouble, says, rounds) in [
        (Trouble::Wrong(6), "the gate of a-a failed in round 1", 2),
        (Trouble::Mute(6), "a-a gave no times in round 1", 2),
        (Trouble::Other(6), "a-a drew other tokens in round 1 than in round 0", 2),
        (Trouble::Replanned(6), "a-a is another arm than it was: its plan", 1),
        (Trouble::OtherWork(4), "new: not the same work: depth", 0),
        (Trouble::Rebuilt, "base was changed", 1),
        (Trouble::Wrong(1), "the gate of the control failed", 0),
    ] {
        let scene = Scene::new("balanced", 3);
        let mut journal = scene.journal();
        let Ended::Stopped(s) = scene.run(&mut journal, trouble) else { panic!("{trouble:?} went on") };
        assert!(s.why.contains(says) && !s.resumable, "{trouble:?}: {s:?}");
        assert_eq!(journal.rounds().count(), rounds, "{trouble:?}: what ran is kept");
        let refused = journal.can_go_on(&scene.opened()).unwrap_err().to_string();
        assert!(refused.contains("run the study anew"), "{refused}");
    }
}

#[test]
fn another_study_host_or_binary_does_not_go_on_with_it() {
    let scene = Scene::new("balanced", 3);
    let mut journal = scene.journal();
    scene.run(&mut journal, Trouble::Gone(2));
    let refused = |change: fn(&mut Opened)| {
        let mut now = scene.opened();
        change(&mut now);
        journal.can_go_on(&now).unwrap_err().to_string()
    };
    assert!(refused(|o| o.study_sha256 = "x".into()).contains("a study with digest"));
    assert!(refused(|o| o.host_class_sha256 = "x".into()).contains("a host of class h"));
    assert!(refused(|o| drop(o.sources.insert("base".into(), "binary 2".into()))).contains("`base` from binary 1"));
    assert!(refused(|o| o.sources.clear()).contains("no such arm"));
}

#[test]
fn a_journal_belongs_to_one_process_and_survives_a_torn_line() {
    let scene = Scene::new("balanced", 2);
    let mut journal = scene.journal();
    scene.run(&mut journal, Trouble::Gone(5));
    let path = journal.path().to_path_buf();
    let busy = Journal::last_open(scene.folder.path()).unwrap_err().to_string();
    assert!(busy.contains("another process runs it"), "{busy}");
    let rounds = journal.rounds().count();
    drop(journal);
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{whole}{{\"line\":\"round\",\"att")).unwrap();
    let mut journal = Journal::last_open(scene.folder.path()).unwrap().unwrap();
    assert_eq!(journal.rounds().count(), rounds);
    assert_eq!(scene.run(&mut journal, Trouble::None), Ended::Complete);
    drop(journal);
    let again = Journal::last_open(scene.folder.path()).unwrap().unwrap();
    assert_eq!(again.rounds().count(), 2, "what was cut off did not spoil the next line");
    drop(again);
    std::fs::write(&path, whole.replacen("\"attempt\"", "\"attemt\"", 1)).unwrap();
    let said = Journal::last_open(scene.folder.path()).unwrap_err().to_string();
    assert!(said.contains("line 2") && said.contains("the build that began it"), "{said}");
}
