//! Lanes as two AVX2 registers: lanes 0 to 7 and 8 to 15.

use super::{Kernel, LANES, Lanes};
use std::arch::x86_64::*;
use tare_ops::Isa;

/// AVX2, FMA and F16C are there.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

/// The affine map of a 4-bit quant: a table of 16 needs more registers than arithmetic.
#[derive(Clone, Copy, Debug)]
pub struct Affine {
    center: f32,
    scale: V,
    offset: V,
}

type V = [__m256; 2];
type Q = [__m256i; 2];

/// An expression for register 0 and for register 1. Not a closure: those do not inherit the instruction set.
macro_rules! both {
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
        ]
    };
}

#[target_feature(enable = "avx2,fma,f16c")]
fn with_features<K: Kernel>(l: Avx2, kernel: K) -> K::Output {
    kernel.run(l)
}

/// -1 in the lanes below `n`, for the masked moves.
#[inline(always)]
fn first(n: usize) -> Q {
    const MASKS: [i32; 32] = {
        let mut m = [0; 32];
        let mut i = 0;
        while i < 16 {
            m[i] = -1;
            i += 1;
        }
        m
    };
    // SAFETY: n <= 16, so that 16 numbers follow; loads need no alignment.
    unsafe {
        let p = MASKS.as_ptr().add(LANES - n);
        [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())]
    }
}

// SAFETY of every block below: an `Avx2` exists only where `detect` found the features, and where an address is
// taken, it is the caller's, who promises what the trait asks for.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all of them, stated above")]
impl Lanes for Avx2 {
    const ISA: Isa = Isa::Avx2;
    const WIDE: bool = false;
    type V = V;
    type Q = Q;
    type Map = Affine;

    fn detect() -> Option<Self> {
        let has =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        unsafe { with_features(self, kernel) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> V {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> V {
        let (m, fill) = (first(n), self.splat(fill)[0]);
        unsafe {
            // The upper address may lie past the end when its mask is empty, which `wrapping_add` allows.
            let v = [_mm256_maskload_ps(p, m[0]), _mm256_maskload_ps(p.wrapping_add(8), m[1])];
            both!(i => _mm256_blendv_ps(fill, v[i], _mm256_castsi256_ps(m[i])))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: V) {
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize, v: V) {
        let m = first(n);
        unsafe {
            _mm256_maskstore_ps(p, m[0], v[0]);
            _mm256_maskstore_ps(p.wrapping_add(8), m[1], v[1]);
        }
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn if_less(self, a: V, b: V, yes: V, no: V) -> V {
        unsafe { both!(i => _mm256_blendv_ps(no[i], yes[i], _mm256_cmp_ps::<_CMP_LT_OQ>(a[i], b[i]))) }
    }
    #[inline(always)]
    fn if_nan(self, a: V, yes: V, no: V) -> V {
        unsafe { both!(i => _mm256_blendv_ps(no[i], yes[i], _mm256_cmp_ps::<_CMP_UNORD_Q>(a[i], a[i]))) }
    }
    #[inline(always)]
    fn add_exponent(self, y: V, n: V) -> V {
        unsafe {
            both!(i => {
                let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(n[i]));
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y[i]), n))
            })
        }
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        unsafe {
            let v = _mm256_add_ps(v[0], v[1]);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    fn sum_each(self, v: &[V; LANES]) -> V {
        unsafe {
            // 16 -> 8 is the two registers; `eights[i]` is vector i.
            let mut eights = [_mm256_setzero_ps(); LANES];
            for i in 0..LANES {
                eights[i] = _mm256_add_ps(v[i][0], v[i][1]);
            }
            both!(half => {
                // 8 -> 4: `fours[i]` holds vectors i and i + 4 of this half of the vectors.
                let mut fours = [_mm256_setzero_ps(); 4];
                for i in 0..4 {
                    let (a, b) = (eights[8 * half + i], eights[8 * half + i + 4]);
                    fours[i] = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
                }
                let twos = both!(i => {
                    let (a, b) = (fours[i], fours[i + 2]);
                    _mm256_add_ps(_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xee>(a, b))
                });
                let (a, b) = (twos[0], twos[1]);
                let ones = _mm256_add_ps(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b));
                // Within a 128-bit piece the order is now 0, 2, 1, 3.
                _mm256_permute_ps::<0b11_01_10_00>(ones)
            })
        }
    }
    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        unsafe {
            let v = _mm256_max_ps(v[0], v[1]);
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }

    #[inline(always)]
    unsafe fn bytes(self, p: *const u8) -> Q {
        unsafe {
            [_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())), _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast()))]
        }
    }
    #[inline(always)]
    unsafe fn words(self, p: *const u8) -> Q {
        unsafe { both!(i => _mm256_loadu_si256(p.add(32 * i).cast())) }
    }
    #[inline(always)]
    unsafe fn signed_bytes(self, p: *const u8) -> V {
        unsafe { both!(i => _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8 * i).cast())))) }
    }
    #[inline(always)]
    unsafe fn nibbles(self, p: *const u8) -> Q {
        unsafe {
            let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
            both!(i => _mm256_srlv_epi32(_mm256_set1_epi32(p.cast::<i32>().add(i).read_unaligned()), shifts))
        }
    }
    #[inline(always)]
    unsafe fn halves(self, p: *const u8) -> V {
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))] }
    }
    #[inline(always)]
    unsafe fn bf16s(self, p: *const u8) -> V {
        unsafe {
            both!(i => {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(16 * i).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            })
        }
    }
    #[inline(always)]
    unsafe fn two_bf16s(self, p: *const u8) -> (V, V) {
        unsafe {
            let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let pairs = both!(i => _mm256_loadu_si256(p.add(32 * i).cast()));
            (
                both!(i => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs[i]))),
                both!(i => _mm256_castsi256_ps(_mm256_and_si256(pairs[i], high))),
            )
        }
    }
    #[inline(always)]
    unsafe fn splat_half(self, p: *const u8) -> V {
        unsafe { [_mm256_cvtph_ps(_mm_set1_epi16(p.cast::<i16>().read_unaligned())); 2] }
    }
    #[inline(always)]
    unsafe fn splat_two_halves(self, p: *const u8) -> (V, V) {
        unsafe {
            let two = _mm_cvtph_ps(_mm_cvtsi32_si128(p.cast::<i32>().read_unaligned()));
            ([_mm256_broadcastss_ps(two); 2], [_mm256_broadcastss_ps(_mm_movehdup_ps(two)); 2])
        }
    }
    #[inline(always)]
    fn shr(self, q: Q, n: u32) -> Q {
        unsafe { both!(i => _mm256_srl_epi32(q[i], _mm_cvtsi32_si128(n as i32))) }
    }
    #[inline(always)]
    fn and(self, q: Q, mask: u32) -> Q {
        unsafe { both!(i => _mm256_and_si256(q[i], _mm256_set1_epi32(mask as i32))) }
    }
    #[inline(always)]
    fn or_shl(self, a: Q, b: Q, n: u32) -> Q {
        unsafe { both!(i => _mm256_or_si256(a[i], _mm256_sll_epi32(b[i], _mm_cvtsi32_si128(n as i32)))) }
    }
    #[inline(always)]
    fn add_where(self, q: Q, bits: u16, value: u32) -> Q {
        unsafe {
            let lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            both!(i => {
                let bits = _mm256_set1_epi32(i32::from(bits >> (8 * i)));
                let set = _mm256_cmpeq_epi32(_mm256_and_si256(bits, lanes), lanes);
                _mm256_add_epi32(q[i], _mm256_and_si256(set, _mm256_set1_epi32(value as i32)))
            })
        }
    }
    #[inline(always)]
    fn to_f32(self, q: Q) -> V {
        unsafe { both!(i => _mm256_cvtepi32_ps(q[i])) }
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
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}
