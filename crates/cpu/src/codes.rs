//! Rows of activations in integers: see [`tare_ops::reference::blocks`] for the arithmetic.
//!
//! Integers of 8 bits are one *plane* of bytes; those of 15 bits are two, `128 * high + low`, in this order. No byte is -128.

use tare_ops::reference::blocks::BLOCK;

/// 32 activations of a row in P planes, and everything that a linear wants to know of them.
#[repr(C, align(32))]
#[derive(Clone, Copy, Debug)]
pub struct Block<const P: usize> {
    /// x is about the integers, which these bytes are, times the scale.
    pub planes: [[i8; BLOCK]; P],
    /// The scale (d).
    pub scale: f32,
    /// What centers take off, each as a kernel adds it: -8 and -128 times the sum of the integers, -32 times that of each half.
    off: [i32; 4],
    /// What a bias is multiplied with, for groups of 32, 64 and 128 columns: the chain (v) over the blocks of the group up
    /// to this one.
    pub offsets: [f32; 3],
}

impl<const P: usize> Block<P> {
    /// A block behind `before`, which is the one before it in its run of [`SPAN`] blocks; `at` counts it in that run.
    #[inline(always)]
    pub fn new(planes: [[i8; BLOCK]; P], scale: f32, half_sums: [i32; 2], before: [f32; 3], at: usize) -> Self {
        let [low, up] = half_sums;
        let mut offsets = [0.0; 3];
        for (i, offset) in offsets.iter_mut().enumerate() {
            *offset = scale.mul_add((low + up) as f32, if at.is_multiple_of(1 << i) { 0.0 } else { before[i] });
        }
        Self { planes, scale, off: [-8 * (low + up), -128 * (low + up), -32 * low, -32 * up], offsets }
    }

    /// What a center, a multiple of 8, takes off the sum of products with all codes: minus itself times the sum of the integers.
    #[inline(always)]
    pub const fn off(&self, center: i32) -> i32 {
        // One load for the most common two. Blocks behind the last one may hold any numbers.
        if center == 128 { self.off[1] } else { self.off[0].wrapping_mul(center / 8) }
    }

    /// The same for each half, and a multiple of 32.
    #[inline(always)]
    pub const fn off_half(&self, center: i32, half: usize) -> i32 {
        self.off[2 + half].wrapping_mul(center / 32)
    }
}

/// Blocks that no group of weights exceeds: the smallest share of a worker that makes them.
pub const SPAN: usize = 4;
/// Blocks behind the last one that may be read, whatever lies there: those of rows that complete a product in tiles.
const BEHIND: usize = 8;
/// Rows that lie together, block by block: as many as a linear takes at a time, so that it walks forward in memory, line by line.
pub const TILE: usize = 8;

/// The rows of a step.
///
/// Rows lie in tiles of [`TILE`], the last one smaller; in a tile, block 0 of every row comes first, then block 1 of
/// every row. Where a row lies therefore depends on how many there are.
#[derive(Clone, Copy, Debug)]
pub struct Codes {
    first: *mut u8,
    /// Blocks of a row.
    pub blocks: usize,
}

// SAFETY: a pointer and a number. The stage that writes through it deals rows out, and a barrier separates it from those
// that read.
unsafe impl Send for Codes {}
// SAFETY: as above.
unsafe impl Sync for Codes {}

impl Codes {
    /// Bytes of `rows` rows of `width` columns in so many planes, 1 or 2, and of what may be read behind them.
    pub const fn bytes(planes: usize, rows: usize, width: usize) -> usize {
        let block = if planes == 1 { size_of::<Block<1>>() } else { size_of::<Block<2>>() };
        rows.saturating_mul(width.div_ceil(BLOCK)).saturating_add(BEHIND).saturating_mul(block)
    }

    /// Rows of `width` at `first`, where there is room for them for as long as this view is used.
    pub const fn at(first: *mut u8, width: usize) -> Self {
        Self { first, blocks: width.div_ceil(BLOCK) }
    }

    /// Block 0 of row `t` of `rows` in P planes, and how many blocks there are from one block of it to the next.
    #[inline(always)]
    pub fn row<const P: usize>(&self, t: usize, rows: usize) -> (*mut Block<P>, usize) {
        let first = t / TILE * TILE;
        let stride = (rows - first).min(TILE);
        (self.first.cast::<Block<P>>().wrapping_add(first * self.blocks + (t - first)), stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use std::collections::BTreeSet;

    fn every_block_in<const P: usize>() {
        let memory = Memory::zeroed(Codes::bytes(P, 150, 96)).unwrap();
        let codes = Codes::at(memory.as_ptr(), 96);
        for rows in [1, 63, 64, 65, 150] {
            let place = |t: usize, j: usize| {
                let (first, stride) = codes.row::<P>(t, rows);
                (first.wrapping_add(j * stride) as usize - memory.as_ptr::<u8>() as usize) / size_of::<Block<P>>()
            };
            let all: BTreeSet<usize> =
                (0..rows).flat_map(|t| (0..3).map(move |j| (t, j))).map(|(t, j)| place(t, j)).collect();
            assert_eq!(all, (0..3 * rows).collect(), "{rows} rows");
        }
    }

    #[test]
    fn every_block_has_a_place_of_its_own() {
        assert_eq!((size_of::<Block<1>>(), size_of::<Block<2>>()), (64, 96));
        every_block_in::<1>();
        every_block_in::<2>();
    }

    #[test]
    fn centers_come_off() {
        let block = Block::new([[0; BLOCK]], 1.0, [100, -7], [0.0; 3], 0);
        assert_eq!([8, 16, 128, -128].map(|center| block.off(center)), [-744, -1488, -11904, 11904]);
        assert_eq!([0, 1].map(|half| block.off_half(32, half)), [-3200, 224]);
    }

    #[test]
    fn offsets_begin_anew_with_their_groups() {
        let mut before = [0.0; 3];
        let mut last = Vec::new();
        for at in 0..SPAN {
            let mut codes = [0; BLOCK];
            codes[0] = 1 + at as i8;
            before = Block::new([codes], 1.0, [1 + at as i32, 0], before, at).offsets;
            last.push(before);
        }
        assert_eq!(last, [[1.0, 1.0, 1.0], [2.0, 3.0, 3.0], [3.0, 3.0, 6.0], [4.0, 7.0, 10.0]]);
    }
}
