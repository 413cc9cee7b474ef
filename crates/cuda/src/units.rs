//! The kernels as texts that are compiled by themselves: one unit for each source, or for each layout of weights that it reads.

pub mod tiles;

use tare_core::Format;
use tare_ops::{OpName, Variant};

use crate::layout::Layout;
use crate::registry::{Method, variants};

const SHARED: &str = include_str!("../kernels/tare.cuh");
const MATRIX: &str = include_str!("../kernels/matrix.cuh");
const KV: &str = include_str!("../kernels/kv.cuh");
const LINEAR_ARGS: &str = include_str!("../kernels/linear.cuh");
const HEADS: &str = include_str!("../kernels/heads.cuh");
const ATTENTION: &str = include_str!("../kernels/attention.cuh");
const NORM: &str = include_str!("../kernels/norm.cuh");
const SAMPLE: &str = include_str!("../kernels/sample.cuh");
const FREE: &str = include_str!("../kernels/free.cuh");
const CEILINGS: &str = include_str!("../kernels/ceilings.cuh");

/// One source and what it is compiled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// `attention`, or `linear.q4g128b`: the operator and the [`Layout`] that it reads.
    pub name: String,
    /// The whole text: macros, shared parts, the source itself.
    pub text: String,
    /// Kernels in it.
    pub kernels: &'static [&'static str],
    /// Whether only `sm_90a` has the instructions.
    pub hopper: bool,
}

/// Kernels of `linear.cu` for a few rows, with the most rows that each takes.
pub const LINEAR_FEW: [(usize, &str); 3] = [(1, "linear_few_1"), (4, "linear_few_4"), (16, "linear_few_16")];
/// The same with the gated unit that two matrices feed.
pub const LINEAR_GATED: [(usize, &str); 2] = [(1, "linear_gated_1"), (4, "linear_gated_4")];
/// The kernel of `linear.cu` for any number of rows.
pub const LINEAR_MANY: &str = "linear_many";
const LINEAR: [&str; 6] =
    [LINEAR_FEW[0].1, LINEAR_FEW[1].1, LINEAR_FEW[2].1, LINEAR_GATED[0].1, LINEAR_GATED[1].1, LINEAR_MANY];

/// Kernels of `gemv.cu`, with the most rows that each takes.
pub const GEMV: [(usize, &str); 3] = [(1, "gemv_1"), (8, "gemv_8"), (16, "gemv_16")];
/// The same with the gated unit that two matrices feed.
pub const GEMV_GATED: [(usize, &str); 3] = [(1, "gemv_gated_1"), (8, "gemv_gated_8"), (16, "gemv_gated_16")];
/// The same for one row and a matrix of few outputs.
pub(crate) const GEMV_HALVES: &str = "gemv_halves_1";
const GEMVS: [&str; 7] =
    [GEMV[0].1, GEMV[1].1, GEMV[2].1, GEMV_GATED[0].1, GEMV_GATED[1].1, GEMV_GATED[2].1, GEMV_HALVES];

/// Matrices that one launch of a `few` kernel takes.
pub(crate) const PARTS: usize = 3;
/// Most rows of a gated launch.
pub(crate) const GATED: usize = LINEAR_GATED[1].0;
/// Columns of all rows of a `few` kernel that are staged at once.
pub(crate) const STAGED_COLUMNS: usize = 8192;

impl Unit {
    /// The unit that computes `op` in the reference's order of sums, over weights in `format` when it reads a matrix.
    pub fn of(op: OpName, format: Option<Format>) -> Self {
        match op {
            OpName::Linear => {
                Self::over(format, "linear", &[LINEAR_ARGS, include_str!("../kernels/linear.cu")], &LINEAR)
            }
            OpName::Embedding => {
                Self::over(format, "embedding", &[include_str!("../kernels/embedding.cu")], &["embedding"])
            }
            OpName::RmsNorm | OpName::HeadNorm => {
                Self::plain("norm", &[NORM, include_str!("../kernels/norm.cu")], &["rms_norm", "head_norm"])
            }
            OpName::Rope => Self::plain("rope", &[include_str!("../kernels/rope.cu")], &["rope"]),
            OpName::SwiGlu => {
                let parts = &[FREE, include_str!("../kernels/swiglu.cu")];
                Self::plain("swiglu", parts, &["swiglu", "swiglu_fast"])
            }
            OpName::SelectRows => {
                Self::plain("select_rows", &[include_str!("../kernels/select_rows.cu")], &["select_rows"])
            }
            OpName::KvAppend => {
                let kernels = &["kv_append", "kv_read", "kv_write"];
                Self::plain("kv_append", &[KV, include_str!("../kernels/kv_append.cu")], kernels)
            }
            OpName::Attention => {
                Self::plain("attention", &[KV, ATTENTION, include_str!("../kernels/attention.cu")], &["attention"])
            }
            OpName::Sample => {
                let kernels = &["sample_parts", "sample_finish"];
                Self::plain("sample", &[SAMPLE, include_str!("../kernels/sample.cu")], kernels)
            }
        }
    }

    /// The unit of a call's kernel, which goes about it as `method` says.
    pub(crate) fn with(op: OpName, format: Option<Format>, method: Method) -> Self {
        match (op, method) {
            (OpName::Linear, Method::Gemv) => {
                let rows = include_str!("../kernels/gemv_rows.cuh");
                let parts = [FREE, LINEAR_ARGS, rows, include_str!("../kernels/gemv.cu")];
                Self::over(format, "gemv", &parts, &GEMVS)
            }
            (OpName::Attention, Method::Split) => {
                let tokens = include_str!("../kernels/attention_split.cuh");
                let parts = [KV, FREE, HEADS, tokens, include_str!("../kernels/attention_split.cu")];
                let kernels = &["attention_split", "attention_heads", "attention_heads_128"];
                Self::plain("attention_split", &parts, kernels)
            }
            (OpName::RmsNorm, Method::Block) => {
                Self::plain("norm_block", &[FREE, NORM, include_str!("../kernels/norm_block.cu")], &["rms_norm_block"])
            }
            (OpName::Sample, Method::Split) => {
                let kernels = &["sample_split_parts", "sample_split_finish"];
                Self::plain("sample_split", &[FREE, SAMPLE, include_str!("../kernels/sample_split.cu")], kernels)
            }
            (OpName::Linear, Method::Mma) => tiles::products_mma(),
            (OpName::Linear, Method::Wgmma) => tiles::products_wgmma(),
            (OpName::Attention, Method::Mma) => tiles::attention_mma(),
            (OpName::Attention, Method::Wgmma) => tiles::attention_wgmma(),
            _ => Self::of(op, format),
        }
    }

    /// Whether its kernels may be launched before what they read is written: they wait for it themselves.
    pub(crate) fn starts_early(&self) -> bool {
        self.text.contains(FREE)
    }

    /// The unit of launches that carry all that happens between projections and attention.
    pub(crate) fn heads() -> Self {
        Self::plain("heads", &[KV, HEADS, include_str!("../kernels/heads.cu")], &["heads"])
    }

    /// The unit that measures what the device can do.
    pub(crate) fn ceilings() -> Self {
        let kernels = &["ceiling_read", "ceiling_multiply_add"];
        Self::plain("ceilings", &[CEILINGS, include_str!("../kernels/ceilings.cu")], kernels)
    }

    /// The unit of delays that the laboratory plants.
    pub(crate) fn delay() -> Self {
        Self::plain("delay", &[include_str!("../kernels/delay.cu")], &["delay"])
    }

    /// Every unit.
    pub fn all() -> Vec<Self> {
        let of = |v: Variant| Self::with(v.op, v.format, Method::of(&v.key));
        let others = [Self::heads(), Self::ceilings(), Self::delay()].into_iter().chain(tiles::others());
        let mut all: Vec<Self> = variants().into_iter().map(of).chain(others).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.dedup();
        all
    }

    fn plain(name: &str, parts: &[&str], kernels: &'static [&'static str]) -> Self {
        let text = std::iter::once(&SHARED).chain(parts).copied().collect::<Vec<_>>().concat();
        Self { name: name.into(), text, kernels, hopper: false }
    }

    /// A source that reads a matrix; without a format it reads F32.
    fn over(format: Option<Format>, name: &str, parts: &[&str], kernels: &'static [&'static str]) -> Self {
        let layout = Layout::of(format.unwrap_or(Format::F32));
        let text = [layout.macros().as_str(), SHARED, MATRIX].iter().chain(parts).copied().collect::<String>();
        Self { name: format!("{name}.{layout}"), text, kernels, hopper: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_starts_early_waits_for_what_it_reads() {
        for unit in Unit::all().into_iter().filter(Unit::starts_early) {
            assert!(unit.text.contains("await_previous();"), "{}", unit.name);
        }
    }

    #[test]
    fn every_kernel_is_in_the_text_of_its_unit() {
        let units = Unit::all();
        assert_eq!(units.len(), 2 * 13 + 10 + 12 + 10 + 7, "formats of one layout share a unit");
        for unit in units {
            for kernel in unit.kernels {
                let opens =
                    ["KERNEL", "FEW", "GEMV", "SPLIT", "TILES", "ATTENTION"].map(|with| format!("{with}({kernel}, "));
                assert!(opens.iter().any(|o| unit.text.contains(o)), "{}: {kernel}", unit.name);
            }
        }
    }
}
