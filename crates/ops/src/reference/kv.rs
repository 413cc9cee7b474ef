//! A pool of KV pages in F32, and the two operators' view of it.

use half::bf16;
use tare_core::{DType, Fault};

use super::linear::round_bf16;
use crate::plan::KvShape;

/// Which half of a token's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Keys.
    Key,
    /// Values.
    Value,
}

/// Pages of cached keys and values.
///
/// Everything is kept in F32; in a BF16 pool each element is rounded when it is stored, so it holds the same numbers.
/// A fresh pool holds NaN: who reads what was never written is found out.
#[derive(Clone, Debug)]
pub struct KvPool {
    shape: KvShape,
    pages: usize,
    page_tokens: usize,
    /// [pages, L, 2, page_tokens, K, E]
    cells: Vec<f32>,
}

impl KvPool {
    /// A pool of `pages` pages of `page_tokens` tokens.
    ///
    /// # Errors
    /// When a dimension is 0, the element type is neither F32 nor BF16, or the size overflows.
    pub fn new(shape: KvShape, pages: usize, page_tokens: usize) -> Result<Self, Fault> {
        if !matches!(shape.dtype, DType::F32 | DType::BF16) {
            return Err(Fault::new("kv dtype", "f32 or bf16", shape.dtype.name()));
        }
        let dims = [pages, shape.layers, 2, page_tokens, shape.kv_heads, shape.head_size];
        let elements = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).filter(|n| (1..=1 << 40).contains(n));
        let Some(elements) = elements else {
            return Err(Fault::new(
                "kv pool",
                "pages, tokens, layers, heads and elements above 0",
                format!("{dims:?}"),
            ));
        };
        Ok(Self { shape, pages, page_tokens, cells: vec![f32::NAN; elements] })
    }

    /// Shape of a token.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Tokens of a page.
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// The K heads of `token` in `page`: [K, E].
    pub fn token(&self, layer: usize, half: Half, page: u32, token: usize) -> &[f32] {
        let at = self.offset(layer, half, page, token);
        &self.cells[at..at + self.width()]
    }

    /// Stores the K heads of a token, rounded to nearest even when the pool is BF16. x [K, E]
    pub fn store(&mut self, layer: usize, half: Half, page: u32, token: usize, x: &[f32]) {
        let (at, width) = (self.offset(layer, half, page, token), self.width());
        let bf16 = self.shape.dtype == DType::BF16;
        for (cell, x) in self.cells[at..at + width].iter_mut().zip(x) {
            *cell = if bf16 { round_bf16(*x) } else { *x };
        }
    }

    /// The bytes of tokens `start .. start + tokens` of a page, in the order of [`crate::Backend::read_kv`].
    ///
    /// # Errors
    /// When they do not lie inside the page.
    pub fn read(&self, page: u32, start: usize, tokens: usize) -> Result<Vec<u8>, Fault> {
        let runs = self.runs(page, start, tokens)?;
        let mut bytes = Vec::with_capacity(tokens * self.shape.token_bytes());
        for range in runs {
            for x in &self.cells[range] {
                match self.shape.dtype {
                    DType::BF16 => bytes.extend(bf16::from_f32(*x).to_le_bytes()),
                    _ => bytes.extend(x.to_le_bytes()),
                }
            }
        }
        Ok(bytes)
    }

    /// Stores what [`KvPool::read`] gave.
    ///
    /// # Errors
    /// When the tokens do not lie inside the page or `bytes` is not as long as they are.
    pub fn write(&mut self, page: u32, start: usize, tokens: usize, bytes: &[u8]) -> Result<(), Fault> {
        let runs = self.runs(page, start, tokens)?;
        let want = tokens * self.shape.token_bytes();
        if bytes.len() != want {
            return Err(Fault::new("kv bytes", format!("{want} for {tokens} tokens"), bytes.len().to_string()));
        }
        let cells = runs.into_iter().flatten();
        match self.shape.dtype {
            DType::BF16 => {
                for (at, b) in cells.zip(bytes.as_chunks::<2>().0) {
                    self.cells[at] = bf16::from_le_bytes(*b).to_f32();
                }
            }
            _ => {
                for (at, b) in cells.zip(bytes.as_chunks::<4>().0) {
                    self.cells[at] = f32::from_le_bytes(*b);
                }
            }
        }
        Ok(())
    }

    /// The cells of some tokens: layer by layer, keys and then values.
    fn runs(&self, page: u32, start: usize, tokens: usize) -> Result<Vec<std::ops::Range<usize>>, Fault> {
        check_span(self.pages, self.page_tokens, page, start, tokens)?;
        let halves = [Half::Key, Half::Value];
        Ok((0..self.shape.layers)
            .flat_map(|layer| halves.map(|half| self.offset(layer, half, page, start)))
            .map(|at| at..at + tokens * self.width())
            .collect())
    }

    fn width(&self) -> usize {
        self.shape.kv_heads * self.shape.head_size
    }

    fn offset(&self, layer: usize, half: Half, page: u32, token: usize) -> usize {
        let plane = (page as usize * self.shape.layers + layer) * 2 + usize::from(half == Half::Value);
        (plane * self.page_tokens + token) * self.width()
    }
}

/// Whether tokens `start .. start + tokens` lie inside page `page` of a pool.
///
/// # Errors
/// When they do not.
pub fn check_span(pages: usize, page_tokens: usize, page: u32, start: usize, tokens: usize) -> Result<(), Fault> {
    if page as usize >= pages {
        return Err(Fault::new("kv page", format!("below {pages}"), page.to_string()));
    }
    if start.checked_add(tokens).is_none_or(|end| end > page_tokens) {
        let found = format!("{tokens} tokens from {start}");
        return Err(Fault::new("kv span", format!("inside a page of {page_tokens} tokens"), found));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(dtype: DType) -> KvPool {
        KvPool::new(KvShape { layers: 2, kv_heads: 1, head_size: 2, dtype }, 3, 4).unwrap()
    }

    #[test]
    fn bytes_are_layer_by_layer_keys_then_values() {
        for dtype in [DType::F32, DType::BF16] {
            let mut p = pool(dtype);
            let mut n = 0.0;
            for layer in 0..2 {
                for half in [Half::Key, Half::Value] {
                    for token in 1..3 {
                        p.store(layer, half, 2, token, &[n, n + 1.0]);
                        n += 2.0;
                    }
                }
            }
            let bytes = p.read(2, 1, 2).unwrap();
            assert_eq!(bytes.len(), 2 * p.shape().token_bytes());
            let numbers: Vec<f32> = match dtype {
                DType::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
                _ => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            };
            assert_eq!(numbers, (0..16).map(|i| i as f32).collect::<Vec<_>>());
            let mut q = pool(dtype);
            q.write(0, 2, 2, &bytes).unwrap();
            assert_eq!(q.token(1, Half::Value, 0, 3), p.token(1, Half::Value, 2, 2));
            assert!(q.token(1, Half::Value, 0, 1)[0].is_nan(), "neighbours are untouched");
        }
    }

    #[test]
    fn bf16_pools_round_when_they_store() {
        let mut p = pool(DType::BF16);
        p.store(0, Half::Key, 0, 0, &[1.0 + 2f32.powi(-8), -1.0 - 3.0 * 2f32.powi(-8)]);
        assert_eq!(p.token(0, Half::Key, 0, 0), &[1.0, -1.0 - 2f32.powi(-6)]);
    }

    #[test]
    fn spans_outside_a_page_are_refused() {
        let mut p = pool(DType::F32);
        for (page, start, tokens) in [(3, 0, 1), (0, 4, 1), (0, 3, 2), (0, usize::MAX, 2), (0, 0, usize::MAX)] {
            assert!(p.read(page, start, tokens).is_err(), "{page} {start} {tokens}");
        }
        assert!(p.write(0, 0, 1, &[0; 31]).is_err());
        assert!(KvPool::new(KvShape { dtype: DType::F16, ..p.shape() }, 1, 1).is_err());
        assert!(KvPool::new(p.shape(), 0, 1).is_err());
        assert!(KvPool::new(p.shape(), usize::MAX, 2).is_err());
    }
}
