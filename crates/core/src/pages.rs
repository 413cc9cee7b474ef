//! How memory lies in pages.

use serde::{Deserialize, Serialize};

/// What became of some memory: how much of it is there, and how much of that in huge pages.
///
/// Where a page of 4 KiB needs its own entry in the processor's table of addresses, one of 2 MiB needs one for 512 times
/// as much: who streams through memory then seldom waits for addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageUse {
    /// How much was asked about.
    pub bytes: u64,
    /// The part that lies in memory now.
    pub resident_bytes: u64,
    /// The part that lies in huge pages, of whatever kind.
    pub huge_bytes: u64,
}

impl std::ops::AddAssign for PageUse {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.resident_bytes += other.resident_bytes;
        self.huge_bytes += other.huge_bytes;
    }
}
