//! Lanes as one AVX-512 register.

use super::{Kernel, LANES, Lanes};
use crate::lossless::{CODES, PAIR_ROWS};
use std::arch::x86_64::*;
use tare_ops::Isa;

/// AVX-512 F, BW, VL and DQ are there.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
fn with_features<K: Kernel>(l: Avx512, kernel: K) -> K::Output {
    kernel.run(l)
}

/// Lanes below `n`.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as u16
}

// SAFETY of every block below: an `Avx512` exists only where `detect` found the features, and where an address is
// taken, it is the caller's, who promises what the trait asks for.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all of them, stated above")]
impl Lanes for Avx512 {
    const ISA: Isa = Isa::Avx512;
    const WIDE: bool = true;
    type V = __m512;
    type Q = __m512i;
    type Map = __m512;

    fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        unsafe { with_features(self, kernel) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> __m512 {
        unsafe { _mm512_mask_loadu_ps(_mm512_set1_ps(fill), first(n), p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize, v: __m512) {
        unsafe { _mm512_mask_storeu_ps(p, first(n), v) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn if_less(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes) }
    }
    #[inline(always)]
    fn if_nan(self, a: __m512, yes: __m512, no: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), no, yes) }
    }
    #[inline(always)]
    fn add_exponent(self, y: __m512, n: __m512) -> __m512 {
        unsafe {
            let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), n))
        }
    }
    #[inline(always)]
    fn fraction(self, x: __m512) -> __m512 {
        // Whole numbers are taken away, rounded down.
        unsafe { _mm512_reduce_ps::<1>(x) }
    }
    #[inline(always)]
    fn times_power(self, y: __m512, x: __m512) -> __m512 {
        // Numbers below the least normal one take a hundred times as long.
        unsafe { _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(-126.0)), y, x) }
    }
    #[inline(always)]
    fn any_less(self, a: __m512, b: __m512) -> bool {
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) != 0 }
    }
    #[inline(always)]
    fn in_turn(self, a: __m512, b: __m512) -> (__m512, __m512) {
        unsafe {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            (_mm512_permutex2var_ps(a, low, b), _mm512_permutex2var_ps(a, high, b))
        }
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        unsafe {
            let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    fn sum_each(self, v: &[__m512; LANES]) -> __m512 {
        unsafe {
            // 16 -> 8: `eights[i]` holds vectors i and i + 8, eight partial sums each.
            let mut eights = [_mm512_setzero_ps(); 8];
            for i in 0..8 {
                let (a, b) = (v[i], v[i + 8]);
                eights[i] = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
            }
            // 8 -> 4: `fours[i]` holds vectors i, i + 4, i + 8, i + 12 (128-bit pieces in that order).
            let lower = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
            let upper = _mm512_setr_epi32(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
            let mut fours = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                let (a, b) = (eights[i], eights[i + 4]);
                fours[i] = _mm512_add_ps(_mm512_permutex2var_ps(a, lower, b), _mm512_permutex2var_ps(a, upper, b));
            }
            // 4 -> 2 -> 1 inside the pieces; lane j of piece p then is vector 4 p + j.
            let mut twos = [_mm512_setzero_ps(); 2];
            for i in 0..2 {
                let (a, b) = (fours[i], fours[i + 2]);
                twos[i] = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xee>(a, b));
            }
            let (a, b) = (twos[0], twos[1]);
            let ones = _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
            // Within a piece the order is now 0, 2, 1, 3.
            _mm512_permute_ps::<0b11_01_10_00>(ones)
        }
    }
    #[inline(always)]
    fn transposed(self, v: &[__m512; LANES]) -> [__m512; LANES] {
        unsafe {
            // Inside pieces of 128 bits: lanes of two rows side by side, then of four.
            let mut twos = [_mm512_setzero_ps(); LANES];
            for i in (0..LANES).step_by(2) {
                twos[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
                twos[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
            }
            // Piece p of `fours[4 i + j]` is lane 4 p + j of rows 4 i to 4 i + 3.
            let mut fours = [_mm512_setzero_ps(); LANES];
            for i in (0..LANES).step_by(4) {
                fours[i] = _mm512_shuffle_ps::<0x44>(twos[i], twos[i + 2]);
                fours[i + 1] = _mm512_shuffle_ps::<0xee>(twos[i], twos[i + 2]);
                fours[i + 2] = _mm512_shuffle_ps::<0x44>(twos[i + 1], twos[i + 3]);
                fours[i + 3] = _mm512_shuffle_ps::<0xee>(twos[i + 1], twos[i + 3]);
            }
            // Pieces: those of equal place go together.
            let mut out = [_mm512_setzero_ps(); LANES];
            for j in 0..4 {
                let (a, b, c, d) = (fours[j], fours[4 + j], fours[8 + j], fours[12 + j]);
                let (ab, cd) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0x44>(c, d));
                out[j] = _mm512_shuffle_f32x4::<0x88>(ab, cd);
                out[4 + j] = _mm512_shuffle_f32x4::<0xdd>(ab, cd);
                let (ab, cd) = (_mm512_shuffle_f32x4::<0xee>(a, b), _mm512_shuffle_f32x4::<0xee>(c, d));
                out[8 + j] = _mm512_shuffle_f32x4::<0x88>(ab, cd);
                out[12 + j] = _mm512_shuffle_f32x4::<0xdd>(ab, cd);
            }
            out
        }
    }
    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(v) }
    }

    #[inline(always)]
    unsafe fn bytes(self, p: *const u8) -> __m512i {
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn words(self, p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn signed_bytes(self, p: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn nibbles(self, p: *const u8) -> __m512i {
        unsafe {
            let words = _mm512_castsi128_si512(_mm_loadl_epi64(p.cast()));
            let spread =
                _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), words);
            _mm512_srlv_epi32(spread, _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28))
        }
    }
    #[inline(always)]
    unsafe fn paired_nibbles(self, p: *const u8) -> __m512i {
        unsafe {
            let both = _mm512_set1_epi64(p.cast::<i64>().read_unaligned());
            _mm512_srlv_epi32(both, _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28))
        }
    }
    #[inline(always)]
    fn paired(self, v: __m512) -> __m512 {
        unsafe { _mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15), v) }
    }
    #[inline(always)]
    fn unpaired(self, v: __m512) -> __m512 {
        unsafe { _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), v) }
    }
    #[inline(always)]
    unsafe fn halves(self, p: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn bf16s(self, p: *const u8) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn two_bf16s(self, p: *const u8) -> (__m512, __m512) {
        unsafe {
            let pairs = _mm512_loadu_si512(p.cast());
            let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(odd))
        }
    }
    #[inline(always)]
    unsafe fn splat_bf16(self, p: *const u8) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_maskz_set1_epi16(0xaaaa_aaaa, p.cast::<i16>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn splat_half(self, p: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(p.cast::<i16>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn splat_two_halves(self, p: *const u8) -> (__m512, __m512) {
        unsafe {
            let two = _mm_cvtph_ps(_mm_cvtsi32_si128(p.cast::<i32>().read_unaligned()));
            (_mm512_broadcastss_ps(two), _mm512_broadcastss_ps(_mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn shr(self, q: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_srl_epi32(q, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    fn and(self, q: __m512i, mask: u32) -> __m512i {
        unsafe { _mm512_and_si512(q, _mm512_set1_epi32(mask as i32)) }
    }
    #[inline(always)]
    fn or_shl(self, a: __m512i, b: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_or_si512(a, _mm512_sll_epi32(b, _mm_cvtsi32_si128(n as i32))) }
    }
    #[inline(always)]
    fn add_where(self, q: __m512i, bits: u16, value: u32) -> __m512i {
        unsafe { _mm512_mask_add_epi32(q, bits, q, _mm512_set1_epi32(value as i32)) }
    }
    #[inline(always)]
    fn to_f32(self, q: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(q) }
    }
    #[inline(always)]
    fn map(self, center: f32, scale: __m512, offset: __m512) -> __m512 {
        unsafe {
            let quants = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
            let centered = _mm512_sub_ps(quants, _mm512_set1_ps(center));
            _mm512_add_ps(_mm512_mul_ps(centered, scale), offset)
        }
    }
    #[inline(always)]
    fn look_up(self, map: __m512, q: __m512i) -> __m512 {
        // `vpermps` looks at the low 4 bits of an index alone.
        unsafe { _mm512_permutexvar_ps(q, map) }
    }
    #[inline(always)]
    unsafe fn join(self, table: *const u8, group: *const u8) -> [__m512; PAIR_ROWS] {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.cast()));
            let (codes, low) = (_mm512_loadu_si512(group.cast()), group.add(CODES));
            // Codes are below 16, so that no bit moves a table's byte to zero.
            let upper = |codes| _mm512_shuffle_epi8(table, _mm512_and_si512(codes, _mm512_set1_epi8(15)));
            let (first, second) = (upper(codes), upper(_mm512_srli_epi16::<4>(codes)));
            let [a, b] = [low, low.add(size_of::<__m512i>())].map(|p| _mm512_loadu_si512(p.cast()));
            [
                _mm512_unpacklo_epi8(a, first),
                _mm512_unpackhi_epi8(a, first),
                _mm512_unpacklo_epi8(b, second),
                _mm512_unpackhi_epi8(b, second),
            ]
            .map(|row| _mm512_castsi512_ps(row))
        }
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    fn prefetch_nearest(self, p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}
