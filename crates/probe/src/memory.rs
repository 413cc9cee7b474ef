//! How much memory this process occupies, split by what backs it.

use crate::files::{SystemFiles, field_bytes};
use serde::{Deserialize, Serialize};
use tare_core::Reading;

/// Resident memory of this process in bytes.
///
/// A memory-mapped model counts as file pages, which the system can drop and read again; packed weights, KV pages and
/// buffers are anonymous. Only the sum of both says what a model costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResidentMemory {
    /// All resident pages (`VmRSS`).
    pub total_bytes: Reading<u64>,
    /// Pages without a file behind them (`RssAnon`).
    pub anonymous_bytes: Reading<u64>,
    /// Pages of mapped files (`RssFile`).
    pub file_bytes: Reading<u64>,
    /// Shared memory and tmpfs pages (`RssShmem`).
    pub shared_bytes: Reading<u64>,
    /// The largest `total_bytes` since the process began (`VmHWM`).
    pub peak_bytes: Reading<u64>,
    /// The part of `anonymous_bytes` that lies in transparent huge pages (`AnonHugePages`).
    pub huge_bytes: Reading<u64>,
    /// This process's part of its pages, shared ones divided by the number of sharers (`Pss`).
    pub proportional_bytes: Reading<u64>,
    /// Anonymous pages swapped out (`Swap`).
    pub swapped_bytes: Reading<u64>,
}

impl ResidentMemory {
    /// The state now. Reads two files of `/proc/self`; the second makes the kernel walk the page tables, which takes
    /// about a millisecond per gigabyte of small pages, so this belongs between requests.
    pub fn read() -> Self {
        Self::read_from(&SystemFiles::live())
    }

    fn read_from(files: &SystemFiles) -> Self {
        let status = files.text("proc/self/status");
        let rollup = files.text("proc/self/smaps_rollup");
        let of = |text: &Result<String, String>, key: &str| match text {
            Err(why) => Reading::unavailable(why.as_str()),
            Ok(text) => match field_bytes(text, key) {
                Some(bytes) => Reading::Available(bytes),
                None => Reading::unavailable(format!("this kernel does not report {key}")),
            },
        };
        Self {
            total_bytes: of(&status, "VmRSS"),
            anonymous_bytes: of(&status, "RssAnon"),
            file_bytes: of(&status, "RssFile"),
            shared_bytes: of(&status, "RssShmem"),
            peak_bytes: of(&status, "VmHWM"),
            huge_bytes: of(&rollup, "AnonHugePages"),
            proportional_bytes: of(&rollup, "Pss"),
            swapped_bytes: of(&rollup, "Swap"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_touched_buffer_shows_up_as_anonymous_memory() {
        let before = ResidentMemory::read();
        let buffer = vec![0x5Au8; 64 << 20];
        let after = ResidentMemory::read();
        let grown = after.anonymous_bytes.available().unwrap() - before.anonymous_bytes.available().unwrap();
        // Other tests of this binary may free or take a few megabytes meanwhile.
        assert!(grown > 48 << 20, "64 MiB touched, {grown} bytes more");
        assert!(after.peak_bytes.available() >= after.total_bytes.available());
        assert_eq!(buffer[buffer.len() - 1], 0x5A);
    }

    #[test]
    fn missing_files_and_fields_are_named_not_zero() {
        let dir = tempfile::tempdir().unwrap();
        let none = ResidentMemory::read_from(&SystemFiles::under(dir.path()));
        assert!(none.total_bytes.to_string().starts_with("unavailable: /proc/self/status:"), "{}", none.total_bytes);

        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        std::fs::write(dir.path().join("proc/self/status"), "VmHWM:\t  20 kB\nVmRSS:\t  10 kB\n").unwrap();
        let some = ResidentMemory::read_from(&SystemFiles::under(dir.path()));
        assert_eq!(some.total_bytes, Reading::Available(10 * 1024));
        assert_eq!(some.peak_bytes, Reading::Available(20 * 1024));
        assert!(some.anonymous_bytes.to_string().contains("RssAnon"), "{}", some.anonymous_bytes);
    }
}
