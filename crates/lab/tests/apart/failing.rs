//! Measurements on the processor that end half way: what they compiled is given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tare_core::Fault;
use tare_cpu::CpuBackend;
use tare_lab::Delay;
use tare_lab::LabError;
use tare_lab::replay::{Replaying, Warmth};
use tare_lab::sensitivity::Probe;
use tare_lab::shared::Shared;
use tare_lab::specimen::{Phase, Specimen};
use tare_lab::tap::Tap;
use tare_ops::{Backend, Batch, Executable, ForwardPlan, OpError, StepOutput, hand_on};

use crate::scene::{Scene, made_up, small_host};

/// Handles of executables that are looked for.
const HANDLES: u32 = 1 << 12;

/// The processor, except that one call fails.
struct Failing {
    inner: CpuBackend,
    /// Calls before the one that fails.
    left: Arc<AtomicUsize>,
}

impl Failing {
    fn call(&self) -> Result<(), OpError> {
        match self.left.fetch_sub(1, Ordering::SeqCst) {
            0 => Err(Fault::new("processor", "a working one", "a planted fault").into()),
            _ => Ok(()),
        }
    }
}

impl Backend for Failing {
    hand_on!(
        this => this.inner;
        describe, variants, device_bytes, pack, alloc_kv, free_kv, copy_kv, read_kv, write_kv, rest, benched, pages,
        release, run_apart
    );

    fn compile(&mut self, plan: &ForwardPlan) -> Result<Executable, OpError> {
        self.call()?;
        self.inner.compile(plan)
    }
    fn run(&mut self, exe: Executable, batch: &Batch, out: &mut StepOutput) -> Result<(), OpError> {
        self.call()?;
        self.inner.run(exe, batch, out)
    }
}

impl Shared for Failing {
    fn plant(&mut self, delay: Delay, exe: Executable, plan: &ForwardPlan) -> Result<(), OpError> {
        self.call()?;
        Shared::plant(&mut self.inner, delay, exe, plan)
    }
    fn calls_of(&self, exe: Executable, plan: &ForwardPlan, part: &str) -> Result<Vec<usize>, OpError> {
        self.call()?;
        self.inner.calls_of(exe, plan, part)
    }
    fn waits(&self, exe: Executable, calls: &[usize]) -> Result<usize, OpError> {
        self.call()?;
        self.inner.waits(exe, calls)
    }
    fn delayed(
        &mut self,
        exe: Executable,
        plan: &ForwardPlan,
        calls: &[usize],
        ns: u64,
    ) -> Result<Executable, OpError> {
        self.call()?;
        self.inner.delayed(exe, plan, calls, ns)
    }
    fn spun_ns(&mut self, exe: Executable) -> Result<u64, OpError> {
        self.call()?;
        Shared::spun_ns(&mut self.inner, exe)
    }
    fn hold(&mut self, held: bool) -> bool {
        Shared::hold(&mut self.inner, held)
    }
}

/// Executables that a processor knows.
fn known(cpu: &CpuBackend) -> usize {
    (0..HANDLES).filter(|id| cpu.spun_ns(Executable(*id)).is_ok()).count()
}

#[test]
fn twins_of_a_probe_are_given_back_whichever_call_fails() {
    let (scene, left) = (Scene::tiny(), Arc::new(AtomicUsize::new(usize::MAX)));
    let rig = scene.rig("paged");
    let backend = Failing { inner: CpuBackend::new(rig.cpu.clone()).unwrap(), left: left.clone() };
    let specimen = Specimen::of(Tap::new(backend, None), &rig, &scene.request, Phase::Decode).unwrap();
    let held = || specimen.tap().with(|b| known(&b.inner));
    let before = held();
    let probe = Probe { group: "down", group_ns: 4e5, blocks: 1, first_dose: 2, seed: 3 };
    for n in 0.. {
        left.store(n, Ordering::SeqCst);
        let ended = probe.run(&specimen, Phase::Decode, &mut |_| true);
        left.store(usize::MAX, Ordering::SeqCst);
        assert_eq!(held(), before, "a fault at call {n}");
        match ended {
            Ok(_) => {
                assert!(n > 10, "{n} calls");
                break;
            }
            Err(e) => assert!(e.to_string().contains("a planted fault"), "call {n}: {e}"),
        }
    }
    assert!(probe.run(&specimen, Phase::Decode, &mut |_| false).is_err());
    assert_eq!(held(), before, "told to stop");
}

#[test]
fn an_executable_whose_delay_cannot_be_planted_is_given_back() {
    let (scene, left) = (Scene::tiny(), Arc::new(AtomicUsize::new(usize::MAX)));
    let rig = scene.rig("paged");
    let plan = rig.engine().unwrap().resolved()[0].plan.clone();
    let backend = Failing { inner: CpuBackend::new(rig.cpu.clone()).unwrap(), left: left.clone() };
    let mut tap = Tap::new(backend, Some("down=10".parse().unwrap()));
    tare_model::PackedModel::pack(rig.model, &mut tap).unwrap();
    for n in 0..2 {
        left.store(n, Ordering::SeqCst);
        let e = tap.compile(&plan).unwrap_err().to_string();
        left.store(usize::MAX, Ordering::SeqCst);
        assert!(e.contains("a planted fault"), "{e}");
        assert_eq!(tap.with(|b| known(&b.inner)), 0, "a fault at call {n}");
    }
    tap.compile(&plan).unwrap();
}

#[test]
fn the_parts_of_a_replay_are_given_back_wherever_it_is_told_to_stop() {
    let scene = Scene::tiny();
    let rig = scene.rig("paged");
    let specimen = Specimen::take(&rig, &scene.request, Phase::Decode).unwrap();
    let held = || specimen.tap().with(|cpu| known(cpu));
    let (before, host, ceilings, request) = (held(), small_host(), made_up(), &scene.request);
    for warmth in [Warmth::Warm, Warmth::Cold] {
        let (rig, phase, iterations) = (&rig, Phase::Decode, 1);
        let of = Replaying { rig, request, phase, iterations, warmth, host: &host, ceilings: &ceilings };
        for n in 0.. {
            let mut asked = 0;
            let ended = of.of(&specimen, &mut |_| {
                asked += 1;
                asked <= n
            });
            assert_eq!(held(), before, "{warmth:?}, told to stop at question {n}");
            match ended {
                Ok(_) => {
                    assert!(n > 1, "it asks");
                    break;
                }
                Err(e) => assert!(matches!(e, LabError::Interrupted), "question {n}: {e}"),
            }
        }
    }
}
