//! ggml's super-blocks of 256: see [`tare_formats::codec::kquant`] for the layouts. A unit is a sub-block of 32.

use super::Unpack;
use crate::lanes::{LANES, Lanes};
use crate::matrix::PackedRow;

/// The two halves of a super-block and where it is.
#[derive(Clone, Copy, Debug)]
pub struct Super<L: Lanes> {
    d: L::V,
    dmin: L::V,
    block: *const u8,
}

impl<L: Lanes> Super<L> {
    /// A super-block that starts with `d` and `dmin`.
    ///
    /// # Safety
    /// It lies at `p`.
    #[inline(always)]
    unsafe fn with_minimums(l: L, p: *const u8) -> Self {
        // SAFETY: the caller's promise.
        let (d, dmin) = unsafe { l.splat_two_halves(p) };
        Self { d, dmin, block: p }
    }

    /// Scale and *negated* minimum of sub-block `j`: `x - min` and `x + -min` are the same bits.
    ///
    /// # Safety
    /// 12 bytes of packed scales follow the halves.
    #[inline(always)]
    unsafe fn scale_and_min(&self, l: L, j: usize) -> (L::V, L::V) {
        // SAFETY: indices are below 16.
        let byte = |i: usize| unsafe { self.block.add(4 + i).read() };
        let (sc, m) = if j < 4 {
            (byte(j) & 63, byte(j + 4) & 63)
        } else {
            let low = byte(j + 4);
            (low & 15 | (byte(j - 4) >> 6) << 4, low >> 4 | (byte(j) >> 6) << 4)
        };
        (l.mul(self.d, l.splat(f32::from(sc))), l.mul(self.dmin, l.splat(-f32::from(m))))
    }
}

/// `(d * sc) * q - dmin * m`, q of 4 bits.
#[derive(Clone, Copy, Debug)]
pub struct Q4K;

impl Unpack for Q4K {
    const CHEAP: bool = true;
    type Block<L: Lanes> = Super<L>;

    #[inline(always)]
    fn block_bytes(_row: &PackedRow) -> usize {
        144
    }
    #[inline(always)]
    unsafe fn block<L: Lanes>(l: L, row: &PackedRow, block: usize) -> Super<L> {
        // SAFETY: the caller's promise.
        unsafe { Super::with_minimums(l, row.quants.add(block * 144)) }
    }
    #[inline(always)]
    unsafe fn unit<L: Lanes>(l: L, b: &Super<L>, j: usize) -> [L::V; 2] {
        // SAFETY: 32 bytes of nibbles hold sub-blocks 2i (low) and 2i + 1 (high).
        unsafe {
            let (scale, min) = b.scale_and_min(l, j);
            let map = l.map(0.0, scale, min);
            let p = b.block.add(16 + j / 2 * 32);
            let shift = (j % 2 * 4) as u32;
            [l.look_up(map, l.shr(l.bytes(p), shift)), l.look_up(map, l.shr(l.bytes(p.add(LANES)), shift))]
        }
    }
}

/// `(d * sc) * q - dmin * m`, q of 5 bits.
#[derive(Clone, Copy, Debug)]
pub struct Q5K;

impl Unpack for Q5K {
    const CHEAP: bool = false;
    type Block<L: Lanes> = Super<L>;

    #[inline(always)]
    fn block_bytes(_row: &PackedRow) -> usize {
        176
    }
    #[inline(always)]
    unsafe fn block<L: Lanes>(l: L, row: &PackedRow, block: usize) -> Super<L> {
        // SAFETY: the caller's promise.
        unsafe { Super::with_minimums(l, row.quants.add(block * 176)) }
    }
    #[inline(always)]
    unsafe fn unit<L: Lanes>(l: L, b: &Super<L>, j: usize) -> [L::V; 2] {
        // SAFETY: sub-block j has 32 weights.
        unsafe {
            let (scale, min) = b.scale_and_min(l, j);
            [five_bits(l, b, j, 0, scale, min), five_bits(l, b, j, LANES, scale, min)]
        }
    }
}

/// Weights `at .. at + 16` of sub-block `j` of a Q5_K block.
///
/// # Safety
/// j < 8 and `at` is 0 or 16.
#[inline(always)]
unsafe fn five_bits<L: Lanes>(l: L, b: &Super<L>, j: usize, at: usize, scale: L::V, min: L::V) -> L::V {
    // SAFETY: 32 bytes of fifth bits follow the scales, then the nibbles as in Q4_K.
    let (low, high) = unsafe { (l.bytes(b.block.add(48 + j / 2 * 32 + at)), l.bytes(b.block.add(16 + at))) };
    let q = l.or_shl(l.and(l.shr(low, (j % 2 * 4) as u32), 15), l.and(l.shr(high, j as u32), 1), 4);
    l.add(l.mul(l.to_f32(q), scale), min)
}

/// `(d * sc) * (q - 32)`, q of 6 bits, a scale for 16 weights.
#[derive(Clone, Copy, Debug)]
pub struct Q6K;

impl Unpack for Q6K {
    const CHEAP: bool = false;
    type Block<L: Lanes> = Super<L>;

    #[inline(always)]
    fn block_bytes(_row: &PackedRow) -> usize {
        210
    }
    #[inline(always)]
    unsafe fn block<L: Lanes>(l: L, row: &PackedRow, block: usize) -> Super<L> {
        let p = row.quants.wrapping_add(block * 210);
        // SAFETY: `d` is in the last two of 210 bytes.
        Super { d: unsafe { l.splat_half(p.add(208)) }, dmin: l.splat(0.0), block: p }
    }
    #[inline(always)]
    unsafe fn unit<L: Lanes>(l: L, b: &Super<L>, unit: usize) -> [L::V; 2] {
        // SAFETY: a unit is two groups of 16.
        unsafe { [six_bits(l, b, unit, 0), six_bits(l, b, unit, 1)] }
    }
}

/// Group `i` of unit `unit` of a Q6_K block.
///
/// # Safety
/// unit < 8 and i < 2.
#[inline(always)]
unsafe fn six_bits<L: Lanes>(l: L, b: &Super<L>, unit: usize, i: usize) -> L::V {
    let (part, run) = (unit / 4, unit % 4);
    // SAFETY: offsets as in the layout: 128 bytes of nibbles, 64 of upper bits, 16 scales.
    let (low, high, sc) = unsafe {
        let low = l.bytes(b.block.add(part * 64 + run % 2 * 32 + i * LANES));
        let high = l.bytes(b.block.add(128 + part * 32 + i * LANES));
        (low, high, b.block.add(192 + part * 8 + run * 2 + i).cast::<i8>().read())
    };
    let q = l.or_shl(l.and(l.shr(low, (run / 2 * 4) as u32), 15), l.and(l.shr(high, 2 * run as u32), 3), 4);
    l.mul(l.mul(b.d, l.splat(f32::from(sc))), l.sub(l.to_f32(q), l.splat(32.0)))
}
