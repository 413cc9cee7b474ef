//! Attention: first the kernels in any order, which the classes that allow it prefer.

use tare_ops::{Fit, Isa, IsaSet, OpName, OpShape, Order, Rounding, Slack, Variant};

use super::{Entry, Fits, Registry, best_level};
use crate::kernels::attention::{Method, columns, ordered, spans, tiles};
use crate::lanes::Lanes;
use crate::tiles::Tiles;

/// The most rows of a step whose attention is that of single rows.
const FEW_ROWS: usize = 16;

impl Registry {
    /// The kernels written over [`Lanes`], for one instruction set.
    pub(super) fn attention<L: Lanes>(&mut self) {
        let (f32, bf16) = (Some(spans::kernel::<L, f32>()), spans::kernel::<L, half::bf16>());
        let entry = Entry::Attention { method: Method::Spans, f32, bf16 };
        self.free_attention(("spans", L::ISA), Slack::F32, entry, few_rows);
        let (f32, bf16) = (Some(columns::kernel::<L, f32>()), columns::kernel::<L, half::bf16>());
        let entry = Entry::Attention { method: Method::Columns, f32, bf16 };
        self.free_attention(("columns", L::ISA), Slack::F32, entry, many_rows);
        let (f32, bf16) = (Some(ordered::kernel::<L, f32>()), ordered::kernel::<L, half::bf16>());
        self.add(OpName::Attention, None, L::ISA, Entry::Attention { method: Method::Ordered, f32, bf16 });
    }

    /// The kernel written over [`Tiles`], for one instruction set.
    pub fn attention_in_tiles<T: Tiles>(&mut self) {
        let entry = Entry::Attention { method: Method::Tiles, f32: None, bf16: tiles::kernel::<T>() };
        self.free_attention(("tiles", T::ISA), Slack::Bf16Products, entry, many_rows_in_tiles);
    }

    fn free_attention(&mut self, (name, isa): (&str, Isa), slack: Slack, entry: Entry, fits: Fits) {
        let (op, order, roundings) = (OpName::Attention, Order::Free, Rounding::FLOATING);
        let key = format!("{op}.{name}.{isa}");
        self.variants.push(Variant { key, op, format: None, isa, order, slack, roundings, fits });
        self.entries.push(entry);
    }
}

fn few_rows(v: &Variant, s: &OpShape, isa: &IsaSet) -> Fit {
    if s.rows > FEW_ROWS {
        return Fit::No { why: format!("takes at most {FEW_ROWS} rows") };
    }
    best_level(v, s, isa)
}

fn many_rows(v: &Variant, s: &OpShape, isa: &IsaSet) -> Fit {
    if s.rows <= FEW_ROWS {
        return Fit::No { why: format!("takes more than {FEW_ROWS} rows") };
    }
    best_level(v, s, isa)
}

fn many_rows_in_tiles(v: &Variant, s: &OpShape, isa: &IsaSet) -> Fit {
    if s.kv_element_bytes != 2 {
        return Fit::No { why: "reads BF16 caches alone".to_string() };
    }
    match many_rows(v, s, isa) {
        no @ Fit::No { .. } => no,
        _ if v.isa != Isa::Amx => Fit::Fallback { why: "its tiles are emulated".to_string() },
        _ => Fit::Best,
    }
}
