//! The kernels as texts that are compiled by themselves: one unit for each source, or for each layout of weights that it reads.

use tare_core::Format;
use tare_ops::OpName;

use crate::layout::Layout;

const SHARED: &str = include_str!("../kernels/tare.cuh");
const MATRIX: &str = include_str!("../kernels/matrix.cuh");
const KV: &str = include_str!("../kernels/kv.cuh");

/// One source and what it is compiled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// `attention`, or `linear.q4g128b`: the operator and the [`Layout`] that it reads.
    pub name: String,
    /// The whole text: macros, shared parts, the source itself.
    pub text: String,
    /// Kernels in it.
    pub kernels: &'static [&'static str],
}

/// Kernels of `linear.cu` for a few rows, with the most rows that each takes.
pub const LINEAR_FEW: [(usize, &str); 3] = [(1, "linear_few_1"), (4, "linear_few_4"), (16, "linear_few_16")];
/// The same with the gated unit that two matrices feed.
pub const LINEAR_GATED: [(usize, &str); 2] = [(1, "linear_gated_1"), (4, "linear_gated_4")];
/// The kernel of `linear.cu` for any number of rows.
pub const LINEAR_MANY: &str = "linear_many";
const LINEAR: [&str; 6] =
    [LINEAR_FEW[0].1, LINEAR_FEW[1].1, LINEAR_FEW[2].1, LINEAR_GATED[0].1, LINEAR_GATED[1].1, LINEAR_MANY];

/// Matrices that one launch of a `few` kernel takes.
pub(crate) const PARTS: usize = 3;
/// Most rows of a gated launch.
pub(crate) const GATED: usize = LINEAR_GATED[1].0;
/// Columns of all rows of a `few` kernel that are staged at once.
pub(crate) const STAGED_COLUMNS: usize = 8192;

impl Unit {
    /// The unit that computes `op`, over weights in `format` when it reads a matrix.
    pub fn of(op: OpName, format: Option<Format>) -> Self {
        match op {
            OpName::Linear => Self::over(format, "linear", include_str!("../kernels/linear.cu"), &LINEAR),
            OpName::Embedding => {
                Self::over(format, "embedding", include_str!("../kernels/embedding.cu"), &["embedding"])
            }
            OpName::RmsNorm | OpName::HeadNorm => {
                Self::plain("norm", &[include_str!("../kernels/norm.cu")], &["rms_norm", "head_norm"])
            }
            OpName::Rope => Self::plain("rope", &[include_str!("../kernels/rope.cu")], &["rope"]),
            OpName::SwiGlu => Self::plain("swiglu", &[include_str!("../kernels/swiglu.cu")], &["swiglu"]),
            OpName::SelectRows => {
                Self::plain("select_rows", &[include_str!("../kernels/select_rows.cu")], &["select_rows"])
            }
            OpName::KvAppend => {
                let kernels = &["kv_append", "kv_read", "kv_write"];
                Self::plain("kv_append", &[KV, include_str!("../kernels/kv_append.cu")], kernels)
            }
            OpName::Attention => {
                Self::plain("attention", &[KV, include_str!("../kernels/attention.cu")], &["attention"])
            }
            OpName::Sample => {
                let kernels = &["sample_parts", "sample_finish"];
                Self::plain("sample", &[include_str!("../kernels/sample.cu")], kernels)
            }
        }
    }

    /// The unit of launches that carry all that happens between projections and attention.
    pub(crate) fn heads() -> Self {
        Self::plain("heads", &[KV, include_str!("../kernels/heads.cu")], &["heads"])
    }

    /// The unit that measures what the device can do.
    pub(crate) fn ceilings() -> Self {
        let kernels = &["ceiling_read", "ceiling_multiply_add"];
        Self::plain("ceilings", &[include_str!("../kernels/ceilings.cu")], kernels)
    }

    /// Every unit.
    pub fn all() -> Vec<Self> {
        let of = |op: OpName| -> Vec<Self> {
            if op.reads_matrix() {
                return Format::ALL.into_iter().map(|f| Self::of(op, Some(f))).collect();
            }
            vec![Self::of(op, None)]
        };
        let mut all: Vec<Self> =
            OpName::ALL.into_iter().flat_map(of).chain([Self::heads(), Self::ceilings()]).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.dedup();
        all
    }

    fn plain(name: &str, parts: &[&str], kernels: &'static [&'static str]) -> Self {
        let text = std::iter::once(&SHARED).chain(parts).copied().collect::<Vec<_>>().concat();
        Self { name: name.into(), text, kernels }
    }

    /// A source that reads a matrix; without a format it reads F32.
    fn over(format: Option<Format>, name: &str, source: &str, kernels: &'static [&'static str]) -> Self {
        let layout = Layout::of(format.unwrap_or(Format::F32));
        let text = [&layout.macros(), SHARED, MATRIX, source].concat();
        Self { name: format!("{name}.{layout}"), text, kernels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_in_the_text_of_its_unit() {
        let units = Unit::all();
        assert_eq!(units.len(), 2 * 13 + 9, "formats of one layout share a unit");
        for unit in units {
            for kernel in unit.kernels {
                let opens = ["KERNEL", "FEW"].map(|with| format!("{with}({kernel}, "));
                assert!(opens.iter().any(|o| unit.text.contains(o)), "{}: {kernel}", unit.name);
            }
        }
    }
}
