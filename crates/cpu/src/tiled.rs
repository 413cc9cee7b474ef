//! Rows of activations in tiles of BF16: see [`crate::tiles`] for what lies in one.

use crate::rows::padded;
use crate::tiles::{ROW_BYTES, ROWS, STEP, TILE_BYTES};

/// On which side of a product a matrix stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A: its rows are rows of tiles, and of the sums.
    Left,
    /// B: its rows are columns of tiles, and of the sums.
    Right,
}

/// The rows of a step: 16 to a row of tiles, the tiles of a row of tiles behind each other. Columns past the last one are 0;
/// rows past the last one hold what they held.
#[derive(Clone, Copy, Debug)]
pub struct Tiled {
    ptr: *mut u8,
    /// Tiles of a row of tiles: steps of 32 columns.
    pub steps: usize,
    /// The side that the tiles are made for.
    pub side: Side,
}

// SAFETY: a pointer and two small values. The stage that writes through it deals tiles out, and a barrier separates it from
// those that read.
unsafe impl Send for Tiled {}
// SAFETY: as above.
unsafe impl Sync for Tiled {}

impl Tiled {
    /// Bytes of `rows` rows of `width` columns.
    pub const fn bytes(rows: usize, width: usize) -> usize {
        rows.div_ceil(ROWS).saturating_mul(padded(width) / STEP).saturating_mul(TILE_BYTES)
    }

    /// Rows of `width` at `ptr`, where there is room for them for as long as this view is used.
    pub const fn at(ptr: *mut u8, width: usize, side: Side) -> Self {
        Self { ptr, steps: padded(width) / STEP, side }
    }

    /// Tile `step` of the row of tiles that row `t` is in.
    #[inline(always)]
    pub fn tile(&self, t: usize, step: usize) -> *mut u8 {
        self.ptr.wrapping_add((t / ROWS * self.steps + step) * TILE_BYTES)
    }

    /// Element `column` of row `t`.
    pub fn element(&self, t: usize, column: usize) -> *mut u16 {
        let (i, k) = (t % ROWS, column % STEP);
        let at = match self.side {
            Side::Left => i * ROW_BYTES + 2 * k,
            Side::Right => k / 2 * ROW_BYTES + 4 * i + 2 * (k % 2),
        };
        self.tile(t, column / STEP).wrapping_add(at).cast()
    }

    /// Bytes from a row of tiles to the next.
    #[inline(always)]
    pub fn row_bytes(&self) -> usize {
        self.steps * TILE_BYTES
    }
}
