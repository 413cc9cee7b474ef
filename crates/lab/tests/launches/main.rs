//! A step of a device taken apart into its launches, delayed and ranked, on a host that stands in for a device: its clock counts
//! launches, and what they wait for.

#[path = "../../../cuda/tests/cuda/emulator/mod.rs"]
mod emulator;
mod failing;

use emulator::Emulator;
use std::sync::LazyLock;
use tare_core::Reading;
use tare_cpu::{CpuConfig, detect_isa};
use tare_cuda::ceilings::{Ceilings, Sample};
use tare_cuda::{CudaBackend, CudaConfig};
use tare_evidence::floor::Resource;
use tare_lab::next::look::{At, Effort, Looked, Looking};
use tare_lab::next::rank::Ranking;
use tare_lab::replay::launches::{LaunchReplay, LaunchReplaying};
use tare_lab::replay::{Doing, TakenApart};
use tare_lab::sensitivity::Probe;
use tare_lab::specimen::{Phase, Specimen};
use tare_lab::tap::Tap;
use tare_lab::{ClockedRequest, Delay, LabError, Lengths, On, Rig};
use tare_model::{Model, PlanSpec};
use tare_ops::{Class, OpError};
use tare_probe::ceilings::Readings;
use tare_probe::{Host, Quietness};

/// What a step takes by the clock of a look: eleven days, so that none of this host stands for it however fast it is.
const LONG_NS: f64 = 1e15;

/// A model, a request and ceilings that a byte and an operation reach in a nanosecond each.
struct Scene {
    model: Model,
    request: ClockedRequest,
    ceilings: Reading<Ceilings>,
}

impl Scene {
    fn new() -> Self {
        let model = Model::open("synthetic:qwen3-tiny?format=bf16").unwrap();
        let lengths = Lengths { depth: 0, prompt_tokens: 9, output_tokens: 3 };
        let request = ClockedRequest::drawn(lengths, model.config().vocab, 1).unwrap();
        let sample = |amount| Sample { amount, ns: 1 };
        let products = Reading::unavailable("a test");
        let ceilings = Ceilings { read: vec![sample(1)], working_set_bytes: 1, flops: vec![sample(1)], products };
        Self { model, request, ceilings: Reading::Available(ceilings) }
    }

    fn rig(&self, class: &str, delay: Option<&str>) -> Rig<'_> {
        Rig {
            model: &self.model,
            on: On::Cuda(CudaConfig::default()),
            cpu: CpuConfig { threads: 1, isa: detect_isa(), pin: false, keep_workers: false },
            plan: PlanSpec::find("paged").unwrap(),
            class: Class::by_name(class).unwrap(),
            sequences: 1,
            context: self.request.total_tokens() + 1,
            max_rows: 16,
            delay: delay.map(|d| d.parse::<Delay>().unwrap()),
        }
    }

    fn replay(
        &self,
        rig: &Rig<'_>,
        phase: Phase,
        backend: CudaBackend<Emulator>,
        go_on: &mut dyn FnMut(Doing) -> bool,
    ) -> Result<LaunchReplay, LabError> {
        let of = LaunchReplaying { rig, request: &self.request, phase, iterations: 3, ceilings: &self.ceilings };
        of.run(backend, go_on)
    }

    /// Looks at both phases, with little effort.
    fn look(&self, go_on: &mut dyn FnMut(At<'_>) -> bool) -> Result<Looked<LaunchReplay>, LabError> {
        let rig = self.rig("bf16", None);
        let looking = Looking {
            rig: &rig,
            request: &self.request,
            prefill_ns: LONG_NS,
            decode_ns: 2.0 * LONG_NS,
            decode_step_ns: LONG_NS,
            host: &Host::read(),
            ceilings: &unmeasured(),
            effort: Effort { decode_turns: 2, prefill_turns: 2, blocks: 6, probed: 1 },
        };
        looking.on_device(&self.ceilings, &mut || Ok::<_, OpError>(CudaBackend::new(Emulator::default())), go_on)
    }
}

/// Ceilings of a host that nobody asks for.
fn unmeasured() -> tare_probe::Ceilings {
    let none = || Reading::unavailable("a test");
    tare_probe::Ceilings {
        readings: Readings {
            read_1t_bytes_per_s: none(),
            read_all_bytes_per_s: none(),
            fma_f32_1t_flop_per_s: none(),
            fma_f32_all_flop_per_s: none(),
            dot_int8_1t_op_per_s: none(),
            dot_int8_all_op_per_s: none(),
            tiles_1t_flop_per_s: none(),
            tiles_all_flop_per_s: none(),
            tile_registers_all_flop_per_s: none(),
        },
        threads: 1,
        quietness: Quietness::observe(std::time::Duration::ZERO),
        series: Vec::new(),
        spent_ns: 0,
    }
}

fn replayed(
    class: &str,
    phase: Phase,
    backend: CudaBackend<Emulator>,
    go_on: &mut dyn FnMut(Doing) -> bool,
) -> Result<LaunchReplay, LabError> {
    let scene = Scene::new();
    scene.replay(&scene.rig(class, None), phase, backend, go_on)
}

/// A decode step with launches that carry several calls: each test that asks about it alone looks at this one.
static DECODE: LazyLock<LaunchReplay> =
    LazyLock::new(|| replayed("bf16", Phase::Decode, CudaBackend::new(Emulator::default()), &mut |_| true).unwrap());

#[test]
fn the_parts_of_a_step_are_its_launches() {
    for phase in [Phase::Decode, Phase::Prefill] {
        let fused = match phase {
            Phase::Decode => DECODE.clone(),
            Phase::Prefill => replayed("bf16", phase, CudaBackend::new(Emulator::default()), &mut |_| true).unwrap(),
        };
        let apart = replayed("bf16", phase, CudaBackend::unfused(Emulator::default()), &mut |_| true).unwrap();
        for r in [&fused, &apart] {
            assert_eq!((r.step_ns, r.sum_ns, r.overlap_ns), (r.launches as f64, r.launches as f64, 0.0), "{phase}");
            assert_eq!(r.parts.iter().map(|p| p.launches).sum::<usize>(), r.launches);
            assert!((r.parts.iter().map(|p| p.share_percent).sum::<f64>() - 100.0).abs() < 1e-9);
            assert_eq!((r.times.step_ns.len(), r.times.order.len()), (3, 3));
            assert_eq!((r.region_ns, r.times.empty_ns.as_slice()), (0.0, [0; 3].as_slice()), "a launch of nothing");
            assert_eq!(r.step_sha256, r.parts_sha256, "the parts launch what the step launches");
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

#[test]
fn a_document_of_launches_has_time_bytes_floor_and_kernels_of_each_part_and_the_whole() {
    let r = &*DECODE;
    let body = r.body().unwrap();
    let (m, d) = (&body.measured, &body.derived);
    assert_eq!((m.groups.len(), d.groups.len()), (r.parts.len(), r.parts.len()));
    for ((g, figures), part) in m.groups.iter().zip(&d.groups).zip(&r.parts) {
        assert_eq!((g.name.as_str(), g.bytes, figures.ns.median), (part.name.as_str(), Some(part.bytes), part.ns));
        assert_eq!(figures.percent_of_floor.available().is_some(), part.floor_ns.available().is_some());
        assert!(!g.kernels.is_empty() && g.kernels.iter().all(|k| k.contains(" x ")), "{g:?}");
    }
    assert_eq!((d.step_ns.median, d.sum_ns, d.remainder_ns), (r.step_ns, r.sum_ns, 0.0));
    assert!(m.coverage.complete && m.remainder_is.contains("taken off every part"), "{}", m.remainder_is);
}

#[test]
fn a_planted_delay_is_in_the_launches_of_its_group_and_in_no_other() {
    let scene = Scene::new();
    let rig = scene.rig("bf16", Some("down=900"));
    let delayed = scene.replay(&rig, Phase::Decode, CudaBackend::new(Emulator::default()), &mut |_| true).unwrap();
    let plain = &*DECODE;
    assert_eq!((plain.delay.as_deref(), delayed.delay.as_deref()), (None, Some("down=900")));
    for (p, d) in plain.parts.iter().zip(&delayed.parts) {
        let times = if p.name == "down" { 10.0 } else { 1.0 };
        assert_eq!((d.name.as_str(), d.ns), (p.name.as_str(), times * p.ns));
    }
    assert_eq!(plain.plan_sha256, delayed.plan_sha256, "the plan itself is the same");
    assert_eq!(delayed.step_ns, delayed.sum_ns);
}

#[test]
fn what_stands_beside_each_other_is_taken_off_every_part_and_too_much_of_it_is_withheld() {
    let mut r = DECODE.clone();
    assert!(r.adds_up().is_ok());
    let alone: f64 = r.parts().iter().map(|p| p.ns).sum();
    (r.step_ns, r.overlap_ns) = (0.82 * alone, 0.18 * alone);
    assert!(r.adds_up().is_ok(), "launches overlap");
    assert!((r.parts().iter().map(|p| p.ns).sum::<f64>() - r.step_ns).abs() < 1e-6);
    (r.step_ns, r.overlap_ns) = (0.7 * alone, 0.3 * alone);
    assert!(r.adds_up().unwrap_err().contains("-42.9 % of the step over, more than 25 %"));
    (r.step_ns, r.overlap_ns) = (1.2 * alone, -0.2 * alone);
    assert!(r.adds_up().unwrap_err().contains("+16.7 % of the step over, more than 10 %"));
    r.parts_sha256.clear();
    assert!(r.adds_up().unwrap_err().contains("do not launch what the step launches"));
}

#[test]
fn the_launches_with_most_to_give_come_first_and_are_probed() {
    let scene = Scene::new();
    let mut looked = scene.look(&mut |_| true).unwrap();
    assert!(looked.ranking.groups.is_empty(), "no step of this host takes days: {:?}", looked.ranking.withheld);
    let slow = ["o", "head"];
    for r in &mut looked.replays {
        // A step that takes as long as the clock says, and parts that add up to it.
        let parts = r.document.parts.len() as f64;
        for p in &mut r.document.parts {
            p.ns =
                if slow.contains(&p.name.as_str()) { 2.0 * LONG_NS / (parts + 2.0) } else { LONG_NS / (parts + 2.0) };
        }
        (r.document.step_ns, r.document.host_ns) = (LONG_NS, LONG_NS);
        (r.document.sum_ns, r.document.overlap_ns) = (LONG_NS, 0.0);
    }
    let ranking = Ranking::new(looked.ranking.request, &looked.replays, &[]);
    assert_eq!(ranking.groups[0].phase, Phase::Decode, "two steps of decode, one of prefill");
    assert!(slow.contains(&ranking.groups[0].group.as_str()), "{:?}", ranking.groups[0]);
    assert!(ranking.withheld.iter().all(|w| w.contains("no bytes and no operations")), "{:?}", ranking.withheld);
}

#[test]
fn a_look_at_a_device_that_is_told_to_stop_keeps_nothing() {
    let stopped = Scene::new().look(&mut |at| !matches!(at, At::Replay(..)));
    assert!(matches!(stopped, Err(LabError::Interrupted)));
}

#[test]
fn every_nanosecond_that_is_injected_behind_launches_is_one_of_the_step() {
    let scene = Scene::new();
    let rig = scene.rig("bf16", None);
    let tap = Tap::new(CudaBackend::new(Emulator::default()), None);
    let specimen = Specimen::of(tap, &rig, &scene.request, Phase::Decode).unwrap();
    let probe = Probe { group: "norm+qkv", group_ns: 4e5, blocks: 6, first_dose: 0, seed: 3 };
    let s = probe.run(&specimen, Phase::Decode, &mut |_| true).unwrap();
    assert_eq!((s.group.as_str(), s.slope), ("norm+qkv", 1.0));
    for (pair, planned) in s.blocks.iter().flat_map(|b| &b.pairs).map(|p| (p, s.planned_ns[p.dose])) {
        assert_eq!((pair.injected_ns, pair.with_ns - pair.without_ns), (planned, planned), "{pair:?}");
    }
    specimen.confirm(specimen.exe).unwrap();
    let e = Probe { group: "qkv", ..probe }.run(&specimen, Phase::Decode, &mut |_| true).unwrap_err().to_string();
    assert!(e.contains("norm+qkv") && e.contains("`qkv`"), "{e}");
}
