//! Pools of KV pages.
//!
//! Layout: [page][layer][kv head][keys, values][token of the page][E]. What attention reads of one kv head in one page
//! is one run of keys and one of values, however many heads and layers there are.

use std::ops::Range;

use tare_core::{DType, Fault};
use tare_ops::reference::kv::check_span;
use tare_ops::{KvShape, OpError, PoolInfo};

use crate::memory::Memory;

/// A pool. Its memory is touched only where tokens are stored (in builds with debug assertions all of it is filled
/// with NaN first, so that a read of what was never written shows).
#[derive(Debug)]
pub struct KvPool {
    memory: Memory,
    info: PoolInfo,
}

impl KvPool {
    /// A pool of `pages` pages of `page_tokens` tokens.
    ///
    /// # Errors
    /// When a dimension is 0, the element type is neither F32 nor BF16, or memory runs out.
    pub fn new(shape: KvShape, pages: usize, page_tokens: usize) -> Result<Self, OpError> {
        if !matches!(shape.dtype, DType::F32 | DType::BF16) {
            return Err(Fault::new("kv dtype", "f32 or bf16", shape.dtype.name()).into());
        }
        let dims = [pages, page_tokens, 2, shape.layers, shape.kv_heads, shape.head_size, shape.dtype.bytes()];
        if dims.contains(&0) {
            let expected = "pages, tokens, layers, heads and elements above 0";
            return Err(Fault::new("kv pool", expected, format!("{dims:?}")).into());
        }
        let bytes = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).unwrap_or(usize::MAX);
        let memory = Memory::zeroed(bytes).ok_or_else(|| out_of_memory("a KV pool", bytes))?;
        if cfg!(debug_assertions) {
            // SAFETY: the memory was just made and has this length. All bits set is NaN in F32 and BF16.
            unsafe { std::ptr::write_bytes(memory.as_ptr::<u8>(), 0xff, bytes) };
        }
        Ok(Self { memory, info: PoolInfo { shape, pages, page_tokens } })
    }

    /// Shape, pages and tokens of a page.
    pub fn info(&self) -> PoolInfo {
        self.info
    }

    /// Its bytes.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where kernels find the tokens. It must not outlive the pool.
    pub fn view(&self) -> PoolView {
        let PoolInfo { shape, page_tokens, .. } = self.info;
        PoolView {
            base: self.memory.as_ptr(),
            layers: shape.layers,
            kv_heads: shape.kv_heads,
            page_tokens,
            token_bytes: shape.head_size * shape.dtype.bytes(),
        }
    }

    /// The bytes of tokens of a page, in the order of [`tare_ops::Backend::read_kv`].
    ///
    /// # Errors
    /// When they do not lie inside the page.
    pub fn read(&self, page: u32, start: usize, tokens: usize) -> Result<Vec<u8>, Fault> {
        let places = self.places(page, start, tokens)?;
        let mut bytes = vec![0; tokens * self.info.shape.token_bytes()];
        let view = self.view();
        for (at, from) in places.zip(bytes.chunks_exact_mut(view.token_bytes)) {
            // SAFETY: a place is the address of one token's head inside the pool.
            unsafe { std::ptr::copy_nonoverlapping(at, from.as_mut_ptr(), view.token_bytes) };
        }
        Ok(bytes)
    }

    /// Stores what [`KvPool::read`] gave.
    ///
    /// # Errors
    /// When the tokens do not lie inside the page or the number of bytes is not theirs.
    pub fn write(&mut self, page: u32, start: usize, tokens: usize, bytes: &[u8]) -> Result<(), Fault> {
        let places = self.places(page, start, tokens)?;
        let want = tokens * self.info.shape.token_bytes();
        if bytes.len() != want {
            return Err(Fault::new("kv bytes", format!("{want} for {tokens} tokens"), bytes.len().to_string()));
        }
        let size = self.view().token_bytes;
        for (at, from) in places.zip(bytes.chunks_exact(size)) {
            // SAFETY: as in `read`; the pool is borrowed mutably, so that no step runs.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at, size) };
        }
        Ok(())
    }

    /// Copies tokens from `source`, which has the same shape: the two spans have been checked.
    pub fn copy_from(&mut self, to: (u32, usize), source: &KvPool, from: (u32, usize), tokens: usize) {
        let (target, source) = (self.view(), source.view());
        for unit in 0..target.layers * target.kv_heads * 2 {
            let (a, b) = (source.token(from.0, unit, from.1), target.token(to.0, unit, to.1));
            // SAFETY: runs of `tokens` tokens inside checked spans, which overlap when they are in one page.
            unsafe { std::ptr::copy(a, b, tokens * target.token_bytes) };
        }
    }

    /// Copies tokens inside the pool: the two spans have been checked.
    pub fn copy_within(&mut self, from: (u32, usize), to: (u32, usize), tokens: usize) {
        let view = self.view();
        for unit in 0..view.layers * view.kv_heads * 2 {
            // SAFETY: as in `copy_from`.
            unsafe {
                let (a, b) = (view.token(from.0, unit, from.1), view.token(to.0, unit, to.1));
                std::ptr::copy(a, b, tokens * view.token_bytes);
            }
        }
    }

    /// Whether a span lies inside its page.
    ///
    /// # Errors
    /// When it does not.
    pub fn check(&self, page: u32, start: usize, tokens: usize) -> Result<(), Fault> {
        check_span(self.info.pages, self.info.page_tokens, page, start, tokens)
    }

    /// Addresses of the heads of tokens: layer by layer, keys [tokens, K] and then values.
    fn places(&self, page: u32, start: usize, tokens: usize) -> Result<impl Iterator<Item = *mut u8>, Fault> {
        self.check(page, start, tokens)?;
        let (view, heads) = (self.view(), self.info.shape.kv_heads);
        let halves = (0..self.info.shape.layers).flat_map(|layer| [(layer, 0), (layer, 1)]);
        Ok(halves.flat_map(move |(layer, half)| {
            let token = move |t| (0..heads).map(move |head| view.token(page, (layer * heads + head) * 2 + half, t));
            span(start, tokens).flat_map(token)
        }))
    }
}

fn span(start: usize, tokens: usize) -> Range<usize> {
    start..start + tokens
}

/// The error for memory that the host refused.
pub fn out_of_memory(what: &str, bytes: usize) -> OpError {
    OpError::OutOfMemory { what: what.to_string(), bytes, device: "host".to_string() }
}

/// Pointers into a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolView {
    base: *mut u8,
    layers: usize,
    kv_heads: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Bytes of one head of one token.
    pub token_bytes: usize,
}

// SAFETY: a pointer and numbers; a step's kernels read and write the pool in stages that barriers separate.
unsafe impl Send for PoolView {}
// SAFETY: as above.
unsafe impl Sync for PoolView {}

impl PoolView {
    /// Keys of `head` in `page`: [page_tokens, E].
    #[inline(always)]
    pub fn keys(&self, layer: usize, page: u32, head: usize) -> *mut u8 {
        self.token(page, (layer * self.kv_heads + head) * 2, 0)
    }

    /// Values of `head` in `page`: [page_tokens, E].
    #[inline(always)]
    pub fn values(&self, layer: usize, page: u32, head: usize) -> *mut u8 {
        self.token(page, (layer * self.kv_heads + head) * 2 + 1, 0)
    }

    /// Token `token` of run `unit` (layer, head, half) of a page.
    #[inline(always)]
    fn token(&self, page: u32, unit: usize, token: usize) -> *mut u8 {
        let run = page as usize * self.layers * self.kv_heads * 2 + unit;
        self.base.wrapping_add((run * self.page_tokens + token) * self.token_bytes)
    }
}
