//! The gate on a real engine: what passes, what each check catches, and what the store of references saves.

use tare_cpu::{CpuConfig, detect_isa};
use tare_engine::Engine;
use tare_evidence::gate::{GateReport, Judgement};
use tare_lab::clock::{Timed, clock};
use tare_lab::gate::{Gate, Run};
use tare_lab::reference::{Scoring, score};
use tare_lab::thresholds::Thresholds;
use tare_lab::{ClockedRequest, LabError, Lengths, On, ReferenceStore, Rig};
use tare_model::{Model, PlanSpec};
use tare_ops::Class;

const LENGTHS: Lengths = Lengths { depth: 0, prompt_tokens: 20, output_tokens: 5 };

/// A tiny model and one request for it.
struct Scene {
    model: Model,
    request: ClockedRequest,
    thresholds: Thresholds,
    store: ReferenceStore,
}

impl Scene {
    fn new(lengths: Lengths) -> Self {
        let model = Model::open("synthetic:qwen3-tiny?format=w4g128").unwrap();
        let request = ClockedRequest::drawn(lengths, model.config().vocab, 1).unwrap();
        Self { model, request, thresholds: Thresholds::built_in().unwrap(), store: ReferenceStore::none() }
    }

    fn rig(&self, plan: &str, class: &str) -> Rig<'_> {
        Rig {
            model: &self.model,
            on: On::Cpu,
            cpu: CpuConfig { threads: 1, isa: detect_isa(), pin: false, keep_workers: false },
            plan: PlanSpec::find(plan).unwrap(),
            class: Class::by_name(class).unwrap(),
            sequences: 1,
            context: self.request.total_tokens(),
            max_rows: 16,
            delay: None,
        }
    }

    /// Judges what `edit` makes of two honest runs.
    fn judge(&self, rig: &Rig<'_>, edit: impl FnOnce(&mut [Timed; 2])) -> GateReport {
        let mut engine = rig.engine().unwrap();
        let mut timed = [(); 2].map(|()| clock(&mut engine, &self.request).unwrap());
        edit(&mut timed);
        self.judge_as(rig, &mut engine, &timed)
    }

    fn judge_as(&self, rig: &Rig<'_>, engine: &mut Engine, timed: &[Timed; 2]) -> GateReport {
        let requests = std::slice::from_ref(&self.request);
        let gate = Gate { rig, requests, thresholds: &self.thresholds, store: &self.store };
        let runs = [("warm-up 0", &timed[0]), ("round 0", &timed[1])].map(|(label, t)| Run { label, rows: &t.tokens });
        match gate.judge(engine, &runs).unwrap().judge().unwrap() {
            Judgement::Passed(p) => p.report().clone(),
            Judgement::Failed(f) => f.report().clone(),
        }
    }
}

fn missed(report: &GateReport) -> Vec<&str> {
    let mut names: Vec<&str> = report.misses.iter().map(|m| m.check.as_str()).collect();
    names.dedup();
    names
}

#[test]
fn honest_runs_pass_under_every_storage_and_class() {
    let scene = Scene::new(LENGTHS);
    for plan in ["recompute", "kv-cache", "capacity-cache", "paged"] {
        for class in ["f32", "w4a16", "w4a16-free", "w4a8", "w4a15"] {
            let report = scene.judge(&scene.rig(plan, class), |_| {});
            assert!(report.misses.is_empty(), "{plan} {class}: {:?}", report.misses);
            let has = |name: &str| report.checks.iter().any(|c| c.name == name && c.compared > 0);
            assert_eq!(has("accuracy-logit"), class != "f32", "{plan} {class}: f32 is its own reference");
            for check in ["kv", "kv-token"] {
                assert_eq!(has(check), plan != "recompute", "{plan} {class}: where there is a cache, it is compared");
            }
            assert_eq!(
                has("operators"),
                class == "w4a16-free",
                "{plan} {class}: launches are judged in any order alone"
            );
            assert!(has("rounds-agree") && has("emulation-logit") && has("emulation-rank"));
        }
    }
}

#[test]
fn a_request_at_a_depth_is_judged_from_its_first_token() {
    let scene = Scene::new(Lengths { depth: 24, ..LENGTHS });
    for class in ["w4a16", "w4a16-free"] {
        let report = scene.judge(&scene.rig("paged", class), |runs| {
            let computed = (20 + 4, 5);
            assert!(runs.iter().all(|r| r.rows.available() == Some(&computed)), "the prefix was in the cache");
        });
        assert!(report.misses.is_empty(), "{class}: {:?}", report.misses);
    }
}

#[test]
fn a_depth_that_was_not_reached_has_no_time() {
    let mut scene = Scene::new(Lengths { depth: 24, ..LENGTHS });
    scene.request.all_prompt_logits = true;
    let mut engine = scene.rig("paged", "w4a16").engine().unwrap();
    let error = clock(&mut engine, &scene.request).unwrap_err().to_string();
    assert!(error.contains("0 tokens in the cache where its depth is 24"), "{error}");
}

/// Turns the last bit of a logit.
fn spoil(timed: &mut Timed) {
    let logit = &mut timed.tokens[0].logits[3];
    *logit = f32::from_bits(logit.to_bits() ^ 1);
}

#[test]
fn a_logit_that_is_off_by_its_last_bit_is_a_miss() {
    let scene = Scene::new(LENGTHS);
    let report = scene.judge(&scene.rig("paged", "w4a16"), |runs| {
        spoil(&mut runs[1]);
    });
    assert_eq!(missed(&report), ["emulation-logit"]);
    assert_eq!(report.misses.len(), 1);
    assert!(report.misses[0].at.contains("round 0 token 3"), "{:?}", report.misses);
}

/// The steps that are taken apart must be the timed ones: in a class in any order too, a bit tells.
#[test]
fn a_logit_that_the_run_taken_apart_does_not_have_is_a_miss() {
    let scene = Scene::new(LENGTHS);
    let report = scene.judge(&scene.rig("paged", "w4a16-free"), |runs| {
        spoil(&mut runs[0]);
    });
    assert_eq!(missed(&report), ["operators"]);
    assert!(report.misses[0].at.contains("token 3 of the run taken apart"), "{:?}", report.misses);
}

#[test]
fn another_id_is_a_miss_in_one_round_and_in_all() {
    let scene = Scene::new(LENGTHS);
    let rig = scene.rig("paged", "w4a16");
    let swap = |t: &mut Timed| t.tokens[0].ids[2] = (t.tokens[0].ids[2] + 1) % 1024;
    let report = scene.judge(&rig, |runs| swap(&mut runs[1]));
    assert_eq!(missed(&report), ["rounds-agree"]);
    assert!(report.misses[0].at.contains("round 0 token 2"));
    // Every round says the same wrong thing: the rounds agree, the references do not.
    let report = scene.judge(&rig, |runs| runs.iter_mut().for_each(swap));
    let names = missed(&report);
    for check in ["emulation-logit", "emulation-rank", "accuracy-logit", "accuracy-rank"] {
        assert!(names.contains(&check), "{check}: {names:?}");
    }
    assert!(!names.contains(&"rounds-agree"));
}

#[test]
fn limits_belong_to_the_class_and_their_version_is_named() {
    let mut scene = Scene::new(LENGTHS);
    let tight = scene.thresholds.accuracy.get_mut("w4a16").unwrap();
    tight.logit = 1e-12;
    scene.thresholds.version = "tight".into();
    let report = scene.judge(&scene.rig("paged", "w4a16"), |_| {});
    assert_eq!(missed(&report), ["accuracy-logit"], "KV in BF16 is not F32");
    assert_eq!(report.thresholds_version, "tight");
    scene.thresholds.accuracy.remove("w4a16");
    let rig = scene.rig("paged", "w4a16");
    let mut engine = rig.engine().unwrap();
    let timed = clock(&mut engine, &scene.request).unwrap();
    let requests = std::slice::from_ref(&scene.request);
    let gate = Gate { rig: &rig, requests, thresholds: &scene.thresholds, store: &scene.store };
    let run = Run { label: "round 0", rows: &timed.tokens };
    let error = gate.judge(&mut engine, &[run]).unwrap_err().to_string();
    assert!(error.contains("accuracy.w4a16") && error.contains("calibrate"), "{error}");
    assert!(gate.judge(&mut engine, &[]).is_err(), "nothing to judge is not a pass");
}

#[test]
fn kept_scores_are_read_instead_of_computed() {
    let scene = Scene::new(LENGTHS);
    let rig = scene.rig("paged", "w4a16");
    let folder = tempfile::tempdir().unwrap();
    let store = ReferenceStore::at(folder.path().join("references"), "this build");
    let (input, digest) = (scene.request.input(), scene.model.values_digest().unwrap());
    let emitted = [7, 8, 9];
    let what = Scoring { weights_values_sha256: &digest, class: "f32", input: &input, emitted: &emitted };
    let judge = || rig.judge(Class::by_name("f32")?);
    let never = || -> Result<Engine, LabError> { Err(LabError::Judge("asked again".into())) };
    let (first, kept) = store.scores(what, judge).unwrap();
    assert!(!kept);
    assert_eq!(first, score(&mut judge().unwrap(), &input, &emitted).unwrap());
    assert_eq!(store.scores(what, never).unwrap(), (first, true));
    // Another class, another token, other weights: each has scores of its own.
    for other in [
        Scoring { class: "w4a16", ..what },
        Scoring { emitted: &[7, 8, 10], ..what },
        Scoring { input: &input[1..], ..what },
        Scoring { weights_values_sha256: "other", ..what },
    ] {
        let error = store.scores(other, never).unwrap_err().to_string();
        assert!(error.contains("asked again"), "{error}");
    }
    let other_build = ReferenceStore::at(folder.path().join("references"), "another build");
    let error = other_build.scores(what, never).unwrap_err().to_string();
    assert!(error.contains("asked again"), "{error}");
    // A file that was cut short is computed anew.
    let file = std::fs::read_dir(folder.path().join("references")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&file, &std::fs::read(&file).unwrap()[..40]).unwrap();
    assert!(!store.scores(what, judge).unwrap().1);
}
