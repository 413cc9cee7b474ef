//! Activations rounded to BF16 and laid out in tiles, in front of the linears that multiply tiles.
//!
//! math: `out = bf16(x)`, nearest, ties to even
//! shapes: x [T, k], out [T / 16, k / 32] tiles
//! layout: x with rows padded to 32 columns of +0; tiles for the side that the weights leave: A as the rows lie, B with pairs of columns below each other
//! precision: one rounding; numbers below the least normal one become 0, as they would in a product of tiles
//! preconditions: none
//! cost: none counted
//! tolerance: bit-identical to the reference's rounding, but for numbers below the least normal one
//! wins: one pass for all linears that read the same rows
//! loses: a pass over cache and a meeting of the workers that the norm or the gated unit before it could save
//! fallback: the same code over emulated tiles
//! evidence: none yet
//! source: none
//!
//! Workers take contiguous runs of 8 tiles of a row of tiles.

use std::ops::Range;

use crate::lanes::{LANES, Lanes};
use crate::pool::Region;
use crate::rows::Rows;
use crate::tiled::{Side, Tiled};
use crate::tiles::{ROW_BYTES, ROWS, STEP, TILE_BYTES, TileKernel, Tiles};

/// Tiles of a row of tiles that are never parted.
const SPAN: usize = 8;

/// A stage in front of the linears that read `x`.
#[derive(Clone, Copy, Debug)]
pub struct IntoTiles {
    /// [T, k]
    pub x: Rows,
    /// [T / 16, k / 32]
    pub out: Tiled,
}

impl IntoTiles {
    /// Runs of tiles that workers share out when `rows` rows travel through.
    pub fn items(&self, rows: usize) -> usize {
        rows.div_ceil(ROWS) * self.spans()
    }

    fn spans(&self) -> usize {
        self.out.steps.div_ceil(SPAN)
    }
}

/// Runs one worker's share: call, rows of the step, where we are.
///
/// # Safety
/// The call's pointers hold `rows` rows and nobody else writes `out`.
pub type IntoTilesFn = unsafe fn(&IntoTiles, usize, Region);

/// The kernel on tiles `T`.
pub fn kernel<T: Tiles>() -> IntoTilesFn {
    run::<T>
}

/// # Safety
/// That of [`IntoTilesFn`].
unsafe fn run<T: Tiles>(call: &IntoTiles, rows: usize, region: Region) {
    // The registry offers a kernel only where `prove` succeeds, so that this returns at once.
    let Some(t) = T::prove() else { return };
    t.compiled(Share { call, rows, share: region.share(call.items(rows), 1) });
}

struct Share<'a> {
    call: &'a IntoTiles,
    rows: usize,
    share: Range<usize>,
}

impl TileKernel for Share<'_> {
    #[inline(always)]
    fn run<T: Tiles>(self, t: T) {
        let spans = self.call.spans();
        for i in self.share {
            let (first, step) = (i / spans * ROWS, i % spans * SPAN);
            for step in step..(step + SPAN).min(self.call.out.steps) {
                let rows = (self.rows - first).min(ROWS);
                // SAFETY: rows and columns of x, and a tile of its own.
                unsafe { tile(t, self.call, first..first + rows, step) };
            }
        }
    }
}

/// Makes the tile of rows `rows`, 16 at most, and step `step`.
///
/// # Safety
/// The rows and columns are of x, and nobody else writes the tile.
#[inline(always)]
unsafe fn tile<T: Tiles>(t: T, call: &IntoTiles, rows: Range<usize>, step: usize) {
    let (l, to) = (t.lanes(), call.out.tile(rows.start, step));
    let mut turned = [0u32; TILE_BYTES / 4];
    let as_rows = match call.out.side {
        Side::Left => to,
        Side::Right => turned.as_mut_ptr().cast(),
    };
    // SAFETY: the caller's promise; 16 rows of 64 bytes fit a tile.
    unsafe {
        for (i, row) in rows.enumerate() {
            let x = call.x.row(row).add(step * STEP);
            t.store_row(as_rows.add(i * ROW_BYTES), l.load(x), l.load(x.add(LANES)));
        }
        if call.out.side == Side::Right {
            let mut pairs = [l.splat(0.0); LANES];
            for (i, pairs) in pairs.iter_mut().enumerate() {
                *pairs = l.load(turned.as_ptr().cast::<f32>().add(i * LANES));
            }
            for (i, pairs) in l.transposed(&pairs).iter().enumerate() {
                l.store(to.cast::<f32>().add(i * LANES), *pairs);
            }
        }
    }
}
