//! How much of the KV pool a sequence claims: the arithmetic of each cache kind.

use tare_model::CacheKind;

/// A KV pool seen from the scheduler. Contiguous kinds count in pages of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// How keys and values are stored.
    pub kind: CacheKind,
    /// Tokens of a page; 1 for contiguous kinds.
    pub page_tokens: usize,
    /// Pages of the pool.
    pub pages: usize,
}

impl Space {
    /// Pages that a running sequence claims when `total` of its at most `limit` tokens are known.
    pub(super) fn claim(&self, total: usize, limit: usize) -> usize {
        match self.kind {
            CacheKind::Capacity => limit,
            CacheKind::Recompute | CacheKind::Concatenate => total,
            CacheKind::Paged => total.div_ceil(self.page_tokens),
        }
    }

    /// Pages that a request claims at its longest. The last token drawn is never stored.
    pub(super) fn longest(&self, prompt: usize, limit: usize) -> usize {
        self.claim(prompt.max(limit.saturating_sub(1)), limit)
    }

    /// Pages that a finished sequence holds with `cached` tokens stored.
    pub(super) fn kept(&self, cached: usize, limit: usize) -> usize {
        self.claim(cached, limit)
    }

    /// Of the pages of an adopted sequence, those that rewinding it does not free: a region stays as long as it was.
    pub(super) fn held(&self, pages: usize) -> usize {
        if self.kind == CacheKind::Paged { 0 } else { pages }
    }

    /// Tokens that storage is opened for.
    pub(super) fn bound(&self, total: usize, limit: usize) -> usize {
        if self.kind == CacheKind::Capacity { limit } else { total }
    }

    /// Pages by which a sequence can grow in a step.
    pub(super) fn growth(&self) -> usize {
        usize::from(self.kind != CacheKind::Capacity)
    }

    /// Whether anything outlives a token.
    pub(super) fn keeps(&self) -> bool {
        self.kind != CacheKind::Recompute
    }

    /// Whether each append makes storage anew, so that what was longer before is gone.
    pub(super) fn storage_is_remade(&self) -> bool {
        self.kind == CacheKind::Concatenate
    }
}
