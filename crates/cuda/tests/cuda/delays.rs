//! Delays planted in steps of an emulated device, whose clock counts a nanosecond for each launch and for each cycle that is
//! waited for: they lie behind the launches that were asked for, and change no bit.

use crate::decoder::{World, plan};
use crate::emulator::Emulator;
use crate::gpu;
use tare_cuda::device::Device;
use tare_cuda::{CudaBackend, Driver};
use tare_ops::{Backend, Batch, Executable, OpError, OpName, ReferenceBackend, Rounding, StepOutput};

/// A world whose step has run twice, and its rows.
fn world<D: Device>(backend: CudaBackend<D>) -> (World<CudaBackend<D>>, Batch, StepOutput) {
    let mut w = World::new(backend, Rounding::F32);
    let batch = w.batch(0, 9);
    let mut out = StepOutput::default();
    for _ in 0..2 {
        w.backend.run(w.exe, &batch, &mut out).unwrap();
    }
    (w, batch, out)
}

/// The operators of the decoder's calls.
fn operators() -> Vec<OpName> {
    plan(&mut ReferenceBackend::new(), Rounding::F32).calls.iter().map(|c| c.op.name()).collect()
}

/// The calls of one operator.
fn calls_of(op: OpName) -> Vec<usize> {
    operators().iter().enumerate().filter(|(_, of)| **of == op).map(|(i, _)| i).collect()
}

/// The time of each launch of `exe` with the delays behind it.
fn times<D: Device>(backend: &mut CudaBackend<D>, exe: Executable, batch: &Batch) -> Vec<u64> {
    let count = backend.launches(exe).unwrap().0.len();
    let mut time = |at| {
        let part = backend.part(exe, &[at]).unwrap();
        let ns = backend.time_part(exe, part, batch).unwrap();
        backend.forget_part(part);
        ns
    };
    (0..count).map(&mut time).collect()
}

#[test]
fn delays_lie_behind_the_last_launch_of_each_that_carries_their_calls() {
    for backend in [CudaBackend::new(Emulator::default()), CudaBackend::unfused(Emulator::default())] {
        let (mut w, batch, answer) = world(backend);
        for op in [OpName::Linear, OpName::Attention, OpName::RmsNorm, OpName::Sample] {
            let calls = calls_of(op);
            let twin = w.backend.delayed(w.exe, &calls, 1000).unwrap();
            let (launches, carried) = w.backend.launches(twin).unwrap();
            let mut want = vec![1; launches.len()];
            for c in carried.iter().filter(|c| c.calls.clone().any(|call| calls.contains(&call))) {
                want[c.launches.end - 1] += 1000;
            }
            assert_eq!(times(&mut w.backend, twin, &batch), want, "{op}");
            let waits = w.backend.waits(w.exe, &calls).unwrap();
            assert!(waits > 0 && want.iter().filter(|ns| **ns > 1).count() == waits);
            let spun = w.backend.spun_ns().unwrap();
            let mut out = StepOutput::default();
            w.backend.run(twin, &batch, &mut out).unwrap();
            assert_eq!(out.rows, answer.rows, "{op}: no bit is another");
            assert_eq!(out.device_ns, Some(want.iter().sum()));
            assert_eq!(w.backend.spun_ns().unwrap() - spun, 1000 * waits as u64, "what was spent is counted");
            w.backend.release(twin);
        }
        let mut out = StepOutput::default();
        w.backend.run(w.exe, &batch, &mut out).unwrap();
        assert_eq!((out.rows, out.device_ns), (answer.rows, answer.device_ns), "the step itself is as before");
    }
}

#[test]
fn delays_of_no_time_take_no_time() {
    let (mut w, batch, answer) = world(CudaBackend::new(Emulator::default()));
    let all: Vec<usize> = (0..operators().len()).collect();
    let twin = w.backend.delayed(w.exe, &all, 0).unwrap();
    let mut out = StepOutput::default();
    w.backend.run(twin, &batch, &mut out).unwrap();
    assert_eq!((&out.rows, out.device_ns, w.backend.spun_ns().unwrap()), (&answer.rows, answer.device_ns, 0));
    let (empty, own_ns) = w.backend.empty_part().unwrap();
    assert_eq!((w.backend.time_part(w.exe, empty, &batch).unwrap(), own_ns), (0, 0.0));
}

#[test]
fn launches_are_stretched_by_a_share_of_their_own_time_from_the_second_step_on() {
    let mut w = World::new(CudaBackend::new(Emulator::default()), Rounding::F32);
    let (batch, calls) = (w.batch(0, 9), calls_of(OpName::Linear));
    let mut plain = StepOutput::default();
    w.backend.stretch(w.exe, &calls, 700.0).unwrap();
    w.backend.run(w.exe, &batch, &mut plain).unwrap();
    let launches = w.backend.launches(w.exe).unwrap().0.len() as u64;
    assert_eq!(plain.device_ns, Some(launches), "the first step is timed, not delayed");
    let times = times(&mut w.backend, w.exe, &batch);
    assert!(times.iter().all(|ns| [1, 8].contains(ns)), "{times:?}");
    let mut out = StepOutput::default();
    for _ in 0..2 {
        w.backend.run(w.exe, &batch, &mut out).unwrap();
        assert_eq!((&out.rows, out.device_ns), (&plain.rows, Some(times.iter().sum())));
    }
    let delayed = times.iter().filter(|ns| **ns == 8).count();
    assert!(delayed >= w.backend.waits(w.exe, &calls).unwrap() && delayed < times.len());
    let late = w.backend.stretch(w.exe, &calls, 5.0).unwrap_err().to_string();
    assert!(late.contains("an executable that has not run"), "{late}");
}

#[test]
fn calls_that_no_plan_has_are_refused() {
    let (mut w, ..) = world(CudaBackend::new(Emulator::default()));
    let count = operators().len();
    for refused in [
        w.backend.delayed(w.exe, &[count], 5).map(|_| ()),
        w.backend.waits(w.exe, &[count]).map(|_| ()),
        w.backend.stretch(w.exe, &[0, count], 5.0),
    ] {
        assert!(
            matches!(&refused, Err(OpError::Input(f)) if f.to_string().contains(&format!("below {count}"))),
            "{refused:?}"
        );
    }
    let gone = Executable(9999);
    assert!(w.backend.delayed(gone, &[0], 5).is_err() && w.backend.stretch(gone, &[0], 5.0).is_err());
}

/// On a device no delay is shorter than was asked for, and what it delays is the whole chain.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_delays_make_steps_longer_by_what_is_injected() {
    let (mut w, batch, answer) = world(CudaBackend::new(Driver::open(gpu(false)).unwrap()));
    let calls = calls_of(OpName::Linear);
    let mut median = |ns: u64| {
        let twin = w.backend.delayed(w.exe, &calls, ns).unwrap();
        let before = w.backend.spun_ns().unwrap();
        let mut out = StepOutput::default();
        let mut times: Vec<u64> = (0..21)
            .map(|_| {
                w.backend.run(twin, &batch, &mut out).unwrap();
                assert_eq!(out.rows, answer.rows, "no bit is another");
                out.device_ns.unwrap()
            })
            .collect();
        let spun = (w.backend.spun_ns().unwrap() - before) / 21;
        w.backend.release(twin);
        times.sort_unstable();
        (times[10], spun)
    };
    let (none, with) = (median(0), median(20_000));
    let asked = 20_000 * w.backend.waits(w.exe, &calls).unwrap() as u64;
    assert_eq!(none.1, 0);
    assert!(with.1 >= asked * 99 / 100, "{} ns were spent of {asked}", with.1);
    assert!(with.0 - none.0 >= asked * 9 / 10, "a step of {} ns became one of {} by {asked}", none.0, with.0);
}
