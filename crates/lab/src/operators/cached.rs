//! The pages of one block table as they were at one moment.

use half::bf16;
use tare_core::DType;
use tare_ops::reference::kv::Half;
use tare_ops::{Backend, KvShape, KvSpan, OpError, Table};

/// Copies of pages.
#[derive(Debug)]
pub(super) struct Cached {
    shape: KvShape,
    page_tokens: usize,
    /// Page after page: layer by layer the keys [tokens, K, E], then the values.
    pages: Vec<Vec<u8>>,
}

impl Cached {
    /// The pages of `table` that hold its first `tokens` tokens.
    ///
    /// # Errors
    /// When the backend cannot read.
    pub(super) fn read(
        backend: &mut dyn Backend,
        table: &Table,
        (shape, page_tokens): (KvShape, usize),
        tokens: usize,
    ) -> Result<Self, OpError> {
        let pages = table.pages.iter().take(tokens.div_ceil(page_tokens));
        let span = |page: &u32| KvSpan { kv: table.kv, page: *page, start: 0, tokens: page_tokens };
        let pages = pages.map(|page| backend.read_kv(span(page))).collect::<Result<_, _>>()?;
        Ok(Self { shape, page_tokens, pages })
    }

    /// Tokens that there is room for.
    pub(super) fn tokens(&self) -> usize {
        self.pages.len() * self.page_tokens
    }

    /// Bytes of the K heads of a token in one layer.
    pub(super) fn bytes(&self, layer: usize, half: Half, token: usize) -> &[u8] {
        let width = self.shape.kv_heads * self.shape.head_size * self.shape.dtype.bytes();
        let plane = 2 * layer + usize::from(half == Half::Value);
        let at = (plane * self.page_tokens + token % self.page_tokens) * width;
        &self.pages[token / self.page_tokens][at..at + width]
    }

    /// The K heads of a token in one layer. [K * E]
    pub(super) fn numbers(&self, layer: usize, half: Half, token: usize) -> Vec<f32> {
        self.decoded(self.bytes(layer, half, token))
    }

    /// One head of a token in one layer. [E]
    pub(super) fn head(&self, layer: usize, half: Half, token: usize, head: usize) -> Vec<f32> {
        let width = self.shape.head_size * self.shape.dtype.bytes();
        self.decoded(&self.bytes(layer, half, token)[head * width..][..width])
    }

    fn decoded(&self, bytes: &[u8]) -> Vec<f32> {
        match self.shape.dtype {
            DType::BF16 => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            _ => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        }
    }

    /// Whether a token is the same in all layers as in `other`.
    pub(super) fn same(&self, other: &Cached, token: usize) -> bool {
        let halves = |layer| [(layer, Half::Key), (layer, Half::Value)];
        let mut all = (0..self.shape.layers).flat_map(halves);
        all.all(|(layer, half)| self.bytes(layer, half, token) == other.bytes(layer, half, token))
    }
}
