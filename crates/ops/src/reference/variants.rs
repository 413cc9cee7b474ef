//! The kernels that the reference backend offers: one for each operator, or one for each weight format that it reads.

use tare_core::Format;

use crate::class::{Order, Rounding};
use crate::isa::Isa;
use crate::op::OpName;
use crate::variant::{Fit, Slack, Variant};

/// Every operator in every format. Keys end in `reference` where those of other backends name a level.
pub(super) fn all() -> Vec<Variant> {
    OpName::ALL.into_iter().flat_map(of).collect()
}

fn of(op: OpName) -> Vec<Variant> {
    if op.reads_matrix() {
        return Format::ALL.into_iter().map(|f| variant(op, Some(f))).collect();
    }
    vec![variant(op, None)]
}

fn variant(op: OpName, format: Option<Format>) -> Variant {
    let part = format.map_or_else(|| "f32".to_string(), |f| f.to_string());
    Variant {
        key: format!("{op}.{part}.reference"),
        op,
        format,
        isa: Isa::Portable,
        order: Order::Reference,
        slack: Slack::F32,
        roundings: Rounding::ALL,
        fits: |_, _, _| Fit::Best,
    }
}
