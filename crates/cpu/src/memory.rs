//! Memory on huge pages, where the host has them: zeroed memory for step buffers and KV pools, and what others allocated.
//!
//! Nothing here says that huge pages were got: [`tare_probe::page_use`] asks the system.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// Zeroed bytes at an address that is a multiple of 64 (of a huge page, from the size of one on), freed on drop. They
/// are touched only when used, by whoever uses them.
///
/// The memory is handed out as a raw pointer: several workers write disjoint parts of it at once, which references to
/// the whole could not express.
pub struct Memory {
    ptr: NonNull<u8>,
    bytes: usize,
    /// What was mapped for it, and is given back with it.
    _mapped: Mapped,
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
            return Some(Self { ptr: NonNull::<Line>::dangling().cast(), bytes, _mapped: Mapped::default() });
        }
        // Room to begin where a huge page begins; what is left over is never touched.
        let mapped = Mapped::new(if bytes >= HUGE { bytes.checked_add(HUGE)? } else { bytes })?;
        let first = mapped.first?;
        let ptr = if bytes >= HUGE {
            // SAFETY: at most one huge page further on, which is inside what was mapped.
            unsafe { first.add(first.as_ptr().align_offset(HUGE)) }
        } else {
            first
        };
        let memory = Self { ptr, bytes, _mapped: mapped };
        if bytes >= HUGE {
            advise(memory.range(), Advice::Huge);
        }
        Some(memory)
    }

    /// The first byte.
    pub fn as_ptr<T>(&self) -> *mut T {
        self.ptr.as_ptr().cast()
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Its addresses.
    pub fn range(&self) -> Range<usize> {
        let from = self.ptr.as_ptr() as usize;
        from..from + self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

/// A cache line: the alignment that is promised.
#[repr(align(64))]
struct Line;

/// Huge pages, whole and in their places, of which these ranges fill at least three quarters: where a range is too small
/// for one, its neighbours may fill the rest. In rising order.
pub fn windows(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_unstable_by_key(|r| r.start);
    let mut filled: Vec<(usize, usize)> = Vec::new();
    for range in ranges.into_iter().filter(|r| !r.is_empty()) {
        for window in range.start / HUGE..=(range.end - 1) / HUGE {
            let here = range.end.min((window + 1) * HUGE) - range.start.max(window * HUGE);
            match filled.last_mut() {
                Some((last, bytes)) if *last == window => *bytes += here,
                _ => filled.push((window, here)),
            }
        }
    }
    let most = filled.into_iter().filter(|(_, bytes)| *bytes >= HUGE / 4 * 3);
    most.map(|(window, _)| window * HUGE..(window + 1) * HUGE).collect()
}

/// Moves what lies in `window`, one of [`windows`], onto a huge page, contents unchanged. A host that cannot do it leaves
/// everything as it is.
pub fn gather(window: &Range<usize>) {
    advise(window.clone(), Advice::Huge);
    advise(window.clone(), Advice::Gather);
}

/// What is asked of the system.
enum Advice {
    /// Huge pages when the memory is touched first.
    Huge,
    /// Huge pages for what lies there.
    Gather,
}

#[cfg(target_os = "linux")]
fn advise(range: Range<usize>, advice: Advice) {
    /// `MADV_COLLAPSE` of Linux 6.1.
    const COLLAPSE: libc::c_int = 25;
    let advice = match advice {
        Advice::Huge => libc::MADV_HUGEPAGE,
        Advice::Gather => COLLAPSE,
    };
    // SAFETY: neither advice changes what the memory holds or who may use it, whosever it is. A refusal costs speed only.
    unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), advice) };
}

#[cfg(not(target_os = "linux"))]
fn advise(_range: Range<usize>, _advice: Advice) {}

/// What the system gave; nothing by default.
#[derive(Default)]
struct Mapped {
    bytes: usize,
    first: Option<NonNull<u8>>,
}

#[cfg(unix)]
impl Mapped {
    fn new(bytes: usize) -> Option<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        (at != libc::MAP_FAILED).then(|| Self { bytes, first: NonNull::new(at.cast()) })
    }
}

#[cfg(unix)]
impl Drop for Mapped {
    fn drop(&mut self) {
        if let Some(first) = self.first {
            // SAFETY: this mapping was made by `new` with this length and nobody can hold a pointer into it by the
            // contract of `as_ptr`'s users, who borrow or own the `Memory`.
            unsafe { libc::munmap(first.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(not(unix))]
impl Mapped {
    fn layout(bytes: usize) -> Option<std::alloc::Layout> {
        std::alloc::Layout::from_size_align(bytes, align_of::<Line>()).ok()
    }

    fn new(bytes: usize) -> Option<Self> {
        // SAFETY: the layout has a size above 0.
        let first = NonNull::new(unsafe { std::alloc::alloc_zeroed(Self::layout(bytes)?) })?;
        Some(Self { bytes, first: Some(first) })
    }
}

#[cfg(not(unix))]
impl Drop for Mapped {
    fn drop(&mut self) {
        if let (Some(first), Some(layout)) = (self.first, Self::layout(self.bytes)) {
            // SAFETY: allocated by `new` with this very layout.
            unsafe { std::alloc::dealloc(first.as_ptr(), layout) };
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
        assert!(Memory::zeroed(usize::MAX).is_none());
        assert_eq!(Memory::zeroed(3 << 20).unwrap().range().start % HUGE, 0);
    }

    #[test]
    fn windows_are_those_that_are_mostly_filled() {
        let page = |n: usize| n * HUGE..(n + 1) * HUGE;
        let one = |range| windows(std::iter::once(range).collect());
        assert_eq!(windows(vec![]), []);
        assert_eq!(windows(vec![page(3), page(1), 0..0]), [page(1), page(3)]);
        // A third of one, all of the next, half of the one behind.
        assert_eq!(one(HUGE * 5 / 3..HUGE * 7 / 2), [page(2)]);
        // Four ranges fill one huge page.
        let parts = (0..4).map(|i| HUGE + i * HUGE / 4..HUGE + (i + 1) * HUGE / 4);
        assert_eq!(windows(parts.collect()), [page(1)]);
        assert_eq!(one(HUGE..HUGE + HUGE / 2), []);
    }

    #[test]
    fn gathered_memory_holds_what_it_held() {
        let bytes: Vec<u8> = (0..9 << 20).map(|i: usize| (i / 4096 + i) as u8).collect();
        let from = bytes.as_ptr() as usize;
        let found = windows(std::iter::once(from..from + bytes.len()).collect());
        assert!(found.len() >= 3);
        found.iter().for_each(gather);
        assert!(bytes.iter().enumerate().all(|(i, b)| *b == (i / 4096 + i) as u8));
    }
}
