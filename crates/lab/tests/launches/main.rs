//! A step of a device taken apart into its launches, on a host that stands in for a device: its clock counts launches.

#[path = "../../../cuda/tests/cuda/emulator/mod.rs"]
mod emulator;

use emulator::Emulator;
use tare_core::Reading;
use tare_cpu::{CpuConfig, detect_isa};
use tare_cuda::ceilings::{Ceilings, Sample};
use tare_cuda::{CudaBackend, CudaConfig};
use tare_evidence::floor::Resource;
use tare_lab::replay::Doing;
use tare_lab::replay::launches::{LaunchReplay, LaunchReplaying};
use tare_lab::specimen::Phase;
use tare_lab::{ClockedRequest, LabError, Lengths, On, Rig};
use tare_model::{Model, PlanSpec};
use tare_ops::Class;

fn replayed(
    class: &str,
    phase: Phase,
    backend: CudaBackend<Emulator>,
    go_on: &mut dyn FnMut(Doing) -> bool,
) -> Result<LaunchReplay, LabError> {
    let model = Model::open("synthetic:qwen3-tiny?format=bf16").unwrap();
    let lengths = Lengths { depth: 0, prompt_tokens: 9, output_tokens: 3 };
    let request = ClockedRequest::drawn(lengths, model.config().vocab, 1).unwrap();
    let rig = Rig {
        model: &model,
        on: On::Cuda(CudaConfig::default()),
        cpu: CpuConfig { threads: 1, isa: detect_isa(), pin: false },
        plan: PlanSpec::find("paged").unwrap(),
        class: Class::by_name(class).unwrap(),
        context: request.total_tokens() + 1,
        max_rows: 16,
        delay: None,
    };
    let sample = |amount| Sample { amount, ns: 1 };
    let products = Reading::unavailable("a test");
    let ceilings = Ceilings { read: vec![sample(1)], working_set_bytes: 1, flops: vec![sample(1)], products };
    let ceilings = Reading::Available(ceilings);
    LaunchReplaying { rig: &rig, request: &request, phase, iterations: 3, ceilings: &ceilings }.run(backend, go_on)
}

#[test]
fn the_parts_of_a_step_are_its_launches() {
    for phase in [Phase::Decode, Phase::Prefill] {
        let fused = replayed("bf16", phase, CudaBackend::new(Emulator::default()), &mut |_| true).unwrap();
        let apart = replayed("bf16", phase, CudaBackend::unfused(Emulator::default()), &mut |_| true).unwrap();
        for r in [&fused, &apart] {
            assert_eq!((r.step_ns, r.sum_ns, r.overlap_ns), (r.launches as f64, r.launches as f64, 0.0), "{phase}");
            assert_eq!(r.parts.iter().map(|p| p.launches).sum::<usize>(), r.launches);
            assert!((r.parts.iter().map(|p| p.share_percent).sum::<f64>() - 100.0).abs() < 1e-9);
            assert_eq!((r.times.step_ns.len(), r.times.order.len()), (3, 3));
            assert!(r.host_ns > 0.0 && r.times.parts_ns.iter().all(|ns| ns.len() == 3));
        }
        let calls = |r: &LaunchReplay| r.parts.iter().map(|p| p.calls).sum::<usize>();
        assert_eq!(calls(&fused), calls(&apart), "one plan");
        assert!(fused.launches < apart.launches, "{} and {}", fused.launches, apart.launches);
        assert!(fused.parts.iter().any(|p| p.name == "norm+qkv"), "{:?}", fused.parts);
        let bytes = |r: &LaunchReplay| r.parts.iter().map(|p| p.bytes).sum::<u64>();
        assert_eq!(bytes(&fused), bytes(&apart));
        let down = apart.parts.iter().find(|p| p.name == "down").unwrap();
        // A byte and an operation each take a nanosecond here.
        let floor = down.bytes.max(down.flops) as f64;
        assert_eq!(down.floor_ns.available(), Some(&floor));
        assert_eq!(down.removable_ns.available(), Some(&(down.ns - floor).max(0.0)));
    }
}

#[test]
fn products_on_tensor_cores_of_unknown_ceiling_have_a_floor_of_their_bytes_alone() {
    let r = replayed("bf16-free", Phase::Decode, CudaBackend::new(Emulator::default()), &mut |_| true).unwrap();
    let with_floor: Vec<_> = r.parts.iter().filter(|p| p.bytes > 0).collect();
    assert!(with_floor.iter().all(|p| p.bound == Some(Resource::Bytes)), "{:?}", r.parts);
    assert!(with_floor.iter().all(|p| p.floor_ns.available() == Some(&(p.bytes as f64))));
}

#[test]
fn a_replay_that_is_told_to_stop_keeps_nothing() {
    let backend = CudaBackend::new(Emulator::default());
    let stopped = replayed("bf16", Phase::Decode, backend, &mut |doing| doing != Doing::Turn(1));
    assert!(matches!(stopped, Err(LabError::Interrupted)));
}
