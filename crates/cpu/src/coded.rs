//! Weights in codes, as linears with activations in integers read them: panels of 16 rows, cut into blocks along the columns.
//!
//! A *unit* is 32 columns of the 16 rows. Its codes lie as [`Dots`] wants them: a run of 64 bytes has four codes of
//! each row. With 4 bits, byte `b` of row `r` in run `l` holds column `8 l + b` in its low half and column
//! `8 l + 4 + b` in its high half; with 8 bits, run `l` holds columns `4 l` to `4 l + 3`. Upper bits of 5- and 6-bit codes
//! follow the nibbles: bit `i` of byte `b` of row `r` belongs to column `4 i + b`; of two bits, run `h` has those of columns
//! `16 h` to `16 h + 15`.
//!
//! A *block* is some units and behind them their scales, 16 rows side by side, exactly as precise as in the file; it is
//! padded to whole cache lines, so that a worker's share of a weight is one run of lines, each read once.

mod scales;

pub use scales::{Affine, Halves, HalvesWithMinimum, Scales, Signed, WithMinimums};

use std::marker::PhantomData;

use tare_core::{AffineBits, DType, Format};

use crate::dots::Dots;

/// Columns of a unit.
pub const UNIT: usize = 32;
/// Weight rows of a panel.
pub const ROWS: usize = 16;

/// How one format lies in panels.
pub trait Coded: 'static {
    /// Bits of a code: 4, 5, 6 or 8.
    const BITS: usize;
    /// Units of a block.
    const UNITS: usize;
    /// Columns that share a scale: 16, 32, 64 or 128.
    const GROUP: usize;
    /// Bytes of the codes of a unit.
    const UNIT_BYTES: usize = UNIT * ROWS * Self::BITS / 8;
    /// The scales of a block.
    type Scales: Scales;

    /// Codes of run `i < 4` of a unit: of columns `8 i` to `8 i + 3`, and of the four after them.
    ///
    /// # Safety
    /// The codes of a unit lie at `unit`.
    #[inline(always)]
    unsafe fn codes<D: Dots>(d: D, unit: *const u8, i: usize) -> [D::B; 2] {
        // SAFETY: the runs of a unit of so many bits.
        unsafe {
            if Self::BITS == 8 {
                return [d.load(unit.add(128 * i)), d.load(unit.add(128 * i + 64))];
            }
            let nibbles = d.load(unit.add(64 * i));
            let (low, high) = (d.and(nibbles, 15), d.and(d.shr(nibbles, 4), 15));
            match Self::BITS {
                5 => {
                    let fifth = d.load(unit.add(256));
                    [d.or(low, upper(d, fifth, 2 * i, 16)), d.or(high, upper(d, fifth, 2 * i + 1, 16))]
                }
                6 => {
                    let (two, at) = (d.load(unit.add(256 + 64 * (i / 2))), 4 * (i % 2));
                    [d.or(low, upper(d, two, at, 48)), d.or(high, upper(d, two, at + 2, 48))]
                }
                _ => [low, high],
            }
        }
    }
}

/// Bits from `at` on of each byte, moved to where `mask` wants them: from bit 4 on.
#[inline(always)]
fn upper<D: Dots>(d: D, bits: D::B, at: usize, mask: u8) -> D::B {
    d.and(if at < 4 { d.shl(bits, 4 - at as u32) } else { d.shr(bits, at as u32 - 4) }, mask)
}

/// Codes of `BITS` bits in blocks of `UNITS` units that share scales by `GROUP`.
#[derive(Clone, Copy, Debug)]
pub struct Panel<const BITS: usize, const UNITS: usize, const GROUP: usize, S>(PhantomData<S>);

impl<const BITS: usize, const UNITS: usize, const GROUP: usize, S: Scales> Coded for Panel<BITS, UNITS, GROUP, S> {
    const BITS: usize = BITS;
    const UNITS: usize = UNITS;
    const GROUP: usize = GROUP;
    type Scales = S;
}

/// Something to be done in the type of a format.
pub trait Visit {
    /// What it gives.
    type Output;
    /// Does it.
    fn visit<F: Coded>(self) -> Self::Output;
}

/// Does `what` in the type of `format`; none for formats without codes.
pub fn visit<W: Visit>(format: Format, what: W) -> Option<W::Output> {
    Some(match format {
        Format::F32 | Format::F16 | Format::BF16 => return None,
        // Two units, so that scales of 32 bytes fill a line together.
        Format::Q8_0 => what.visit::<Panel<8, 2, 32, Halves<128>>>(),
        Format::Q4_0 => what.visit::<Panel<4, 2, 32, Halves<8>>>(),
        Format::Q5_0 => what.visit::<Panel<5, 2, 32, Halves<16>>>(),
        Format::Q4_1 => what.visit::<Panel<4, 1, 32, HalvesWithMinimum>>(),
        Format::Q5_1 => what.visit::<Panel<5, 1, 32, HalvesWithMinimum>>(),
        Format::Q4K => what.visit::<Panel<4, 8, 32, WithMinimums>>(),
        Format::Q5K => what.visit::<Panel<5, 8, 32, WithMinimums>>(),
        Format::Q6K => what.visit::<Panel<6, 8, 16, Signed>>(),
        Format::Affine { bits: AffineBits::Four, group: 32 } => what.visit::<Panel<4, 1, 32, Affine>>(),
        Format::Affine { bits: AffineBits::Four, group: 64 } => what.visit::<Panel<4, 2, 64, Affine>>(),
        Format::Affine { bits: AffineBits::Four, .. } => what.visit::<Panel<4, 4, 128, Affine>>(),
        Format::Affine { bits: AffineBits::Eight, group: 32 } => what.visit::<Panel<8, 1, 32, Affine>>(),
        Format::Affine { bits: AffineBits::Eight, group: 64 } => what.visit::<Panel<8, 2, 64, Affine>>(),
        Format::Affine { bits: AffineBits::Eight, .. } => what.visit::<Panel<8, 4, 128, Affine>>(),
    })
}

/// Bytes of a block of `F`, whose scales are of `dtype` where the format leaves that open.
#[inline(always)]
pub fn block_bytes<F: Coded>(dtype: DType) -> usize {
    (F::UNITS * F::UNIT_BYTES + F::Scales::bytes(F::UNITS, dtype)).next_multiple_of(64)
}

/// Writes the codes of a unit, [16, 32], to where [`Coded::codes`] finds them.
pub fn put_codes<F: Coded>(codes: [&[u8; UNIT]; ROWS], unit: &mut [u8]) {
    let words = unit.as_chunks_mut::<4>().0;
    for (r, codes) in codes.into_iter().enumerate() {
        // Four codes at once; nothing below moves a bit from one byte to another.
        let four = |k: usize| u32::from_ne_bytes([codes[k], codes[k + 1], codes[k + 2], codes[k + 3]]);
        let mut put = |run: usize, word: u32| words[ROWS * run + r] = word.to_ne_bytes();
        if F::BITS == 8 {
            (0..8).for_each(|l| put(l, four(4 * l)));
            continue;
        }
        (0..4).for_each(|l| put(l, four(8 * l) & 0x0f0f_0f0f | (four(8 * l + 4) & 0x0f0f_0f0f) << 4));
        let above = |i: usize| four(4 * i) >> 4 & 0x0f0f_0f0f;
        match F::BITS {
            5 => put(4, (0..8).fold(0, |bits, i| bits | above(i) << i)),
            6 => (0..2).for_each(|h| put(4 + h, (0..4).fold(0, |bits, i| bits | above(4 * h + i) << (2 * i)))),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::array::Array;
    use tare_formats::codec::quants::Coding;

    struct Check(Format);

    impl Visit for Check {
        type Output = ();
        fn visit<F: Coded>(self) {
            let (format, coding) = (self.0, Coding::of(self.0).unwrap());
            assert_eq!((F::BITS, F::GROUP), (format.value_bits(), coding.group), "{format}");
            assert_eq!(F::Scales::CENTER, coding.center.map(i32::from), "{format}");
            let (unit, block) = (F::UNITS * UNIT, format.block_weights());
            assert!(unit.is_multiple_of(block), "{format}: whole blocks of the file");
            assert!(F::GROUP == 16 || unit.is_multiple_of(F::GROUP), "{format}");
            // What the file has, and less than 3 % of padding and unpacked scales.
            let file = ROWS * unit / block * format.block_bytes();
            let here = block_bytes::<F>(DType::BF16);
            assert!((file..file * 103 / 100).contains(&here), "{format}: {here} bytes instead of {file}");

            let code = |r: usize, k: usize| ((r * 37 + k * 11 + r * k) % (1 << F::BITS)) as u8;
            let codes: [[u8; UNIT]; ROWS] = std::array::from_fn(|r| std::array::from_fn(|k| code(r, k)));
            let mut bytes = vec![0xaa; F::UNIT_BYTES];
            put_codes::<F>(codes.each_ref(), &mut bytes);
            let d = <Array as Dots>::prove().unwrap();
            for i in 0..4 {
                // SAFETY: the codes of one unit.
                let runs = unsafe { F::codes(d, bytes.as_ptr(), i) };
                for (h, run) in runs.iter().enumerate() {
                    for (at, got) in run.iter().enumerate() {
                        let (r, k) = (at / 4, 8 * i + 4 * h + at % 4);
                        assert_eq!(*got, code(r, k), "{format}: row {r}, column {k}");
                    }
                }
            }
        }
    }

    #[test]
    fn codes_are_found_where_they_were_put() {
        for format in Format::ALL {
            assert_eq!(visit(format, Check(format)).is_some(), Coding::of(format).is_some(), "{format}");
        }
    }
}
