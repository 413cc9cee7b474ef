//! Every kernel of this backend.

use tare_core::Format;
use tare_ops::{Fit, Isa, IsaSet, OpName, OpShape, Variant};

use crate::layout::wider_than_the_file;

/// Elements of the largest head that attention takes: those of its shared memory.
pub(crate) const MOST_HEAD: usize = 256;
/// Rows up to which one block for each row and head is what attention should be.
const FEW_ROWS: usize = 16;

/// The kernels, one for each operator, or one for each weight format that it reads.
pub(crate) fn variants() -> Vec<Variant> {
    OpName::ALL.into_iter().flat_map(of).collect()
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
    Variant { key, op, format, isa: Isa::Cuda, fits }
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
        let why = "each row and head reads the context by itself; there is no kernel for tiles of rows";
        return Fit::Fallback { why: why.to_string() };
    }
    Fit::Best
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
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all.len());
    }
}
