//! The one argument of each kernel, field by field as the `.cu` and `.cuh` files declare it.
//!
//! Every structure is free of padding, so that its bytes are its value.

use bytemuck::{Pod, Zeroable};

use crate::units::PARTS;

/// A packed matrix; see `matrix.cuh`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Matrix {
    /// [rows, chunks, 16, 8] elements or quants.
    pub(crate) quants: u64,
    /// [rows, chunks, 128 / group]; 0 for plain formats.
    pub(crate) scales: u64,
    /// As `scales`; 0 where there are none.
    pub(crate) biases: u64,
    /// Output features.
    pub(crate) rows: u32,
    /// Input features.
    pub(crate) cols: u32,
    /// Chunks of a row.
    pub(crate) chunks: u32,
    /// 0 F32, 1 F16, 2 BF16.
    pub(crate) scale_kind: u32,
}

/// One matrix of a launch of `linear.cu` or `gemv.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Part {
    /// The weight.
    pub(crate) m: Matrix,
    /// [n], or 0.
    pub(crate) bias: u64,
    /// [T, n]
    pub(crate) out: u64,
    /// Elements from one row of out to the next.
    pub(crate) out_stride: u32,
    /// The first block, in x, that works on it; of `gemv.cu` the first tile.
    pub(crate) first_block: u32,
}

/// `linear.cu` and `gemv.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Linear {
    /// As many as `parts` says.
    pub(crate) part: [Part; PARTS],
    /// [`Step`].
    pub(crate) step: u64,
    /// [T, k]
    pub(crate) x: u64,
    /// [k], or 0: the weight of the norm that x goes through first.
    pub(crate) norm: u64,
    /// Elements from one row of x to the next.
    pub(crate) x_stride: u32,
    /// Matrices.
    pub(crate) parts: u32,
    /// 1 adds to out.
    pub(crate) accumulate: u32,
    /// 1 rounds x to BF16.
    pub(crate) bf16: u32,
    /// 1 when the rows are the selected ones.
    pub(crate) of_selected: u32,
    /// Of the norm.
    pub(crate) eps: f32,
    /// Of `gemv.cu`: tiles of all matrices.
    pub(crate) tiles: u32,
    /// 1 over the columns.
    pub(crate) share: f32,
}

/// `heads.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Heads {
    /// [`Step`].
    pub(crate) step: u64,
    /// [T, H * E]
    pub(crate) q: u64,
    /// [T, K * E]
    pub(crate) k: u64,
    /// [T, K * E]
    pub(crate) v: u64,
    /// [E], or 0.
    pub(crate) q_norm: u64,
    /// [E], or 0.
    pub(crate) k_norm: u64,
    /// Shape of a token.
    pub(crate) pool: Pool,
    /// Elements from one row of q to the next.
    pub(crate) q_stride: u32,
    /// Elements from one row of k to the next.
    pub(crate) k_stride: u32,
    /// Elements from one row of v to the next.
    pub(crate) v_stride: u32,
    /// H.
    pub(crate) heads: u32,
    /// Decoder layer.
    pub(crate) layer: u32,
    /// 1 pairs neighbours.
    pub(crate) interleaved: u32,
    /// Of the norm of q.
    pub(crate) q_eps: f32,
    /// Of the norm of k.
    pub(crate) k_eps: f32,
}

/// `embedding.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Embedding {
    /// The table.
    pub(crate) m: Matrix,
    /// [`Step`].
    pub(crate) step: u64,
    /// [T, D]
    pub(crate) out: u64,
    /// Elements from one row to the next.
    pub(crate) out_stride: u32,
    /// 0.
    pub(crate) reserved: u32,
}

/// `norm.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Norm {
    /// [`Step`].
    pub(crate) step: u64,
    /// [T, D]
    pub(crate) x: u64,
    /// [D] or [E]
    pub(crate) weight: u64,
    /// [T, D]
    pub(crate) out: u64,
    /// Elements from one row of x to the next.
    pub(crate) x_stride: u32,
    /// Elements from one row of out to the next.
    pub(crate) out_stride: u32,
    /// D or E.
    pub(crate) width: u32,
    /// Heads of a row; 1 for rows.
    pub(crate) heads: u32,
    /// Added under the root.
    pub(crate) eps: f32,
    /// 1 when the rows are the selected ones.
    pub(crate) of_selected: u32,
}

/// `rope.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Rope {
    /// [`Step`].
    pub(crate) step: u64,
    /// [T, heads * E]
    pub(crate) x: u64,
    /// Elements from one row to the next.
    pub(crate) stride: u32,
    /// Heads of a row.
    pub(crate) heads: u32,
    /// E / 2.
    pub(crate) pairs: u32,
    /// 1 pairs neighbours.
    pub(crate) interleaved: u32,
}

/// `swiglu.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Swiglu {
    /// [`Step`].
    pub(crate) step: u64,
    /// [T, F]
    pub(crate) gate: u64,
    /// [T, F]
    pub(crate) up: u64,
    /// [T, F]
    pub(crate) out: u64,
    /// Elements from one row of gate to the next.
    pub(crate) gate_stride: u32,
    /// Elements from one row of up to the next.
    pub(crate) up_stride: u32,
    /// Elements from one row of out to the next.
    pub(crate) out_stride: u32,
    /// F.
    pub(crate) width: u32,
}

/// `select_rows.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Select {
    /// [`Step`].
    pub(crate) step: u64,
    /// [T, D]
    pub(crate) x: u64,
    /// [selected, D]
    pub(crate) out: u64,
    /// Elements from one row of x to the next.
    pub(crate) x_stride: u32,
    /// Elements from one row of out to the next.
    pub(crate) out_stride: u32,
    /// D.
    pub(crate) width: u32,
    /// 0.
    pub(crate) reserved: u32,
}

/// A token's place in a pool; see `kv.cuh`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Pool {
    /// L.
    pub(crate) layers: u32,
    /// K.
    pub(crate) kv_heads: u32,
    /// E.
    pub(crate) head_size: u32,
    /// 1 BF16, 0 F32.
    pub bf16: u32,
}

/// `kv_append` of `kv_append.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Append {
    /// [`Step`].
    pub(crate) step: u64,
    /// [T, K * E]
    pub(crate) k: u64,
    /// [T, K * E]
    pub(crate) v: u64,
    /// Shape of a token.
    pub(crate) pool: Pool,
    /// Elements from one row of k to the next.
    pub(crate) k_stride: u32,
    /// Elements from one row of v to the next.
    pub(crate) v_stride: u32,
    /// Decoder layer.
    pub(crate) layer: u32,
    /// 0.
    pub(crate) reserved: u32,
}

/// `kv_read` and `kv_write` of `kv_append.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Span {
    /// Shape of a token.
    pub(crate) pool: Pool,
    /// The pool.
    pub(crate) base: u64,
    /// [L, 2, tokens, K, E]
    pub(crate) span: u64,
    /// Tokens of a page.
    pub(crate) page_tokens: u32,
    /// The page.
    pub(crate) page: u32,
    /// First token inside the page.
    pub(crate) start: u32,
    /// How many.
    pub(crate) tokens: u32,
}

/// `attention.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Attention {
    /// [`Step`].
    pub(crate) step: u64,
    /// [T, H * E]
    pub(crate) q: u64,
    /// [T, H * E]
    pub(crate) out: u64,
    /// [H] u16
    pub(crate) kv_of_head: u64,
    /// Shape of a token.
    pub(crate) pool: Pool,
    /// Elements from one row of q to the next.
    pub(crate) q_stride: u32,
    /// Elements from one row of out to the next.
    pub(crate) out_stride: u32,
    /// Decoder layer.
    pub(crate) layer: u32,
    /// H.
    pub(crate) heads: u32,
    /// Multiplies the scores.
    pub(crate) scale: f32,
    /// 0.
    pub(crate) reserved: u32,
}

/// `attention_split.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Split {
    /// What happens before, or of it alone q, the pool and the layer.
    pub(crate) heads: Heads,
    /// [T, H * E]
    pub(crate) out: u64,
    /// [groups, 1 + GROUP_HEADS] u16
    pub(crate) groups: u64,
    /// [T, H, splits, 2 + E]
    pub(crate) parts: u64,
    /// [T, groups] u32
    pub(crate) tickets: u64,
    /// [T] [`Row`]
    pub(crate) row: u64,
    /// Elements from one row of out to the next.
    pub(crate) out_stride: u32,
    /// Multiplies the scores.
    pub(crate) scale: f32,
    /// Parts of a context, at most.
    pub(crate) splits: u32,
    /// Tokens of a part, at least.
    pub(crate) least: u32,
}

/// `sample.cu` and `sample_split.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Sample {
    /// [`Step`].
    pub(crate) step: u64,
    /// [selected, V]
    pub(crate) logits: u64,
    /// [selected, `count`] [`SampleResult`]
    pub(crate) parts: u64,
    /// [selected] [`SampleResult`]
    pub(crate) results: u64,
    /// Elements from one row of logits to the next.
    pub(crate) stride: u32,
    /// V.
    pub(crate) vocab: u32,
    /// Parts in which the largest logit of a row is looked for.
    pub(crate) count: u32,
    /// 0.
    pub(crate) reserved: u32,
}

/// What `sample.cu` gives for a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct SampleResult {
    /// The most likely token.
    pub(crate) token: u32,
    /// Its logit.
    pub(crate) logit: f32,
    /// Sum of the exponentials of the differences from it.
    pub(crate) sum: f32,
    /// 1 when the logits are no numbers that can be drawn from.
    pub(crate) odd: u32,
}

/// One row of a step.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Row {
    /// The row's pool.
    pub(crate) pool: u64,
    /// Tokens of one of its pages.
    pub(crate) page_tokens: u32,
    /// Where its block table begins in [`Step::pages`].
    pub(crate) first_page: u32,
    /// The token.
    pub(crate) token: u32,
    /// Where its key and value are stored.
    pub(crate) slot: u32,
    /// Tokens that it may see.
    pub(crate) context: u32,
    /// The power of two that `page_tokens` is, or `u32::MAX`.
    pub(crate) page_shift: u32,
}

/// What changes from step to step.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Step {
    /// Rows of the step.
    pub(crate) rows: u32,
    /// Rows that want something.
    pub(crate) selected: u32,
    /// [rows] [`Row`]
    pub(crate) row: u64,
    /// [selected] u32
    pub(crate) selected_row: u64,
    /// [rows, pairs]
    pub(crate) cosine: u64,
    /// [rows, pairs]
    pub(crate) sine: u64,
    /// Block tables, one after the other.
    pub(crate) pages: u64,
    /// [rows, heads, `score_stride`]
    pub(crate) scores: u64,
    /// Scores that a row and head have room for.
    pub(crate) score_stride: u64,
}
