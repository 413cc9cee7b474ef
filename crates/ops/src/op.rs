//! The operators of a decoder step, as data.
//!
//! Shape letters are those of docs/reference/shapes.md: T rows in the step, D hidden, F ffn, H query heads, K kv
//! heads, E head size, V vocabulary, S context.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::class::Rounding;

/// A buffer of a plan: index into [`crate::ForwardPlan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BufId(pub u16);

/// A weight that a backend holds: what [`crate::Backend::pack`] gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WeightId(pub u32);

/// One operator call. Buffers are [rows, width] F32, row-major; `x` is read, `out` is written, in that order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// `out[t] = table[token(t)]`, dequantized. table [V, D], out [T, D].
    Embedding {
        /// The embedding, or the packed head when tied.
        table: WeightId,
        /// [T, D]
        out: BufId,
    },
    /// `out = x / sqrt(mean(x^2) + eps) * weight` (Zhang and Sennrich, arXiv 1910.07467). [T, D]
    RmsNorm {
        /// [T, D]
        x: BufId,
        /// [1, D]
        weight: WeightId,
        /// Added under the root.
        eps: f32,
        /// [T, D]
        out: BufId,
    },
    /// RMSNorm of each head by itself, in place: Qwen3's QK-norm. x [T, heads * E]
    HeadNorm {
        /// [T, heads * E], changed in place
        x: BufId,
        /// [1, E]
        weight: WeightId,
        /// Heads in a row of `x`.
        heads: u32,
        /// Added under the root.
        eps: f32,
    },
    /// Rotary embedding at the row's position, in place (Su et al., arXiv 2104.09864). x [T, heads * E]
    Rope {
        /// [T, heads * E], changed in place
        x: BufId,
        /// Heads in a row of `x`.
        heads: u32,
    },
    /// `out = x * weight^T (+ bias)`, or `out += ...` when `accumulate`. x [T, k], weight [n, k], out [T, n]
    Linear {
        /// [T, k]
        x: BufId,
        /// [n, k]
        weight: WeightId,
        /// [1, n]
        bias: Option<WeightId>,
        /// Add to `out` instead of replacing it: the residual connection.
        accumulate: bool,
        /// What is done to `x` first.
        rounding: Rounding,
        /// [T, n]
        out: BufId,
    },
    /// Writes the rows' keys and values to the cache at [`crate::Row::slot`]. k, v [T, K * E]
    KvAppend {
        /// Decoder layer.
        layer: u32,
        /// [T, K * E]
        k: BufId,
        /// [T, K * E]
        v: BufId,
    },
    /// Softmax attention over the first [`crate::Row::context`] cached tokens of the row's table. q, out [T, H * E]
    Attention {
        /// Decoder layer.
        layer: u32,
        /// [T, H * E]
        q: BufId,
        /// The kv head that each query head reads: H entries. Grouped-query attention is `h / (H / K)`.
        kv_of_head: Vec<u16>,
        /// Multiplies the scores: `1 / sqrt(E)`.
        scale: f32,
        /// [T, H * E]
        out: BufId,
    },
    /// `out = silu(gate) * up` (Shazeer, arXiv 2002.05202). [T, F]
    SwiGlu {
        /// [T, F]
        gate: BufId,
        /// [T, F]
        up: BufId,
        /// [T, F]; may be `gate`
        out: BufId,
    },
    /// Gathers the rows that want something ([`crate::Wants`]), in row order. x [T, D], out [selected, D]
    SelectRows {
        /// [T, D]
        x: BufId,
        /// [selected, D]
        out: BufId,
    },
    /// Turns logits into tokens, logits and log-probabilities of the selected rows. logits [selected, V]
    Sample {
        /// [selected, V]
        logits: BufId,
    },
}

/// The kind of an [`Op`]: the first part of a kernel key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpName {
    /// See [`Op::Embedding`].
    Embedding,
    /// See [`Op::RmsNorm`].
    RmsNorm,
    /// See [`Op::HeadNorm`].
    HeadNorm,
    /// See [`Op::Rope`].
    Rope,
    /// See [`Op::Linear`].
    Linear,
    /// See [`Op::KvAppend`].
    KvAppend,
    /// See [`Op::Attention`].
    Attention,
    /// See [`Op::SwiGlu`].
    SwiGlu,
    /// See [`Op::SelectRows`].
    SelectRows,
    /// See [`Op::Sample`].
    Sample,
}

impl OpName {
    /// Every operator.
    pub const ALL: [OpName; 10] = [
        OpName::Embedding,
        OpName::RmsNorm,
        OpName::HeadNorm,
        OpName::Rope,
        OpName::Linear,
        OpName::KvAppend,
        OpName::Attention,
        OpName::SwiGlu,
        OpName::SelectRows,
        OpName::Sample,
    ];

    /// The first part of a kernel key.
    pub const fn name(self) -> &'static str {
        match self {
            OpName::Embedding => "embedding",
            OpName::RmsNorm => "rms_norm",
            OpName::HeadNorm => "head_norm",
            OpName::Rope => "rope",
            OpName::Linear => "linear",
            OpName::KvAppend => "kv_append",
            OpName::Attention => "attention",
            OpName::SwiGlu => "swiglu",
            OpName::SelectRows => "select_rows",
            OpName::Sample => "sample",
        }
    }
}

impl OpName {
    /// Whether it reads a matrix, so that each weight format has kernels of its own.
    pub const fn reads_matrix(self) -> bool {
        matches!(self, OpName::Embedding | OpName::Linear)
    }
}

impl fmt::Display for OpName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Op {
    /// Its kind.
    pub const fn name(&self) -> OpName {
        match self {
            Op::Embedding { .. } => OpName::Embedding,
            Op::RmsNorm { .. } => OpName::RmsNorm,
            Op::HeadNorm { .. } => OpName::HeadNorm,
            Op::Rope { .. } => OpName::Rope,
            Op::Linear { .. } => OpName::Linear,
            Op::KvAppend { .. } => OpName::KvAppend,
            Op::Attention { .. } => OpName::Attention,
            Op::SwiGlu { .. } => OpName::SwiGlu,
            Op::SelectRows { .. } => OpName::SelectRows,
            Op::Sample { .. } => OpName::Sample,
        }
    }

    /// The matrix or vector it reads, if any.
    pub const fn weight(&self) -> Option<WeightId> {
        match self {
            Op::Embedding { table: w, .. }
            | Op::RmsNorm { weight: w, .. }
            | Op::HeadNorm { weight: w, .. }
            | Op::Linear { weight: w, .. } => Some(*w),
            _ => None,
        }
    }

    /// The matrix it reads, if any: [`Op::weight`] without the vectors of the norms.
    pub const fn matrix(&self) -> Option<WeightId> {
        if self.name().reads_matrix() { self.weight() } else { None }
    }

    /// The buffer it writes; for [`Op::KvAppend`] and [`Op::Sample`], which write none, the one that says their width.
    pub const fn output(&self) -> &BufId {
        match self {
            Op::Embedding { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::Attention { out, .. }
            | Op::SwiGlu { out, .. }
            | Op::SelectRows { out, .. } => out,
            Op::HeadNorm { x, .. } | Op::Rope { x, .. } => x,
            Op::KvAppend { k, .. } => k,
            Op::Sample { logits } => logits,
        }
    }

    /// The buffer whose every row the call writes anew, if there is one.
    pub const fn writes(&self) -> Option<BufId> {
        match self {
            Op::KvAppend { .. } | Op::Sample { .. } => None,
            other => Some(*other.output()),
        }
    }

    /// The buffers that the call reads.
    pub const fn reads(&self) -> [Option<BufId>; 2] {
        match self {
            Op::Embedding { .. } => [None, None],
            Op::RmsNorm { x, .. } | Op::HeadNorm { x, .. } | Op::Rope { x, .. } | Op::SelectRows { x, .. } => {
                [Some(*x), None]
            }
            Op::Linear { x, accumulate: true, out, .. } => [Some(*x), Some(*out)],
            Op::Linear { x, .. } => [Some(*x), None],
            Op::KvAppend { k, v, .. } => [Some(*k), Some(*v)],
            Op::Attention { q, .. } => [Some(*q), None],
            Op::SwiGlu { gate, up, .. } => [Some(*gate), Some(*up)],
            Op::Sample { logits } => [Some(*logits), None],
        }
    }

    /// An input that the call would overwrite while it still reads it. [`Op::SwiGlu`] may write over its gate.
    pub(crate) fn overwritten_input(&self) -> Option<BufId> {
        let (input, out) = match self {
            Op::RmsNorm { x, out, .. } | Op::Linear { x, out, .. } | Op::SelectRows { x, out } => (*x, *out),
            Op::Attention { q, out, .. } => (*q, *out),
            Op::SwiGlu { up, out, .. } => (*up, *out),
            _ => return None,
        };
        (input == out).then_some(input)
    }
}
