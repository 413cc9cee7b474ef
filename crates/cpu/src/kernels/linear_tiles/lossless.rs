//! BF16 weights in 12 bits, out of panels of 16 rows: see [`crate::lossless`].

use std::ops::Range;

use super::Weights;
use super::source::{Runs, Source, Stored};
use crate::coded::{ROWS, UNIT};
use crate::lanes::Lanes;
use crate::lossless::{GROUP_BYTES, GROUPS, PAIR_ROWS, Panel, UNIT_BYTES};
use crate::panels::Panels;
use crate::tiled::Side;
use crate::tiles::{ROW_BYTES, Tiles};

/// Panels of BF16.
#[derive(Debug)]
pub struct Bf16Panels(Panels);

impl Stored for Bf16Panels {
    fn of(weights: &Weights) -> Option<Self> {
        match weights {
            Weights::Panels(panels) => Some(Self(*panels)),
            Weights::File(_) => None,
        }
    }
}

impl Source for Bf16Panels {
    const SIDE: Side = Side::Right;

    #[inline(always)]
    unsafe fn unpack<T: Tiles>(&self, t: T, n: usize, step: usize, half: usize, tile: *mut u8) {
        let (l, panel) = (t.lanes(), Panel::of(&self.0, n));
        let columns = half * UNIT / 2..(half + 1) * UNIT / 2;
        // SAFETY: groups of a unit of the panel, and room for the rows of B that they make.
        unsafe {
            for group in half * GROUPS / 2..(half + 1) * GROUPS / 2 {
                let rows = l.join(panel.table(), panel.unit(step).add(group * GROUP_BYTES));
                for (j, row) in rows.into_iter().enumerate() {
                    l.store(tile.add((group * PAIR_ROWS + j) * ROW_BYTES).cast(), row);
                }
            }
            for e in panel.exceptions(step, step + 1) {
                let column = e.column as usize % UNIT;
                if columns.contains(&column) {
                    let row = tile.add(column / 2 * ROW_BYTES).cast::<u16>();
                    row.add(2 * usize::from(e.row) + column % 2).write(e.bits);
                }
            }
        }
    }

    #[inline(always)]
    fn runs(&self, n: usize, steps: Range<usize>) -> [Runs; 2] {
        [n, n + ROWS].map(|n| Runs {
            at: Panel::of(&self.0, n).unit(steps.start),
            next: 0,
            runs: usize::from(n < self.0.rows),
            bytes: steps.len() * UNIT_BYTES,
        })
    }
}
