//! What an arm says of itself is what its engine runs with, whatever was asked of the processors.

use serde_json::json;
use tare_core::Reading;
use tare_cpu::{CpuConfig, detect_isa};
use tare_evidence::provenance::{Software, Source};
use tare_lab::{ArmFacts, BuildInfo, ClockedRequest, Lengths, On, Rig};
use tare_model::{Model, PlanSpec};
use tare_ops::{Class, ReferenceBackend};

const LENGTHS: Lengths = Lengths { depth: 0, prompt_tokens: 4, output_tokens: 2 };
/// Threads of the processors: another number than the reference's, which has one.
const THREADS: usize = 3;

fn build() -> BuildInfo {
    let unknown = || Reading::unavailable("a test");
    let software = Software { tare: "0".into(), rustc: unknown(), target: "t".into(), profile: "dev".into() };
    let source = Source { tree_sha256: unknown(), commit: unknown(), dirty: Reading::unavailable("a test") };
    BuildInfo { software, source, binary_sha256: "0".repeat(64) }
}

#[test]
fn the_configuration_is_the_one_that_runs_on_any_backend() {
    let model = Model::open("synthetic:qwen3-tiny?format=w4g128").unwrap();
    let request = ClockedRequest::drawn(LENGTHS, model.config().vocab, 1).unwrap();
    let rig = Rig {
        model: &model,
        on: On::Cpu,
        cpu: CpuConfig { threads: THREADS, isa: detect_isa(), pin: false, keep_workers: false },
        plan: PlanSpec::find("paged").unwrap(),
        class: Class::by_name("w4a16").unwrap(),
        sequences: 1,
        context: request.total_tokens(),
        max_rows: 16,
        delay: None,
    };
    for (backend, threads) in [(rig.backend().unwrap(), THREADS), (Box::new(ReferenceBackend::new()), 1)] {
        let engine = rig.engine_on(backend).unwrap();
        let facts = ArmFacts::of_engine(&rig, &engine, std::slice::from_ref(&request), &build()).unwrap();
        let info = engine.info();
        assert_eq!(info.threads, threads, "{}", info.name);
        assert_eq!((&facts.arm.threads, facts.threads), (&Reading::Available(threads as u32), threads));
        assert_eq!(facts.config["threads"], json!(threads), "{}", info.name);
        assert_eq!(facts.config["device"], json!(info.device));
        assert_eq!(facts.config["isa"], json!(info.isa));
        assert_eq!(facts.config["plan"]["name"], json!(facts.arm.plan));
        assert_eq!(facts.config["class"], json!(facts.arm.class));
        assert_eq!((&facts.arm.settings, &facts.config["keep_workers"]), (&None, &json!(false)));
    }
    let kept = Rig { cpu: CpuConfig { keep_workers: true, ..rig.cpu.clone() }, ..rig.clone() };
    let engine = kept.engine().unwrap();
    let facts = ArmFacts::of_engine(&kept, &engine, std::slice::from_ref(&request), &build()).unwrap();
    assert!(facts.arm.keeps_workers());
    assert_eq!(
        (facts.arm.settings, &facts.config["keep_workers"]),
        (Some(json!({ "keep_workers": true })), &json!(true))
    );
}
