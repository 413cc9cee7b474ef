//! Arguments of the kernels that work in tiles.

use bytemuck::{Pod, Zeroable};

use crate::args::Matrix;
use crate::device::TileMap;
use crate::units::PARTS;

/// One matrix of a launch of `tiles_mma.cu` or `tiles_wgmma.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct TilesPart {
    /// The weight, for kernels that copy by maps.
    pub(super) map: TileMap,
    /// [n, depth] BF16: the same.
    pub(super) w: u64,
    /// [n], or 0.
    pub(super) bias: u64,
    /// [T, n]
    pub(super) out: u64,
    /// n.
    pub(super) rows: u32,
    /// Elements from one row of out to the next.
    pub(super) out_stride: u32,
    /// The first tile, in y, that is of it.
    pub(super) first_tile: u32,
    /// 0.
    pub(super) reserved: [u32; 7],
}

/// `tiles_mma.cu` and `tiles_wgmma.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Tiles {
    /// x, for kernels that copy by maps.
    pub(super) map: TileMap,
    /// As many as `parts` says.
    pub(super) part: [TilesPart; PARTS],
    /// [`crate::args::Step`].
    pub(super) step: u64,
    /// [T, depth] BF16: the same as `map`.
    pub(super) x: u64,
    /// [T, gated_depth] BF16, or 0.
    pub(super) gated: u64,
    /// Columns of x, padded to chunks.
    pub(super) depth: u32,
    /// Columns of gated, padded to chunks.
    pub(super) gated_depth: u32,
    /// Matrices.
    pub(super) parts: u32,
    /// 1 adds to out.
    pub(super) accumulate: u32,
    /// 1 when the rows are the selected ones.
    pub(super) of_selected: u32,
    /// 0.
    pub(super) reserved: [u32; 5],
}

/// `narrow.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Narrow {
    /// [`crate::args::Step`].
    pub(super) step: u64,
    /// [T, width]
    pub(super) x: u64,
    /// [T, depth] BF16
    pub(super) out: u64,
    /// Elements from one row of x to the next.
    pub(super) x_stride: u32,
    /// Columns of x.
    pub(super) width: u32,
    /// Columns of out: width padded to chunks.
    pub(super) depth: u32,
    /// 1 when the rows are the selected ones.
    pub(super) of_selected: u32,
}

/// `widen.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Widen {
    /// The packed matrix.
    pub(super) m: Matrix,
    /// [count, chunks, 16, 8] BF16
    pub(super) out: u64,
    /// First row.
    pub(super) first: u32,
    /// Rows.
    pub(super) count: u32,
}
