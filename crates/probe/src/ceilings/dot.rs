//! Products of bytes between registers, as many as the vectors of this processor can do.

use crate::isa::CpuFeatures;
use std::hint::black_box;

/// The instructions that multiply bytes and add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dot {
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

/// Independent chains: latency 6 times two ports.
const CHAINS: usize = 12;

impl Dot {
    /// The widest that `features` allow; none where there is no loop for them.
    pub(super) fn best(features: &CpuFeatures) -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if features.avx512f && features.avx512vnni {
            return Some(Self::Avx512Vnni);
        } else if features.avx2 {
            return Some(Self::Avx2);
        }
        let _no_loop_for_others = features;
        None
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => "vpdpbusd avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "vpmaddubsw avx2",
        }
    }

    /// Operations of one turn: a multiply and an add for each byte of every chain.
    pub(super) fn ops_per_turn(self) -> u64 {
        let bytes = match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => 64,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 32,
        };
        (2 * bytes * CHAINS) as u64
    }

    /// Does `turns` turns and returns one of the sums.
    ///
    /// `self` must come from [`Dot::best`] on this host.
    pub(super) fn run(self, turns: u64) -> i32 {
        match self {
            // SAFETY: `best` chose this because the processor has AVX-512F and VNNI.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => unsafe { x86::run_vnni(black_box(turns)) },
            // SAFETY: `best` chose this because the processor has AVX2.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::run_avx2(black_box(turns)) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::CHAINS;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// Four products of 3 and 2 are added to each sum in a turn.
    ///
    /// # Safety
    /// The processor must have AVX-512F and VNNI.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn run_vnni(turns: u64) -> i32 {
        let mut chains = [_mm512_setzero_si512(); CHAINS];
        let (codes, x) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(2)));
        for _ in 0..turns {
            for sums in &mut chains {
                *sums = _mm512_dpbusd_epi32(*sums, codes, x);
            }
        }
        chains.iter().map(|sums| _mm512_cvtsi512_si32(*sums)).fold(0, i32::max)
    }

    /// The two bytes of each sum are multiplied with 1, and 1 is added: products hang on each other, so that none is made
    /// once for all turns.
    ///
    /// # Safety
    /// The processor must have AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn run_avx2(turns: u64) -> i32 {
        let mut chains = [_mm256_setzero_si256(); CHAINS];
        let (x, one) = (_mm256_set1_epi8(black_box(1)), _mm256_set1_epi16(black_box(1)));
        for _ in 0..turns {
            for sums in &mut chains {
                *sums = _mm256_add_epi16(_mm256_maddubs_epi16(*sums, x), one);
            }
        }
        chains.iter().map(|sums| _mm256_extract_epi16::<0>(*sums)).fold(0, i32::max)
    }
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;

    #[test]
    fn every_kind_does_the_turns_it_claims() {
        let features = CpuFeatures::detect();
        let without_vnni = Dot::best(&CpuFeatures { avx512vnni: false, ..features });
        for kind in [Dot::best(&features), without_vnni].into_iter().flatten() {
            let of_a_turn = if kind == Dot::Avx2 { 1 } else { 24 };
            assert_eq!([0, 1, 3].map(|turns| kind.run(turns)), [0, 1, 3].map(|turns| turns * of_a_turn), "{kind:?}");
            assert!(kind.ops_per_turn() >= 768);
        }
        let none = CpuFeatures { avx2: false, avx512f: false, ..features };
        assert_eq!(Dot::best(&none), None);
    }
}
