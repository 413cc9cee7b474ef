//! Whole steps on an emulated device: bit for bit those of the reference; spans and refusals as the trait promises.

use crate::decoder::{KV, PAGE_TOKENS, PAGES, World};
use crate::emulator::Emulator;
use crate::gpu;
use tare_cuda::ceilings::{self, Effort};
use tare_cuda::{CudaBackend, Driver};
use tare_ops::{Backend, KvId, KvSpan, OpError, ReferenceBackend, Rounding, StepOutput, TokenSource, Wants};

fn cuda() -> CudaBackend<Emulator> {
    CudaBackend::new(Emulator::default())
}

/// A prompt in two chunks, then decode steps that feed on their own tokens; then the cache.
fn story<B: Backend>(world: &mut World<B>) -> (Vec<StepOutput>, Vec<Vec<u8>>) {
    let mut outputs = Vec::new();
    for (from, to) in [(0, 1), (1, 18), (18, 19), (19, 20), (20, 22)] {
        let mut batch = world.batch(from, to);
        if from > 0 {
            batch.rows[0].token = TokenSource::Previous(0);
        }
        if to == 22 {
            batch.rows[0].wants = Wants::Logits;
            batch.rows[1].wants = Wants::TokenAndLogits(0);
        }
        let mut out = StepOutput::default();
        world.backend.run(world.exe, &batch, &mut out).unwrap();
        outputs.push(out);
    }
    let kv = world.kv;
    let spans = [2, 0, 5, 1].map(|page| KvSpan { kv, page, start: 0, tokens: PAGE_TOKENS });
    (outputs, spans.map(|s| world.backend.read_kv(s).unwrap()).into())
}

fn same_as_the_reference<B: Backend>(backend: impl Fn() -> B) {
    for rounding in [Rounding::F32, Rounding::Bf16] {
        let want = story(&mut World::new(ReferenceBackend::new(), rounding));
        let got = story(&mut World::new(backend(), rounding));
        for (step, (got, want)) in got.0.iter().zip(&want.0).enumerate() {
            assert_eq!(got.rows, want.rows, "{rounding:?}, step {step}");
        }
        // Slots that no row has stored in hold any NaN.
        for (got, want) in got.1.iter().zip(&want.1) {
            assert_eq!(numbers(got), numbers(want), "{rounding:?}: cache");
        }
    }
}

/// Elements of a BF16 cache; every NaN alike.
fn numbers(bytes: &[u8]) -> Vec<u16> {
    let number = |b: &[u8; 2]| u16::from_le_bytes(*b);
    bytes.as_chunks::<2>().0.iter().map(number).map(|n| if n & 0x7fff > 0x7f80 { 0x7fc0 } else { n }).collect()
}

#[test]
fn steps_are_bitwise_those_of_the_reference() {
    same_as_the_reference(cuda);
}

#[test]
fn steps_of_single_launches_are_bitwise_those_of_the_reference() {
    same_as_the_reference(|| CudaBackend::unfused(Emulator::default()));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_steps_are_bitwise_those_of_the_reference() {
    for stepwise in [true, false] {
        same_as_the_reference(|| CudaBackend::new(Driver::open(gpu(stepwise)).unwrap()));
    }
}

/// What each launch leaves is what the last of its calls that writes the buffer leaves in the reference.
#[test]
fn launches_leave_what_the_calls_of_the_reference_leave() {
    for (fused, rounding) in [(true, Rounding::F32), (true, Rounding::Bf16), (false, Rounding::F32)] {
        let mut reference = World::new(ReferenceBackend::new(), rounding);
        let device = Emulator::default();
        let mut w = World::new(if fused { CudaBackend::new(device) } else { CudaBackend::unfused(device) }, rounding);
        for (from, to, rows) in [(0, 9, vec![0, 4, 8]), (9, 10, vec![0])] {
            let (mut want, mut got) = (Vec::new(), Vec::new());
            let (mut said, mut out) = (StepOutput::default(), StepOutput::default());
            let batch = reference.batch(from, to);
            reference.backend.run_apart(reference.exe, &batch, &rows, &mut said, &mut want).unwrap();
            let batch = w.batch(from, to);
            w.backend.run_apart(w.exe, &batch, &rows, &mut out, &mut got).unwrap();
            assert_eq!(out.rows, said.rows);
            let mut next = 0;
            for launch in &got {
                assert_eq!(launch.calls.start, next, "every call is carried, in order");
                next = launch.calls.end;
                for left in &launch.left {
                    let of = |call: usize| want[call].left.iter().find(|l| l.buffer == left.buffer);
                    assert_eq!(launch.calls.clone().rev().find_map(of), Some(left), "calls {:?}", launch.calls);
                }
            }
            assert_eq!((next, got.len() < next), (want.len(), fused));
        }
    }
}

#[test]
fn every_step_is_on_the_clock_of_the_device() {
    let clocked = |backend: CudaBackend<Emulator>| {
        let mut world = World::new(backend, Rounding::F32);
        let (steps, _) = story(&mut world);
        let all: Vec<u64> = steps.iter().map(|out| out.device_ns.unwrap()).collect();
        (all, world.backend.device_bytes())
    };
    let (fused, taken) = clocked(cuda());
    assert!(fused.iter().all(|ns| *ns > 0 && *ns == fused[0]), "every step has the launches of one program: {fused:?}");
    let (unfused, _) = clocked(CudaBackend::unfused(Emulator::default()));
    assert!(unfused[0] > fused[0], "{unfused:?} and {fused:?}");
    assert!(taken.available().is_some_and(|bytes| *bytes > 0), "{taken:?}");
    let mut world = World::new(ReferenceBackend::new(), Rounding::F32);
    assert!(story(&mut world).0.iter().all(|out| out.device_ns.is_none()), "nothing here has a clock of its own");
    assert!(world.backend.device_bytes().available().is_none());
}

#[test]
fn a_step_is_its_launches_and_each_of_them_can_be_timed_alone() {
    let mut w = World::new(cuda(), Rounding::F32);
    let batch = w.batch(0, 9);
    let (mut before, mut after) = (StepOutput::default(), StepOutput::default());
    w.backend.run(w.exe, &batch, &mut before).unwrap();
    let (launches, carried) = w.backend.launches(w.exe).unwrap();
    assert!(launches.iter().all(|launch| !launch.key.is_empty()));
    let mut next = (0, 0);
    for c in carried {
        assert_eq!((c.calls.start, c.launches.start), next, "every call and every launch, in order");
        next = (c.calls.end, c.launches.end);
    }
    assert_eq!(next.1, launches.len());
    let all: Vec<usize> = (0..launches.len()).collect();
    for places in all.chunks(1).chain([&all[..]]) {
        let part = w.backend.part(w.exe, places).unwrap();
        assert_eq!(w.backend.time_part(w.exe, part, &batch).unwrap(), places.len() as u64);
        w.backend.forget_part(part);
    }
    w.backend.run(w.exe, &batch, &mut after).unwrap();
    assert_eq!(after.rows, before.rows, "the step does not go on from what its parts left behind");
    assert!(w.backend.part(w.exe, &[all.len()]).is_err());
}

#[test]
fn every_ceiling_is_measured_where_the_device_has_the_instructions() {
    let effort = Effort { read_bytes: 1 << 12, rounds: 3, product_rounds: 1 };
    let found = ceilings::of(&mut Emulator::default(), effort).unwrap();
    let products = found.products.available().unwrap();
    for samples in [&found.read, &found.flops, products] {
        assert_eq!(samples.len(), 7);
        assert!(samples.iter().all(|s| s.ns == 1 && s.amount == samples[0].amount && s.amount > 0));
    }
    assert_eq!((found.working_set_bytes, found.read[0].amount), (1 << 12, 1 << 12));
    // Two multiprocessors, two warpgroups, sixteen products of 64 by 256 by 16.
    assert_eq!(products[0].amount, 2 * 2 * 16 * 2 * 64 * 256 * 16);
}

#[test]
fn spans_are_copied_between_and_inside_pools() {
    let mut w = World::new(cuda(), Rounding::F32);
    let mut out = StepOutput::default();
    let batch = w.batch(0, 9);
    w.backend.run(w.exe, &batch, &mut out).unwrap();
    let other = w.backend.alloc_kv(KV, 2, 16).unwrap();
    let from = KvSpan { kv: w.kv, page: 2, start: 1, tokens: 3 };
    let want = w.backend.read_kv(from).unwrap();
    let far = KvSpan { kv: other, page: 1, start: 9, tokens: 3 };
    let overlapping = KvSpan { kv: w.kv, page: 2, start: 2, tokens: 3 };
    for to in [far, overlapping] {
        w.backend.copy_kv(from, to).unwrap();
        assert_eq!(w.backend.read_kv(to).unwrap(), want);
    }
    let start = KvSpan { kv: other, page: 0, start: 0, tokens: 3 };
    w.backend.write_kv(start, &want).unwrap();
    assert_eq!(w.backend.read_kv(start).unwrap(), want);
    w.backend.free_kv(other).unwrap();
    assert!(w.backend.free_kv(other).is_err(), "given back once");
}

#[test]
fn refusals_change_nothing() {
    let mut w = World::new(cuda(), Rounding::F32);
    let mut out = StepOutput::default();
    let batch = w.batch(0, 9);
    w.backend.run(w.exe, &batch, &mut out).unwrap();
    let all = |w: &mut World<CudaBackend<Emulator>>| {
        let page = |page| KvSpan { kv: w.kv, page, start: 0, tokens: PAGE_TOKENS };
        (0..PAGES as u32).map(page).map(|s| w.backend.read_kv(s).unwrap()).collect::<Vec<_>>()
    };
    let before = all(&mut w);
    let spoilt = |f: &dyn Fn(&mut tare_ops::Batch)| {
        let mut b = batch.clone();
        f(&mut b);
        b
    };
    let bad = [
        spoilt(&|b| b.rows[3].token = TokenSource::Id(100)),
        spoilt(&|b| b.rows[3].slot = 30),
        spoilt(&|b| b.rows[3].context = 31),
        spoilt(&|b| b.rows[3].slot = b.rows[4].slot),
        spoilt(&|b| b.tables[0].pages[0] = PAGES as u32),
        spoilt(&|b| b.tables[0].kv = KvId(99)),
        spoilt(&|b| b.rows.clear()),
    ];
    for batch in bad {
        let refused = w.backend.run(w.exe, &batch, &mut out);
        assert!(matches!(refused, Err(OpError::Input(_))), "{batch:?}");
    }
    let span = KvSpan { kv: w.kv, page: 0, start: 3, tokens: 3 };
    assert!(w.backend.read_kv(span).is_err());
    assert!(w.backend.copy_kv(span, KvSpan { page: 1, ..span }).is_err());
    assert!(w.backend.write_kv(KvSpan { start: 0, ..span }, &[0; 7]).is_err());
    assert_eq!(all(&mut w), before);
}

#[test]
fn absurd_pools_are_refused() {
    let mut backend = cuda();
    let refused = backend.alloc_kv(KV, usize::MAX / 2, 16);
    assert!(matches!(refused, Err(OpError::OutOfMemory { .. })), "{refused:?}");
    assert!(matches!(backend.alloc_kv(KV, 0, 16), Err(OpError::Input(_))));
}
