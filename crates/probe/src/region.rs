//! A large buffer that asks for huge pages and is first touched by whoever fills it.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

/// Alignment of a region: one x86 or Arm huge page, so that the whole region can lie in them.
const ALIGN: usize = 2 << 20;

/// 64-byte lines, none of them equal to another or zero.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u64>,
    /// How many words were allocated and filled.
    words: usize,
    layout: Layout,
}

/// Words in one line.
pub(crate) const LINE_WORDS: usize = 8;

// SAFETY: a region owns its memory alone, as a Vec does.
unsafe impl Send for Region {}
// SAFETY: shared access only reads.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates up to `bytes` and fills it from `seed` on the calling thread, which thereby places its pages. Stops
    /// early when `go_on` says so (asked every 4 MiB); the region then is as long as what was filled.
    ///
    /// # Errors
    /// When the system gives no memory of this size.
    pub(crate) fn filled(bytes: usize, seed: u64, go_on: impl Fn() -> bool) -> Result<Self, String> {
        let line_bytes = LINE_WORDS * size_of::<u64>();
        let bytes = (bytes / line_bytes).max(1) * line_bytes;
        let layout = Layout::from_size_align(bytes, ALIGN).map_err(|e| format!("a buffer of {bytes} bytes: {e}"))?;
        // SAFETY: the layout is not empty.
        let start =
            NonNull::new(unsafe { alloc(layout) }).ok_or_else(|| format!("no memory for {bytes} bytes"))?.cast();
        ask_for_huge_pages(start, bytes);
        let mut region = Self { start, words: 0, layout };
        region.fill(bytes / size_of::<u64>(), seed, go_on);
        Ok(region)
    }

    fn fill(&mut self, words: usize, seed: u64, go_on: impl Fn() -> bool) {
        const STEP_WORDS: usize = (4 << 20) / size_of::<u64>();
        while self.words < words && (self.words == 0 || go_on()) {
            let count = STEP_WORDS.min(words - self.words);
            // SAFETY: `count` words from here are inside the allocation.
            let step = unsafe { self.start.add(self.words) };
            for line in 0..count / LINE_WORDS {
                let pattern = line_of(seed, (self.words / LINE_WORDS + line) as u64);
                // SAFETY: the line lies inside the step, and a write needs no initialised memory.
                unsafe { step.add(line * LINE_WORDS).cast::<[u64; LINE_WORDS]>().write(pattern) };
            }
            self.words += count;
        }
    }

    /// The words of the region.
    pub(crate) fn words(&self) -> &[u64] {
        // SAFETY: `words` words were written from `start` on, and nothing writes to them again.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc` with this layout and is given back once.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) };
    }
}

/// Eight words from the line's number: a SplitMix64 step (Steele, Lea and Flood 2014) times odd constants. Odd, so
/// that no word is zero unless the mixed number is, and then it is replaced.
fn line_of(seed: u64, line: u64) -> [u64; LINE_WORDS] {
    let mut x = seed.wrapping_add(line.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x = (x ^ (x >> 31)).max(1);
    std::array::from_fn(|i| x.wrapping_mul(2 * i as u64 + 0x9E37_79B9_7F4A_7C15))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn ask_for_huge_pages(start: NonNull<u64>, bytes: usize) {
    // Advice: a kernel without huge pages refuses, and the buffer works all the same. What came of it is read from
    // smaps afterwards, so the answer is not needed here.
    // SAFETY: the range is our own allocation; this advice changes no contents.
    unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn ask_for_huge_pages(_start: NonNull<u64>, _bytes: usize) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_word_is_zero_and_no_line_repeats() {
        let region = Region::filled(9 << 20, 7, || true).unwrap();
        assert_eq!(size_of_val(region.words()), 9 << 20);
        assert!(region.words().iter().all(|&w| w != 0));
        let lines: HashSet<&[u64]> = region.words().chunks_exact(LINE_WORDS).collect();
        assert_eq!(lines.len(), region.words().len() / LINE_WORDS);
    }

    #[test]
    fn filling_stops_when_told_and_says_how_far_it_came() {
        let region = Region::filled(64 << 20, 7, || false).unwrap();
        assert_eq!(size_of_val(region.words()), 4 << 20);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(Region::filled(usize::MAX / 2, 7, || true).is_err());
    }
}
