//! A warm decode step allocates nothing, on any thread.

mod decoder;
mod witness;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use decoder::World;
use tare_cpu::pool::Witness;
use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::{Backend, Rounding, StepOutput};
use tare_probe::Waits;
use witness::Script;

/// Counts what the whole process asks for: this file has one test, so that nobody else does.
struct Counting;

static ASKED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: it hands everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(1, SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ASKED.fetch_add(1, SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A script that really asks the system, too.
#[derive(Debug)]
struct Reading(Script);

impl Witness for Reading {
    fn now_ns(&mut self) -> u64 {
        self.0.now_ns()
    }

    fn waited_ns(&mut self, worker: usize) -> Result<u64, String> {
        if let Ok(waits) = Waits::of_this_thread() {
            waits.ns()?;
        }
        self.0.waited_ns(worker)
    }
}

#[test]
fn a_warm_decode_step_allocates_nothing() {
    let script = Script::default();
    script.late(&[2]);
    let config = CpuConfig { threads: 4, isa: detect_isa(), pin: false, keep_workers: false };
    let backend = CpuBackend::watched(config, Box::new(Reading(script))).unwrap();
    let mut world = World::new(backend, Rounding::Bf16);
    let batches: Vec<_> = (0..20).map(|i| world.batch(i, i + 1)).collect();
    let mut out = StepOutput::default();
    let mut run = |i: usize| world.backend.run(world.exe, &batches[i], &mut out).unwrap();
    (0..4).for_each(&mut run);
    let before = ASKED.load(SeqCst);
    (4..20).for_each(&mut run);
    assert_eq!(ASKED.load(SeqCst) - before, 0, "allocations in 16 warm steps");
    assert!(world.backend.benched().available().is_some_and(|b| b.short > 0), "in some of which a worker sat out");
}
