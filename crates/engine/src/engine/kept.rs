//! Kept sequences: released, taken out of the engine, and brought in.

use super::Engine;
use crate::cache::{self, Append, ExportedKv};
use crate::error::{CacheError, EngineError};
use crate::request::{RequestId, Retained};
use tare_core::Fault;

impl Engine {
    /// Frees a kept sequence at the next step; one that is gone already is ignored.
    pub fn release_retained(&mut self, retained: Retained) {
        if self.scheduler.release(retained.request) {
            self.kept.remove(&retained.request);
            self.doomed.push(retained.request);
        }
    }

    /// A copy of a kept sequence's keys and values, to be stored or imported elsewhere.
    ///
    /// # Errors
    /// When it is gone or the backend cannot read.
    pub fn export_retained(&mut self, retained: Retained) -> Result<ExportedKv, EngineError> {
        let tokens = self.kept.get(&retained.request).ok_or(CacheError::Unknown(retained.request))?.clone();
        let bytes = cache::export(&*self.storage, &mut *self.backend, retained.request, self.kv)?;
        Ok(ExportedKv { tokens, shape: self.kv, bytes })
    }

    /// Brings a sequence in, as if a request had left it here. Only an engine with the same model, arithmetic class
    /// and plan of kernels computes on from it as if nothing had happened; the shape alone is checked.
    ///
    /// # Errors
    /// When the shape or the number of bytes does not fit, a token is outside the vocabulary, the pool has no room
    /// beside what runs and is kept, or the plan keeps nothing.
    pub fn import_retained(&mut self, kv: &ExportedKv) -> Result<Retained, EngineError> {
        self.free_doomed()?;
        if kv.shape != self.kv {
            return Err(Fault::new("KV shape", format!("{:?}", self.kv), format!("{:?}", kv.shape)).into());
        }
        let outside = kv.tokens.iter().find(|t| **t as usize >= self.vocabulary);
        if let Some(token) = outside {
            return Err(Fault::new("KV tokens", format!("ids below {}", self.vocabulary), token.to_string()).into());
        }
        let (expected, found) = (kv.tokens.len() * kv.shape.token_bytes(), kv.bytes.len());
        if expected != found || expected == 0 {
            return Err(CacheError::Bytes { expected, found }.into());
        }
        let id = RequestId(self.next_id);
        if !self.scheduler.import(id, kv.tokens.len()) {
            let free = self.space.pages.saturating_sub(self.scheduler.claimed());
            return Err(CacheError::NoRoom { tokens: kv.tokens.len(), free: free * self.space.page_tokens }.into());
        }
        self.next_id += 1;
        if let Err(e) = self.store(id, kv) {
            self.scheduler.release(id);
            self.storage.close(&mut *self.backend, id)?;
            return Err(e.into());
        }
        self.kept.insert(id, kv.tokens.clone());
        Ok(Retained { request: id })
    }

    fn store(&mut self, id: RequestId, kv: &ExportedKv) -> Result<(), CacheError> {
        let rows = kv.tokens.len();
        self.storage.open(&mut *self.backend, id, rows)?;
        self.storage.append(&mut *self.backend, &[Append { sequence: id, rows }])?;
        cache::import(&*self.storage, &mut *self.backend, id, kv)
    }
}
