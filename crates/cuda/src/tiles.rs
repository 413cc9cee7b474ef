//! Which tile a product in tiles uses, and how many rows of a packed matrix are widened at once.

use crate::layout::{CHUNK, chunks};

/// Bytes of a tile's row: 64 BF16 columns.
const TILE_ROW: usize = 128;
/// Bytes that barriers take beside the stages, and more.
const BARRIERS: usize = 128;
/// Bytes of a widened matrix above which it is widened and multiplied in parts.
const WIDENED: usize = 128 << 20;

/// A kernel of products in tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// Its name.
    pub(crate) kernel: &'static str,
    /// Rows of x.
    pub(crate) rows: usize,
    /// Rows of weights, of both matrices when gated.
    pub(crate) outputs: usize,
    /// Stages of 64 columns in shared memory.
    stages: usize,
    /// What its arithmetic takes, as a share of the fastest's, in hundredths.
    weight: usize,
}

const fn tile(kernel: &'static str, rows: usize, outputs: usize, stages: usize, weight: usize) -> Tile {
    Tile { kernel, rows, outputs, stages, weight }
}

/// The kernel of `tiles_mma.cu`.
pub(crate) const MMA: Tile = tile("tiles_mma", 128, 128, 3, 100);
/// Those of `tiles_wgmma.cu`.
pub(crate) const WGMMA: [Tile; 5] = [
    tile("tiles_256x160", 256, 160, 4, 100),
    tile("tiles_256x128", 256, 128, 4, 100),
    tile("tiles_128x256", 128, 256, 4, 100),
    tile("tiles_128x128", 128, 128, 6, 110),
    tile("tiles_128x64", 128, 64, 8, 150),
];
/// Those with the gated unit.
pub(crate) const GATED: [Tile; 3] = [
    tile("gated_256x128", 256, 128, 4, 100),
    tile("gated_128x256", 128, 256, 4, 100),
    tile("gated_128x128", 128, 128, 6, 110),
];

impl Tile {
    /// Bytes of shared memory that a block needs.
    pub(crate) const fn shared(&self) -> usize {
        self.stages * (self.rows + self.outputs) * TILE_ROW + BARRIERS
    }

    /// Tiles of these outputs, one matrix after the other.
    pub(crate) fn count(&self, outputs: &[usize]) -> usize {
        outputs.iter().map(|n| n.div_ceil(self.outputs)).sum()
    }

    /// Blocks that follow each other on one of `at_once` multiprocessors, times what each of them takes.
    fn cost(&self, at_once: usize, rows: usize, outputs: &[usize]) -> usize {
        let blocks = rows.div_ceil(self.rows) * self.count(outputs);
        blocks.div_ceil(at_once.max(1)) * self.rows * self.outputs * self.weight
    }
}

/// The tile that takes least for `rows` rows and these outputs of each matrix on `at_once` multiprocessors: last waves of
/// few blocks decide.
pub(crate) fn choose(tiles: &[Tile], at_once: usize, rows: usize, outputs: &[usize]) -> Option<Tile> {
    tiles.iter().copied().min_by_key(|t| t.cost(at_once, rows, outputs))
}

/// Columns of a matrix with `cols`, padded to chunks.
pub(crate) const fn depth(cols: usize) -> usize {
    chunks(cols) * CHUNK
}

/// Bytes of `rows` rows as BF16.
pub(crate) const fn narrow_bytes(rows: usize, cols: usize) -> usize {
    rows * depth(cols) * 2
}

/// Rows of a packed matrix that are widened at once: all, or as many as there is room for.
pub(crate) fn widened_rows(rows: usize, cols: usize) -> usize {
    let fit = WIDENED / narrow_bytes(1, cols).max(1);
    rows.min((fit / MMA.outputs).max(1) * MMA.outputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fit_into_shared_memory() {
        for tile in WGMMA.iter().chain(&GATED).chain([&MMA]) {
            assert!(tile.shared() <= 227 << 10, "{tile:?}");
        }
    }

    #[test]
    fn the_tile_is_the_one_that_was_measured_best() {
        let kernel = |rows, outputs: &[usize]| choose(&WGMMA, 132, rows, outputs).unwrap().kernel;
        assert_eq!(kernel(2048, &[2560]), "tiles_256x160");
        assert_eq!(kernel(2048, &[4096, 1024, 1024]), "tiles_256x128");
        assert_eq!(kernel(512, &[2560]), "tiles_128x128");
        assert_eq!(kernel(128, &[2560]), "tiles_128x64");
    }

    #[test]
    fn parts_of_a_wide_head_are_whole_tiles() {
        assert_eq!(widened_rows(19_456, 2560), 19_456);
        assert_eq!(widened_rows(151_936, 2560), 26_112);
        assert_eq!(widened_rows(7, 100), 7);
    }
}
