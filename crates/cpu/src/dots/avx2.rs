//! Products of bytes in two AVX2 registers: rows 0 to 7 and 8 to 15.
//!
//! `vpmaddubsw` adds two products in 16 bits and saturates. Codes below 128 stay inside; codes of 8 bits are centered first,
//! and their sign moves over to x. Codes of 6 bits and fewer leave room to add several such pairs before they become 32 bits.

use super::{DotKernel, Dots};
use crate::lanes::Lanes;
use crate::lanes::avx2::Avx2;
use std::arch::x86_64::*;
use tare_ops::Isa;

type B = [__m256i; 2];

#[target_feature(enable = "avx2,fma,f16c")]
fn with_features<K: DotKernel>(d: Avx2, kernel: K) {
    kernel.run(d);
}

// SAFETY of every block below: an `Avx2` exists only where `detect` found the features, and where an address is taken, it
// is the caller's, who promises what the trait asks for.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all of them, stated above")]
impl Dots for Avx2 {
    type L = Avx2;
    type B = B;
    type I = B;
    const ISA: Isa = Isa::Avx2;
    const WIDE: bool = false;
    const NARROW: bool = true;
    const WIDE_CENTER: i32 = 128;

    fn prove() -> Option<Self> {
        Lanes::detect()
    }
    #[inline(always)]
    fn lanes(self) -> Avx2 {
        self
    }
    #[inline(always)]
    fn compiled<K: DotKernel>(self, kernel: K) {
        unsafe { with_features(self, kernel) }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> B {
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())] }
    }
    #[inline(always)]
    fn shr(self, b: B, n: u32) -> B {
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            [_mm256_srl_epi16(b[0], n), _mm256_srl_epi16(b[1], n)]
        }
    }
    #[inline(always)]
    fn shl(self, b: B, n: u32) -> B {
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            [_mm256_sll_epi16(b[0], n), _mm256_sll_epi16(b[1], n)]
        }
    }
    #[inline(always)]
    fn and(self, b: B, mask: u8) -> B {
        unsafe {
            let mask = _mm256_set1_epi8(mask.cast_signed());
            [_mm256_and_si256(b[0], mask), _mm256_and_si256(b[1], mask)]
        }
    }
    #[inline(always)]
    fn or(self, a: B, b: B) -> B {
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }
    #[inline(always)]
    fn splat(self, i: i32) -> B {
        unsafe { [_mm256_set1_epi32(i); 2] }
    }
    #[inline(always)]
    fn dot(self, acc: B, codes: B, x: i32) -> B {
        unsafe {
            let x = four(x);
            [add_pairs(acc[0], _mm256_maddubs_epi16(codes[0], x)), add_pairs(acc[1], _mm256_maddubs_epi16(codes[1], x))]
        }
    }
    #[inline(always)]
    fn add(self, a: B, b: B) -> B {
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }
    #[inline(always)]
    fn dot_narrow(self, sums: B, codes: B, x: i32) -> B {
        unsafe {
            let x = four(x);
            let each = |i: usize| _mm256_add_epi16(sums[i], _mm256_maddubs_epi16(codes[i], x));
            [each(0), each(1)]
        }
    }
    #[inline(always)]
    fn widen(self, acc: B, sums: B) -> B {
        unsafe { [add_pairs(acc[0], sums[0]), add_pairs(acc[1], sums[1])] }
    }
    #[inline(always)]
    fn dot_wide(self, acc: B, codes: B, x: i32) -> B {
        unsafe {
            let (x, center) = (four(x), _mm256_set1_epi8(-128));
            // At most 2 * 128 * 127, which is below 2^15.
            let low = _mm256_xor_si256(codes[0], center);
            let up = _mm256_xor_si256(codes[1], center);
            [
                add_pairs(acc[0], _mm256_maddubs_epi16(_mm256_abs_epi8(low), _mm256_sign_epi8(x, low))),
                add_pairs(acc[1], _mm256_maddubs_epi16(_mm256_abs_epi8(up), _mm256_sign_epi8(x, up))),
            ]
        }
    }
    #[inline(always)]
    fn join(self, high: B, low: B) -> B {
        unsafe {
            let each = |i: usize| _mm256_add_epi32(_mm256_slli_epi32::<7>(high[i]), low[i]);
            [each(0), each(1)]
        }
    }
    #[inline(always)]
    fn to_f32(self, sums: B) -> [__m256; 2] {
        unsafe { [_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])] }
    }
}

/// Eight times the four bytes.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn four(x: i32) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_set1_epi32(x) }
}

/// Adds both halves of each lane of `pairs`.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn add_pairs(acc: __m256i, pairs: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))) }
}
