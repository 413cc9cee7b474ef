//! F32 multiply-adds between registers, as many as this processor can do.

use crate::isa::CpuFeatures;
use std::hint::black_box;

/// The instructions that multiply and add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fma {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// Independent chains: latency 4 times two ports needs 8 in flight; more would spill on AVX2's 16 registers.
const CHAINS: usize = 12;
/// Lanes of one portable chain.
const PORTABLE_LANES: usize = 4;

/// The factor and the addend. Each chain tends to addend / (1 - factor) = 8, far from overflow and from denormals.
const FACTOR: f32 = 0.875;
const ADDEND: f32 = 1.0;

impl Fma {
    /// The widest that `features` allow.
    pub(super) fn best(features: &CpuFeatures) -> Self {
        #[cfg(target_arch = "x86_64")]
        if features.avx512f {
            return Self::Avx512;
        } else if features.avx2 && features.fma {
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
            Self::Avx2 => "avx2+fma",
            Self::Portable => "portable",
        }
    }

    /// Floating-point operations of one turn: a multiply and an add per lane of every chain.
    pub(super) fn flop_per_turn(self) -> u64 {
        let lanes = match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => 16,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 8,
            Self::Portable => PORTABLE_LANES,
        };
        (2 * lanes * CHAINS) as u64
    }

    /// Does `turns` turns and returns one of the results (8 after enough turns).
    ///
    /// `self` must come from [`Fma::best`] on this host.
    pub(super) fn run(self, turns: u64) -> f32 {
        match self {
            // SAFETY: `best` chose this because the processor has AVX-512F.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { x86::run_avx512(turns) },
            // SAFETY: `best` chose this because the processor has AVX2 and FMA.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::run_avx2(turns) },
            Self::Portable => run_portable(turns),
        }
    }
}

fn run_portable(turns: u64) -> f32 {
    let mut chains = [[0.5f32; PORTABLE_LANES]; CHAINS];
    let (factor, addend) = (black_box(FACTOR), black_box(ADDEND));
    for _ in 0..turns {
        for x in chains.as_flattened_mut() {
            // Where the target always has a fused instruction it is the fast one; elsewhere it would be a library call.
            *x = if cfg!(target_arch = "aarch64") { x.mul_add(factor, addend) } else { *x * factor + addend };
        }
    }
    black_box(chains)[CHAINS - 1][0]
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{ADDEND, CHAINS, FACTOR};
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// # Safety
    /// The processor must have AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn run_avx512(turns: u64) -> f32 {
        let mut chains = [_mm512_set1_ps(0.5); CHAINS];
        let (factor, addend) = (_mm512_set1_ps(black_box(FACTOR)), _mm512_set1_ps(black_box(ADDEND)));
        for _ in 0..turns {
            for x in &mut chains {
                *x = _mm512_fmadd_ps(*x, factor, addend);
            }
        }
        chains.iter().map(|x| _mm512_cvtss_f32(*x)).fold(0.0, f32::max)
    }

    /// # Safety
    /// The processor must have AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn run_avx2(turns: u64) -> f32 {
        let mut chains = [_mm256_set1_ps(0.5); CHAINS];
        let (factor, addend) = (_mm256_set1_ps(black_box(FACTOR)), _mm256_set1_ps(black_box(ADDEND)));
        for _ in 0..turns {
            for x in &mut chains {
                *x = _mm256_fmadd_ps(*x, factor, addend);
            }
        }
        chains.iter().map(|x| _mm256_cvtss_f32(*x)).fold(0.0, f32::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_does_the_turns_it_claims() {
        let features = CpuFeatures::detect();
        let without_avx512 = Fma::best(&CpuFeatures { avx512f: false, ..features });
        for kind in [Fma::best(&features), without_avx512, Fma::Portable] {
            // x(n+1) = 7/8 x(n) + 1 from 1/2: after 3 turns 3047/1024 exactly, in the limit 8.
            assert_eq!(kind.run(3), 3047.0 / 1024.0, "{}", kind.name());
            assert!((kind.run(500) - 8.0).abs() < 1e-5, "{}", kind.name());
            assert!(kind.flop_per_turn() >= 96);
        }
    }
}
