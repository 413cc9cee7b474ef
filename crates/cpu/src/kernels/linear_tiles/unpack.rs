//! Weights in codes, out of panels of 16 rows: a column of a panel is half a row of B.

use std::marker::PhantomData;
use std::ops::Range;

use super::Weights;
use super::source::{Runs, Source};
use crate::coded::{Coded, ROWS, Scales, UNIT};
use crate::lanes::Lanes;
use crate::panels::Panels;
use crate::tiled::Side;
use crate::tiles::{ROW_BYTES, TILE_BYTES, Tiles};

/// Panels of format `F`.
#[derive(Debug)]
pub struct InPanels<F> {
    panels: Panels,
    format: PhantomData<F>,
}

impl<F: Coded> Source for InPanels<F> {
    const SIDE: Side = Side::Right;

    fn of(weights: &Weights) -> Option<Self> {
        match weights {
            Weights::Panels(panels) => Some(Self { panels: *panels, format: PhantomData }),
            Weights::File(_) => None,
        }
    }

    #[inline(always)]
    unsafe fn unpack<T: Tiles>(&self, t: T, n: usize, steps: Range<usize>, to: *mut u8) {
        let (l, panel) = (t.lanes(), self.panels.panel(n));
        for step in steps.clone() {
            let block = panel.wrapping_add(step / F::UNITS * self.panels.block_bytes);
            let codes = block.wrapping_add(step % F::UNITS * F::UNIT_BYTES);
            let scales = block.wrapping_add(F::UNITS * F::UNIT_BYTES);
            let to = to.wrapping_add((step - steps.start) * TILE_BYTES);
            for half in 0..2 {
                let group = (step % F::UNITS * UNIT + half * UNIT / 2) / F::GROUP;
                // SAFETY: a unit of the panel and the scales of its block; room for a tile.
                unsafe {
                    let (scale, bias) = F::Scales::of(l, scales, group, self.panels.dtype);
                    for pair in half * UNIT / 4..(half + 1) * UNIT / 4 {
                        let even = weights::<T, F>(t, codes, 2 * pair, (scale, bias));
                        let odd = weights::<T, F>(t, codes, 2 * pair + 1, (scale, bias));
                        t.store_pairs(to.add(pair * ROW_BYTES), even, odd);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn runs(&self, n: usize, steps: Range<usize>) -> Runs {
        let blocks = steps.start / F::UNITS..steps.end.div_ceil(F::UNITS);
        let at = self.panels.panel(n);
        let panels = self.panels.rows.saturating_sub(n).div_ceil(ROWS).min(2);
        Runs {
            at: at.wrapping_add(blocks.start * self.panels.block_bytes),
            next: self.panels.panel(n + ROWS) as usize - at as usize,
            runs: panels,
            bytes: blocks.len() * self.panels.block_bytes,
        }
    }
}

/// Lanes of a vector of weights.
type V<T> = <<T as Tiles>::L as Lanes>::V;

/// Column `k` of a unit: the weights of 16 rows, with the two roundings of the format.
///
/// # Safety
/// The codes of a unit lie at `unit`.
#[inline(always)]
unsafe fn weights<T: Tiles, F: Coded>(t: T, unit: *const u8, k: usize, (scale, bias): (V<T>, V<T>)) -> V<T> {
    let l = t.lanes();
    // SAFETY: the caller's promise.
    let centered = unsafe { centered::<T::L, F>(l, unit, k) };
    let scaled = l.mul(centered, scale);
    if F::Scales::CENTER.is_none() { l.add(scaled, bias) } else { scaled }
}

/// Column `k` of the codes of a unit, less their center: see [`crate::coded`] for where they lie.
///
/// # Safety
/// The codes of a unit lie at `unit`.
#[inline(always)]
unsafe fn centered<L: Lanes, F: Coded>(l: L, unit: *const u8, k: usize) -> L::V {
    let center = F::Scales::CENTER.unwrap_or(0) as f32;
    let byte = 8 * (k % 4) as u32;
    // SAFETY: runs of a unit of so many bits.
    unsafe {
        if F::BITS == 8 {
            let codes = l.and(l.shr(l.words(unit.add(k / 4 * 64)), byte), 255);
            return l.sub(l.to_f32(codes), l.splat(center));
        }
        let nibbles = l.shr(l.words(unit.add(k / 8 * 64)), byte + (k % 8 / 4 * 4) as u32);
        let codes = match F::BITS {
            5 => {
                let fifth = l.shr(l.words(unit.add(256)), byte + (k / 4) as u32);
                l.or_shl(l.and(nibbles, 15), l.and(fifth, 1), 4)
            }
            6 => {
                let two = l.shr(l.words(unit.add(256 + k / 16 * 64)), byte + (k % 16 / 4 * 2) as u32);
                l.or_shl(l.and(nibbles, 15), l.and(two, 3), 4)
            }
            // A table finds the number without a mask and a conversion.
            _ => return l.look_up(l.map(center, l.splat(1.0), l.splat(-0.0)), nibbles),
        };
        l.sub(l.to_f32(codes), l.splat(center))
    }
}
