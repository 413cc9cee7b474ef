//! Products of bytes in four registers of Arm Advanced SIMD, four rows in each: by `sdot` where the processor has it, else
//! by products of 16 bits that are added in pairs.
//!
//! Both multiply signed bytes. Codes below 128 are such; codes of 8 bits are centered first.

use super::{DotKernel, Dots};
use crate::lanes::Lanes;
use crate::lanes::neon::{Neon, each};
use std::arch::aarch64::*;
use std::arch::asm;
use tare_ops::Isa;

/// Advanced SIMD is there, and with it the products of `sdot` if `DOTPROD`.
#[derive(Clone, Copy, Debug)]
pub struct NeonDots<const DOTPROD: bool>(Neon);

type B = [uint8x16_t; 4];
type I = [int32x4_t; 4];

#[target_feature(enable = "neon,dotprod")]
fn with_dotprod<K: DotKernel>(d: NeonDots<true>, kernel: K) {
    kernel.run(d);
}

// SAFETY of every block below: a `NeonDots` exists only where `prove` found the instructions, and where an address is
// taken, it is the caller's, who promises what the trait asks for.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all of them, stated above")]
impl<const DOTPROD: bool> Dots for NeonDots<DOTPROD> {
    type L = Neon;
    type B = B;
    type I = I;
    const ISA: Isa = if DOTPROD { Isa::NeonDotprod } else { Isa::Neon };
    const WIDE: bool = false;
    const NARROW: bool = false;
    const WIDE_CENTER: i32 = 128;

    fn prove() -> Option<Self> {
        Neon::detect().filter(|_| !DOTPROD || std::arch::is_aarch64_feature_detected!("dotprod")).map(Self)
    }
    #[inline(always)]
    fn lanes(self) -> Neon {
        self.0
    }
    #[inline(always)]
    fn compiled<K: DotKernel>(self, kernel: K) {
        if DOTPROD {
            unsafe { with_dotprod(NeonDots::<true>(self.0), kernel) }
        } else {
            kernel.run(self);
        }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> B {
        unsafe { each!(i => vld1q_u8(p.add(16 * i))) }
    }
    #[inline(always)]
    fn shr(self, b: B, n: u32) -> B {
        unsafe {
            // There is one shift by a register: to the left.
            let n = vdupq_n_s8(-(n as i8));
            each!(i => vshlq_u8(b[i], n))
        }
    }
    #[inline(always)]
    fn shl(self, b: B, n: u32) -> B {
        unsafe {
            let n = vdupq_n_s8(n as i8);
            each!(i => vshlq_u8(b[i], n))
        }
    }
    #[inline(always)]
    fn and(self, b: B, mask: u8) -> B {
        unsafe { each!(i => vandq_u8(b[i], vdupq_n_u8(mask))) }
    }
    #[inline(always)]
    fn or(self, a: B, b: B) -> B {
        unsafe { each!(i => vorrq_u8(a[i], b[i])) }
    }
    #[inline(always)]
    fn splat(self, i: i32) -> I {
        unsafe { [vdupq_n_s32(i); 4] }
    }
    #[inline(always)]
    fn dot(self, acc: I, codes: B, x: i32) -> I {
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
            if DOTPROD {
                each!(i => dotted(acc[i], vreinterpretq_s8_u8(codes[i]), x))
            } else {
                each!(i => paired(acc[i], vreinterpretq_s8_u8(codes[i]), x))
            }
        }
    }
    #[inline(always)]
    fn add(self, a: I, b: I) -> I {
        unsafe { each!(i => vaddq_s32(a[i], b[i])) }
    }
    #[inline(always)]
    fn dot_wide(self, acc: I, codes: B, x: i32) -> I {
        let centered = unsafe { each!(i => veorq_u8(codes[i], vdupq_n_u8(128))) };
        self.dot(acc, centered, x)
    }
    #[inline(always)]
    fn join(self, high: I, low: I) -> I {
        unsafe { each!(i => vaddq_s32(vshlq_n_s32::<7>(high[i]), low[i])) }
    }
    #[inline(always)]
    fn to_f32(self, sums: I) -> [float32x4_t; 4] {
        unsafe { each!(i => vcvtq_f32_s32(sums[i])) }
    }
}

/// Adds to each lane its four products.
///
/// # Safety
/// The processor has the dot products, and the caller is compiled for them.
#[inline(always)]
unsafe fn dotted(mut acc: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    // The intrinsic is not stable (rust-lang/rust#117224).
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {codes:v}.16b, {x:v}.16b",
            acc = inout(vreg) acc,
            codes = in(vreg) codes,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// The same without that instruction. Two products together are at most 2 * 128 * 127, which is below 2^15.
///
/// # Safety
/// The processor has Advanced SIMD.
#[inline(always)]
unsafe fn paired(acc: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let (low, high) = (vmull_s8(vget_low_s8(codes), vget_low_s8(x)), vmull_high_s8(codes, x));
        vpadalq_s16(acc, vpaddq_s16(low, high))
    }
}
