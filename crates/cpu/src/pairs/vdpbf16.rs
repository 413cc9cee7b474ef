//! Pairs of BF16 by `vdpbf16ps`, with lanes of AVX-512.

use super::{PairKernel, Pairs};
use crate::lanes::Lanes;
use crate::lanes::avx512::Avx512;
use std::arch::x86_64::*;
use tare_ops::Isa;

/// AVX-512 with BF16 is there.
#[derive(Clone, Copy, Debug)]
pub struct Avx512Bf16(Avx512);

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
fn with_features<K: PairKernel>(p: Avx512Bf16, kernel: K) {
    kernel.run(p);
}

// SAFETY of every block below: an `Avx512Bf16` exists only where `prove` found the features, and where an address is taken,
// it is the caller's, who promises what the trait asks for.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all of them, stated above")]
impl Pairs for Avx512Bf16 {
    type L = Avx512;
    const ISA: Isa = Isa::Avx512Bf16;

    fn prove() -> Option<Self> {
        Avx512::detect().filter(|_| is_x86_feature_detected!("avx512bf16")).map(Self)
    }
    #[inline(always)]
    fn lanes(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn compiled<K: PairKernel>(self, kernel: K) {
        unsafe { with_features(self, kernel) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u16, first: __m512, second: __m512) {
        unsafe {
            let both: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(second, first));
            _mm512_storeu_si512(to.cast(), both);
        }
    }
    #[inline(always)]
    unsafe fn dot(self, acc: __m512, a: *const u16, b: *const u16) -> __m512 {
        unsafe {
            let pairs = |p: *const u16| std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(p.cast()));
            _mm512_dpbf16_ps(acc, pairs(a), pairs(b))
        }
    }
    #[inline(always)]
    unsafe fn dot_pair(self, acc: __m512, row: __m512, pair: *const u16) -> __m512 {
        unsafe {
            let both = _mm512_set1_epi32(pair.cast::<i32>().read_unaligned());
            let pairs = |v: __m512i| std::mem::transmute::<__m512i, __m512bh>(v);
            _mm512_dpbf16_ps(acc, pairs(_mm512_castps_si512(row)), pairs(both))
        }
    }
}
