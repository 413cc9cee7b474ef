//! Whole steps: barriers are where they must be, whatever the threads; spans and refusals as the trait promises.

mod decoder;
mod witness;

use decoder::{KV, PAGE_TOKENS, PAGES, World};
use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::{
    Backend, Benched, Isa, KvId, KvSpan, OpError, ReferenceBackend, Rounding, StepOutput, TokenSource, Wants,
};
use witness::Script;

fn cpu(threads: usize, level: Isa) -> CpuBackend {
    CpuBackend::new(CpuConfig { threads, isa: detect_isa().up_to(level), pin: false, keep_workers: false }).unwrap()
}

/// A prompt in two chunks, then decode steps that feed on their own tokens.
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

#[test]
fn steps_are_bitwise_those_of_the_reference() {
    for rounding in [Rounding::F32, Rounding::Bf16] {
        let want = story(&mut World::new(ReferenceBackend::new(), rounding));
        let levels = detect_isa().levels().to_vec();
        for (threads, level) in levels.into_iter().flat_map(|level| [(1, level), (2, level), (3, level)]) {
            let got = story(&mut World::new(cpu(threads, level), rounding));
            for (step, (got, want)) in got.0.iter().zip(&want.0).enumerate() {
                assert_eq!(got.rows, want.rows, "{rounding:?}, {threads} threads, up to {level}, step {step}");
            }
            assert_eq!(got.1, want.1, "{rounding:?}, {threads} threads, up to {level}: cache");
        }
    }
}

#[test]
fn who_sits_out_changes_no_bit() {
    for rounding in [Rounding::F32, Rounding::Bf16] {
        let want = story(&mut World::new(ReferenceBackend::new(), rounding));
        for (threads, from) in [(2, 1), (3, 0), (4, 4), (5, 7), (6, 10)] {
            let config = CpuConfig { threads, isa: detect_isa(), pin: false, keep_workers: false };
            let backend = CpuBackend::watched(config, Box::new(Script::by_turns(from))).unwrap();
            let mut world = World::new(backend, rounding);
            assert_eq!(world.backend.benched().available(), Some(&Benched::default()), "loading counts for nothing");
            let mut short = 0;
            for _ in 0..4 {
                let got = story(&mut world);
                let same = got.0.iter().zip(&want.0).all(|(got, want)| got.rows == want.rows) && got.1 == want.1;
                assert!(same, "{rounding:?}, {threads} threads, from {from}");
                short = world.backend.benched().available().map_or(0, |b| b.short);
            }
            assert!(short > 0, "{threads} threads, from {from}: nobody sat out");
        }
    }
}

#[test]
fn a_backend_that_keeps_its_workers_computes_with_all_whoever_is_late() {
    let config = CpuConfig { threads: 4, isa: detect_isa(), pin: false, keep_workers: true };
    let backend = CpuBackend::watched(config, Box::new(Script::by_turns(0))).unwrap();
    let mut world = World::new(backend, Rounding::F32);
    for _ in 0..4 {
        story(&mut world);
        assert_eq!(world.backend.active(), 4);
    }
    let told = world.backend.benched();
    assert!(told.available().is_none() && format!("{told:?}").contains("kept in"), "{told:?}");
}

#[test]
fn a_traced_step_is_the_same_and_times_every_call() {
    let (mut plain, mut traced) =
        (World::new(cpu(2, Isa::Amx), Rounding::F32), World::new(cpu(2, Isa::Amx), Rounding::F32));
    let (mut want, mut got, mut ns) = (StepOutput::default(), StepOutput::default(), Vec::new());
    let batch = plain.batch(0, 9);
    plain.backend.run(plain.exe, &batch, &mut want).unwrap();
    traced.backend.run_traced(traced.exe, &batch, &mut got, &mut ns).unwrap();
    assert_eq!(got.rows, want.rows);
    assert_eq!(ns.len(), 4 + 15 + 16, "one number a call");
    assert!(ns.iter().filter(|t| **t > 0).count() > ns.len() / 2, "{ns:?}");
}

#[test]
fn spans_are_copied_between_and_inside_pools() {
    let mut w = World::new(cpu(2, Isa::Amx), Rounding::F32);
    let mut out = StepOutput::default();
    w.backend.run(w.exe, &w.batch(0, 9), &mut out).unwrap();
    let other = w.backend.alloc_kv(KV, 2, 16).unwrap();
    let from = KvSpan { kv: w.kv, page: 2, start: 1, tokens: 3 };
    let want = w.backend.read_kv(from).unwrap();
    for to in [KvSpan { kv: other, page: 1, start: 9, tokens: 3 }, KvSpan { kv: w.kv, page: 6, start: 2, tokens: 3 }] {
        w.backend.copy_kv(from, to).unwrap();
        assert_eq!(w.backend.read_kv(to).unwrap(), want);
    }
    w.backend.write_kv(KvSpan { kv: other, page: 0, start: 0, tokens: 3 }, &want).unwrap();
    assert_eq!(w.backend.read_kv(KvSpan { kv: other, page: 0, start: 0, tokens: 3 }).unwrap(), want);
    w.backend.free_kv(other).unwrap();
    assert!(w.backend.free_kv(other).is_err(), "given back once");
}

#[test]
fn refusals_change_nothing() {
    let mut w = World::new(cpu(2, Isa::Amx), Rounding::F32);
    let mut out = StepOutput::default();
    w.backend.run(w.exe, &w.batch(0, 9), &mut out).unwrap();
    let all = |w: &mut World<CpuBackend>| {
        let page = |page| KvSpan { kv: w.kv, page, start: 0, tokens: PAGE_TOKENS };
        (0..PAGES as u32).map(page).map(|s| w.backend.read_kv(s).unwrap()).collect::<Vec<_>>()
    };
    let before = all(&mut w);
    let spoilt = |f: &dyn Fn(&mut tare_ops::Batch)| {
        let mut b = w.batch(0, 9);
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
    let mut backend = cpu(1, Isa::Amx);
    let refused = backend.alloc_kv(KV, usize::MAX / 2, 16);
    assert!(matches!(refused, Err(OpError::OutOfMemory { .. })), "{refused:?}");
    assert!(matches!(backend.alloc_kv(KV, 0, 16), Err(OpError::Input(_))));
}

#[test]
#[cfg(target_os = "linux")]
fn pages_are_told_by_what_they_are_for() {
    let mut w = World::new(cpu(2, Isa::Amx), Rounding::F32);
    w.backend.run(w.exe, &w.batch(0, 9), &mut StepOutput::default()).unwrap();
    let pages = w.backend.pages().available().cloned().unwrap();
    assert_eq!(pages.keys().map(String::as_str).collect::<Vec<_>>(), ["buffers", "kv", "weights"]);
    assert_eq!(pages["kv"].bytes, (PAGES * PAGE_TOKENS * KV.token_bytes()) as u64);
    for (what, found) in pages {
        assert!(found.bytes > 0 && found.resident_bytes > 0, "{what}: {found:?}");
    }
    let boxed: Box<dyn Backend> = Box::new(w.backend);
    assert!(boxed.pages().available().is_some(), "who holds it behind a pointer is told the same");
}
