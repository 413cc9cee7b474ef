//! ggml's super-blocks of 256: see [`tare_formats::codec::kquant`] for the layouts. A unit is a sub-block of 32.

use super::Unpack;
use crate::lanes::{LANES, Lanes};
use crate::matrix::PackedRow;

/// The scales of a super-block, ready to be multiplied, and where it is. They lie in memory because a vector of one
/// of them is then a load that needs no arithmetic port.
#[derive(Clone, Copy, Debug)]
pub struct Super {
    /// `d * sc` of each sub-block.
    scales: [f32; LANES],
    /// `-(dmin * m)` of each sub-block, from index 8 on: `x - min` and `x + -min` are the same bits.
    minimums: [f32; LANES],
    block: *const u8,
}

impl Super {
    /// A Q4_K or Q5_K block: d, dmin, twelve bytes of 6-bit scales and minimums.
    ///
    /// # Safety
    /// It lies at `p`.
    #[inline(always)]
    unsafe fn with_minimums<L: Lanes>(l: L, p: *const u8) -> Self {
        let mut s = Self { scales: [0.0; LANES], minimums: [0.0; LANES], block: p };
        // SAFETY: the caller's promise; the arrays hold 16.
        unsafe {
            let (d, dmin) = l.splat_two_halves(p);
            // Four bytes at a time: the first four of scales and minimums are the low six bits of words 0 and 1; the
            // last four have their low nibbles in word 2 and their upper two bits on top of words 0 and 1.
            let word = |i: usize| u32::from_le_bytes(p.add(4 + 4 * i).cast::<[u8; 4]>().read());
            let (low, high) = (0x0f0f_0f0f, 0x0303_0303);
            let six = [
                word(0) & 0x3f3f_3f3f,
                word(2) & low | (word(0) >> 6 & high) << 4,
                word(1) & 0x3f3f_3f3f,
                word(2) >> 4 & low | (word(1) >> 6 & high) << 4,
            ];
            let six = l.to_f32(l.bytes(six.map(u32::to_le).as_ptr().cast()));
            l.store(s.scales.as_mut_ptr(), l.mul(six, d));
            l.store(s.minimums.as_mut_ptr(), l.mul(six, l.sub(l.splat(-0.0), dmin)));
        }
        s
    }

    /// Scale and negated minimum of sub-block `j` < 8.
    #[inline(always)]
    fn scale_and_min<L: Lanes>(&self, l: L, j: usize) -> (L::V, L::V) {
        (l.splat(self.scales[j % LANES]), l.splat(self.minimums[(8 + j) % LANES]))
    }
}

/// `(d * sc) * q - dmin * m`, q of 4 bits.
#[derive(Clone, Copy, Debug)]
pub struct Q4K;

impl Unpack for Q4K {
    const CHEAP: bool = true;
    type Block<L: Lanes> = Super;

    #[inline(always)]
    fn block_bytes(_row: &PackedRow) -> usize {
        144
    }
    #[inline(always)]
    unsafe fn block<L: Lanes>(l: L, row: &PackedRow, block: usize) -> Super {
        // SAFETY: the caller's promise.
        unsafe { Super::with_minimums(l, row.quants.add(block * 144)) }
    }
    #[inline(always)]
    unsafe fn unit<L: Lanes>(l: L, b: &Super, j: usize) -> [L::V; 2] {
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
    type Block<L: Lanes> = Super;

    #[inline(always)]
    fn block_bytes(_row: &PackedRow) -> usize {
        176
    }
    #[inline(always)]
    unsafe fn block<L: Lanes>(l: L, row: &PackedRow, block: usize) -> Super {
        // SAFETY: the caller's promise.
        unsafe { Super::with_minimums(l, row.quants.add(block * 176)) }
    }
    #[inline(always)]
    unsafe fn unit<L: Lanes>(l: L, b: &Super, j: usize) -> [L::V; 2] {
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
unsafe fn five_bits<L: Lanes>(l: L, b: &Super, j: usize, at: usize, scale: L::V, min: L::V) -> L::V {
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
    type Block<L: Lanes> = Super;

    #[inline(always)]
    fn block_bytes(_row: &PackedRow) -> usize {
        210
    }
    #[inline(always)]
    unsafe fn block<L: Lanes>(l: L, row: &PackedRow, block: usize) -> Super {
        let mut s = Super { scales: [0.0; LANES], minimums: [0.0; LANES], block: row.quants.wrapping_add(block * 210) };
        // SAFETY: 16 signed scales at byte 192, `d` in the last two of 210 bytes.
        unsafe {
            let (sc, d) = (l.signed_bytes(s.block.add(192)), l.splat_half(s.block.add(208)));
            l.store(s.scales.as_mut_ptr(), l.mul(d, sc));
        }
        s
    }
    #[inline(always)]
    unsafe fn unit<L: Lanes>(l: L, b: &Super, unit: usize) -> [L::V; 2] {
        // SAFETY: a unit is two groups of 16.
        unsafe { [six_bits(l, b, unit, 0), six_bits(l, b, unit, 1)] }
    }
}

/// Group `i` of unit `unit` of a Q6_K block.
///
/// # Safety
/// unit < 8 and i < 2.
#[inline(always)]
unsafe fn six_bits<L: Lanes>(l: L, b: &Super, unit: usize, i: usize) -> L::V {
    let (part, run) = (unit / 4, unit % 4);
    // SAFETY: offsets as in the layout: 128 bytes of nibbles, 64 of upper bits.
    let (low, high) = unsafe {
        let low = l.bytes(b.block.add(part * 64 + run % 2 * 32 + i * LANES));
        (low, l.bytes(b.block.add(128 + part * 32 + i * LANES)))
    };
    let q = l.or_shl(l.and(l.shr(low, (run / 2 * 4) as u32), 15), l.and(l.shr(high, 2 * run as u32), 3), 4);
    let scale = l.splat(b.scales[(2 * unit + i) % LANES]);
    l.mul(scale, l.sub(l.to_f32(q), l.splat(32.0)))
}
