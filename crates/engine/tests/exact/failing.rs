//! A backend that fails now and then: a failed step changes nothing, and the next one goes on.

use crate::rig::{PAGED, PLAIN, Rig, collect, full, prompts, run, sampled};
use std::collections::BTreeMap;
use tare_core::{Fault, PageUse, Reading};
use tare_engine::Request;
use tare_ops::{
    Backend, BackendInfo, Batch, Executable, ForwardPlan, KvId, KvShape, KvSpan, Launched, OpError, ReferenceBackend,
    StepOutput, Variant, WeightId,
};

/// The reference backend, except that each third forward and each seventh region fail.
struct Flaky {
    inner: ReferenceBackend,
    runs: usize,
    regions: usize,
}

/// Counts, and fails each `n`th time.
fn each(count: &mut usize, n: usize) -> Result<(), OpError> {
    *count += 1;
    if count.is_multiple_of(n) {
        Err(Fault::new("device", "a working device", "a planted fault").into())
    } else {
        Ok(())
    }
}

impl Backend for Flaky {
    fn device_bytes(&self) -> Reading<u64> {
        self.inner.device_bytes()
    }
    fn rest(&mut self) {
        self.inner.rest();
    }
    fn pages(&self) -> Reading<BTreeMap<String, PageUse>> {
        self.inner.pages()
    }
    fn run_apart(
        &mut self,
        exe: Executable,
        batch: &Batch,
        rows: &[usize],
        out: &mut StepOutput,
        launched: &mut Vec<Launched>,
    ) -> Result<(), OpError> {
        self.inner.run_apart(exe, batch, rows, out, launched)
    }
    fn describe(&self) -> BackendInfo {
        self.inner.describe()
    }
    fn variants(&self) -> &[Variant] {
        self.inner.variants()
    }
    fn pack(&mut self, weight: &tare_core::Weight) -> Result<WeightId, OpError> {
        self.inner.pack(weight)
    }
    fn alloc_kv(&mut self, shape: KvShape, pages: usize, page_tokens: usize) -> Result<KvId, OpError> {
        each(&mut self.regions, 7)?;
        self.inner.alloc_kv(shape, pages, page_tokens)
    }
    fn free_kv(&mut self, kv: KvId) -> Result<(), OpError> {
        self.inner.free_kv(kv)
    }
    fn copy_kv(&mut self, from: KvSpan, to: KvSpan) -> Result<(), OpError> {
        self.inner.copy_kv(from, to)
    }
    fn read_kv(&mut self, span: KvSpan) -> Result<Vec<u8>, OpError> {
        self.inner.read_kv(span)
    }
    fn write_kv(&mut self, span: KvSpan, bytes: &[u8]) -> Result<(), OpError> {
        self.inner.write_kv(span, bytes)
    }
    fn compile(&mut self, plan: &ForwardPlan) -> Result<Executable, OpError> {
        self.inner.compile(plan)
    }
    fn release(&mut self, exe: Executable) {
        self.inner.release(exe);
    }
    fn run(&mut self, exe: Executable, batch: &Batch, out: &mut StepOutput) -> Result<(), OpError> {
        each(&mut self.runs, 3)?;
        self.inner.run(exe, batch, out)
    }
}

#[test]
fn a_failed_step_never_happened() {
    let prompts = prompts();
    let requests = || [full(&prompts[1], 6), Request { retain: true, ..sampled(&prompts[2], 8, 3) }];
    let alone = requests().map(|r| run(&mut PLAIN.engine(), r).answer);
    for plan in ["paged", "capacity-cache", "kv-cache", "recompute"] {
        let rig = Rig { plan, max_rows: 16, ..PAGED };
        let mut engine = rig.engine_on(Box::new(Flaky { inner: ReferenceBackend::new(), runs: 0, regions: 0 }));
        let ids = requests().map(|r| engine.submit(r).unwrap());
        let (mut ended, mut failures, mut steps) = (BTreeMap::new(), 0, 0);
        while engine.has_work() {
            let pool = engine.counters().pool;
            match engine.step() {
                Ok(report) => collect(report, &mut ended),
                Err(e) => {
                    failures += 1;
                    assert!(e.to_string().contains("planted"), "{e}");
                    if plan == "paged" {
                        assert_eq!(engine.counters().pool.live, pool.live, "pages of a failed step are given back");
                    }
                }
            }
            steps += 1;
            assert!(steps < 1000, "{plan} does not come to an end");
        }
        assert!(failures > 3, "{plan}");
        for (id, alone) in ids.iter().zip(&alone) {
            assert!(ended[id].answer == *alone, "{plan}: {id} differs");
        }
        if let Some(kept) = ended[&ids[1]].retained {
            assert_ne!(plan, "recompute", "it keeps nothing");
            engine.release_retained(kept);
            engine.step().unwrap();
        }
        assert_eq!(engine.counters().pool.live, 0, "{plan}");
    }
}

#[test]
fn an_engine_may_move_to_the_thread_that_steps_it() {
    let prompt = &prompts()[1];
    let mut engine = PAGED.engine();
    let want = run(&mut PLAIN.engine(), full(prompt, 3)).answer;
    let request = full(prompt, 3);
    let got = std::thread::scope(|s| s.spawn(move || run(&mut engine, request).answer).join().unwrap());
    assert!(got == want);
}
