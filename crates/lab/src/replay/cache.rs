//! Copies of the weights: how many make a replay cold.

use serde::{Deserialize, Serialize};
use tare_core::units::human_bytes;
use tare_core::{Fault, Reading};
use tare_probe::Host;

use super::Warmth;

/// Share of the memory that is available which copies may take.
const MEMORY_SHARE: f64 = 0.8;

/// How many copies of the weights take turns, against which cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Copies {
    /// The one of the engine included.
    pub count: usize,
    /// Bytes of the weights of one copy.
    pub weight_bytes: u64,
    /// Bytes of the last-level cache.
    pub cache_bytes: Reading<u64>,
}

impl Copies {
    /// The copies that `warmth` takes for a step that streams `streamed_bytes`. Cold means that twice the cache is read
    /// between two readings of one byte: a cache need not forget the oldest line first.
    ///
    /// # Errors
    /// When a cold replay is asked for and the size of the cache is unknown, or memory does not suffice.
    pub(super) fn of(
        warmth: Warmth,
        weight_bytes: u64,
        (streamed_bytes, members): (u64, usize),
        host: &Host,
    ) -> Result<Self, Fault> {
        let caches = &host.cpu.caches;
        let level = [&caches.l3, &caches.l2].into_iter().find_map(|c| c.available());
        let why = || "neither L3 nor L2 of this host is known".to_string();
        let cache_bytes = level.map_or_else(|| Reading::unavailable(why()), |c| Reading::Available(c.bytes()));
        let warm = Self { count: 1, weight_bytes, cache_bytes };
        if warmth == Warmth::Warm {
            return Ok(warm);
        }
        warm.cold(streamed_bytes, members, host.memory.available_bytes.available().copied())
    }

    /// A copy is read by every `count`-th run only. The step, the traced step and the groups together stream three times
    /// the bytes of the step in a turn of `members` runs.
    fn cold(self, streamed_bytes: u64, members: usize, memory_bytes: Option<u64>) -> Result<Self, Fault> {
        let cache = match &self.cache_bytes {
            Reading::Available(bytes) => *bytes,
            Reading::Unavailable { why } => {
                return Err(Fault::new("--cold", "a last-level cache of known size", why.clone()));
            }
        };
        if streamed_bytes >= 2 * cache {
            return Ok(self);
        }
        let count = (2 * cache * members as u64).div_ceil(3 * streamed_bytes.max(1)) + 1;
        let needed = (count - 1).saturating_mul(self.weight_bytes);
        let most = memory_bytes.map_or(u64::MAX, |m| (m as f64 * MEMORY_SHARE) as u64);
        if needed > most {
            let expected = format!("{} for {count} copies of the weights", human_bytes(needed));
            let found = format!("{} of the memory that is available", human_bytes(most));
            return Err(Fault::new("--cold", expected, found).remedy("use --warm, or a host with more memory"));
        }
        Ok(Self { count: count as usize, ..self })
    }

    /// What may be said of a group that reads `bytes` in a step that streams `streamed_bytes`.
    pub(super) fn standing(&self, bytes: u64, streamed_bytes: u64) -> String {
        let Reading::Available(cache) = &self.cache_bytes else { return "cache of unknown size".into() };
        let size = human_bytes(*cache);
        match bytes {
            0 => "reads no weights or cache".into(),
            b if b > *cache => format!("cold: its {} exceed the {size} cache", human_bytes(b)),
            _ if self.count > 1 => format!("cold: {} copies take turns", self.count),
            _ if streamed_bytes > *cache => {
                format!("cold: a step streams {} between two of its runs", human_bytes(streamed_bytes))
            }
            _ => format!("warm: all that a step streams stays in the {size} cache"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies(weight_bytes: u64) -> Copies {
        Copies { count: 1, weight_bytes, cache_bytes: Reading::Available(32 << 20) }
    }

    #[test]
    fn cold_reads_twice_the_cache_between_two_readings_of_a_byte() {
        let cold = |bytes| copies(bytes).cold(bytes, 15, Some(1 << 40)).unwrap().count as u64;
        assert_eq!(cold(64 << 20), 1, "the weights alone exceed it");
        for bytes in [1 << 20, 32 << 20] {
            let between = (cold(bytes) - 1) * 3 * bytes / 15;
            assert!(between >= 64 << 20, "{bytes} bytes: {between} between");
        }
    }

    #[test]
    fn cold_is_refused_where_memory_or_knowledge_lacks() {
        let e = copies(1 << 20).cold(1 << 20, 15, Some(70 << 20)).unwrap_err().to_string();
        assert!(e.contains("320.00 MiB for 321 copies") && e.contains("--warm"), "{e}");
        let blind = Copies { cache_bytes: Reading::unavailable("no such file"), ..copies(1) };
        let e = blind.cold(1, 15, None).unwrap_err().to_string();
        assert!(e.contains("no such file"), "{e}");
    }

    #[test]
    fn a_group_is_called_warm_only_when_all_that_the_step_streams_fits() {
        let c = copies(0);
        assert!(c.standing(40 << 20, 100 << 20).starts_with("cold: its 40.00 MiB exceed"));
        assert!(c.standing(1 << 20, 100 << 20).starts_with("cold: a step streams 100.00 MiB"));
        assert!(c.standing(1 << 20, 8 << 20).starts_with("warm"));
        assert!(Copies { count: 9, ..copies(0) }.standing(1 << 20, 8 << 20).starts_with("cold: 9 copies"));
        assert_eq!(c.standing(0, 8 << 20), "reads no weights or cache");
    }
}
