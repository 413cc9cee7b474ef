//! What the engine has done so far, in numbers that can be checked.

use serde::{Deserialize, Serialize};

/// Bytes that KV storage moved, cumulative over rewinds, resets and sequences.
///
/// They count what the storage kind asks for, not DRAM traffic. `t` is the bytes of a token's keys and values in all
/// layers ([`tare_ops::KvShape::token_bytes`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyBytes {
    /// Old tokens copied because the cache grows by concatenation: an append to `n` cached tokens copies `n * t`.
    pub logical_copy: u64,
    /// Old tokens copied because a region that was allocated once turned out too small: only a kept sequence that is
    /// resumed by a longer request causes it under `capacity`; nothing does under `paged`.
    pub physical_growth_copy: u64,
    /// New tokens written into their place: `n * t` for `n` rows.
    pub slice_write: u64,
}

impl CopyBytes {
    /// All bytes of old tokens copied so that a cache could grow.
    pub const fn growth_copy(&self) -> u64 {
        self.logical_copy + self.physical_growth_copy
    }
}

/// How full the KV pool is. A page has one token where storage is contiguous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolUse {
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Pages that sequences hold, kept ones included.
    pub live: usize,
    /// The most that were ever held at once, before any staging copy of a growing region.
    pub peak: usize,
    /// Pages in the pool.
    pub capacity: usize,
}

/// Cumulative counters of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Bytes that KV storage moved.
    pub copies: CopyBytes,
    /// How full the pool is now.
    pub pool: PoolUse,
    /// Forward steps taken.
    pub steps: u64,
    /// Rows computed by the layers.
    pub layer_rows: u64,
    /// Rows computed by the head.
    pub head_rows: u64,
    /// Sequences whose pages were taken away to let an older one go on; each is computed again.
    pub preemptions: u64,
    /// Kept sequences that were dropped for space.
    pub evictions: u64,
}
