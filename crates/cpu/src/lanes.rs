//! Sixteen F32 lanes, whatever registers they take: the vocabulary that every kernel is written in, once.
//!
//! The order of every reduction is that of [`tare_ops::reference::lanes`]: 16 lanes, then a tree. A kernel written
//! with [`Lanes`] therefore gives the same bits on every instruction set: one register of AVX-512, two of AVX2,
//! four of NEON, or an array that plain Rust code works on.
//!
//! A value of a type that implements [`Lanes`] is a *proof* that the processor has the instructions: there is no other
//! way to get one than [`Lanes::detect`].

pub mod array;
#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
#[cfg(target_arch = "aarch64")]
pub mod neon;

use tare_ops::Isa;
use tare_ops::reference::exp as e;

use crate::lossless::{CODES, GROUP_BYTES, PAIR_ROWS, TABLE, place};

/// Lanes of a vector.
pub const LANES: usize = 16;

/// A computation written once for all vector types.
pub trait Kernel {
    /// What it gives.
    type Output;
    /// Runs it. Implementations are `#[inline(always)]`, so that the code takes on the instruction set of its caller.
    fn run<L: Lanes>(self, l: L) -> Self::Output;
}

/// Vectors of 16 F32 (`V`) and of 16 unsigned 32-bit integers (`Q`), and the operations on them that kernels need.
///
/// Every floating-point operation is the elementwise IEEE one, rounded once.
pub trait Lanes: Copy + Send + Sync + 'static {
    /// The level that the instructions belong to.
    const ISA: Isa;
    /// Whether there are 32 registers of 16 lanes, so that larger tiles pay.
    const WIDE: bool;
    /// 16 F32.
    type V: Copy;
    /// 16 u32.
    type Q: Copy;
    /// The 16 values of a 4-bit quant, in whatever form finds them fastest.
    type Map: Copy;

    /// The proof, when this processor has the instructions.
    fn detect() -> Option<Self>;
    /// Runs a kernel compiled for this instruction set.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// 16 times `x`.
    fn splat(self, x: f32) -> Self::V;
    /// 16 values.
    ///
    /// # Safety
    /// 16 F32 lie at `p`; no alignment is needed.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// The first `n < 16` values, `fill` in the other lanes.
    ///
    /// # Safety
    /// `n` F32 lie at `p`.
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> Self::V;
    /// 16 values to memory.
    ///
    /// # Safety
    /// 16 F32 may be written at `p`.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// The first `n < 16` lanes to memory.
    ///
    /// # Safety
    /// `n` F32 may be written at `p`.
    unsafe fn store_part(self, p: *mut f32, n: usize, v: Self::V);

    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger of each pair; neither holds NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? yes : no`, lane by lane.
    fn if_less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// `a is NaN ? yes : no`, lane by lane.
    fn if_nan(self, a: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// Adds the low 9 bits of the bits of `n` to the exponents of `y`: `y * 2^n` for [`exp`]'s shifted `n`.
    fn add_exponent(self, y: Self::V, n: Self::V) -> Self::V;
    /// `x - floor(x)`, rounded down, so that it is below 1; unspecified for infinities.
    #[inline(always)]
    fn fraction(self, x: Self::V) -> Self::V {
        let x = numbers(self, x);
        // SAFETY: 16 numbers.
        unsafe { self.load(x.map(fraction).as_ptr()) }
    }
    /// `y * 2^floor(x)` for y in [1, 2]: 0 where x is below the exponent of the least normal number, whatever y is there,
    /// infinity where it is above that of the largest.
    #[inline(always)]
    fn times_power(self, y: Self::V, x: Self::V) -> Self::V {
        let (mut y, x) = (numbers(self, y), numbers(self, x));
        for (y, x) in y.iter_mut().zip(x) {
            *y = match x.floor() {
                n if n < -126.0 => 0.0,
                n if n > 127.0 => f32::INFINITY,
                n if n.is_nan() => f32::NAN,
                n => *y * f32::from_bits(((n + 127.0) as u32) << 23),
            };
        }
        // SAFETY: 16 numbers.
        unsafe { self.load(y.as_ptr()) }
    }
    /// Whether `a < b` in any lane.
    #[inline(always)]
    fn any_less(self, a: Self::V, b: Self::V) -> bool {
        numbers(self, a).iter().zip(numbers(self, b)).any(|(a, b)| *a < b)
    }
    /// `a[0], b[0], a[1], b[1]...`
    #[inline(always)]
    fn in_turn(self, a: Self::V, b: Self::V) -> (Self::V, Self::V) {
        let from = [numbers(self, a), numbers(self, b)];
        let mut to = [0.0; 2 * LANES];
        for (i, to) in to.iter_mut().enumerate() {
            *to = from[i % 2][i / 2];
        }
        // SAFETY: 32 numbers.
        unsafe { (self.load(to.as_ptr()), self.load(to.as_ptr().add(LANES))) }
    }
    /// The tree: 16 -> 8 -> 4 -> 2 -> 1, lane `i` plus lane `i + half`.
    fn sum(self, v: Self::V) -> f32;
    /// Lane `i` is [`Lanes::sum`] of `v[i]`.
    fn sum_each(self, v: &[Self::V; LANES]) -> Self::V;
    /// The largest lane; no lane holds NaN.
    fn max_lane(self, v: Self::V) -> f32;
    /// Lane `j` of vector `i` becomes lane `i` of vector `j`. Lanes are moved as they are, whatever they hold.
    #[inline(always)]
    fn transposed(self, v: &[Self::V; LANES]) -> [Self::V; LANES] {
        let (mut rows, mut columns, mut out) = ([[0u32; LANES]; LANES], [[0u32; LANES]; LANES], *v);
        // SAFETY: each row has room for a vector.
        unsafe {
            for (row, v) in rows.iter_mut().zip(v) {
                self.store(row.as_mut_ptr().cast(), *v);
            }
            for (i, row) in rows.iter().enumerate() {
                for (column, x) in columns.iter_mut().zip(row) {
                    column[i] = *x;
                }
            }
            for (out, column) in out.iter_mut().zip(&columns) {
                *out = self.load(column.as_ptr().cast());
            }
        }
        out
    }

    /// 16 bytes.
    ///
    /// # Safety
    /// 16 bytes lie at `p`.
    unsafe fn bytes(self, p: *const u8) -> Self::Q;
    /// 16 words of 32 bits.
    ///
    /// # Safety
    /// 64 bytes lie at `p`; no alignment is needed.
    unsafe fn words(self, p: *const u8) -> Self::Q;
    /// 16 signed bytes as F32.
    ///
    /// # Safety
    /// 16 bytes lie at `p`.
    unsafe fn signed_bytes(self, p: *const u8) -> Self::V;
    /// 16 nibbles of 8 bytes, low half first; bits above the nibble are unspecified.
    ///
    /// # Safety
    /// 8 bytes lie at `p`.
    unsafe fn nibbles(self, p: *const u8) -> Self::Q;
    /// As [`Lanes::nibbles`], in the order of [`Lanes::paired`].
    ///
    /// # Safety
    /// 8 bytes lie at `p`.
    #[inline(always)]
    unsafe fn paired_nibbles(self, p: *const u8) -> Self::Q {
        // SAFETY: the caller's promise.
        unsafe { self.nibbles(p) }
    }
    /// Lanes 0, 8, 1, 9 to 7, 15, where nibbles are found faster in that order: the two halves of eight bytes are then
    /// neighbours, and one load spreads both. Elsewhere `v` itself.
    #[inline(always)]
    fn paired(self, v: Self::V) -> Self::V {
        v
    }
    /// What [`Lanes::paired`] was made of.
    #[inline(always)]
    fn unpaired(self, v: Self::V) -> Self::V {
        v
    }
    /// 16 IEEE binary16.
    ///
    /// # Safety
    /// 32 bytes lie at `p`.
    unsafe fn halves(self, p: *const u8) -> Self::V;
    /// 16 BF16.
    ///
    /// # Safety
    /// 32 bytes lie at `p`.
    unsafe fn bf16s(self, p: *const u8) -> Self::V;
    /// 32 BF16: those at even places, and those at odd ones. Each takes one instruction, where a run of 16 takes two.
    ///
    /// # Safety
    /// 64 bytes lie at `p`.
    unsafe fn two_bf16s(self, p: *const u8) -> (Self::V, Self::V);
    /// 16 times one BF16.
    ///
    /// # Safety
    /// 2 bytes lie at `p`.
    #[inline(always)]
    unsafe fn splat_bf16(self, p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        self.splat(f32::from_bits(u32::from(unsafe { p.cast::<u16>().read_unaligned() }) << 16))
    }
    /// 16 times one IEEE binary16.
    ///
    /// # Safety
    /// 2 bytes lie at `p`.
    unsafe fn splat_half(self, p: *const u8) -> Self::V;
    /// 16 times each of two IEEE binary16 that follow each other.
    ///
    /// # Safety
    /// 4 bytes lie at `p`.
    #[inline(always)]
    unsafe fn splat_two_halves(self, p: *const u8) -> (Self::V, Self::V) {
        // SAFETY: the caller's promise.
        unsafe { (self.splat_half(p), self.splat_half(p.add(2))) }
    }
    /// `q >> n`, n < 32.
    fn shr(self, q: Self::Q, n: u32) -> Self::Q;
    /// `q & mask`
    fn and(self, q: Self::Q, mask: u32) -> Self::Q;
    /// `a | b << n`, n < 32.
    fn or_shl(self, a: Self::Q, b: Self::Q, n: u32) -> Self::Q;
    /// `q + value` in the lanes whose bit of `bits` is set.
    fn add_where(self, q: Self::Q, bits: u16, value: u32) -> Self::Q;
    /// Integers below 2^24 as F32.
    fn to_f32(self, q: Self::Q) -> Self::V;
    /// The values `(q - center) * scale + offset` of the quants 0..16, each operation rounded. All lanes of `scale` are alike,
    /// and all of `offset`.
    fn map(self, center: f32, scale: Self::V, offset: Self::V) -> Self::Map;
    /// The value of the low 4 bits of each lane.
    fn look_up(self, map: Self::Map, q: Self::Q) -> Self::V;
    /// The numbers of a group of [`crate::lossless`], four rows of B of 32 BF16 each: no F32, but moved as such. Exceptions are
    /// zeros.
    ///
    /// # Safety
    /// A table lies at `table`, a group at `group`.
    #[inline(always)]
    unsafe fn join(self, table: *const u8, group: *const u8) -> [Self::V; PAIR_ROWS] {
        // SAFETY: the caller's promise.
        let (table, group) = unsafe {
            (table.cast::<[u8; TABLE]>().read_unaligned(), group.cast::<[u8; GROUP_BYTES]>().read_unaligned())
        };
        let number = |i: usize, column: usize| {
            let place = place(i, column);
            let code = group[place % CODES] >> (4 * (place / CODES)) & 15;
            u32::from(u16::from_le_bytes([group[CODES + place], table[usize::from(code)]]))
        };
        std::array::from_fn(|j| {
            let row: [u32; LANES] = std::array::from_fn(|i| number(i, 2 * j) | number(i, 2 * j + 1) << 16);
            // SAFETY: 16 lanes.
            unsafe { self.load(row.as_ptr().cast()) }
        })
    }
    /// Asks for the cache line at `p` to be brought near; any address will do.
    fn prefetch(self, p: *const u8);
    /// The same, as near as can be: what is used within some hundred cycles.
    #[inline(always)]
    fn prefetch_nearest(self, p: *const u8) {
        self.prefetch(p);
    }
}

/// [`tare_ops::reference::exp::exp`], lane by lane and bit by bit.
#[inline(always)]
pub fn exp<L: Lanes>(l: L, x: L::V) -> L::V {
    let rounder = l.splat(e::ROUNDER);
    let shifted = l.fma(x, l.splat(e::LOG2_E), rounder);
    let n = l.sub(shifted, rounder);
    let r = l.fma(n, l.splat(-e::LN2_HIGH), x);
    let r = l.fma(n, l.splat(-e::LN2_LOW), r);
    let q = l.fma(l.splat(e::Q[4]), r, l.splat(e::Q[3]));
    let q = l.fma(q, r, l.splat(e::Q[2]));
    let q = l.fma(q, r, l.splat(e::Q[1]));
    let q = l.fma(q, r, l.splat(e::Q[0]));
    let y = l.add(l.fma(q, l.mul(r, r), r), l.splat(1.0));
    let scaled = l.add_exponent(y, shifted);
    let most = l.splat(e::MOST);
    let y = l.if_less(most, x, l.splat(f32::INFINITY), scaled);
    let y = l.if_less(x, l.splat(e::LEAST), l.splat(0.0), y);
    l.if_nan(x, l.splat(f32::NAN), y)
}

/// Coefficients of a polynomial that is `2^r` on [0, 1], of r^0 first, fitted for the least largest error.
const POWER: [f32; 5] = [1.000_002_6, 0.693_003_83, 0.241_442_76, 0.052_011_46, 0.013_534_168];

/// `2^x` within 3e-6 of it: for weights that will be rounded to BF16. 0 below -126 and infinity from 128 on, NaN for NaN; the
/// same bits on every instruction set.
#[inline(always)]
pub fn rough_exp2<L: Lanes>(l: L, x: L::V) -> L::V {
    let r = l.fraction(x);
    let y = l.fma(l.splat(POWER[4]), r, l.splat(POWER[3]));
    let y = l.fma(y, r, l.splat(POWER[2]));
    let y = l.fma(y, r, l.splat(POWER[1]));
    l.times_power(l.fma(y, r, l.splat(POWER[0])), x)
}

/// [`Lanes::fraction`] of a number.
fn fraction(x: f32) -> f32 {
    let exact = f64::from(x) - f64::from(x.floor());
    let nearest = exact as f32;
    // Of tiny negative numbers the exact fraction rounds to 1 as F64 already.
    if f64::from(nearest) > exact || nearest >= 1.0 { nearest.next_down() } else { nearest }
}

/// The lanes of a vector.
#[inline(always)]
fn numbers<L: Lanes>(l: L, v: L::V) -> [f32; LANES] {
    let mut numbers = [0.0; LANES];
    // SAFETY: room for 16 numbers.
    unsafe { l.store(numbers.as_mut_ptr(), v) };
    numbers
}

/// `sum_i a[i]^2` in the order of [`tare_ops::reference::lanes::dot`].
///
/// # Safety
/// `n` F32 lie at `p`.
#[inline(always)]
pub unsafe fn sum_of_squares<L: Lanes>(l: L, p: *const f32, n: usize) -> f32 {
    let mut acc = l.splat(0.0);
    for i in (0..n / LANES * LANES).step_by(LANES) {
        // SAFETY: i + 16 <= n.
        let x = unsafe { l.load(p.add(i)) };
        acc = l.fma(x, x, acc);
    }
    if !n.is_multiple_of(LANES) {
        let (at, part) = (n / LANES * LANES, n % LANES);
        // SAFETY: `part` values are left. A square is never -0, so adding that of the fill 0 changes no bit.
        let x = unsafe { l.load_part(p.add(at), part, 0.0) };
        acc = l.fma(x, x, acc);
    }
    l.sum(acc)
}

#[cfg(test)]
mod tests;
