//! MLX's affine groups: `scale * q + bias`, groups of 32, 64 or 128.

use tare_core::DType;

use super::{UNIT, Unpack};
use crate::lanes::{LANES, Lanes};
use crate::matrix::PackedRow;

/// 4-bit quants of a group with their 16 values.
#[derive(Clone, Copy, Debug)]
pub struct Mapped<L: Lanes> {
    map: L::Map,
    quants: *const u8,
}

/// 8-bit quants of a group.
#[derive(Clone, Copy, Debug)]
pub struct Scaled<L: Lanes> {
    scale: L::V,
    bias: L::V,
    quants: *const u8,
}

/// Scale and bias of group `g`.
///
/// # Safety
/// The row has that group.
#[inline(always)]
unsafe fn scale_and_bias<L: Lanes>(l: L, row: &PackedRow, g: usize) -> (L::V, L::V) {
    // SAFETY: the caller's promise.
    unsafe { (element(l, row.scales, row.scale_dtype, g), element(l, row.biases, row.scale_dtype, g)) }
}

/// Element `at` of an array, in all lanes.
///
/// # Safety
/// The array has that element; alignment is not assumed.
#[inline(always)]
unsafe fn element<L: Lanes>(l: L, from: *const u8, dtype: DType, at: usize) -> L::V {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F16 => l.splat_half(from.add(2 * at)),
            DType::BF16 => l.splat_bf16(from.add(2 * at)),
            _ => l.splat(from.cast::<f32>().add(at).read_unaligned()),
        }
    }
}

/// q of 4 bits, the first in the lowest bits of a word.
#[derive(Clone, Copy, Debug)]
pub struct Affine4;

impl Unpack for Affine4 {
    const CHEAP: bool = true;
    const PAIRED: bool = true;
    type Block<L: Lanes> = Mapped<L>;

    #[inline(always)]
    fn block_bytes(row: &PackedRow) -> usize {
        row.group_units * UNIT / 2
    }
    #[inline(always)]
    unsafe fn block<L: Lanes>(l: L, row: &PackedRow, block: usize) -> Mapped<L> {
        // SAFETY: the caller's promise.
        let (scale, bias) = unsafe { scale_and_bias(l, row, block) };
        Mapped { map: l.map(0.0, scale, bias), quants: row.quants.wrapping_add(block * Self::block_bytes(row)) }
    }
    #[inline(always)]
    unsafe fn unit<L: Lanes>(l: L, b: &Mapped<L>, unit: usize) -> [L::V; 2] {
        let p = b.quants.wrapping_add(unit * UNIT / 2);
        // SAFETY: a unit has 16 bytes.
        unsafe { [l.look_up(b.map, l.nibbles(p)), l.look_up(b.map, l.nibbles(p.add(LANES / 2)))] }
    }
    #[inline(always)]
    unsafe fn paired_unit<L: Lanes>(l: L, b: &Mapped<L>, unit: usize) -> [L::V; 2] {
        let p = b.quants.wrapping_add(unit * UNIT / 2);
        // SAFETY: a unit has 16 bytes.
        unsafe { [l.look_up(b.map, l.paired_nibbles(p)), l.look_up(b.map, l.paired_nibbles(p.add(LANES / 2)))] }
    }
}

/// q of 8 bits.
#[derive(Clone, Copy, Debug)]
pub struct Affine8;

impl Unpack for Affine8 {
    const CHEAP: bool = true;
    type Block<L: Lanes> = Scaled<L>;

    #[inline(always)]
    fn block_bytes(row: &PackedRow) -> usize {
        row.group_units * UNIT
    }
    #[inline(always)]
    unsafe fn block<L: Lanes>(l: L, row: &PackedRow, block: usize) -> Scaled<L> {
        // SAFETY: the caller's promise.
        let (scale, bias) = unsafe { scale_and_bias(l, row, block) };
        Scaled { scale, bias, quants: row.quants.wrapping_add(block * Self::block_bytes(row)) }
    }
    #[inline(always)]
    unsafe fn unit<L: Lanes>(l: L, b: &Scaled<L>, unit: usize) -> [L::V; 2] {
        let p = b.quants.wrapping_add(unit * UNIT);
        // SAFETY: a unit has 32 bytes.
        let (low, up) = unsafe { (l.to_f32(l.bytes(p)), l.to_f32(l.bytes(p.add(LANES)))) };
        [l.add(l.mul(b.scale, low), b.bias), l.add(l.mul(b.scale, up), b.bias)]
    }
}
