//! Queries and keys made ready for attention: norms of heads, rotations, and keys and values into their pages.
//!
//! math: that of [`norm`](super::norm) and [`rope`](super::rope) of each head of q and k, then that of [`kv_append`](super::kv_append)
//! shapes: q [T, H * E] and k [T, K * E] in place, v [T, K * E], norm weights [E]
//! layout: as these
//! precision: as these
//! preconditions: as these
//! cost: their operations; each head is read and written once
//! tolerance: the bits that the calls give one after the other
//! wins: everywhere: one pass and one meeting of the workers instead of three
//! loses: nothing known
//! fallback: the calls one by one
//! evidence: 20261201T032318Z-aa7100db0753ba4d
//! source: none
//!
//! Workers take contiguous runs of (row, head) pairs: of a row the heads of q, then those of k with their values.

use tare_ops::Row;

use super::kv_append::{KvAppend, TableView};
use super::norm::{self, Norm};
use super::rope::{self, Rope};
use crate::lanes::{Kernel, Lanes};
use crate::pool::Region;

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Of the heads of q, and of those of k, if they are normalised.
    pub norms: Option<[Norm; 2]>,
    /// The same heads.
    pub ropes: [Rope; 2],
    /// Of the keys.
    pub append: KvAppend,
}

impl Heads {
    /// Heads that workers share out when `rows` rows travel through.
    pub fn items(&self, rows: usize) -> usize {
        rows * self.of_row()
    }

    fn of_row(&self) -> usize {
        self.ropes[0].heads + self.ropes[1].heads
    }
}

/// Runs one worker's share: call, rows of the step, their tables, where we are.
///
/// # Safety
/// That of [`KvAppend::run`], and nobody else touches q and k.
pub type HeadsFn = unsafe fn(&Heads, &[Row], &[TableView], Region);

/// The kernel on instruction set `L`.
pub fn kernel<L: Lanes>() -> HeadsFn {
    run::<L>
}

/// # Safety
/// That of [`HeadsFn`].
unsafe fn run<L: Lanes>(call: &Heads, rows: &[Row], tables: &[TableView], region: Region) {
    let Some(l) = L::detect() else { return };
    let of_row = call.of_row();
    for i in region.share(call.items(rows.len()), 1) {
        l.vectorize(Head { call, rows, tables, t: i / of_row, head: i % of_row });
    }
}

struct Head<'a> {
    call: &'a Heads,
    rows: &'a [Row],
    tables: &'a [TableView],
    t: usize,
    /// Counted through q, then k.
    head: usize,
}

impl Kernel for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { call, t, .. } = self;
        let heads = call.ropes[0].heads;
        let (of, head) = if self.head < heads { (0, self.head) } else { (1, self.head - heads) };
        if let Some(norms) = &call.norms {
            norm::Head { call: &norms[of], t, at: head * norms[of].size }.run(l);
        }
        rope::Head { call: &call.ropes[of], t, head }.run(l);
        if of == 1 {
            // SAFETY: the contract of `HeadsFn`; this worker has just written the keys.
            unsafe { call.append.head(self.rows, self.tables, t, head) };
        }
    }
}
