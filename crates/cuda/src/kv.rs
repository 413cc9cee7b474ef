//! A pool of KV pages in device memory, and spans of it in and out.

use tare_core::{DType, Fault};
use tare_ops::plan::KvShape;
use tare_ops::reference::kv::check_span;
use tare_ops::{KvSpan, OpError, PoolInfo};

use crate::args;
use crate::device::Address;

/// A pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    /// Shape and size.
    pub(crate) info: PoolInfo,
    /// [pages, L, 2, K, page_tokens, E]
    pub(crate) base: Address,
}

/// Bytes of a pool of these sizes.
///
/// # Errors
/// When a dimension is 0, the element type is neither F32 nor BF16, or no device has so much memory.
pub(crate) fn pool_bytes(shape: KvShape, pages: usize, page_tokens: usize) -> Result<usize, OpError> {
    if !matches!(shape.dtype, DType::F32 | DType::BF16) {
        return Err(Fault::new("kv dtype", "f32 or bf16", shape.dtype.name()).into());
    }
    let dims = [pages, page_tokens, shape.layers, shape.kv_heads, shape.head_size];
    if dims.contains(&0) {
        let expected = "pages, tokens, layers, heads and elements above 0";
        return Err(Fault::new("kv pool", expected, format!("{dims:?}")).into());
    }
    let most = u32::MAX as usize;
    let fits = dims.iter().all(|d| *d <= most);
    let bytes = dims.iter().try_fold(2 * shape.dtype.bytes(), |n, d| n.checked_mul(*d)).filter(|_| fits);
    bytes.filter(|n| *n <= isize::MAX as usize).ok_or_else(|| OpError::OutOfMemory {
        what: "a KV pool".into(),
        bytes: usize::MAX,
        device: "cuda".into(),
    })
}

impl Pool {
    /// Bytes of `tokens` tokens.
    pub(crate) fn span_bytes(&self, tokens: usize) -> usize {
        tokens * self.info.shape.token_bytes()
    }

    /// Whether a span lies inside its page.
    ///
    /// # Errors
    /// When it does not.
    pub(crate) fn check(&self, span: KvSpan) -> Result<(), Fault> {
        check_span(self.info.pages, self.info.page_tokens, span.page, span.start, span.tokens)
    }

    /// What the kernels that move a span are told; `at` is where it lies outside the pool.
    pub(crate) fn span(&self, span: KvSpan, at: Address) -> args::Span {
        args::Span {
            pool: shape_args(self.info.shape),
            base: self.base.0,
            span: at.0,
            page_tokens: self.info.page_tokens as u32,
            page: span.page,
            start: span.start as u32,
            tokens: span.tokens as u32,
        }
    }
}

/// A pool's shape as kernels see it.
pub(crate) fn shape_args(shape: KvShape) -> args::Pool {
    args::Pool {
        layers: shape.layers as u32,
        kv_heads: shape.kv_heads as u32,
        head_size: shape.head_size as u32,
        bf16: u32::from(shape.dtype == DType::BF16),
    }
}
