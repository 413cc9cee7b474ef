//! Rows out of panels: a table that is also the head of a linear that reads panels is kept once, as that reads it.

use std::marker::PhantomData;

use crate::coded::{Coded, ROWS, Scales, UNIT, Visit};
use crate::dots::Dots;
use crate::lanes::array::Array;
use crate::panels::Panels;
use crate::pool::Region;
use crate::rows::Rows;

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Gather {
    /// [V, D]
    pub table: Panels,
    /// [T, D]
    pub out: Rows,
}

/// Runs one worker's share: call, the token of each row, where we are.
///
/// # Safety
/// `out` holds a row for each token; the table has the format of the kernel and every token.
pub type GatherFn = unsafe fn(&Gather, &[u32], Region);

/// The kernel of a format.
#[derive(Debug)]
pub struct OfFormat;

impl Visit for OfFormat {
    type Output = GatherFn;
    fn visit<F: Coded>(self) -> GatherFn {
        run::<F>
    }
}

/// # Safety
/// That of [`GatherFn`].
unsafe fn run<F: Coded>(call: &Gather, tokens: &[u32], region: Region) {
    let Some(d) = <Array as Dots>::prove() else { return };
    for t in region.share(tokens.len(), 1) {
        let row = Row::<F> { table: &call.table, token: tokens[t] as usize, format: PhantomData };
        for unit in 0..call.table.units {
            // SAFETY: the table has the token and the unit, and row t of out as many columns.
            unsafe { call.out.row(t).add(unit * UNIT).cast::<[f32; UNIT]>().write(row.unit(d, unit)) };
        }
    }
}

struct Row<'a, F> {
    table: &'a Panels,
    token: usize,
    format: PhantomData<F>,
}

impl<F: Coded> Row<'_, F> {
    /// Columns `32 unit ..` of the row, with the roundings of the codecs.
    ///
    /// # Safety
    /// The table has the row and the unit.
    unsafe fn unit(&self, d: Array, unit: usize) -> [f32; UNIT] {
        let (lane, inside) = (self.token % ROWS, unit % F::UNITS);
        let block = self.table.panel(self.token).wrapping_add(unit / F::UNITS * self.table.block_bytes);
        let mut out = [0.0; UNIT];
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: a block of the table, with the scales of its units behind their codes.
            let (codes, (scale, bias)) = unsafe {
                let scales = block.add(F::UNITS * F::UNIT_BYTES);
                let group = (inside * UNIT + 8 * i) / F::GROUP;
                let codes = F::codes(d, block.add(inside * F::UNIT_BYTES), i);
                (codes, F::Scales::of(d, scales, group, self.table.dtype))
            };
            for (k, out) in out.iter_mut().enumerate() {
                let q = f32::from(codes[k / 4][4 * lane + k % 4]);
                *out = match F::Scales::CENTER {
                    Some(center) => (q - center as f32) * scale[lane],
                    None => q * scale[lane] + bias[lane],
                };
            }
        }
        out
    }
}
