//! Attention of many rows over tiles of BF16, in any order.
//!
//! math: that of [`columns`](super::columns), with queries and weights rounded to BF16 before they are multiplied
//! shapes: q, out [T, H * E]; keys and values of a kv head [page_tokens, E] in each page
//! layout: see `tare_cpu::kv`; a tile of attention has 256 queries (rows x heads of a run), or 32: q^T in tiles of B, o^T
//!   [E, queries], scores [128 keys, queries], weights in tiles of B; keys where they lie and values^T [E, 128] as rows of A
//! precision: products in BF16 with F32 sums as [`Tiles`] makes them; softmax in F32, its sum over weights before rounding
//! preconditions: a BF16 pool; context 1 at least, inside the row's table; values of later tokens in a tile are finite
//! cost: keys and values of the context once for each tile, out of L2; 4 E flops a query and token, an exponential each
//! tolerance: that of `tare_ops::exact::attention` for products of BF16; the bits of a row follow from its context alone
//! wins: prompts: products take less time than exponentials
//! loses: rows of many sequences, which are taken by [`spans`]
//! fallback: [`columns`](super::columns)
//! evidence: as part of a prompt, 20261130T234741Z-b9744e26215b0fd5
//! source: as [`columns`](super::columns)
//!
//! Scores have a row for each key, so that keys are read as they lie and a query's maximum is one lane. Values are turned
//! once for each block.

mod block;

use half::bf16;

use super::units::{Mine, Queries};
use super::{Attention, AttentionFn, Cache, spans};
use crate::lanes::LANES;
use crate::pool::Region;
use crate::tiles::{STEP, TileKernel, Tiles};
use block::Block;

/// Queries of a tile, and of one where there are few.
pub(super) const QUERIES: [usize; 2] = [16 * LANES, 2 * LANES];
/// Keys of a block.
const KEYS: usize = 128;

/// F32 that a worker needs.
pub(super) const fn room(head_size: usize) -> usize {
    let padded = head_size.next_multiple_of(STEP);
    QUERIES[0] * (padded + padded / 2 + KEYS + KEYS / 2 + block::STATE) + KEYS * padded
}

/// The kernel on tiles `T`, for pools of BF16.
pub fn kernel<T: Tiles>() -> AttentionFn {
    run::<T>
}

/// # Safety
/// That of [`AttentionFn`].
unsafe fn run<T: Tiles>(call: &Attention, cache: Cache, region: Region) {
    let Some(t) = T::prove() else { return };
    t.compiled(Share { call, mine: Mine::new(call, cache, region), room: cache.scratch.own(region.worker) });
    // SAFETY: the caller's promise.
    unsafe { spans::take_alone::<T::L, bf16>(t.lanes(), call, (cache, region), true) };
}

/// A worker's share of a call.
struct Share<'a> {
    call: &'a Attention,
    mine: Mine<'a>,
    room: *mut f32,
}

impl TileKernel for Share<'_> {
    #[inline(always)]
    fn run<T: Tiles>(self, t: T) {
        for all in self.mine {
            // SAFETY: a tile of the step, which nobody else does; the room is that of the worker.
            unsafe {
                if all.len() <= QUERIES[1] {
                    attend::<T, { QUERIES[1] / LANES }>(t, &all, self.call.scale, self.room);
                } else {
                    attend::<T, { QUERIES[0] / LANES }>(t, &all, self.call.scale, self.room);
                }
            }
        }
    }
}

/// One tile, in Q vectors of queries.
///
/// # Safety
/// It is a tile of the step, which nobody else does; nobody else uses the room.
#[inline(always)]
unsafe fn attend<T: Tiles, const Q: usize>(t: T, all: &Queries, scale: f32, room: *mut f32) {
    let pages = all.pages();
    // SAFETY: the caller's promise.
    unsafe {
        let mut block = Block::<Q>::new(room, pages.size, scale);
        block.begin(t, all);
        for first in (0..block.end()).step_by(KEYS) {
            block.keys(&pages, first);
            block.score(t);
            block.soften(t);
            block.values(t, &pages);
            block.mix(t);
        }
        block.finish(t.lanes(), all);
    }
}
