//! Kernels over [`Tiles`], [`DotTiles`] and [`Pairs`].

use std::marker::PhantomData;

use tare_core::Format;
use tare_ops::{Fit, Isa, IsaSet, OpName, OpShape, Order, Rounding, Slack, Variant};

use super::{Entry, FIFTEEN_BITS, IN_BF16, Integers, Registry};
use crate::coded::{Coded, UNIT, Visit, visit};
use crate::dots::Dots;
use crate::dots::tiles::{DotTiles, TOGETHER};
use crate::kernels::embedding;
use crate::kernels::into_tiles::{self, IntoTilesFn};
use crate::kernels::linear_int::tiles as linear_int;
use crate::kernels::linear_lossless;
use crate::kernels::linear_pairs;
use crate::kernels::linear_tiles::gated::{self, GatedTilesFn};
use crate::kernels::linear_tiles::heads::{self, HeadsTilesFn};
use crate::kernels::linear_tiles::{self, Bf16Panels, Bf16Rows, InPanels, LinearTilesFn, Stored};
use crate::kernels::quantize;
use crate::lossless;
use crate::pairs::Pairs;
use crate::tiled::Side;
use crate::tiles::Tiles;

/// A linear in tiles.
#[derive(Clone, Copy, Debug)]
pub struct InTiles {
    /// Activations to tiles.
    pub into_tiles: IntoTilesFn,
    /// The product.
    pub product: LinearTilesFn,
    /// Two products and the gated unit behind them.
    pub gated: GatedTilesFn,
    /// Queries, keys and values, made ready for attention.
    pub heads: HeadsTilesFn,
    /// The side that activations stand on.
    pub side: Side,
    /// Whether weights are read in panels.
    pub panels: bool,
}

impl InTiles {
    fn of<T: Tiles, S: Stored>(panels: bool) -> Self {
        let side = if S::SIDE == Side::Left { Side::Right } else { Side::Left };
        Self {
            into_tiles: into_tiles::kernel::<T>(),
            product: linear_tiles::kernel::<T, S>(),
            gated: gated::kernel::<T, S>(),
            heads: heads::kernel::<T, S>(),
            side,
            panels,
        }
    }
}

impl Registry {
    /// The linears written over [`DotTiles`], for one instruction set. More rows than one product takes are for tiles of BF16 where
    /// sums have any order, and for vectors where they have not.
    pub fn integers_in_tiles<T: DotTiles>(&mut self) {
        for format in Format::ALL {
            let Some(integers) = visit(format, IntegersOf::<T>(PhantomData)) else { continue };
            let what = |word| (OpName::Linear, format, word, T::ISA);
            let (open, stated) =
                ((Order::Free, Slack::Int16Blocks, IN_BF16), (Order::Reference, Slack::F32, FIFTEEN_BITS));
            self.over_panels(what("i16.tiles"), open, Entry::LinearInt(integers), some_rows);
            self.over_panels(what("a15.tiles"), stated, Entry::LinearInt(integers), some_rows);
        }
    }

    /// The linear written over [`Pairs`], for one instruction set.
    pub fn pairs<P: Pairs>(&mut self) {
        let (op, format, isa) = (OpName::Linear, Format::BF16, P::ISA);
        let (key, format) = (format!("{op}.{format}.pairs.{isa}"), Some(format));
        let (order, slack, roundings, fits) = (Order::Free, Slack::F32, IN_BF16, few_rows);
        self.variants.push(Variant { key, op, format, isa, order, slack, roundings, fits });
        self.entries.push(Entry::Linear(linear_pairs::kernel::<P>()));
    }

    /// BF16 in 12 bits, for the levels of few rows and of many. They stand behind all others: a plan that wants them says so.
    pub fn lossless<P: Pairs, T: Tiles>(&mut self) {
        let format = Format::BF16;
        let how = (Order::Free, Slack::F32, IN_BF16);
        let few = Entry::LinearLossless(linear_lossless::kernel::<P>());
        self.over_panels((OpName::Linear, format, "lossless.pairs", P::ISA), how, few, few_lossless);
        let many = Entry::LinearTiles(InTiles::of::<T, Bf16Panels>(true));
        self.over_panels((OpName::Linear, format, "lossless.tiles", T::ISA), how, many, many_lossless);
    }

    /// Rows of a table that such linears read.
    pub(super) fn gathers_lossless(&mut self) {
        let what = (OpName::Embedding, Format::BF16, "lossless", Isa::Portable);
        let gather = Entry::Gather(embedding::lossless::kernel());
        self.over_panels(what, (Order::Reference, Slack::F32, Rounding::ALL), gather, gathered_lossless);
    }

    /// The kernels written over [`Tiles`], for one instruction set.
    pub fn tiles<T: Tiles>(&mut self) {
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

/// Rows from which on tiles are faster than products of single rows.
pub(super) const MANY_ROWS: usize = linear_int::LEAST;

fn few_rows(v: &Variant, s: &OpShape, _: &IsaSet) -> Fit {
    if s.rows >= MANY_ROWS || !linear_pairs::takes(s.rows, s.k) {
        return Fit::No { why: format!("takes up to {} rows, and no longer ones than it has room for", MANY_ROWS - 1) };
    }
    if v.isa == Isa::Portable {
        return Fit::Fallback { why: "its pairs are emulated".to_string() };
    }
    Fit::Best
}

fn few_lossless(v: &Variant, s: &OpShape, isa: &IsaSet) -> Fit {
    if lossless::takes(s.k) { few_rows(v, s, isa) } else { no_units(s.k) }
}

fn many_lossless(v: &Variant, s: &OpShape, isa: &IsaSet) -> Fit {
    if lossless::takes(s.k) { many_rows(v, s, isa) } else { no_units(s.k) }
}

/// Rows of a table whose linears are in any order and read panels.
fn gathered_lossless(_: &Variant, s: &OpShape, isa: &IsaSet) -> Fit {
    if s.order != Order::Free {
        return Fit::No { why: "reads what linears in any order read, as in class bf16-free".to_string() };
    }
    match lossless::takes(s.n) {
        true if isa.has(Isa::Amx) && isa.has(Isa::Avx512Bf16) => Fit::Best,
        true => Fit::Fallback { why: format!("its linears need {} and {}", Isa::Avx512Bf16, Isa::Amx) },
        false => no_units(s.n),
    }
}

fn no_units(columns: usize) -> Fit {
    Fit::No { why: format!("packs columns in multiples of {UNIT}, and not {columns}") }
}

fn many_rows(v: &Variant, s: &OpShape, _: &IsaSet) -> Fit {
    if s.rows < MANY_ROWS {
        return Fit::No { why: format!("takes {MANY_ROWS} rows and more") };
    }
    if v.isa != Isa::Amx {
        return Fit::Fallback { why: "its tiles are emulated".to_string() };
    }
    Fit::Best
}

fn some_rows(v: &Variant, s: &OpShape, isa: &IsaSet) -> Fit {
    if s.rows > TOGETHER {
        return Fit::No { why: format!("takes up to {TOGETHER} rows") };
    }
    many_rows(v, s, isa)
}

/// The linear of a format over integers of 15 bits in tiles of `T`.
struct IntegersOf<T>(PhantomData<T>);

impl<T: DotTiles> Visit for IntegersOf<T> {
    type Output = Integers;
    fn visit<F: Coded>(self) -> Integers {
        let quantize = quantize::kernel::<<T::D as Dots>::L, 2>();
        Integers { planes: 2, quantize, product: linear_int::kernel::<T, F>() }
    }
}

/// The linear of a format in panels on `T`.
struct OfFormat<T>(PhantomData<T>);

impl<T: Tiles> Visit for OfFormat<T> {
    type Output = InTiles;
    fn visit<F: Coded>(self) -> InTiles {
        InTiles::of::<T, InPanels<F>>(true)
    }
}
