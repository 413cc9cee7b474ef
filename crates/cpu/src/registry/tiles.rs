//! Kernels over [`Tiles`].

use std::marker::PhantomData;

use tare_core::Format;
use tare_ops::{Fit, Isa, IsaSet, OpName, OpShape, Order, Rounding, Slack, Variant};

use super::{Entry, Registry};
use crate::coded::{Coded, Visit, visit};
use crate::kernels::into_tiles::{self, IntoTilesFn};
use crate::kernels::linear_tiles::{self, Bf16Rows, InPanels, LinearTilesFn, Source};
use crate::lanes::{Lanes, array::Array};
use crate::tiled::Side;
use crate::tiles::Tiles;
use crate::tiles::emulated::Emulated;

/// A linear in tiles.
#[derive(Clone, Copy, Debug)]
pub struct InTiles {
    /// Activations to tiles.
    pub into_tiles: IntoTilesFn,
    /// The product.
    pub product: LinearTilesFn,
    /// The side that activations stand on.
    pub side: Side,
    /// Whether weights are read in panels.
    pub panels: bool,
}

impl InTiles {
    fn of<T: Tiles, S: Source>(panels: bool) -> Self {
        let side = if S::SIDE == Side::Left { Side::Right } else { Side::Left };
        Self { into_tiles: into_tiles::kernel::<T>(), product: linear_tiles::kernel::<T, S>(), side, panels }
    }
}

impl Registry {
    /// Every kernel, and those of tiles over emulated ones as well: they run on every host, slowly, for tests.
    pub fn emulating_tiles() -> Self {
        let mut r = Self::new();
        #[cfg(target_arch = "x86_64")]
        if crate::lanes::avx512::Avx512::detect().is_some() {
            r.tiles::<Emulated<crate::lanes::avx512::Avx512>>();
        } else if crate::lanes::avx2::Avx2::detect().is_some() {
            r.tiles::<Emulated<crate::lanes::avx2::Avx2>>();
        }
        r.tiles::<Emulated<Array>>();
        r
    }

    /// The kernels written over [`Tiles`], for one instruction set.
    pub(super) fn tiles<T: Tiles>(&mut self) {
        // The other plain formats belong to no class that rounds activations to BF16.
        let coded = Format::ALL.into_iter().filter_map(|f| Some((f, visit(f, OfFormat::<T>(PhantomData))?)));
        for (format, kernel) in [(Format::BF16, InTiles::of::<T, Bf16Rows>(false))].into_iter().chain(coded) {
            let (op, format, isa) = (OpName::Linear, Some(format), T::ISA);
            let key = format.map_or_else(String::new, |f| format!("{op}.{f}.tiles.{isa}"));
            let slack = if kernel.panels { Slack::Bf16Products } else { Slack::F32 };
            let (order, roundings, fits) = (Order::Free, IN_BF16, many_rows);
            self.variants.push(Variant { key, op, format, isa, order, slack, roundings, fits });
            self.entries.push(Entry::LinearTiles(kernel));
        }
        self.attention_in_tiles::<T>();
    }
}

/// What linears in tiles do to activations.
const IN_BF16: &[Rounding] = &[Rounding::Bf16];

/// Rows from which on tiles are faster than products of single rows.
pub(super) const MANY_ROWS: usize = 5;

fn many_rows(v: &Variant, s: &OpShape, _: &IsaSet) -> Fit {
    if s.rows < MANY_ROWS {
        return Fit::No { why: format!("takes {MANY_ROWS} rows and more") };
    }
    if v.isa != Isa::Amx {
        return Fit::Fallback { why: "its tiles are emulated".to_string() };
    }
    Fit::Best
}

/// The linear of a format in panels on `T`.
struct OfFormat<T>(PhantomData<T>);

impl<T: Tiles> Visit for OfFormat<T> {
    type Output = InTiles;
    fn visit<F: Coded>(self) -> InTiles {
        InTiles::of::<T, InPanels<F>>(true)
    }
}
