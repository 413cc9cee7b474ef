//! Reading a buffer once, as fast as this processor can.

use crate::isa::CpuFeatures;
use crate::region::LINE_WORDS;

/// The instructions that read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Reader {
    /// The widest that `features` allow.
    pub(super) fn best(features: &CpuFeatures) -> Self {
        #[cfg(target_arch = "x86_64")]
        if features.avx512f {
            return Self::Avx512;
        } else if features.avx2 {
            return Self::Avx2;
        }
        let _portable_for_all_others = features;
        Self::Portable
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512f",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }

    /// The exclusive or of all words, each line loaded once in rising order, with a prefetch `ahead_bytes` before
    /// each line (0: none, and none where the reader has no such instruction).
    ///
    /// `words` must be a whole number of lines. `self` must come from [`Reader::best`] on this host.
    pub(super) fn fold(self, words: &[u64], ahead_bytes: usize) -> u64 {
        debug_assert!(words.len().is_multiple_of(LINE_WORDS));
        match self {
            // SAFETY: `best` chose this reader because the processor has AVX-512F.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { x86::fold_avx512(words, ahead_bytes) },
            // SAFETY: `best` chose this reader because the processor has AVX2.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::fold_avx2(words, ahead_bytes) },
            Self::Portable => {
                let _no_such_instruction = ahead_bytes;
                fold_portable(words)
            }
        }
    }

    /// The prefetch distances worth trying, in bytes.
    pub(super) fn distances(self) -> &'static [usize] {
        if self == Self::Portable { &[0] } else { &[0, 1024, 4096, 8192] }
    }
}

/// Eight independent sums over lines, which compilers turn into the vectors that the target always has.
fn fold_portable(words: &[u64]) -> u64 {
    let mut sums = [0u64; LINE_WORDS];
    for line in words.as_chunks::<LINE_WORDS>().0 {
        for (sum, word) in sums.iter_mut().zip(line) {
            *sum ^= word;
        }
    }
    sums.iter().fold(0, |a, b| a ^ b)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::region::LINE_WORDS;
    use std::arch::x86_64::*;

    /// Lines in one turn of the loop: enough independent loads that the loop itself costs nothing.
    const TURN: usize = 8;

    /// # Safety
    /// The processor must have AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn fold_avx512(words: &[u64], ahead_bytes: usize) -> u64 {
        let mut sums = [_mm512_setzero_si512(); 4];
        let (turns, rest) = words.as_chunks::<{ TURN * LINE_WORDS }>();
        for turn in turns {
            for line in 0..TURN {
                let at = turn[line * LINE_WORDS..].as_ptr();
                prefetch(at, ahead_bytes);
                // SAFETY: one line of this turn is 64 bytes inside `words`; the load needs no alignment.
                let loaded = unsafe { _mm512_loadu_si512(at.cast()) };
                sums[line % 4] = _mm512_xor_si512(sums[line % 4], loaded);
            }
        }
        let sum = _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3]));
        let mut lanes = [0u64; 8];
        // SAFETY: `lanes` is 64 bytes; the store needs no alignment.
        unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), sum) };
        lanes.iter().chain(rest).fold(0, |a, b| a ^ b)
    }

    /// # Safety
    /// The processor must have AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn fold_avx2(words: &[u64], ahead_bytes: usize) -> u64 {
        let mut sums = [_mm256_setzero_si256(); 4];
        let (turns, rest) = words.as_chunks::<{ TURN * LINE_WORDS }>();
        for turn in turns {
            for line in 0..TURN {
                let at = turn[line * LINE_WORDS..].as_ptr();
                prefetch(at, ahead_bytes);
                // SAFETY: the first half of one line of this turn, inside `words`; the load needs no alignment.
                let low = unsafe { _mm256_loadu_si256(at.cast()) };
                // SAFETY: the second half of the same line.
                let high = unsafe { _mm256_loadu_si256(at.add(LINE_WORDS / 2).cast()) };
                sums[line % 2] = _mm256_xor_si256(sums[line % 2], low);
                sums[2 + line % 2] = _mm256_xor_si256(sums[2 + line % 2], high);
            }
        }
        let sum = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
        let mut lanes = [0u64; 4];
        // SAFETY: `lanes` is 32 bytes; the store needs no alignment.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
        lanes.iter().chain(rest).fold(0, |a, b| a ^ b)
    }

    /// Asks for the line `ahead_bytes` after `at`; nothing for 0.
    #[inline(always)]
    fn prefetch(at: *const u64, ahead_bytes: usize) {
        if ahead_bytes > 0 {
            // Past the end of the buffer this names memory that is not ours, which a prefetch may do: it never faults.
            // SAFETY: SSE is part of x86-64, and the instruction accesses no memory in the language's sense.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>().wrapping_add(ahead_bytes)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Region;

    #[test]
    fn all_readers_read_every_word_once() {
        // A length that leaves a remainder after whole turns of the vector loops.
        let region = Region::filled(3 * 64 * 1024 + 64 * 5, 3, || true).unwrap();
        let words = region.words();
        let want = words.iter().fold(0, |a, b| a ^ b);
        let best = Reader::best(&CpuFeatures::detect());
        let without_avx512 = Reader::best(&CpuFeatures { avx512f: false, ..CpuFeatures::detect() });
        for reader in [best, without_avx512, Reader::Portable] {
            for ahead in [0, 4096] {
                assert_eq!(reader.fold(words, ahead), want, "{} {ahead}", reader.name());
            }
        }
    }
}
