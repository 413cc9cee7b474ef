//! Sizes of the processor's caches, from the system or from the processor itself.

use crate::files::{SystemFiles, parse_list};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tare_core::Reading;

/// One level of cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// Size of one instance in bytes.
    pub bytes_each: u64,
    /// How many instances the online CPUs share among them.
    pub instances: u64,
}

impl Cache {
    /// All instances together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes_each * self.instances
    }
}

/// The data caches of this host. A virtual machine may be told the size of a whole socket's L3 of which it gets a
/// part; there is no way to know from inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caches {
    /// First level, data.
    pub l1_data: Reading<Cache>,
    /// Second level.
    pub l2: Reading<Cache>,
    /// Third level.
    pub l3: Reading<Cache>,
}

impl Caches {
    /// By `/sys/devices/system/cpu`, and by CPUID where that has nothing (an x86 processor only).
    pub(crate) fn read_from(files: &SystemFiles, threads: usize) -> Self {
        let of = |level: u64| match from_sysfs(files, level) {
            Ok(cache) => Reading::Available(cache),
            Err(why) => match from_processor(level, threads) {
                Some(cache) => Reading::Available(cache),
                None => Reading::unavailable(why),
            },
        };
        Self { l1_data: of(1), l2: of(2), l3: of(3) }
    }
}

/// The cache of `level` that holds data, by the lists of CPUs that share each instance.
fn from_sysfs(files: &SystemFiles, level: u64) -> Result<Cache, String> {
    let mut sharers = BTreeSet::new();
    let mut bytes_each = 0;
    for cpu in files.names("sys/devices/system/cpu").iter().filter(|name| is_cpu(name)) {
        let folder = format!("sys/devices/system/cpu/{cpu}/cache");
        for index in files.names(&folder).iter().filter(|name| name.starts_with("index")) {
            let at = |name: &str| format!("{folder}/{index}/{name}");
            if files.number(at("level")) != Ok(level) || files.text(at("type"))? == "Instruction" {
                continue;
            }
            bytes_each = bytes_each.max(parse_size(&files.text(at("size"))?)?);
            sharers.insert(parse_list(&files.text(at("shared_cpu_list"))?)?);
        }
    }
    if sharers.is_empty() {
        return Err(format!("/sys/devices/system/cpu lists no data cache of level {level}"));
    }
    Ok(Cache { bytes_each, instances: sharers.len() as u64 })
}

/// `cpu0`, `cpu17`; not `cpufreq`.
fn is_cpu(name: &str) -> bool {
    name.strip_prefix("cpu").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Bytes of a size such as `32768K` or `2M`.
fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    bytes.filter(|&b| b > 0).ok_or_else(|| format!("expected a cache size such as 32K, found \"{text}\""))
}

/// Deterministic cache parameters (Intel SDM vol. 2A, CPUID leaf 4; AMD leaf 8000001D).
#[cfg(target_arch = "x86_64")]
fn from_processor(level: u64, threads: usize) -> Option<Cache> {
    let id = raw_cpuid::CpuId::new();
    let cache = id
        .get_cache_parameters()?
        .find(|c| u64::from(c.level()) == level && c.cache_type() != raw_cpuid::CacheType::Instruction)?;
    let bytes_each = (cache.associativity() * cache.physical_line_partitions() * cache.coherency_line_size()) as u64
        * cache.sets() as u64;
    let instances = threads.div_ceil(cache.max_cores_for_cache().max(1)) as u64;
    (bytes_each > 0).then_some(Cache { bytes_each, instances })
}

#[cfg(not(target_arch = "x86_64"))]
fn from_processor(_level: u64, _threads: usize) -> Option<Cache> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_counted_by_who_shares_them() {
        let dir = tempfile::tempdir().unwrap();
        for cpu in 0..4 {
            for (index, level, kind, size, list) in [
                (0, 1, "Data", "48K", format!("{cpu}")),
                (1, 1, "Instruction", "32K", format!("{cpu}")),
                (2, 2, "Unified", "2M", format!("{cpu}")),
                (3, 3, "Unified", "32768K", if cpu < 2 { "0-1".into() } else { "2-3".to_string() }),
            ] {
                let folder = dir.path().join(format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}"));
                std::fs::create_dir_all(&folder).unwrap();
                for (name, text) in [("level", level.to_string()), ("type", kind.into()), ("size", size.into())] {
                    std::fs::write(folder.join(name), text + "\n").unwrap();
                }
                std::fs::write(folder.join("shared_cpu_list"), list).unwrap();
            }
        }
        let caches = Caches::read_from(&SystemFiles::under(dir.path()), 4);
        assert_eq!(caches.l1_data, Reading::Available(Cache { bytes_each: 48 << 10, instances: 4 }));
        assert_eq!(caches.l2, Reading::Available(Cache { bytes_each: 2 << 20, instances: 4 }));
        assert_eq!(caches.l3, Reading::Available(Cache { bytes_each: 32 << 20, instances: 2 }));
        assert_eq!(caches.l3.available().unwrap().bytes(), 64 << 20);
    }

    #[test]
    fn sizes_have_units_and_are_never_zero() {
        assert_eq!(parse_size("2M"), Ok(2 << 20));
        assert_eq!(parse_size("512"), Ok(512));
        for bad in ["0K", "K", "", "-1K", "99999999999999999999G"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
