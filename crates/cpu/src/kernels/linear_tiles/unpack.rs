//! Weights in codes, out of panels of 16 rows: a column of a panel is half a row of B.

use std::marker::PhantomData;
use std::ops::Range;

use super::Weights;
use super::source::{Runs, Source, Stored};
use crate::coded::{Coded, ROWS, Scales, UNIT};
use crate::lanes::Lanes;
use crate::panels::Panels;
use crate::tiled::Side;
use crate::tiles::{ROW_BYTES, Tiles};

/// Columns of a run of nibbles.
const RUN: usize = 8;

/// Panels of format `F`.
#[derive(Debug)]
pub struct InPanels<F> {
    panels: Panels,
    format: PhantomData<F>,
}

impl<F: Coded> Stored for InPanels<F> {
    fn of(weights: &Weights) -> Option<Self> {
        match weights {
            Weights::Panels(panels) => Some(Self { panels: *panels, format: PhantomData }),
            Weights::File(_) => None,
        }
    }
}

impl<F: Coded> Source for InPanels<F> {
    const SIDE: Side = Side::Right;

    #[inline(always)]
    unsafe fn unpack<T: Tiles>(&self, t: T, n: usize, step: usize, half: usize, tile: *mut u8) {
        let l = t.lanes();
        let block = self.panels.panel(n).wrapping_add(step / F::UNITS * self.panels.block_bytes);
        let unit = block.wrapping_add(step % F::UNITS * F::UNIT_BYTES);
        let scales = block.wrapping_add(F::UNITS * F::UNIT_BYTES);
        let group = (step % F::UNITS * UNIT + half * UNIT / 2) / F::GROUP;
        // SAFETY: a unit of the panel and the scales of its block; room for a tile.
        unsafe {
            let scales = F::Scales::of(l, scales, group, self.panels.dtype);
            for i in 2 * half..2 * half + 2 {
                let (run, to) = (Run::<T::L, F>::new(l, unit, i), tile.add(i * RUN / 2 * ROW_BYTES));
                t.store_pairs(to, run.weights::<0>(l, scales), run.weights::<1>(l, scales));
                let to = to.add(ROW_BYTES);
                t.store_pairs(to, run.weights::<2>(l, scales), run.weights::<3>(l, scales));
                let to = to.add(ROW_BYTES);
                t.store_pairs(to, run.weights::<4>(l, scales), run.weights::<5>(l, scales));
                let to = to.add(ROW_BYTES);
                t.store_pairs(to, run.weights::<6>(l, scales), run.weights::<7>(l, scales));
            }
        }
    }

    #[inline(always)]
    fn runs(&self, n: usize, steps: Range<usize>) -> [Runs; 2] {
        let blocks = steps.start / F::UNITS..steps.end.div_ceil(F::UNITS);
        let bytes = blocks.len() * self.panels.block_bytes;
        [n, n + ROWS].map(|n| Runs {
            at: self.panels.panel(n).wrapping_add(blocks.start * self.panels.block_bytes),
            next: 0,
            runs: usize::from(n < self.panels.rows),
            bytes,
        })
    }
}

/// The codes of eight columns of 16 rows: see [`crate::coded`] for where they lie. Where a column's bits are is known to the
/// compiler, column by column.
struct Run<L: Lanes, F> {
    /// Nibbles of all columns twice, or bytes of four columns and of the four after them.
    low: [L::Q; 2],
    /// Upper bits, moved so that those of the first four columns come first in each byte.
    upper: L::Q,
    format: PhantomData<F>,
}

impl<L: Lanes, F: Coded> Run<L, F> {
    /// Run `i < 4` of a unit.
    ///
    /// # Safety
    /// The codes of a unit lie at `unit`.
    #[inline(always)]
    unsafe fn new(l: L, unit: *const u8, i: usize) -> Self {
        // SAFETY: the runs of a unit of so many bits.
        unsafe {
            let low = match F::BITS {
                8 => [l.words(unit.add(128 * i)), l.words(unit.add(128 * i + 64))],
                _ => [l.words(unit.add(64 * i)); 2],
            };
            let upper = match F::BITS {
                5 => l.shr(l.words(unit.add(256)), 2 * i as u32),
                6 => l.shr(l.words(unit.add(256 + 64 * (i / 2))), 4 * (i % 2) as u32),
                _ => low[0],
            };
            Self { low, upper, format: PhantomData }
        }
    }

    /// The weights of column `C < 8`, with the two roundings of the format.
    #[inline(always)]
    fn weights<const C: usize>(&self, l: L, (scale, bias): (L::V, L::V)) -> L::V {
        let center = F::Scales::CENTER.unwrap_or(0) as f32;
        let (byte, second) = (8 * (C % 4) as u32, (C / 4) as u32);
        let codes = match F::BITS {
            8 => l.and(l.shr(self.low[C / 4], byte), 255),
            bits => {
                let nibbles = l.shr(self.low[0], byte + 4 * second);
                match bits {
                    5 => l.or_shl(l.and(nibbles, 15), l.and(l.shr(self.upper, byte + second), 1), 4),
                    6 => l.or_shl(l.and(nibbles, 15), l.and(l.shr(self.upper, byte + 2 * second), 3), 4),
                    _ => nibbles,
                }
            }
        };
        let centered = if F::BITS == 4 {
            // A table finds the number without a mask and a conversion.
            l.look_up(l.map(center, l.splat(1.0), l.splat(-0.0)), codes)
        } else {
            l.sub(l.to_f32(codes), l.splat(center))
        };
        let scaled = l.mul(centered, scale);
        if F::Scales::CENTER.is_none() { l.add(scaled, bias) } else { scaled }
    }
}
