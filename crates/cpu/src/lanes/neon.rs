//! Lanes as four registers of Arm Advanced SIMD: lanes 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
//!
//! These instructions belong to every target of this architecture that tare is built for: kernels need no function that is
//! compiled for them.

use super::{Kernel, LANES, Lanes};
use std::arch::aarch64::*;
use std::arch::asm;
use tare_ops::Isa;

/// Advanced SIMD is there.
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

/// The affine map of a 4-bit quant: a table of 16 takes four registers and as many steps to make an index of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Affine {
    center: f32,
    scale: V,
    offset: V,
}

type V = [float32x4_t; 4];
type Q = [uint32x4_t; 4];

/// An expression for each register. Not a closure: those do not inherit the instruction set.
macro_rules! each {
    ($i:ident => $e:expr) => {
        [
            {
                let $i = 0;
                $e
            },
            {
                let $i = 1;
                $e
            },
            {
                let $i = 2;
                $e
            },
            {
                let $i = 3;
                $e
            },
        ]
    };
}
pub(crate) use each;

/// The lower halves of both, and the upper ones.
///
/// # Safety
/// The processor has Advanced SIMD.
#[inline(always)]
unsafe fn halves_of(a: float32x4_t, b: float32x4_t) -> [float32x4_t; 2] {
    // SAFETY: the caller's promise.
    unsafe { [vcombine_f32(vget_low_f32(a), vget_low_f32(b)), vcombine_f32(vget_high_f32(a), vget_high_f32(b))] }
}

/// Lanes `i` and `i + 8` added, then those of both sums that are 4 apart.
///
/// # Safety
/// The processor has Advanced SIMD.
#[inline(always)]
unsafe fn four_sums(v: &V) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe { vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3])) }
}

// SAFETY of every block below: a `Neon` exists only where `detect` found the instructions, and where an address is taken,
// it is the caller's, who promises what the trait asks for.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all of them, stated above")]
impl Lanes for Neon {
    const ISA: Isa = Isa::Neon;
    const WIDE: bool = false;
    type V = V;
    type Q = Q;
    type Map = Affine;

    fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> V {
        unsafe { each!(i => vld1q_f32(p.add(4 * i))) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> V {
        let mut part = [fill; LANES];
        unsafe {
            p.copy_to_nonoverlapping(part.as_mut_ptr(), n);
            self.load(part.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: V) {
        unsafe {
            each!(i => vst1q_f32(p.add(4 * i), v[i]));
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize, v: V) {
        let mut all = [0.0; LANES];
        unsafe {
            self.store(all.as_mut_ptr(), v);
            p.copy_from_nonoverlapping(all.as_ptr(), n);
        }
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        unsafe { each!(i => vaddq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        unsafe { each!(i => vsubq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        unsafe { each!(i => vmulq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        unsafe { each!(i => vdivq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        unsafe { each!(i => vfmaq_f32(c[i], a[i], b[i])) }
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        unsafe { each!(i => vmaxq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    fn if_less(self, a: V, b: V, yes: V, no: V) -> V {
        unsafe { each!(i => vbslq_f32(vcltq_f32(a[i], b[i]), yes[i], no[i])) }
    }
    #[inline(always)]
    fn if_nan(self, a: V, yes: V, no: V) -> V {
        unsafe { each!(i => vbslq_f32(vceqq_f32(a[i], a[i]), no[i], yes[i])) }
    }
    #[inline(always)]
    fn add_exponent(self, y: V, n: V) -> V {
        unsafe {
            each!(i => {
                let n = vshlq_n_u32::<23>(vreinterpretq_u32_f32(n[i]));
                vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(y[i]), n))
            })
        }
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        unsafe {
            let v = four_sums(&v);
            vpadds_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)))
        }
    }
    #[inline(always)]
    fn sum_each(self, v: &[V; LANES]) -> V {
        unsafe {
            each!(i => {
                // 16 -> 4: `fours[j]` is vector 4 i + j.
                let fours = each!(j => four_sums(&v[4 * i + j]));
                // 4 -> 2: two vectors in each register.
                let [a, b] = halves_of(fours[0], fours[1]);
                let [c, d] = halves_of(fours[2], fours[3]);
                vpaddq_f32(vaddq_f32(a, b), vaddq_f32(c, d))
            })
        }
    }
    #[inline(always)]
    fn transposed(self, v: &[V; LANES]) -> [V; LANES] {
        let mut out = *v;
        unsafe {
            // Squares of four by four: register `c` of vectors 4 r to 4 r + 3 becomes register `r` of 4 c to 4 c + 3.
            for r in 0..4 {
                for c in 0..4 {
                    let row = each!(i => v[4 * r + i][c]);
                    // Lanes 0 and 2 of two rows side by side, and lanes 1 and 3.
                    let (even, odd) = (vtrn1q_f32(row[0], row[1]), vtrn2q_f32(row[0], row[1]));
                    let [zero, two] = halves_of(even, vtrn1q_f32(row[2], row[3]));
                    let [one, three] = halves_of(odd, vtrn2q_f32(row[2], row[3]));
                    for (j, column) in [zero, one, two, three].into_iter().enumerate() {
                        out[4 * c + j][r] = column;
                    }
                }
            }
        }
        out
    }
    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        unsafe { vmaxvq_f32(vmaxq_f32(vmaxq_f32(v[0], v[1]), vmaxq_f32(v[2], v[3]))) }
    }

    #[inline(always)]
    unsafe fn bytes(self, p: *const u8) -> Q {
        unsafe { widened(vld1q_u8(p)) }
    }
    #[inline(always)]
    unsafe fn words(self, p: *const u8) -> Q {
        unsafe { each!(i => vreinterpretq_u32_u8(vld1q_u8(p.add(16 * i)))) }
    }
    #[inline(always)]
    unsafe fn signed_bytes(self, p: *const u8) -> V {
        unsafe {
            let bytes = vld1q_s8(p.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            let wide = [
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ];
            each!(i => vcvtq_f32_s32(wide[i]))
        }
    }
    #[inline(always)]
    unsafe fn nibbles(self, p: *const u8) -> Q {
        unsafe {
            let low = vld1_u8(p);
            let high = vshr_n_u8::<4>(low);
            widened(vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high)))
        }
    }
    #[inline(always)]
    unsafe fn halves(self, p: *const u8) -> V {
        unsafe { each!(i => vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p.add(8 * i))))) }
    }
    #[inline(always)]
    unsafe fn bf16s(self, p: *const u8) -> V {
        unsafe { each!(i => vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(p.add(8 * i)))))) }
    }
    #[inline(always)]
    unsafe fn two_bf16s(self, p: *const u8) -> (V, V) {
        unsafe {
            let pairs = self.words(p);
            let even = each!(i => vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs[i])));
            let odd = self.and(pairs, 0xffff_0000);
            (even, each!(i => vreinterpretq_f32_u32(odd[i])))
        }
    }
    #[inline(always)]
    unsafe fn splat_half(self, p: *const u8) -> V {
        unsafe {
            let half = vdup_n_u16(p.cast::<u16>().read_unaligned());
            [vcvt_f32_f16(vreinterpret_f16_u16(half)); 4]
        }
    }
    #[inline(always)]
    fn shr(self, q: Q, n: u32) -> Q {
        unsafe {
            // There is one shift by a register: to the left.
            let n = vdupq_n_s32(-(n as i32));
            each!(i => vshlq_u32(q[i], n))
        }
    }
    #[inline(always)]
    fn and(self, q: Q, mask: u32) -> Q {
        unsafe { each!(i => vandq_u32(q[i], vdupq_n_u32(mask))) }
    }
    #[inline(always)]
    fn or_shl(self, a: Q, b: Q, n: u32) -> Q {
        unsafe { each!(i => vorrq_u32(a[i], vshlq_u32(b[i], vdupq_n_s32(n as i32)))) }
    }
    #[inline(always)]
    fn add_where(self, q: Q, bits: u16, value: u32) -> Q {
        unsafe {
            let lanes = vld1q_u32([1, 2, 4, 8].as_ptr());
            each!(i => {
                let set = vtstq_u32(vdupq_n_u32(u32::from(bits >> (4 * i))), lanes);
                vaddq_u32(q[i], vandq_u32(set, vdupq_n_u32(value)))
            })
        }
    }
    #[inline(always)]
    fn to_f32(self, q: Q) -> V {
        unsafe { each!(i => vcvtq_f32_u32(q[i])) }
    }
    #[inline(always)]
    fn map(self, center: f32, scale: V, offset: V) -> Affine {
        Affine { center, scale, offset }
    }
    #[inline(always)]
    fn look_up(self, m: Affine, q: Q) -> V {
        let centered = self.sub(self.to_f32(self.and(q, 15)), self.splat(m.center));
        self.add(self.mul(centered, m.scale), m.offset)
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // The intrinsic is not stable. A hint: it reads nothing and cannot fault.
        unsafe { asm!("prfm pldl2keep, [{}]", in(reg) p, options(nostack, preserves_flags, readonly)) }
    }
}

/// Sixteen bytes in 32 bits each.
///
/// # Safety
/// The processor has Advanced SIMD.
#[inline(always)]
unsafe fn widened(bytes: uint8x16_t) -> Q {
    // SAFETY: the caller's promise.
    unsafe {
        let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
        [vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)]
    }
}
