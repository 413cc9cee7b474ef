//! Activations rounded to BF16 and laid out in tiles, in front of the linears that multiply tiles; rows that only they read
//! are normalised on the way.
//!
//! math: `out = bf16(x)`, nearest, ties to even; with a norm that of `(x * inv) * weight`, as [`norm`](super::norm) computes it
//! shapes: x [T, k], weight [k], out [T / 16, k / 32] tiles
//! layout: x with rows padded to 32 columns of +0; tiles for the side that the weights leave: A as the rows lie, B with pairs of columns below each other
//! precision: one rounding; numbers below the least normal one become 0, as they would in a product of tiles
//! preconditions: none
//! cost: none counted
//! tolerance: bit-identical to the reference's norm and rounding, but for numbers below the least normal one
//! wins: one pass for all linears that read the same rows, and for the norm before them
//! loses: a pass over cache and a meeting of the workers behind attention, where weights stand on the left; with a norm, workers past the number of rows of tiles
//! fallback: none in what people run; emulated tiles are for tests (docs/adr/0030)
//! evidence: none yet
//! source: none
//!
//! Workers take contiguous runs of 8 tiles of a row of tiles; with a norm, whole rows of tiles.

use std::ops::Range;

use crate::lanes::{LANES, Lanes, sum_of_squares};
use crate::pool::Region;
use crate::rows::Rows;
use crate::tiled::{Side, Tiled};
use crate::tiles::{ROW_BYTES, ROWS, STEP, TILE_BYTES, TileKernel, Tiles};

/// Tiles of a row of tiles that are never parted where none depends on the others.
const SPAN: usize = 8;

/// A stage in front of the linears that read `x`.
#[derive(Clone, Copy, Debug)]
pub struct IntoTiles {
    /// [T, k]
    pub x: Rows,
    /// What happens to the rows first.
    pub norm: Option<RowNorm>,
    /// [T / 16, k / 32]
    pub out: Tiled,
}

/// The norm of whole rows.
#[derive(Clone, Copy, Debug)]
pub struct RowNorm {
    /// [k], padded: a vector that the backend holds.
    pub weight: std::ptr::NonNull<f32>,
    /// Added under the root.
    pub eps: f32,
}

// SAFETY: `weight` points into a vector of the backend, which is never written after it was made.
unsafe impl Send for RowNorm {}
// SAFETY: as above.
unsafe impl Sync for RowNorm {}

impl IntoTiles {
    /// Runs of tiles that workers share out when `rows` rows travel through.
    pub fn items(&self, rows: usize) -> usize {
        rows.div_ceil(ROWS) * self.spans()
    }

    fn spans(&self) -> usize {
        self.out.steps.div_ceil(self.span())
    }

    /// Tiles of a row of tiles that are never parted.
    fn span(&self) -> usize {
        if self.norm.is_some() { self.out.steps } else { SPAN }
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
        let (spans, span) = (self.call.spans(), self.call.span());
        for i in self.share {
            let (first, step) = (i / spans * ROWS, i % spans * span);
            let rows = first..self.rows.min(first + ROWS);
            // SAFETY: rows and columns of x, and tiles of this worker's own.
            unsafe {
                let scales = Scales::of(t, self.call, rows.clone());
                for step in step..(step + span).min(self.call.out.steps) {
                    tile(t, self.call, &scales, rows.clone(), step);
                }
            }
        }
    }
}

/// What the elements of each of 16 rows are multiplied with, and the weight.
struct Scales([f32; ROWS], Option<*const f32>);

impl Scales {
    /// Those of rows `rows`, 16 at most.
    ///
    /// # Safety
    /// The rows are of x.
    #[inline(always)]
    unsafe fn of<T: Tiles>(t: T, call: &IntoTiles, rows: Range<usize>) -> Self {
        let mut scales = [1.0; ROWS];
        let Some(norm) = call.norm else { return Self(scales, None) };
        let n = call.x.width;
        for (scale, row) in scales.iter_mut().zip(rows) {
            // SAFETY: n elements of the row.
            let sum = unsafe { sum_of_squares(t.lanes(), call.x.row(row), n) };
            *scale = 1.0 / (sum / n as f32 + norm.eps).sqrt();
        }
        Self(scales, Some(norm.weight.as_ptr()))
    }

    /// Elements `at .. at + 16` of row `i` of the 16, which lie at `x`.
    ///
    /// # Safety
    /// They do, and the weight has them.
    #[inline(always)]
    unsafe fn apply<L: Lanes>(&self, l: L, i: usize, at: usize, x: *const f32) -> L::V {
        // SAFETY: the caller's promise.
        unsafe {
            match self.1 {
                Some(weight) => l.mul(l.mul(l.load(x), l.splat(self.0[i])), l.load(weight.add(at))),
                None => l.load(x),
            }
        }
    }
}

/// Makes the tile of rows `rows`, 16 at most, and step `step`.
///
/// # Safety
/// The rows and columns are of x, and nobody else writes the tile.
#[inline(always)]
unsafe fn tile<T: Tiles>(t: T, call: &IntoTiles, scales: &Scales, rows: Range<usize>, step: usize) {
    let (l, to, at) = (t.lanes(), call.out.tile(rows.start, step), step * STEP);
    let mut turned = [0u32; TILE_BYTES / 4];
    let as_rows = match call.out.side {
        Side::Left => to,
        Side::Right => turned.as_mut_ptr().cast(),
    };
    // SAFETY: the caller's promise; rows and weights are padded to whole steps; 16 rows of 64 bytes fit a tile.
    unsafe {
        for (i, row) in rows.enumerate() {
            let x = call.x.row(row).add(at);
            let (first, second) = (scales.apply(l, i, at, x), scales.apply(l, i, at + LANES, x.add(LANES)));
            t.store_row(as_rows.add(i * ROW_BYTES), first, second);
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
