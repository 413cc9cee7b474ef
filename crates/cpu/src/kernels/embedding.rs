//! Rows of the embedding, dequantized.
//!
//! math: `out[t] = table[token(t)]`
//! shapes: table [V, D] packed, out [T, D]
//! layout: table rows as the file has them; where the table is also the head of a linear that reads panels, in those
//! precision: exact: the dequantization of `tare_formats::codec`
//! preconditions: tokens below V
//! cost: T packed rows
//! tolerance: bit-identical to the reference
//! wins: everywhere
//! loses: out of panels, where a row is every 16th group of four codes and all 16 rows are unpacked
//! fallback: the same code on an array (`portable`); out of panels there is no other
//! evidence: none yet
//! source: none
//!
//! Workers take rows in turn.

pub mod lossless;
pub mod panels;

use std::marker::PhantomData;

use crate::lanes::{Kernel, LANES, Lanes};
use crate::matrix::Matrix;
use crate::pool::Region;
use crate::rows::Rows;
use crate::unpack::{UNIT, Unpack};

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    /// [V, D]
    pub table: Matrix,
    /// [T, D]
    pub out: Rows,
}

/// Runs one worker's share: call, the token of each row, where we are.
///
/// # Safety
/// `out` holds a row for each token; the table has the format of the kernel and every token.
pub type EmbeddingFn = unsafe fn(&Embedding, &[u32], Region);

/// The kernel of format `F` on instruction set `L`.
pub fn kernel<L: Lanes, F: Unpack>() -> EmbeddingFn {
    run::<L, F>
}

/// # Safety
/// That of [`EmbeddingFn`].
unsafe fn run<L: Lanes, F: Unpack>(call: &Embedding, tokens: &[u32], region: Region) {
    let Some(l) = L::detect() else { return };
    for t in region.share(tokens.len(), 1) {
        l.vectorize(Row::<F> { call, token: tokens[t] as usize, t, format: PhantomData });
    }
}

struct Row<'a, F> {
    call: &'a Embedding,
    token: usize,
    t: usize,
    format: PhantomData<F>,
}

impl<F: Unpack> Kernel for Row<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let row = self.call.table.row(self.token);
        let out = self.call.out.row(self.t);
        for unit in 0..row.cols.div_ceil(UNIT) {
            let (block, inside) = (unit / row.group_units, unit % row.group_units);
            // SAFETY: a unit of the row; columns past its end are not written.
            unsafe {
                let b = F::block(l, &row, block);
                for (i, w) in F::unit(l, &b, inside).into_iter().enumerate() {
                    let at = unit * UNIT + i * LANES;
                    match row.cols.saturating_sub(at) {
                        0 => {}
                        n if n >= LANES => l.store(out.add(at), w),
                        n => l.store_part(out.add(at), n, w),
                    }
                }
            }
        }
    }
}
