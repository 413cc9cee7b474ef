//! Products of bytes by `vpdpbusd`: sixteen rows in one AVX-512 register.

use super::{DotKernel, Dots};
use crate::lanes::Lanes;
use crate::lanes::avx512::Avx512;
use std::arch::x86_64::*;
use tare_ops::Isa;

/// AVX-512 with VNNI is there.
#[derive(Clone, Copy, Debug)]
pub struct Vnni(Avx512);

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn with_features<K: DotKernel>(d: Vnni, kernel: K) {
    kernel.run(d);
}

// SAFETY of every block below: a `Vnni` exists only where `prove` found the features, and where an address is taken, it
// is the caller's, who promises what the trait asks for.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all of them, stated above")]
impl Dots for Vnni {
    type L = Avx512;
    type B = __m512i;
    type I = __m512i;
    const ISA: Isa = Isa::Avx512Vnni;
    const WIDE: bool = true;
    const NARROW: bool = false;
    const WIDE_CENTER: i32 = 0;

    fn prove() -> Option<Self> {
        Avx512::detect().filter(|_| is_x86_feature_detected!("avx512vnni")).map(Self)
    }
    #[inline(always)]
    fn lanes(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn compiled<K: DotKernel>(self, kernel: K) {
        unsafe { with_features(self, kernel) }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    fn shr(self, b: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_srl_epi16(b, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    fn shl(self, b: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_sll_epi16(b, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    fn and(self, b: __m512i, mask: u8) -> __m512i {
        unsafe { _mm512_and_si512(b, _mm512_set1_epi8(mask.cast_signed())) }
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    fn splat(self, i: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(i) }
    }
    #[inline(always)]
    fn dot(self, acc: __m512i, codes: __m512i, x: i32) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(x)) }
    }
    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn dot_wide(self, acc: __m512i, codes: __m512i, x: i32) -> __m512i {
        self.dot(acc, codes, x)
    }
    #[inline(always)]
    fn join(self, high: __m512i, low: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(_mm512_slli_epi32::<7>(high), low) }
    }
    #[inline(always)]
    fn to_f32(self, sums: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(sums) }
    }
}
