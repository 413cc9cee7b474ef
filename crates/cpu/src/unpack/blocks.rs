//! ggml's blocks of 32: see [`tare_formats::codec::ggml`] for the layouts.

use super::{NOTHING, Unpack};
use crate::lanes::{LANES, Lanes};
use crate::matrix::PackedRow;

/// 4-bit quants with their 16 values.
#[derive(Clone, Copy, Debug)]
pub struct Mapped<L: Lanes> {
    map: L::Map,
    quants: *const u8,
}

/// Scale, minimum (or [`NOTHING`]) and the quants.
#[derive(Clone, Copy, Debug)]
pub struct Scaled<L: Lanes> {
    d: L::V,
    m: L::V,
    block: *const u8,
}

/// The block's address.
#[inline(always)]
fn at<const BYTES: usize>(row: &PackedRow, block: usize) -> *const u8 {
    row.quants.wrapping_add(block * BYTES)
}

macro_rules! nibbles {
    ($name:ident, $bytes:literal, $center:literal, $quants:literal, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Unpack for $name {
            const CHEAP: bool = true;
            type Block<L: Lanes> = Mapped<L>;

            #[inline(always)]
            fn block_bytes(_row: &PackedRow) -> usize {
                $bytes
            }
            #[inline(always)]
            unsafe fn block<L: Lanes>(l: L, row: &PackedRow, block: usize) -> Mapped<L> {
                let p = at::<$bytes>(row, block);
                // SAFETY: the block lies at p; what follows the scale is the minimum when the quants start at byte 4.
                let (d, m) = unsafe { l.splat_two_halves(p) };
                let m = if $quants == 4 { m } else { l.splat(NOTHING) };
                Mapped { map: l.map($center, d, m), quants: p.wrapping_add($quants) }
            }
            #[inline(always)]
            unsafe fn unit<L: Lanes>(l: L, block: &Mapped<L>, _unit: usize) -> [L::V; 2] {
                // SAFETY: 16 bytes of quants.
                let q = unsafe { l.bytes(block.quants) };
                [l.look_up(block.map, q), l.look_up(block.map, l.shr(q, 4))]
            }
        }
    };
}

nibbles!(Q4_0, 18, 8.0, 2, "`d * (q - 8)`, q of 4 bits.");
nibbles!(Q4_1, 20, 0.0, 4, "`d * q + m`, q of 4 bits.");

macro_rules! five_bits {
    ($name:ident, $bytes:literal, $center:literal, $high:literal, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Unpack for $name {
            const CHEAP: bool = true;
            type Block<L: Lanes> = Scaled<L>;

            #[inline(always)]
            fn block_bytes(_row: &PackedRow) -> usize {
                $bytes
            }
            #[inline(always)]
            unsafe fn block<L: Lanes>(l: L, row: &PackedRow, block: usize) -> Scaled<L> {
                let p = at::<$bytes>(row, block);
                // SAFETY: the block lies at p; what follows the scale is the minimum when the fifth bits start at 4.
                let (d, m) = unsafe { l.splat_two_halves(p) };
                Scaled { d, m: if $high == 4 { m } else { l.splat(NOTHING) }, block: p }
            }
            #[inline(always)]
            unsafe fn unit<L: Lanes>(l: L, b: &Scaled<L>, _unit: usize) -> [L::V; 2] {
                // SAFETY: the fifth bits follow the halves.
                let high = unsafe { b.block.add($high).cast::<u32>().read_unaligned() };
                // SAFETY: 16 bytes of nibbles follow the fifth bits.
                let q = unsafe { l.bytes(b.block.add($high + 4)) };
                let low = l.add_where(l.and(q, 15), u32::from_le(high) as u16, 16);
                let up = l.add_where(l.shr(q, 4), (u32::from_le(high) >> LANES) as u16, 16);
                let center = l.splat($center);
                [
                    l.add(l.mul(l.sub(l.to_f32(low), center), b.d), b.m),
                    l.add(l.mul(l.sub(l.to_f32(up), center), b.d), b.m),
                ]
            }
        }
    };
}

five_bits!(Q5_0, 22, 16.0, 2, "`d * (q - 16)`, q of 5 bits.");
five_bits!(Q5_1, 24, 0.0, 4, "`d * q + m`, q of 5 bits.");

/// `d * q`, q signed, of 8 bits.
#[derive(Clone, Copy, Debug)]
pub struct Q8_0;

impl Unpack for Q8_0 {
    const CHEAP: bool = true;
    type Block<L: Lanes> = Scaled<L>;

    #[inline(always)]
    fn block_bytes(_row: &PackedRow) -> usize {
        34
    }
    #[inline(always)]
    unsafe fn block<L: Lanes>(l: L, row: &PackedRow, block: usize) -> Scaled<L> {
        let p = at::<34>(row, block);
        // SAFETY: the block lies at p.
        Scaled { d: unsafe { l.splat_half(p) }, m: l.splat(NOTHING), block: p }
    }
    #[inline(always)]
    unsafe fn unit<L: Lanes>(l: L, b: &Scaled<L>, _unit: usize) -> [L::V; 2] {
        // SAFETY: 32 bytes of quants follow the scale.
        let (low, up) = unsafe { (l.signed_bytes(b.block.add(2)), l.signed_bytes(b.block.add(2 + LANES))) };
        [l.mul(low, b.d), l.mul(up, b.d)]
    }
}
