//! Keys and values of a span of tokens as tiles of B.

use std::ops::Range;

use half::bf16;

use super::SPAN;
use crate::kernels::attention::pages::{Half, Pages};
use crate::lanes::{LANES, Lanes};
use crate::tiles::{Operand, ROW_BYTES, ROWS, STEP, TILE_BYTES, Tiles};

/// Keys and values that lie turned in the room of a worker.
pub(super) struct Turned {
    /// E
    size: usize,
    /// E, rounded up to 32.
    padded: usize,
    /// [SPAN / 16, E rounded up / 32] tiles: 16 keys as columns.
    keys: *mut u8,
    /// [SPAN / 32, E rounded up / 16] tiles: 32 values. Of every 32 numbers of E those at even places lie in the first of two
    /// tiles, those at odd places in the second.
    values: *mut u8,
}

impl Turned {
    /// F32 of the room that it needs.
    pub(super) const fn room(padded: usize) -> usize {
        SPAN * padded
    }

    /// Nothing yet, in `room`.
    #[inline(always)]
    pub(super) fn new(room: *mut f32, size: usize) -> Self {
        let padded = size.next_multiple_of(STEP);
        Self { size, padded, keys: room.cast(), values: room.wrapping_add(SPAN * padded / 2).cast() }
    }

    /// The keys of 32 tokens from the `at`-th of the span on.
    #[inline(always)]
    pub(super) fn keys(&self, at: usize) -> Operand {
        let row = self.padded / STEP * TILE_BYTES;
        Operand::packed(self.keys.wrapping_add(at / ROWS * row), row)
    }

    /// Numbers `e .. e + 32` of the values, 32 tokens in each step.
    #[inline(always)]
    pub(super) fn values(&self, e: usize) -> Operand {
        let (at, step) = (self.values.wrapping_add(e / ROWS * TILE_BYTES), self.padded / ROWS * TILE_BYTES);
        Operand { at, row: ROW_BYTES, step, second: TILE_BYTES, passing: false }
    }

    /// Takes the keys and values of `tokens`, [`SPAN`] at most, with zeros behind the last up to a multiple of 32.
    ///
    /// # Safety
    /// They lie in the pages; nobody else uses the room.
    #[inline(always)]
    pub(super) unsafe fn take<T: Tiles>(&self, t: T, pages: &Pages, tokens: Range<usize>) {
        for at in (0..tokens.len()).step_by(STEP) {
            let n = (tokens.len() - at).min(STEP);
            let (mut keys, mut values) = ([std::ptr::null::<bf16>(); STEP], [std::ptr::null::<bf16>(); STEP]);
            pages.places(Half::Keys, tokens.start + at, &mut keys[..n]);
            pages.places(Half::Values, tokens.start + at, &mut values[..n]);
            // SAFETY: the caller's promise.
            unsafe {
                for e in (0..self.size).step_by(STEP) {
                    self.turn_keys(t.lanes(), at, e, &keys);
                    self.turn_values(t, at, e, &values);
                }
            }
        }
    }

    /// Numbers `e .. e + 32` of 32 keys, which go where those from `at` on lie; zeros for none.
    ///
    /// # Safety
    /// As [`Turned::take`].
    #[inline(always)]
    unsafe fn turn_keys<L: Lanes>(&self, l: L, at: usize, e: usize, keys: &[*const bf16; STEP]) {
        for (i, keys) in keys.chunks_exact(ROWS).enumerate() {
            let tile = (at / ROWS + i) * (self.padded / STEP) + e / STEP;
            let tile = self.keys.wrapping_add(tile * TILE_BYTES).cast::<f32>();
            let mut square = [l.splat(0.0); LANES];
            // SAFETY: the caller's promise; inside the room.
            unsafe {
                for (pairs, key) in square.iter_mut().zip(keys) {
                    *pairs = self.with(*key, e, |p| l.load(p.cast()));
                }
                for (i, row) in l.transposed(&square).iter().enumerate() {
                    l.store(tile.add(i * LANES), *row);
                }
            }
        }
    }

    /// The same of 32 values.
    ///
    /// # Safety
    /// As [`Turned::take`].
    #[inline(always)]
    unsafe fn turn_values<T: Tiles>(&self, t: T, at: usize, e: usize, values: &[*const bf16; STEP]) {
        let l = t.lanes();
        let tile = self.values.wrapping_add((at / STEP * (self.padded / ROWS) + e / ROWS) * TILE_BYTES);
        for (i, pair) in values.chunks_exact(2).enumerate() {
            // SAFETY: the caller's promise; inside the room.
            unsafe {
                let first = self.with(pair[0], e, |p| l.two_bf16s(p.cast()));
                let second = self.with(pair[1], e, |p| l.two_bf16s(p.cast()));
                t.store_pairs(tile.add(i * ROW_BYTES), first.0, second.0);
                t.store_pairs(tile.add(TILE_BYTES + i * ROW_BYTES), first.1, second.1);
            }
        }
    }

    /// What `read` makes of numbers `e .. e + 32` at `row`, with zeros behind the last and for null.
    ///
    /// # Safety
    /// They lie there, and `read` reads no more.
    #[inline(always)]
    unsafe fn with<V>(&self, row: *const bf16, e: usize, read: impl FnOnce(*const bf16) -> V) -> V {
        let n = if row.is_null() { 0 } else { (self.size - e).min(STEP) };
        if n == STEP {
            return read(row.wrapping_add(e));
        }
        let mut part = [bf16::ZERO; STEP];
        if n > 0 {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(row.add(e), part.as_mut_ptr(), n) };
        }
        read(part.as_ptr())
    }
}
