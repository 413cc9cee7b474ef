//! Bytes that the process has allocated, and the most since a moment: "allocator peak of that request".
//!
//! A binary installs [`Counting`] as its global allocator; what it costs is two relaxed atomic operations for each
//! allocation, and the token loop makes none. Memory that is mapped does not pass through it: model files, and the
//! KV pools and step buffers of the CPU backend.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tare_core::Reading;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with a count of live bytes.
#[derive(Clone, Copy, Debug)]
pub struct Counting;

fn grown(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(live, Relaxed);
}

// SAFETY: every call is handed to the system's allocator with the arguments that came; counting changes neither the
// pointers nor the layouts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps `GlobalAlloc::alloc`'s contract, which is the system allocator's.
        let p = unsafe { System.alloc(layout) };
        if !p.is_null() {
            grown(layout.size());
        }
        p
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let p = unsafe { System.alloc_zeroed(layout) };
        if !p.is_null() {
            grown(layout.size());
        }
        p
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from this allocator, which is the system's, with this layout.
        unsafe { System.dealloc(ptr, layout) };
        LIVE.fetch_sub(layout.size(), Relaxed);
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as in `dealloc`; the caller keeps the contract for `new_size`.
        let p = unsafe { System.realloc(ptr, layout, new_size) };
        if !p.is_null() {
            grown(new_size);
            LIVE.fetch_sub(layout.size(), Relaxed);
        }
        p
    }
}

/// Gives memory that was freed back to the system. Loading frees much of what it took, and the allocator keeps it in small
/// pieces for later; it belongs between loading and the first step. Does nothing where the allocator is not glibc's.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes the allocator's locks and touches free memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Forgets the peak: from now on it is the most that was live since this call.
pub fn reset_peak() {
    PEAK.store(LIVE.load(Relaxed), Relaxed);
}

/// The most bytes that were live since [`reset_peak`], or since the process began.
pub fn peak_bytes() -> Reading<u64> {
    match PEAK.load(Relaxed) {
        0 => Reading::unavailable("this binary does not count its allocations"),
        n => Reading::Available(n as u64),
    }
}
