//! Zeroed memory for step buffers and KV pools: aligned, touched only when used, on huge pages where the host has them.

use std::fmt;
use std::ptr::NonNull;

/// Bytes from which huge pages are asked for: the size of one.
#[cfg(any(target_os = "linux", not(unix)))]
const HUGE: usize = 2 << 20;

/// Zeroed bytes at an address that is a multiple of 64, freed on drop.
///
/// The memory is handed out as a raw pointer: several workers write disjoint parts of it at once, which references to
/// the whole could not express.
pub struct Memory {
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns plain bytes, like a `Box<[u8]>`.
unsafe impl Send for Memory {}
// SAFETY: shared access gives a raw pointer only; whoever follows it answers for races.
unsafe impl Sync for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.bytes)
    }
}

impl Memory {
    /// `bytes` zeroed bytes; none when the host refuses.
    pub fn zeroed(bytes: usize) -> Option<Self> {
        if bytes == 0 {
            return Some(Self { ptr: NonNull::<Line>::dangling().cast(), bytes });
        }
        Some(Self { ptr: map(bytes)?, bytes })
    }

    /// The first byte.
    pub fn as_ptr<T>(&self) -> *mut T {
        self.ptr.as_ptr().cast()
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

/// A cache line: the alignment that is promised.
#[repr(align(64))]
struct Line;

#[cfg(unix)]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
    // SAFETY: a new anonymous mapping touches nothing that exists.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    #[cfg(target_os = "linux")]
    if bytes >= HUGE {
        // SAFETY: the range is the mapping just made. A refusal costs speed only.
        unsafe { libc::madvise(at, bytes, libc::MADV_HUGEPAGE) };
    }
    NonNull::new(at.cast())
}

#[cfg(unix)]
impl Drop for Memory {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: this mapping was made by `map` with this length and nobody can hold a pointer into it by the
            // contract of `as_ptr`'s users, who borrow or own the `Memory`.
            unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(not(unix))]
fn layout(bytes: usize) -> Option<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(bytes, if bytes >= HUGE { 4096 } else { align_of::<Line>() }).ok()
}

#[cfg(not(unix))]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: the layout has a size above 0.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout(bytes)?) })
}

#[cfg(not(unix))]
impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = layout(self.bytes).filter(|_| self.bytes > 0) {
            // SAFETY: allocated by `map` with this very layout.
            unsafe { std::alloc::dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_refused_when_absurd() {
        for bytes in [0usize, 1, 100, 3 << 20] {
            let m = Memory::zeroed(bytes).unwrap();
            assert_eq!((m.as_ptr::<u8>() as usize % 64, m.len()), (0, bytes));
            // SAFETY: `bytes` bytes are there, and initialised.
            let all = unsafe { std::slice::from_raw_parts(m.as_ptr::<u8>(), bytes) };
            assert!(all.iter().all(|b| *b == 0));
        }
        assert!(Memory::zeroed(usize::MAX / 2).is_none());
    }
}
