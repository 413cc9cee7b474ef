//! A backend that fails now and then: a failed step changes nothing, and the next one goes on.

use crate::rig::{PAGED, PLAIN, Rig, collect, full, prompts, run, sampled};
use std::collections::BTreeMap;
use tare_core::Fault;
use tare_engine::Request;
use tare_ops::{Backend, Batch, Executable, KvId, KvShape, OpError, ReferenceBackend, StepOutput};

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
    tare_ops::hand_on!(
        this => this.inner;
        describe, variants, device_bytes, pack, free_kv, copy_kv, read_kv, write_kv, rest, benched, pages, compile, release,
        run_apart
    );

    fn alloc_kv(&mut self, shape: KvShape, pages: usize, page_tokens: usize) -> Result<KvId, OpError> {
        each(&mut self.regions, 7)?;
        self.inner.alloc_kv(shape, pages, page_tokens)
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
