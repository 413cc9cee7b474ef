//! The plan `lossless-pack`, on emulated pairs and tiles: requests pass the gate, and hosts without its kernels refuse it.

use tare_cpu::{CpuConfig, detect_isa};
use tare_evidence::gate::Judgement;
use tare_lab::clock::clock;
use tare_lab::gate::{Gate, Run};
use tare_lab::thresholds::Thresholds;
use tare_lab::{ClockedRequest, Lengths, On, ReferenceStore, Rig};
use tare_model::{Model, PlanSpec};
use tare_ops::{Class, Isa};

fn rig<'m>(model: &'m Model, request: &ClockedRequest, class: &str, cpu: CpuConfig) -> Rig<'m> {
    Rig {
        model,
        on: On::Cpu,
        cpu,
        plan: PlanSpec::find("lossless-pack").unwrap(),
        class: Class::by_name(class).unwrap(),
        sequences: 1,
        context: request.total_tokens(),
        max_rows: 32,
        delay: None,
    }
}

/// More tokens than count as few rows, in one chunk and a short one, and a few that are decoded.
fn request(model: &Model) -> ClockedRequest {
    let lengths = Lengths { depth: 0, prompt_tokens: 40, output_tokens: 5 };
    ClockedRequest::drawn(lengths, model.config().vocab, 1).unwrap()
}

#[test]
fn a_request_passes_the_gate_and_reads_packed_weights_alone() {
    let model = Model::open("synthetic:qwen3-tiny?format=bf16").unwrap();
    let request = request(&model);
    for threads in [1, 2] {
        let cpu = CpuConfig { threads, isa: detect_isa(), pin: false, keep_workers: false };
        let rig = rig(&model, &request, "bf16-free", cpu.clone());
        let mut engine = rig.engine_on(Box::new(tare_emulated::backend(cpu).unwrap())).unwrap();
        let calls = || engine.resolved().iter().flat_map(|r| &r.plan.calls);
        let of_matrices: Vec<&str> = calls().filter(|c| c.op.matrix().is_some()).map(|c| c.kernel.as_str()).collect();
        assert!(of_matrices.iter().all(|key| key.contains(".bf16.lossless")), "{of_matrices:?}");
        for word in ["embedding.bf16.lossless.", ".lossless.pairs.", ".lossless.tiles."] {
            assert!(of_matrices.iter().any(|key| key.contains(word)), "{word}: {of_matrices:?}");
        }
        let timed = clock(&mut engine, &request).unwrap();
        let (thresholds, store) = (Thresholds::built_in().unwrap(), ReferenceStore::none());
        let gate = Gate { rig: &rig, requests: std::slice::from_ref(&request), thresholds: &thresholds, store: &store };
        let run = Run { label: "run", rows: &timed.tokens };
        let judgement = gate.judge(&mut engine, &[run]).unwrap().judge().unwrap();
        assert!(matches!(judgement, Judgement::Passed(_)), "{threads} threads: {judgement:?}");
    }
}

#[test]
fn hosts_classes_and_formats_that_it_is_not_for_are_refused_by_name() {
    let refused = |model: &str, class: &str, up_to: Isa| {
        let model = Model::open(model).unwrap();
        let cpu = CpuConfig { threads: 1, isa: detect_isa().up_to(up_to), pin: false, keep_workers: false };
        rig(&model, &request(&model), class, cpu).engine().map(|_| ()).unwrap_err().to_string()
    };
    let bf16 = "synthetic:qwen3-tiny?format=bf16";
    for (said, why) in [
        (refused(bf16, "bf16-free", Isa::Avx512), "needs "),
        (refused(bf16, "bf16", Isa::Amx), "as in class bf16-free"),
        (refused("synthetic:qwen3-tiny?format=q4_0", "w4a16-free", Isa::Amx), "reads another format than q4_0"),
    ] {
        assert!(said.contains(".lossless.") && said.contains(why), "{why}: {said}");
        assert!(said.contains("another class, plan or format") && !said.contains("the plan asks for"), "{said}");
    }
}
