//! The kernels that work in tiles.

use tare_core::Format;

use super::{ATTENTION, CEILINGS, FREE, KV, MATRIX, SHARED, Unit};
use crate::layout::Layout;
use crate::tiles::{GATED, MMA, WGMMA};

const TENSOR: &str = include_str!("../../kernels/tensor.cuh");
const WARPGROUP: &str = include_str!("../../kernels/warpgroup.cuh");
const TILES: &str = include_str!("../../kernels/tiles.cuh");
const ROWS: &str = include_str!("../../kernels/attention_tiles.cuh");

const PRODUCTS: [&str; 8] = [
    WGMMA[0].kernel,
    WGMMA[1].kernel,
    WGMMA[2].kernel,
    WGMMA[3].kernel,
    WGMMA[4].kernel,
    GATED[0].kernel,
    GATED[1].kernel,
    GATED[2].kernel,
];

/// Products on any tensor cores.
pub(crate) fn products_mma() -> Unit {
    unit("tiles_mma", &[TILES, include_str!("../../kernels/tiles_mma.cu")], &[MMA.kernel])
}

/// Products on Hopper's.
pub(crate) fn products_wgmma() -> Unit {
    hopper(unit("tiles_wgmma", &[WARPGROUP, TILES, include_str!("../../kernels/tiles_wgmma.cu")], &PRODUCTS))
}

/// Rows to BF16.
pub(crate) fn narrow() -> Unit {
    unit("narrow", &[include_str!("../../kernels/narrow.cu")], &["narrow"])
}

/// Packed weights to BF16.
pub(crate) fn widen(layout: Layout) -> Unit {
    let text = [&layout.macros(), SHARED, TENSOR, MATRIX, include_str!("../../kernels/widen.cu")].concat();
    Unit { name: format!("widen.{layout}"), text, kernels: &["widen"], hopper: false }
}

/// Attention for heads of at most `head` elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionTile {
    /// The kernel.
    pub(crate) name: &'static str,
    /// Elements of a head that it has room for.
    pub(crate) head: usize,
    /// Rows of a tile, and tokens at a time.
    pub(crate) rows: usize,
}

/// The kernels of `attention_mma.cu`, by the heads that they take.
pub(crate) const ATTENTION_MMA: [AttentionTile; 3] = [
    AttentionTile { name: "attention_mma_64", head: 64, rows: 64 },
    AttentionTile { name: "attention_mma_128", head: 128, rows: 64 },
    AttentionTile { name: "attention_mma_256", head: 256, rows: 64 },
];
/// Those of `attention_wgmma.cu`.
pub(crate) const ATTENTION_WGMMA: [AttentionTile; 2] = [
    AttentionTile { name: "attention_wgmma_64", head: 64, rows: 128 },
    AttentionTile { name: "attention_wgmma_128", head: 128, rows: 128 },
];

/// Words of shared memory that are set aside for barriers.
const BARRIERS: usize = 8;

impl AttentionTile {
    /// Bytes of shared memory: queries, two stages of keys and values and their places, barriers, tables and contexts.
    pub(crate) const fn shared(&self) -> usize {
        let tile = self.rows * self.head * 2;
        5 * tile + (2 * self.rows + BARRIERS) * size_of::<u64>() + 2 * self.rows * size_of::<u32>()
    }
}

/// Attention on any tensor cores.
pub(crate) fn attention_mma() -> Unit {
    let kernels = &[ATTENTION_MMA[0].name, ATTENTION_MMA[1].name, ATTENTION_MMA[2].name];
    unit("attention_mma", &[KV, ATTENTION, ROWS, include_str!("../../kernels/attention_mma.cu")], kernels)
}

/// Attention on Hopper's.
pub(crate) fn attention_wgmma() -> Unit {
    let kernels = &[ATTENTION_WGMMA[0].name, ATTENTION_WGMMA[1].name];
    let parts = [WARPGROUP, KV, ATTENTION, ROWS, include_str!("../../kernels/attention_wgmma.cu")];
    hopper(unit("attention_wgmma", &parts, kernels))
}

/// The unit that measures what Hopper's tensor cores can do.
pub(crate) fn ceilings_wgmma() -> Unit {
    let parts = [TENSOR, WARPGROUP, CEILINGS, include_str!("../../kernels/ceilings_wgmma.cu")];
    hopper(Unit::plain("ceilings_wgmma", &parts, &["ceiling_products"]))
}

/// The units that no kernel key names.
pub(super) fn others() -> impl Iterator<Item = Unit> {
    let packed = Format::ALL.into_iter().map(Layout::of).filter(|l| l.plain == 0);
    packed.map(widen).chain([narrow(), ceilings_wgmma()])
}

fn unit(name: &str, parts: &[&str], kernels: &'static [&'static str]) -> Unit {
    Unit::plain(name, &[&[FREE, TENSOR], parts].concat(), kernels)
}

fn hopper(unit: Unit) -> Unit {
    Unit { hopper: true, ..unit }
}
