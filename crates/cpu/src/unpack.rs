//! Packed weights to F32 lanes, bit-equal to [`tare_formats::codec`].
//!
//! Every format is read in units of 32 weights (two vectors), grouped into blocks that share scales. Kernels are
//! generic over the format, so that the unpacking happens in registers between the load and the multiply.

mod affine;
mod blocks;
mod kquant;
mod plain;

pub use affine::{Affine4, Affine8};
pub use blocks::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub use kquant::{Q4K, Q5K, Q6K};
pub use plain::{Bf16, F16, F32};

use crate::lanes::Lanes;
use crate::matrix::PackedRow;

/// Weights of one unit.
pub const UNIT: usize = 32;

/// A weight format.
pub trait Unpack: 'static {
    /// Whether unpacking again for every four rows of x is cheaper than going through memory once, up to 16 rows.
    const CHEAP: bool;
    /// Whether rows of weights are read one after the other for few rows of x: where unpacking takes so few steps that one
    /// running sum keeps up with memory, which likes one stream best. Else several are read side by side, so that their
    /// sums overlap.
    const ALONE: bool = false;
    /// Whether [`Unpack::paired_unit`] gives lanes in the order of [`Lanes::paired`].
    const PAIRED: bool = false;
    /// What the units of a block share: scales, a table, where the quants are.
    type Block<L: Lanes>: Copy;
    /// Bytes of quants from one block to the next, for prefetching.
    fn block_bytes(row: &PackedRow) -> usize;
    /// Block `block` of a row.
    ///
    /// # Safety
    /// The row is in this format and has that block.
    unsafe fn block<L: Lanes>(l: L, row: &PackedRow, block: usize) -> Self::Block<L>;
    /// Unit `unit` of a block. Weights past the end of a row are -0.
    ///
    /// # Safety
    /// The block comes from [`Unpack::block`] and has that unit.
    unsafe fn unit<L: Lanes>(l: L, block: &Self::Block<L>, unit: usize) -> [L::V; 2];
    /// As [`Unpack::unit`], with the lanes in the order that this format finds fastest: see [`Unpack::PAIRED`].
    ///
    /// # Safety
    /// That of [`Unpack::unit`].
    #[inline(always)]
    unsafe fn paired_unit<L: Lanes>(l: L, block: &Self::Block<L>, unit: usize) -> [L::V; 2] {
        // SAFETY: the caller's promise.
        unsafe { Self::unit(l, block, unit) }
    }
}

/// `-0`: what is added where a format has no offset, since it changes no bit of anything.
const NOTHING: f32 = -0.0;
