//! F32, F16 and BF16 elements.

use super::{UNIT, Unpack};
use crate::lanes::{LANES, Lanes};
use crate::matrix::PackedRow;

/// Where a unit starts, and how many weights of the row are left from there.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    at: *const u8,
    left: usize,
}

macro_rules! plain {
    ($name:ident, $bytes:literal, $method:ident, $minus_zero:expr, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Unpack for $name {
            const CHEAP: bool = true;
            const ALONE: bool = true;
            type Block<L: Lanes> = Place;

            #[inline(always)]
            fn block_bytes(_row: &PackedRow) -> usize {
                UNIT * $bytes
            }
            #[inline(always)]
            unsafe fn block<L: Lanes>(_l: L, row: &PackedRow, block: usize) -> Place {
                Place { at: row.quants.wrapping_add(block * UNIT * $bytes), left: row.cols - block * UNIT }
            }
            #[inline(always)]
            unsafe fn unit<L: Lanes>(l: L, place: &Place, _unit: usize) -> [L::V; 2] {
                if place.left >= UNIT {
                    // SAFETY: 32 elements are left.
                    return unsafe { [l.$method(place.at.cast()), l.$method(place.at.add(LANES * $bytes).cast())] };
                }
                let mut whole = [$minus_zero; UNIT];
                // SAFETY: `left` elements are left in the row and fewer than 32 fit into the copy, from which two
                // vectors are then read.
                unsafe {
                    std::ptr::copy_nonoverlapping(place.at, whole.as_mut_ptr().cast::<u8>(), place.left * $bytes);
                    [l.$method(whole.as_ptr().cast()), l.$method(whole.as_ptr().add(LANES).cast())]
                }
            }
        }
    };
}

plain!(F32, 4, load, -0.0f32, "IEEE binary32.");
plain!(F16, 2, halves, 0x8000u16, "IEEE binary16.");
plain!(Bf16, 2, bf16s, 0x8000u16, "The upper half of binary32.");
