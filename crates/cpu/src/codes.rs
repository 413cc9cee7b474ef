//! Rows of activations in 8 bits: see [`tare_ops::reference::int8`] for the arithmetic.

use tare_ops::reference::int8::BLOCK;

use crate::memory::Memory;

/// 32 activations of a row and everything that a linear wants to know of them: one cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// x is about `codes * scale`.
    pub codes: [i8; BLOCK],
    /// The scale (d).
    pub scale: f32,
    /// The sum of the codes of each half.
    pub half_sums: [i32; 2],
    /// What a bias is multiplied with, for groups of 32, 64 and 128 columns: the chain (v) over the blocks of the group up
    /// to this one.
    pub offsets: [f32; 3],
}

impl Block {
    /// A block behind `before`, which is the one before it in its run of [`SPAN`] blocks; `at` counts it in that run.
    #[inline(always)]
    pub fn new(codes: [i8; BLOCK], scale: f32, half_sums: [i32; 2], before: [f32; 3], at: usize) -> Self {
        let sum = (half_sums[0] + half_sums[1]) as f32;
        let mut offsets = [0.0; 3];
        for (i, offset) in offsets.iter_mut().enumerate() {
            *offset = scale.mul_add(sum, if at % (1 << i) == 0 { 0.0 } else { before[i] });
        }
        Self { codes, scale, half_sums, offsets }
    }
}

/// Blocks that no group of weights exceeds: the smallest share of a worker that makes them.
pub const SPAN: usize = 4;
/// Rows that lie together, block by block, so that a linear that goes through them walks forward in memory.
pub const TILE: usize = 64;

/// The rows of a step.
///
/// Rows lie in tiles of [`TILE`], the last one smaller; in a tile, block 0 of every row comes first, then block 1 of
/// every row. Where a row lies therefore depends on how many there are.
#[derive(Clone, Copy, Debug)]
pub struct Codes {
    ptr: *mut Block,
    /// Blocks of a row.
    pub blocks: usize,
}

// SAFETY: a pointer and a number. The stage that writes through it deals rows out, and a barrier separates it from those
// that read.
unsafe impl Send for Codes {}
// SAFETY: as above.
unsafe impl Sync for Codes {}

impl Codes {
    /// Bytes of `rows` rows of `width` columns.
    pub const fn bytes(rows: usize, width: usize) -> usize {
        rows.saturating_mul(width.div_ceil(BLOCK)).saturating_mul(size_of::<Block>())
    }

    /// Rows of `width` in `memory`, which has room for them and outlives this view.
    pub fn new(memory: &Memory, width: usize) -> Self {
        Self { ptr: memory.as_ptr(), blocks: width.div_ceil(BLOCK) }
    }

    /// Block 0 of row `t` of `rows`, and how many blocks there are from one block of it to the next.
    #[inline(always)]
    pub fn row(&self, t: usize, rows: usize) -> (*mut Block, usize) {
        let first = t / TILE * TILE;
        let stride = (rows - first).min(TILE);
        (self.ptr.wrapping_add(first * self.blocks + (t - first)), stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_block_has_a_place_of_its_own() {
        let memory = Memory::zeroed(Codes::bytes(150, 96)).unwrap();
        let codes = Codes::new(&memory, 96);
        for rows in [1, 63, 64, 65, 150] {
            let place = |t: usize, j: usize| {
                let (first, stride) = codes.row(t, rows);
                (first.wrapping_add(j * stride) as usize - memory.as_ptr::<u8>() as usize) / size_of::<Block>()
            };
            let all: BTreeSet<usize> =
                (0..rows).flat_map(|t| (0..3).map(move |j| (t, j))).map(|(t, j)| place(t, j)).collect();
            assert_eq!(all, (0..3 * rows).collect(), "{rows} rows");
        }
    }

    #[test]
    fn offsets_begin_anew_with_their_groups() {
        let mut before = [0.0; 3];
        let mut last = Vec::new();
        for at in 0..SPAN {
            let mut codes = [0; BLOCK];
            codes[0] = 1 + at as i8;
            before = Block::new(codes, 1.0, [1 + at as i32, 0], before, at).offsets;
            last.push(before);
        }
        assert_eq!(last, [[1.0, 1.0, 1.0], [2.0, 3.0, 3.0], [3.0, 3.0, 6.0], [4.0, 7.0, 10.0]]);
    }
}
