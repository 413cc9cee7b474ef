//! A warm decode step allocates nothing, on any thread.

mod decoder;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use decoder::World;
use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::{Backend, Rounding, StepOutput};

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

#[test]
fn a_warm_decode_step_allocates_nothing() {
    let backend = CpuBackend::new(CpuConfig { threads: 3, isa: detect_isa(), pin: false }).unwrap();
    let mut world = World::new(backend, Rounding::Bf16);
    let batches: Vec<_> = (0..20).map(|i| world.batch(i, i + 1)).collect();
    let mut out = StepOutput::default();
    let mut run = |i: usize| world.backend.run(world.exe, &batches[i], &mut out).unwrap();
    (0..4).for_each(&mut run);
    let before = ASKED.load(SeqCst);
    (4..20).for_each(&mut run);
    assert_eq!(ASKED.load(SeqCst) - before, 0, "allocations in 16 warm steps");
}
