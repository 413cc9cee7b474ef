//! Attention of many rows over tiles of BF16, in any order.
//!
//! math: for every 32 keys `p_j = 2^(s_j log2(e) - m)`, `l = l + sum p_j`, `o = o + sum p_j v_j`; at the end `out = o / l`.
//!   m is a whole number: that of the first 32 keys, raised (and l and o scaled, exactly) where l would become large
//! shapes: q, out [T, H * E], or the same in tiles; keys and values of a kv head [page_tokens, E] in each page
//! layout: see `tare_cpu::kv`; a tile of attention has up to 1,024 queries (rows x heads of a run), in bands of 32: q as rows of
//!   A, scores and weights [32, keys], the weights as rows of A again, o [32, E]; keys^T and values of up to 512 tokens as
//!   tiles of B
//! precision: products in BF16 with F32 sums as [`Tiles`] makes them; softmax in F32 with powers of two within 3e-6, its sum
//!   over weights before rounding; where m is 2^20 or more of either sign, scores are rounded before it comes off, as the
//!   reference rounds them
//! preconditions: a BF16 pool; context 1 at least, inside the row's table; values of later tokens in a band are finite
//! cost: keys and values of the context turned once for each tile, read once for each band, out of L2; 4 E flops a query and
//!   token, a power of two each
//! tolerance: that of `tare_ops::exact::attention` for products of BF16; the bits of a row follow from its context alone,
//!   wherever a tile takes it
//! wins: prompts: a band's weights are made while products run: those of its scores, and those of the band before with its values
//! loses: rows of many sequences, which are taken by [`spans`]; heads that are no multiple of 32 numbers are padded
//! fallback: [`columns`](super::columns)
//! evidence: 20261201T032318Z-aa7100db0753ba4d
//! source: as [`columns`](super::columns)

mod band;
mod turned;

use half::bf16;

use super::units::{Mine, Queries};
use super::{Attention, AttentionFn, Cache, spans};
use crate::pool::Region;
use crate::tiles::{ROWS, STEP, TILE_BYTES, TileKernel, Tiles};
use band::{Bands, Softening};
use turned::Turned;

/// Queries of a tile, most first: keys and values are turned for as many at once as leaves every worker enough tiles.
pub(super) const QUERIES: &[usize] = &[1024, 512, 256, 128, 64, BAND];
/// Queries that are multiplied together: two tiles of A.
const BAND: usize = 2 * ROWS;
/// Keys that are turned at once, and whose weights are gathered before they meet their values.
const SPAN: usize = 512;
/// F32 of a tile of C.
const TILE: usize = TILE_BYTES / size_of::<f32>();

/// F32 that a worker needs.
pub(super) const fn room(head_size: usize) -> usize {
    let padded = head_size.next_multiple_of(STEP);
    Bands::room(padded) + Turned::room(padded)
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
            unsafe { attend(t, &all, self.call.scale, self.room) };
        }
    }
}

/// One tile: for every span of keys, band by band. While the scores of a band are made, and then while the values of the band before
/// are gathered, its scores become weights.
///
/// # Safety
/// It is a tile of the step, which nobody else does; nobody else uses the room.
#[inline(always)]
unsafe fn attend<T: Tiles>(t: T, all: &Queries, scale: f32, room: *mut f32) {
    let (l, pages) = (t.lanes(), all.pages());
    let bands = Bands::new(room, pages.size, scale);
    let turned = Turned::new(room.wrapping_add(Bands::room(bands.padded)), pages.size);
    let (n, end) = (all.len().div_ceil(BAND), all.end());
    // SAFETY: the caller's promise.
    unsafe {
        for span in (0..end).step_by(SPAN) {
            turned.take(t, &pages, span..end.min(span + SPAN));
            let mut before: Option<usize> = None;
            for b in 0..n {
                if span == 0 {
                    bands.begin(t, all, b);
                }
                let end = bands.end(l, b).min(span + SPAN);
                if end <= span {
                    continue;
                }
                // Bands in between had nothing here: the weights of this one go where those of the one before are.
                if let Some(before) = before.take_if(|before| (b - *before).is_multiple_of(2)) {
                    bands.gather(t, all, &turned, (before, span), None);
                }
                let mut softening = Softening::new(bands, b, span);
                for first in (span..end).step_by(STEP) {
                    if span == 0 {
                        bands.ask(l, all, b + 1, first / STEP);
                    }
                    softening.score(t, &turned, first);
                }
                if let Some(before) = before {
                    bands.gather(t, all, &turned, (before, span), Some(&mut softening));
                }
                softening.finish(t);
                before = Some(b);
            }
            if let Some(before) = before {
                bands.gather(t, all, &turned, (before, span), None);
            }
        }
    }
}
