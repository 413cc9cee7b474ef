//! `recompute`, `concatenate` and `capacity`: one region for each sequence, a pool of its own with a single page.

use std::collections::BTreeMap;
use tare_ops::{Backend, KvId, KvSpan, Table};

use super::{Append, Storage, StorageShape};
use crate::counters::{CopyBytes, PoolUse};
use crate::error::CacheError;
use crate::request::RequestId;

/// When a region is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// Once, with room for the bound it was opened with. `capacity` opens with prompt and output; `recompute` opens
    /// anew for each token, with what that pass needs.
    Bound,
    /// At each append, exactly as long as the tokens then are.
    Concatenate,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    kv: KvId,
    capacity: usize,
}

impl Region {
    fn start(self, tokens: usize) -> KvSpan {
        KvSpan { kv: self.kv, page: 0, start: 0, tokens }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Sequence {
    region: Option<Region>,
    tokens: usize,
}

impl Sequence {
    fn capacity(&self) -> usize {
        self.region.map_or(0, |r| r.capacity)
    }
}

pub(super) struct Contiguous {
    shape: StorageShape,
    growth: Growth,
    sequences: BTreeMap<RequestId, Sequence>,
    copies: CopyBytes,
    live: usize,
    peak: usize,
}

impl Contiguous {
    pub(super) fn new(shape: StorageShape, growth: Growth) -> Self {
        Self { shape, growth, sequences: BTreeMap::new(), copies: CopyBytes::default(), live: 0, peak: 0 }
    }

    fn get(&self, sequence: RequestId) -> Result<Sequence, CacheError> {
        self.sequences.get(&sequence).copied().ok_or(CacheError::Unknown(sequence))
    }

    fn bytes(&self, tokens: usize) -> u64 {
        (tokens * self.shape.token.token_bytes()) as u64
    }

    /// A region of `capacity` tokens that starts with the sequence's tokens. The old region still stands.
    fn copy_out(&self, backend: &mut dyn Backend, s: Sequence, capacity: usize) -> Result<Region, CacheError> {
        let region = Region { kv: backend.alloc_kv(self.shape.token, 1, capacity)?, capacity };
        if let Some(old) = s.region
            && s.tokens > 0
            && let Err(e) = backend.copy_kv(old.start(s.tokens), region.start(s.tokens))
        {
            backend.free_kv(region.kv)?;
            return Err(e.into());
        }
        Ok(region)
    }

    /// Puts `region` in the place of the old one, which is freed.
    fn replace(&mut self, backend: &mut dyn Backend, id: RequestId, region: Region) -> Result<(), CacheError> {
        let s = self.sequences.entry(id).or_default();
        let old = s.region.replace(region);
        self.live += region.capacity;
        if let Some(old) = old {
            self.live -= old.capacity;
            backend.free_kv(old.kv)?;
        }
        self.peak = self.peak.max(self.live);
        Ok(())
    }

    /// New regions for a step, made before any old one is given up.
    fn grown(&self, backend: &mut dyn Backend, appends: &[Append]) -> Result<Vec<Region>, CacheError> {
        let mut regions: Vec<Region> = Vec::with_capacity(appends.len());
        for append in appends {
            let made = self.get(append.sequence).and_then(|s| self.copy_out(backend, s, s.tokens + append.rows));
            match made {
                Ok(region) => regions.push(region),
                Err(e) => {
                    for region in regions {
                        backend.free_kv(region.kv)?;
                    }
                    return Err(e);
                }
            }
        }
        Ok(regions)
    }

    fn check_capacity(&self, append: &Append) -> Result<(), CacheError> {
        let s = self.get(append.sequence)?;
        let (sequence, capacity, wanted) = (append.sequence, s.capacity(), s.tokens + append.rows);
        if wanted <= capacity { Ok(()) } else { Err(CacheError::Overflow { sequence, capacity, wanted }) }
    }
}

impl Storage for Contiguous {
    fn open(&mut self, backend: &mut dyn Backend, sequence: RequestId, bound: usize) -> Result<(), CacheError> {
        let s = self.sequences.get(&sequence).copied().unwrap_or_default();
        if self.growth == Growth::Concatenate || s.capacity() >= bound {
            self.sequences.entry(sequence).or_default();
            return Ok(());
        }
        let region = self.copy_out(backend, s, bound)?;
        self.copies.physical_growth_copy += self.bytes(s.tokens);
        self.replace(backend, sequence, region)
    }

    fn append(&mut self, backend: &mut dyn Backend, appends: &[Append]) -> Result<(), CacheError> {
        if self.growth == Growth::Bound {
            appends.iter().try_for_each(|a| self.check_capacity(a))?;
        } else {
            let regions = self.grown(backend, appends)?;
            for (append, region) in appends.iter().zip(regions) {
                self.copies.logical_copy += self.bytes(self.get(append.sequence)?.tokens);
                self.replace(backend, append.sequence, region)?;
            }
        }
        for append in appends {
            let s = self.sequences.get_mut(&append.sequence).ok_or(CacheError::Unknown(append.sequence))?;
            s.tokens += append.rows;
            self.copies.slice_write += self.bytes(append.rows);
        }
        Ok(())
    }

    fn rewind(&mut self, sequence: RequestId, tokens: usize) -> Result<(), CacheError> {
        let s = self.sequences.get_mut(&sequence).ok_or(CacheError::Unknown(sequence))?;
        if tokens > s.tokens {
            return Err(CacheError::Rewind { sequence, wanted: tokens, cached: s.tokens });
        }
        s.tokens = tokens;
        Ok(())
    }

    fn close(&mut self, backend: &mut dyn Backend, sequence: RequestId) -> Result<(), CacheError> {
        if let Some(region) = self.sequences.remove(&sequence).and_then(|s| s.region) {
            self.live -= region.capacity;
            backend.free_kv(region.kv)?;
        }
        Ok(())
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
        table.pages.clear();
        if let Some(region) = self.get(sequence)?.region {
            table.kv = region.kv;
            table.pages.push(0);
        }
        Ok(())
    }

    fn page_tokens(&self, sequence: RequestId) -> Result<usize, CacheError> {
        Ok(self.get(sequence)?.capacity())
    }

    fn copies(&self) -> CopyBytes {
        self.copies
    }

    fn pool(&self) -> PoolUse {
        PoolUse { page_tokens: 1, live: self.live, peak: self.peak, capacity: self.shape.pages }
    }
}
