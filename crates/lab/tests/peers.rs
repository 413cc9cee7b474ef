//! A peer that is wrong in any way has no time: it is judged like tare itself, and what is no answer is an error that
//! names the peer.

#[path = "peers/openvino.rs"]
mod openvino;

use serde_json::Map;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tare_core::Reading;
use tare_cpu::{CpuConfig, detect_isa};
use tare_evidence::gate::{GateReport, Judgement};
use tare_evidence::samples::RowTokens;
use tare_lab::accuracy::{self, PeerLogits, Reference, Text};
use tare_lab::clock::clock_together;
use tare_lab::gate::{Gate, Run};
use tare_lab::peers::PeerRunner;
use tare_lab::peers::runner::{Limits, Load};
use tare_lab::reference;
use tare_lab::runner::{Drawn, Runner};
use tare_lab::thresholds::Thresholds;
use tare_lab::{ClockedRequest, LabError, Lengths, On, ReferenceStore, Rig};
use tare_model::{Model, PlanSpec};
use tare_ops::Class;

/// A tiny model, a request, and what tare answers to it in class f32, for a shim to repeat.
struct Scene {
    model: Model,
    /// Of one sequence, or of several that run together.
    requests: Vec<ClockedRequest>,
    folder: tempfile::TempDir,
}

impl Scene {
    fn new(sequences: usize) -> Self {
        let model = Model::open("synthetic:qwen3-tiny?format=f32").unwrap();
        let lengths = Lengths { depth: 3, prompt_tokens: 9, output_tokens: 7 };
        let requests = ClockedRequest::drawn_together(lengths, sequences, model.config().vocab, 1).unwrap();
        let scene = Self { model, requests, folder: tempfile::tempdir().unwrap() };
        let truth = clock_together(&mut scene.rig().engine().unwrap(), &scene.requests).unwrap().tokens;
        // As a shim says them: step by step, in each step a token of every sequence.
        let steps = || (0..truth[0].ids.len()).flat_map(|i| truth.iter().map(move |row| (row, i)));
        let ids: Vec<u32> = steps().map(|(row, i)| row.ids[i]).collect();
        let logits: Vec<f32> = steps().map(|(row, i)| row.logits[i]).collect();
        let vocab = scene.model.config().vocab;
        let mut all: Vec<f32> = Vec::new();
        let input = scene.requests[0].input();
        reference::rows(&mut scene.rig().engine().unwrap(), input, &mut |_, row| all.extend(row)).unwrap();
        let answers = serde_json::json!({ "ids": ids, "logits": logits, "vocab": vocab, "rows": all });
        std::fs::write(scene.answers(), answers.to_string()).unwrap();
        scene
    }

    fn answers(&self) -> PathBuf {
        self.folder.path().join("answers.json")
    }

    fn rig(&self) -> Rig<'_> {
        Rig {
            model: &self.model,
            on: On::Cpu,
            cpu: CpuConfig { threads: 1, isa: detect_isa(), pin: false, keep_workers: false },
            plan: PlanSpec::find("paged").unwrap(),
            class: Class::by_name("f32").unwrap(),
            sequences: self.requests.len(),
            context: self.requests[0].total_tokens(),
            max_rows: 16,
            delay: None,
        }
    }

    fn peer_within(&self, fault: &str, limits: Limits) -> Result<PeerRunner, LabError> {
        let mut command = Command::new("python3");
        let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/shim.py");
        command.arg(shim).arg(self.answers()).arg(fault);
        let load = Load {
            model: "model".into(),
            threads: 2,
            context: 32,
            sequences: self.requests.len(),
            settings: Map::new(),
        };
        PeerRunner::start("list", command, &load, limits)
    }

    fn peer(&self, fault: &str) -> Result<PeerRunner, LabError> {
        self.peer_within(fault, Limits::default())
    }

    /// What the peer draws for the request, in turns of 4 tokens.
    fn draw(&self, peer: &mut PeerRunner) -> Result<Drawn, LabError> {
        let mut drawn = Drawn::default();
        peer.prefill(&self.requests, &mut drawn)?;
        let wanted = self.requests[0].output_tokens;
        while drawn.steps.len() < wanted {
            let turn = 4.min(wanted - drawn.steps.len());
            peer.decode(turn, &mut drawn)?;
            peer.rest()?;
        }
        peer.finish()?;
        Ok(drawn)
    }

    /// The gate's verdict on a peer with `fault`.
    fn judged(&self, fault: &str) -> GateReport {
        let mut peer = self.peer(fault).unwrap();
        let rows = self.draw(&mut peer).unwrap().rows();
        let run = Run { label: "round 0", rows: &rows };
        self.judge(peer.class().unwrap(), &[run]).unwrap()
    }

    fn judge(&self, class: &str, runs: &[Run<'_>]) -> Result<GateReport, LabError> {
        let thresholds = Thresholds::built_in().unwrap();
        let store = ReferenceStore::none();
        let gate = Gate { rig: &self.rig(), requests: &self.requests, thresholds: &thresholds, store: &store };
        Ok(match gate.judge_emitted(class, runs)?.judge()? {
            Judgement::Passed(p) => p.report().clone(),
            Judgement::Failed(f) => f.report().clone(),
        })
    }

    /// The error that a peer with `fault` ends with.
    fn error(&self, fault: &str, limits: Limits) -> String {
        let drawn = self.peer_within(fault, limits).and_then(|mut peer| self.draw(&mut peer));
        drawn.expect_err("a peer at fault has no times").to_string()
    }
}

fn missed(report: &GateReport) -> Vec<&str> {
    let mut names: Vec<&str> = report.misses.iter().map(|m| m.check.as_str()).collect();
    names.dedup();
    names
}

#[test]
fn an_honest_peer_passes_with_and_without_logits() {
    let scene = Scene::new(1);
    for (fault, with_logits) in [("none", true), ("silent", false)] {
        let report = scene.judged(fault);
        assert!(report.misses.is_empty(), "{fault}: {:?}", report.misses);
        let compared = |name: &str| report.checks.iter().find(|c| c.name == name).map(|c| c.compared);
        assert_eq!(compared("accuracy-rank"), Some(7));
        assert_eq!(compared("accuracy-logit"), with_logits.then_some(7));
    }
}

#[test]
fn what_a_peer_says_of_itself_is_read_out() {
    let scene = Scene::new(1);
    let mut peer = scene.peer("none").unwrap();
    assert_eq!(peer.class().unwrap(), "f32");
    assert!(peer.streamed_bytes().available().is_none() && peer.memory().available().is_none());
    assert_eq!(peer.proof(), ["packed kernels: none"]);
    let identity = peer.identity();
    assert_eq!((identity.name.as_str(), identity.version.as_str()), ("list", "1"));
    assert_eq!(identity.settings["engine"]["threads"], 2);
    let drawn = scene.draw(&mut peer).unwrap();
    assert_eq!((drawn.steps[0].ns, drawn.steps[1].ns), (1000, 500));
    assert_eq!(peer.memory(), Reading::Available(4096));
    let all = [ClockedRequest { all_prompt_logits: true, ..scene.requests[0].clone() }];
    assert!(peer.prefill(&all, &mut Drawn::default()).unwrap_err().to_string().contains("a wish for all"));
}

#[test]
fn the_logits_of_a_text_are_read_from_a_file_that_is_gone_afterwards() {
    let scene = Scene::new(1);
    let input = scene.requests[0].input();
    let text = Text { ids: &input, window: input.len() };
    let reference = Reference::of(text, &mut scene.rig().engine().unwrap()).unwrap();
    let file = scene.folder.path().join("logits");
    let mut peer = scene.peer("none").unwrap();
    let scores = reference.scores(text, &mut PeerLogits { peer: &mut peer, file: &file }).unwrap();
    assert_eq!((&scores.nll, scores.other_best.len()), (&reference.nll, 0));
    assert!(scores.kl.iter().all(|kl| *kl == 0.0) && !file.exists(), "the same logits");
    let scorer = accuracy::peer_scorer(&peer, &scene.model, "file:list").unwrap();
    assert_eq!((scorer.class.as_str(), scorer.peer.unwrap().name.as_str()), ("f32", "list"));
    let mut short = scene.peer("short").unwrap();
    let said = reference.scores(text, &mut PeerLogits { peer: &mut short, file: &file }).unwrap_err().to_string();
    assert!(said.contains("12 rows of F32 logits, found 12 rows of 1024") && !file.exists(), "{said}");
}

#[test]
fn a_wrong_answer_is_a_miss() {
    let scene = Scene::new(1);
    for (fault, check, at) in [
        ("wrong-id", "accuracy-rank", "token 3"),
        ("wrong-logit", "accuracy-logit", "token 2"),
        ("no-such-id", "ids-in-vocabulary", "token 1"),
        ("null-logit", "accuracy-logit", "token 4"),
        ("promises-nothing", "output-logits", "round 0"),
    ] {
        let report = scene.judged(fault);
        let miss = report.misses.iter().find(|m| m.check == check).unwrap_or_else(|| panic!("{fault}: {report:?}"));
        assert!(miss.at.contains(at), "{fault}: {miss:?}");
    }
}

#[test]
fn runs_that_differ_or_are_short_are_misses() {
    let scene = Scene::new(1);
    let rows = scene.draw(&mut scene.peer("none").unwrap()).unwrap().rows();
    let whole = Run { label: "round 0", rows: &rows };
    let cut = |ids: usize, logits: usize| {
        [RowTokens { ids: rows[0].ids[..ids].to_vec(), logits: rows[0].logits[..logits].to_vec() }]
    };
    let (six, five) = (cut(6, 6), cut(7, 5));
    let short = Run { label: "round 1", rows: &six };
    assert_eq!(missed(&scene.judge("f32", &[whole, short]).unwrap()), ["rounds-agree", "output-length"]);
    assert_eq!(missed(&scene.judge("f32", &[short, short]).unwrap()), ["output-length"]);
    let partial = Run { rows: &five, ..whole };
    assert_eq!(missed(&scene.judge("f32", &[whole, partial]).unwrap()), ["output-logits"]);
    assert!(scene.judge("f32", &[]).is_err(), "nothing to judge is not a pass");
    let error = scene.judge("w3a8", &[whole]).unwrap_err().to_string();
    assert!(error.contains("accuracy.w3a8") && error.contains("calibrate"), "{error}");
}

#[test]
fn what_is_no_answer_names_the_peer_and_what_was_wrong() {
    let scene = Scene::new(1);
    for (fault, part) in [
        ("short", "expected 4 tokens, found 3 ids"),
        ("not-a-number", "a line of JSON"),
        ("chats", "now decoding"),
        ("refuses", "this model is not for me"),
        ("dies", "exit status: 7"),
        ("dies", "the reason of its death"),
    ] {
        let error = scene.error(fault, Limits::default());
        assert!(error.contains("peer list") && error.contains(part), "{fault}: {error}");
    }
    let undeclared = scene.peer("undeclared").unwrap();
    assert!(undeclared.class().unwrap_err().to_string().contains("cannot be judged"));
    let load = Load { model: "m".into(), threads: 1, context: 1, sequences: 1, settings: Map::new() };
    let missing = PeerRunner::start("list", Command::new("no-such-shim"), &load, Limits::default());
    assert!(missing.unwrap_err().to_string().contains("tare peers install list"));
}

#[test]
fn every_sequence_of_a_peer_is_judged() {
    let scene = Scene::new(3);
    for (fault, with_logits) in [("none", true), ("silent", false)] {
        let report = scene.judged(fault);
        assert!(report.misses.is_empty(), "{fault}: {:?}", report.misses);
        let compared = |name: &str| report.checks.iter().find(|c| c.name == name).map(|c| c.compared);
        assert_eq!(compared("accuracy-rank"), Some(3 * 7));
        assert_eq!(compared("accuracy-logit"), with_logits.then_some(3 * 7));
    }
    // The shim's list has the sequences side by side: places 1, 2, 3 and 4 are of steps 0 and 1.
    for (fault, check, at) in [
        ("wrong-id", "accuracy-rank", "sequence 0 token 1"),
        ("wrong-logit", "accuracy-logit", "round 0 sequence 2 token 0"),
        ("no-such-id", "ids-in-vocabulary", "round 0 sequence 1 token 0"),
    ] {
        let report = scene.judged(fault);
        let miss = report.misses.iter().find(|m| m.check == check).unwrap_or_else(|| panic!("{fault}: {report:?}"));
        assert!(miss.at.contains(at), "{fault}: {miss:?}");
    }
    let said = scene.error("short", Limits::default());
    assert!(said.contains("expected 12 tokens, found 9 ids"), "{said}");
    let mut peer = scene.peer("none").unwrap();
    assert_eq!(peer.identity().settings["sequences"], 3);
    let said = peer.prefill(&scene.requests[..2], &mut Drawn::default()).unwrap_err().to_string();
    assert!(said.contains("3 sequences, for which it was loaded, found 2"), "{said}");
}

#[test]
fn a_hung_peer_is_ended_and_named() {
    let scene = Scene::new(1);
    let limits = Limits { token: Duration::from_millis(50), ..Limits::default() };
    let start = Instant::now();
    let error = scene.error("hangs", limits);
    assert!(error.contains("decode: expected an answer within 200ms"), "{error}");
    assert!(error.contains("its log ends: started"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(300), "it would have slept for 600 s");
}
