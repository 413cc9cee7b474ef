//! Every kernel of this backend.

use tare_core::Format;
use tare_ops::{Fit, Isa, IsaSet, OpName, OpShape, Order, Rounding, Slack, Variant};

use crate::layout::{Layout, wider_than_the_file};

/// Elements of the largest head that attention takes: those of its shared memory.
pub(crate) const MOST_HEAD: usize = 256;
/// Rows up to which one block for each row and head is what attention should be.
const FEW_ROWS: usize = 16;

/// Rows of a kernel that multiplies few rows on tensor cores, and of attention that splits a context.
pub(crate) const FREE_ROWS: usize = 16;
/// Elements of the largest head that split attention takes.
const MOST_SPLIT_HEAD: usize = 128;
/// Elements of the largest head that attention of warpgroups takes.
const MOST_WGMMA_HEAD: usize = 128;

/// How a kernel of this backend goes about it: which source it is compiled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Half-warps that keep the reference's order of sums.
    Lanes,
    /// Few rows on tensor cores.
    Gemv,
    /// Parts that meet at the end: of a context, of a row of logits.
    Split,
    /// A block for each row.
    Block,
    /// Many rows in tiles, on any tensor cores.
    Mma,
    /// Many rows in tiles, on Hopper's.
    Wgmma,
    /// The device's own exponentials.
    Fast,
}

impl Method {
    const NAMED: [(Method, &'static str); 6] = [
        (Method::Gemv, "gemv"),
        (Method::Split, "split"),
        (Method::Block, "block"),
        (Method::Mma, "mma"),
        (Method::Wgmma, "wgmma"),
        (Method::Fast, "fast"),
    ];

    /// That of the kernel `key`: the last word before the level, [`Method::Lanes`] when it is none of these.
    pub(crate) fn of(key: &str) -> Self {
        let word = key.rsplit('.').nth(1);
        Self::NAMED.iter().find(|(_, name)| Some(*name) == word).map_or(Self::Lanes, |(method, _)| *method)
    }

    /// Whether it multiplies in tiles.
    pub(crate) const fn is_tiles(self) -> bool {
        matches!(self, Method::Mma | Method::Wgmma)
    }
}

/// The kernels: first those with an order of their own, which the classes that allow it prefer, then one for each
/// operator, or one for each weight format that it reads, in the reference's order.
pub(crate) fn variants() -> Vec<Variant> {
    OpName::ALL.into_iter().flat_map(|op| free(op).into_iter().chain(of(op))).collect()
}

fn of(op: OpName) -> Vec<Variant> {
    if op.reads_matrix() {
        return Format::ALL.into_iter().map(|f| variant(op, Some(f))).collect();
    }
    vec![variant(op, None)]
}

fn variant(op: OpName, format: Option<Format>) -> Variant {
    let key = format.map_or_else(|| format!("{op}.{}", Isa::Cuda), |f| format!("{op}.{f}.{}", Isa::Cuda));
    let fits = match op {
        OpName::Linear => linear,
        OpName::Attention => attention,
        _ => always,
    };
    let (order, slack, roundings) = (Order::Reference, Slack::F32, Rounding::FLOATING);
    Variant { key, op, format, isa: Isa::Cuda, order, slack, roundings, fits }
}

/// Kernels of `op` with an order of their own.
fn free(op: OpName) -> Vec<Variant> {
    let one = |method: &str, format: Option<Format>, fits| {
        let read = format.map_or_else(String::new, |f| format!("{f}."));
        let key = format!("{op}.{read}{method}.{}", Isa::Cuda);
        let (order, slack, roundings) = (Order::Free, Slack::F32, Rounding::FLOATING);
        Variant { key, op, format, isa: Isa::Cuda, order, slack, roundings, fits }
    };
    let hopper = |v: Variant| Variant { isa: Isa::Hopper, ..v };
    match op {
        OpName::Linear => {
            let few = Format::ALL.into_iter().filter(|f| Layout::of(*f).on_tensor_cores());
            let few = few.map(|f| one("gemv", Some(f), gemv));
            // Weights are BF16, or are made so: no plain format with more bits.
            let many = Format::ALL.into_iter().filter(|f| *f == Format::BF16 || Layout::of(*f).plain == 0);
            let many = many.flat_map(|f| {
                let slack = if f == Format::BF16 { Slack::F32 } else { Slack::Bf16Products };
                let both = [hopper(one("wgmma", Some(f), linear_tiles)), one("mma", Some(f), linear_tiles)];
                both.map(|v| Variant { slack, ..v })
            });
            few.chain(many).collect()
        }
        OpName::Attention => {
            let tiles = [hopper(one("wgmma", None, attention_wgmma)), one("mma", None, attention_mma)];
            let tiles = tiles.map(|v| Variant { slack: Slack::Bf16Products, ..v });
            [one("split", None, split)].into_iter().chain(tiles).collect()
        }
        OpName::RmsNorm => vec![one("block", None, always)],
        OpName::SwiGlu => vec![one("fast", None, many_rows)],
        OpName::Sample => vec![one("split", None, always)],
        _ => Vec::new(),
    }
}

fn always(_: &Variant, _: &OpShape, _: &IsaSet) -> Fit {
    Fit::Best
}

fn linear(v: &Variant, _: &OpShape, _: &IsaSet) -> Fit {
    match v.format.and_then(wider_than_the_file) {
        Some(why) => Fit::Fallback { why: why.to_string() },
        None => Fit::Best,
    }
}

fn attention(_: &Variant, s: &OpShape, _: &IsaSet) -> Fit {
    if s.head_size > MOST_HEAD {
        return Fit::No { why: format!("takes heads of at most {MOST_HEAD} elements") };
    }
    if s.rows > FEW_ROWS {
        let why = "each row and head reads the context by itself; tiles of rows add in an order of their own";
        return Fit::Fallback { why: why.to_string() };
    }
    Fit::Best
}

fn gemv(v: &Variant, s: &OpShape, isa: &IsaSet) -> Fit {
    if s.rounding != Some(Rounding::Bf16) {
        return Fit::No { why: "multiplies BF16 activations alone".to_string() };
    }
    few_rows(s).map_or_else(|| linear(v, s, isa), |why| Fit::No { why })
}

fn split(_: &Variant, s: &OpShape, _: &IsaSet) -> Fit {
    let why = if s.kv_element_bytes != 2 {
        Some("reads BF16 caches alone".to_string())
    } else if s.head_size > MOST_SPLIT_HEAD || !s.head_size.is_multiple_of(8) {
        Some(format!("takes heads of at most {MOST_SPLIT_HEAD} elements, a multiple of 8"))
    } else {
        few_rows(s)
    };
    why.map_or(Fit::Best, |why| Fit::No { why })
}

fn linear_tiles(v: &Variant, s: &OpShape, isa: &IsaSet) -> Fit {
    if s.rounding != Some(Rounding::Bf16) {
        return Fit::No { why: "multiplies BF16 activations alone".to_string() };
    }
    match many_rows(v, s, isa) {
        Fit::Best => linear(v, s, isa),
        other => other,
    }
}

fn attention_wgmma(v: &Variant, s: &OpShape, isa: &IsaSet) -> Fit {
    attention_tiles(MOST_WGMMA_HEAD, (v, s, isa))
}

fn attention_mma(v: &Variant, s: &OpShape, isa: &IsaSet) -> Fit {
    attention_tiles(MOST_HEAD, (v, s, isa))
}

fn attention_tiles(head: usize, (v, s, isa): (&Variant, &OpShape, &IsaSet)) -> Fit {
    if s.kv_element_bytes != 2 {
        return Fit::No { why: "reads BF16 caches alone".to_string() };
    }
    if s.head_size > head || !s.head_size.is_multiple_of(16) {
        return Fit::No { why: format!("takes heads of at most {head} elements, a multiple of 16") };
    }
    many_rows(v, s, isa)
}

fn many_rows(_: &Variant, s: &OpShape, _: &IsaSet) -> Fit {
    if s.rows <= FREE_ROWS {
        return Fit::No { why: format!("takes more than {FREE_ROWS} rows") };
    }
    Fit::Best
}

/// Why a kernel for few rows does not take a call.
fn few_rows(s: &OpShape) -> Option<String> {
    (s.rows > FREE_ROWS).then(|| format!("takes at most {FREE_ROWS} rows"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinct_and_end_in_the_level() {
        let all = variants();
        let mut keys: Vec<&str> = all.iter().map(|v| v.key.as_str()).collect();
        assert!(keys.iter().all(|k| k.ends_with(".cuda")));
        assert!(keys.contains(&"linear.w4g128.cuda") && keys.contains(&"attention.cuda"));
        let first = |op| all.iter().find(|v| v.op == op).map(|v| v.order);
        assert_eq!((first(OpName::Attention), first(OpName::Rope)), (Some(Order::Free), Some(Order::Reference)));
        for v in &all {
            assert_eq!(Method::of(&v.key) == Method::Lanes, v.order == Order::Reference, "{}", v.key);
        }
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all.len());
    }
}
