//! `paged`: pages of one bounded pool, allocated once at start.

use std::collections::BTreeMap;
use tare_ops::{Backend, KvId, Table};

use super::{Append, Storage, StorageShape};
use crate::counters::{CopyBytes, PoolUse};
use crate::error::CacheError;
use crate::pages::PagePool;
use crate::request::RequestId;

#[derive(Debug, Default)]
struct Sequence {
    pages: Vec<u32>,
    tokens: usize,
}

pub(super) struct Paged {
    kv: KvId,
    shape: StorageShape,
    pool: PagePool,
    sequences: BTreeMap<RequestId, Sequence>,
    copies: CopyBytes,
}

impl Paged {
    /// # Errors
    /// When the backend cannot hold the pool.
    pub(super) fn new(backend: &mut dyn Backend, shape: StorageShape) -> Result<Self, CacheError> {
        let kv = backend.alloc_kv(shape.token, shape.pages, shape.page_tokens)?;
        let capacity = u32::try_from(shape.pages).unwrap_or(u32::MAX);
        let (sequences, copies) = (BTreeMap::new(), CopyBytes::default());
        Ok(Self { kv, shape, pool: PagePool::new(capacity), sequences, copies })
    }

    fn get(&self, sequence: RequestId) -> Result<&Sequence, CacheError> {
        self.sequences.get(&sequence).ok_or(CacheError::Unknown(sequence))
    }

    /// Pages that a sequence lacks for `rows` more tokens.
    fn missing(&self, append: &Append) -> Result<usize, CacheError> {
        let s = self.get(append.sequence)?;
        Ok((s.tokens + append.rows).div_ceil(self.shape.page_tokens) - s.pages.len())
    }
}

impl Storage for Paged {
    fn open(&mut self, _: &mut dyn Backend, sequence: RequestId, _bound: usize) -> Result<(), CacheError> {
        self.sequences.entry(sequence).or_default();
        Ok(())
    }

    fn append(&mut self, _: &mut dyn Backend, appends: &[Append]) -> Result<(), CacheError> {
        let mut wanted = 0;
        for append in appends {
            wanted += self.missing(append)?;
        }
        self.pool.check_free(wanted)?;
        for append in appends {
            let missing = self.missing(append)?;
            let s = self.sequences.get_mut(&append.sequence).ok_or(CacheError::Unknown(append.sequence))?;
            self.pool.take(missing, &mut s.pages)?;
            s.tokens += append.rows;
            self.copies.slice_write += (append.rows * self.shape.token.token_bytes()) as u64;
        }
        Ok(())
    }

    fn rewind(&mut self, sequence: RequestId, tokens: usize) -> Result<(), CacheError> {
        let s = self.sequences.get_mut(&sequence).ok_or(CacheError::Unknown(sequence))?;
        if tokens > s.tokens {
            return Err(CacheError::Rewind { sequence, wanted: tokens, cached: s.tokens });
        }
        s.tokens = tokens;
        while s.pages.len() > tokens.div_ceil(self.shape.page_tokens)
            && let Some(page) = s.pages.pop()
        {
            self.pool.give_back(page)?;
        }
        Ok(())
    }

    fn close(&mut self, _: &mut dyn Backend, sequence: RequestId) -> Result<(), CacheError> {
        let Some(s) = self.sequences.remove(&sequence) else { return Ok(()) };
        // The first page is freed last, so that the next sequence starts on it.
        s.pages.into_iter().rev().try_for_each(|page| self.pool.give_back(page))
    }

    fn rename(&mut self, from: RequestId, to: RequestId) -> Result<(), CacheError> {
        let s = self.sequences.remove(&from).ok_or(CacheError::Unknown(from))?;
        self.sequences.insert(to, s);
        Ok(())
    }

    fn tokens(&self, sequence: RequestId) -> Result<usize, CacheError> {
        Ok(self.get(sequence)?.tokens)
    }

    fn table(&self, sequence: RequestId, table: &mut Table) -> Result<(), CacheError> {
        table.kv = self.kv;
        table.pages.clone_from(&self.get(sequence)?.pages);
        Ok(())
    }

    fn page_tokens(&self, _sequence: RequestId) -> Result<usize, CacheError> {
        Ok(self.shape.page_tokens)
    }

    fn copies(&self) -> CopyBytes {
        self.copies
    }

    fn pool(&self) -> PoolUse {
        PoolUse {
            page_tokens: self.shape.page_tokens,
            live: self.pool.live(),
            peak: self.pool.peak(),
            capacity: self.pool.capacity(),
        }
    }
}
