//! Attention of many rows, in any order: queries of rows that follow each other in a sequence share its keys and values.
//!
//! math: for each block of keys: `m' = max(m, s_j)`, `p_j = exp(s_j - m')`, `l = l exp(m - m') + sum p_j`,
//!   `o = o exp(m - m') + sum p_j v_j`; at the end `out = o / l`
//! shapes: q, out [T, H * E]; keys and values of a kv head [page_tokens, E] in each page
//! layout: see `tare_cpu::kv`; in a tile everything has a column for each of 48 queries (rows x heads of a run), or of 16:
//!   q^T, o^T [E, queries], scores [64 keys, queries]; keys [64, E] and values [E / 16, 64, 16] of a block as F32
//! precision: F32; every query has a chain over E for its scores and one over the tokens, which ascend
//! preconditions: context 1 at least, inside the row's table; values of later tokens in a tile are finite (they have weight 0)
//! cost: keys and values of the context once for each tile, out of L2; 4 E flops a query and token
//! tolerance: that of `tare_ops::exact::attention`; the bits of a row follow from its context alone, not from pages, threads
//!   or the rows beside it
//! wins: prompts: nothing is summed across lanes, a key's element is loaded once for 48 queries
//! loses: rows of many sequences, which are taken by [`spans`]
//! fallback: the same code on an array (`portable`)
//! evidence: none yet
//! source: the running softmax of Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), in blocks as in
//!   "FlashAttention" (Dao and others, 2022); queries as columns is ours
//!
//! A tile is what is worked on at once. Workers take tiles from a common counter, the longest contexts first. Rows that are
//! alone in their sequence, or nearly, follow in spans.

mod block;

use std::marker::PhantomData;

use super::pages::Element;
use super::units::{Mine, Queries};
use super::{Attention, AttentionFn, Cache, spans};
use crate::lanes::{Kernel, LANES, Lanes};
use crate::pool::Region;
use block::Block;

/// Vectors of queries in a tile.
const VECTORS: usize = 3;
/// Queries of a tile, and of one where there are few.
pub(super) const QUERIES: &[usize] = &[VECTORS * LANES, LANES];
/// Keys of a block.
const KEYS: usize = 64;

/// F32 that a worker needs.
pub(super) const fn room(head_size: usize) -> usize {
    let padded = head_size.next_multiple_of(LANES);
    QUERIES[0] * (2 * padded + KEYS + block::STATE) + 2 * KEYS * padded
}

/// The kernel for pool elements `T` on instruction set `L`.
pub fn kernel<L: Lanes, T: Element>() -> AttentionFn {
    run::<L, T>
}

/// # Safety
/// That of [`AttentionFn`].
unsafe fn run<L: Lanes, T: Element>(call: &Attention, cache: Cache, region: Region) {
    let Some(l) = L::detect() else { return };
    for all in Mine::new(call, cache, region) {
        let room = cache.scratch.own(region.worker);
        l.vectorize(Tile::<T> { all, scale: call.scale, room, element: PhantomData });
    }
    // SAFETY: the caller's promise.
    unsafe { spans::take_alone::<L, T>(l, call, (cache, region), false) };
}

/// Rows of a sequence and a run of heads.
struct Tile<'a, T> {
    all: Queries<'a>,
    scale: f32,
    room: *mut f32,
    element: PhantomData<T>,
}

impl<T: Element> Kernel for Tile<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        // SAFETY: a tile of the step, which nobody else does; the scratch has room for it.
        unsafe {
            if self.all.len() <= LANES {
                self.attend::<L, 1>(l);
            } else {
                self.attend::<L, VECTORS>(l);
            }
        }
    }
}

impl<T: Element> Tile<'_, T> {
    /// The tile, in Q vectors of columns.
    ///
    /// # Safety
    /// It is a tile of the step, which nobody else does.
    #[inline(always)]
    unsafe fn attend<L: Lanes, const Q: usize>(&self, l: L) {
        let pages = self.all.pages();
        // SAFETY: the caller's promise; the room is that of the worker.
        unsafe {
            let mut block = Block::<Q>::new(self.room, pages.size);
            block.begin(l, &self.all, self.scale);
            for first in (0..block.end()).step_by(KEYS) {
                block.keys::<L, T>(l, &pages, first);
                block.score(l);
                block.soften(l);
                block.values::<L, T>(l, &pages);
                block.mix(l);
            }
            block.finish(l, &self.all);
        }
    }
}
