//! A world without processes and without time, which answers by script.

use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use tare_core::Reading;
use tare_evidence::gate::{Check, GateReport, Miss};
use tare_evidence::record::Memory;
use tare_evidence::samples::{RowTokens, Timing};
use tare_evidence::{Ledger, Utc};
use tare_lab::arm::process::Lost;
use tare_lab::arm::protocol::Judged;
use tare_lab::campaign::bench::CeilingPass;
use tare_lab::campaign::journal::{Attempt, Opened, Unfinished};
use tare_lab::campaign::{Bench, Campaign, Ended, Journal, LiveArm, Seating, Writer};
use tare_lab::clock::Baton;
use tare_lab::floor::CeilingKind;
use tare_lab::{ArmFacts, Study};
use tare_probe::{Host, Quietness};

/// What went on, one word a call.
pub(crate) type Log = Rc<RefCell<Vec<String>>>;

/// What goes wrong: in which process, counted from 1, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trouble {
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
    /// Every process of the candidate draws other tokens than the baseline.
    Apart,
    /// Every process of the candidate is held to a looser limit.
    Lenient,
    /// Every process of the candidate has another number of threads.
    Confounded,
    /// Every process of the baseline's twin has.
    OddTwin,
    /// Its report says nothing against an error over its limit, and it gives times.
    Lying(usize),
    /// It is another plan than before.
    Replanned(usize),
    /// Another work than the control's.
    OtherWork(usize),
    /// A binary changed on disk.
    Rebuilt,
    /// The host gives no memory to read from.
    NoCeiling,
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

/// An arm that a record can be made of: the baseline and its twin are one, the candidate has another plan.
fn facts(label: &str) -> ArmFacts {
    let record: serde_json::Value = tare_testkit::json(specimen());
    let part = |name: &str| record[name].clone();
    let name = if label == "new" { "kv-cache" } else { "paged" };
    // A phase of the script takes 100 and 80 ns.
    let demand = |bytes: u64| {
        json!({
            "weight_bytes": bytes, "kv_read_bytes": 0, "kv_write_bytes": 0, "flops": 0,
            "byte_ceiling": "memory-read", "flop_ceiling": "fma-f32",
        })
    };
    let mut facts: ArmFacts = serde_json::from_value(json!({
        "work": part("work"),
        "arm": part("arm"),
        "plan": { "name": name, "calls": [name] },
        "demands": { "prefill": demand(500), "decode": demand(800) },
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
    (facts.work.prompt_lengths, facts.work.output_lengths) = (vec![4], vec![9]);
    facts.arm.plan = name.to_string();
    facts.arm.plan_sha256 = tare_evidence::canonical::digest(&facts.plan);
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
        let odd = |trouble, of: &str| self.trouble == trouble && label == of;
        if odd(Trouble::Confounded, "new") || odd(Trouble::OddTwin, "a-a") {
            facts.arm.threads = Reading::Available(77);
        }
        let (log, number, trouble) = (Rc::clone(&self.log), self.started, self.trouble);
        Ok(Box::new(ScriptedArm { facts, label, log, number, trouble }))
    }
    fn quietness(&mut self) -> Quietness {
        Quietness::observe(std::time::Duration::ZERO)
    }
    fn ceiling(&mut self, kind: CeilingKind, _facts: &ArmFacts) -> CeilingPass {
        self.log.borrow_mut().push("ceiling".to_string());
        let samples = match self.trouble {
            Trouble::NoCeiling => Reading::unavailable("no memory for it"),
            _ => Reading::Available(vec![(1000, 10), (1000, 20)]),
        };
        CeilingPass { kind, threads: 1, working_set_bytes: 4096, pages: "a script's".to_string(), samples }
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
        let of_new = |trouble| self.trouble == trouble && self.label == "new";
        let first = if is(Trouble::Other) || of_new(Trouble::Apart) { 99 } else { 0 };
        let ids: Vec<u32> = (0..9).map(|i| if i == 0 { first } else { i }).collect();
        let limit = if of_new(Trouble::Lenient) { 0.5 } else { 0.0 };
        let max_error = if is(Trouble::Lying) { 1.0 } else { 0.0 };
        let check = Check { name: "emulation-logit".into(), compared: 9, max_error, limit };
        let miss = Miss { check: "emulation-logit".into(), at: "t".into(), expected: "e".into(), found: "f".into() };
        let wrong = is(Trouble::Wrong);
        let none = || Reading::unavailable("a script has no memory");
        Ok(Judged {
            gate: GateReport {
                // Of limits before version 2 nothing is known: a script has the checks that it wants.
                thresholds_version: "1".into(),
                checks: vec![check],
                misses: if wrong { vec![miss] } else { Vec::new() },
            },
            tokens: vec![RowTokens { logits: vec![1.0; ids.len()], ids }],
            timing: (!wrong && !is(Trouble::Mute)).then(|| Timing {
                device: None,
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
                peak_rss_bytes: Some(none()),
            },
            rows: None,
            device: None,
            pages: None,
            benched: None,
        })
    }
}

/// A study of the given design with one candidate, its folder, its ledger, and what went on.
pub(crate) struct Scene {
    study: Study,
    seating: Seating,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) kept: tempfile::TempDir,
    host: Host,
    pub(crate) log: Log,
}

impl Scene {
    pub(crate) fn new(design: &str, rounds: u32) -> Self {
        Self::of(design, rounds, "")
    }

    /// The same with an arm that measures what is read.
    pub(crate) fn with_ceiling(design: &str, rounds: u32) -> Self {
        Self::of(design, rounds, "[[arms]]\nlabel = \"top\"\nceiling = \"read\"\n")
    }

    fn of(design: &str, rounds: u32, more: &str) -> Self {
        let text = format!(
            "name = \"s\"\nquestion = \"q\"\nhypothesis = \"h\"\nfalsifier = \"f\"\nmisleads = \"m\"\n\
             under_study = [\"plan\"]\ndesign = \"{design}\"\nmetric = \"decode\"\nrounds = {rounds}\n\
             role = \"screening\"\n[work]\nmodel = \"synthetic:qwen3-tiny\"\nprompt_tokens = 4\noutput_tokens = 9\n\
             [[arms]]\nlabel = \"base\"\n[[arms]]\nlabel = \"new\"\nplan = \"kv-cache\"\n{more}"
        );
        let study = Study::parse(&text).unwrap();
        let seating = Seating::new(&study.plan().unwrap());
        let [folder, kept] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        Self { study, seating, folder, kept, host: Host::read(), log: Log::default() }
    }

    pub(crate) fn opened(&self) -> Opened {
        Opened {
            campaign: "c".into(),
            at: Utc::from_unix_seconds(1_800_000_000).unwrap(),
            study: self.study.clone(),
            study_sha256: self.study.digest().unwrap(),
            plan: self.study.plan().unwrap(),
            host_class_sha256: "h".into(),
            sources: BTreeMap::from([("base".to_string(), "binary 1".to_string())]),
            binary_sha256: "runner 1".into(),
            ledger: self.kept.path().to_path_buf(),
        }
    }

    /// Writes an opening or closes.
    pub(crate) fn writes<T>(&self, what: impl FnOnce(&Writer<'_>) -> T) -> T {
        let (build, ledger) = (facts("base").build, Ledger::at(self.kept.path()));
        what(&Writer { host: &self.host, build: &build, ledger: &ledger })
    }

    pub(crate) fn unfinished(&self) -> Unfinished {
        Journal::unfinished(self.folder.path(), &self.study.digest().unwrap()).unwrap()
    }

    pub(crate) fn journal(&self) -> Journal {
        Journal::create(self.folder.path(), self.opened()).unwrap()
    }

    pub(crate) fn run(&self, journal: &mut Journal, trouble: Trouble) -> Ended {
        let labels = self.study.cast().into_iter().map(|a| a.label).collect();
        let mut bench = Scripted { labels, log: Rc::clone(&self.log), started: 0, trouble };
        let planned_rounds = self.study.planned_rounds().unwrap();
        let (number, at) = (journal.attempts().count() as u32 + 1, Utc::from_unix_seconds(1_800_000_000).unwrap());
        let opening = self.writes(|w| w.open(journal.opened().unwrap(), &[], number, at).unwrap());
        let attempt = Attempt { number, at, opening };
        let campaign = Campaign { study: &self.study, seating: &self.seating, planned_rounds };
        campaign.run(attempt, &mut bench, journal, &mut |_| {}).unwrap()
    }

    pub(crate) fn said(&self, what: &str) -> Vec<String> {
        self.log.borrow().iter().filter(|l| l.starts_with(what)).cloned().collect()
    }
}
