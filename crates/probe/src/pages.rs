//! In which pages memory of this process lies, as the kernel tells it.

use crate::files::{SystemFiles, field_bytes};
use std::ops::Range;
use tare_core::{PageUse, Reading};

/// Fields of a mapping in `/proc/self/smaps` that count bytes in huge pages.
const HUGE: [&str; 3] = ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"];

/// What became of the memory at the addresses `ranges`, which do not overlap.
///
/// The kernel counts by mappings. Of one that reaches beyond the ranges they get their share of its length: exact where
/// it lies in huge pages throughout or nowhere, an estimate between. Reads all mappings of the process, which takes about
/// a millisecond per gigabyte of small pages: for reports, not for steps.
pub fn page_use(ranges: &[Range<usize>]) -> Reading<PageUse> {
    read_from(&SystemFiles::live(), ranges)
}

fn read_from(files: &SystemFiles, ranges: &[Range<usize>]) -> Reading<PageUse> {
    files.text("proc/self/smaps").and_then(|text| among(&text, ranges)).into()
}

fn among(smaps: &str, ranges: &[Range<usize>]) -> Result<PageUse, String> {
    let mut sum = PageUse { bytes: ranges.iter().map(|r| r.len() as u64).sum(), ..PageUse::default() };
    // A mapping is a line `from-to permissions ...` and its fields, each on a line `Name: value`.
    let mut rest = smaps;
    while !rest.is_empty() {
        let (head, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let end =
            after.match_indices('\n').map(|(at, _)| at + 1).find(|at| bounds(first_line(&after[*at..])).is_some());
        let (fields, next) = after.split_at(end.unwrap_or(after.len()));
        rest = next;
        let Some(mapping) = bounds(head) else {
            return Err(format!("/proc/self/smaps: expected a line `from-to permissions ...`, found \"{head}\""));
        };
        let overlap = |r: &Range<usize>| r.end.min(mapping.end).saturating_sub(r.start.max(mapping.start));
        let ours: usize = ranges.iter().map(overlap).sum();
        if ours == 0 {
            continue;
        }
        let share = |bytes: u64| (u128::from(bytes) * ours as u128 / mapping.len().max(1) as u128) as u64;
        let resident = field_bytes(fields, "Rss").ok_or("this kernel does not report Rss of a mapping")?;
        let huge: Vec<u64> = HUGE.iter().filter_map(|key| field_bytes(fields, key)).collect();
        if huge.is_empty() {
            return Err(format!("this kernel reports none of {} of a mapping", HUGE.join(", ")));
        }
        sum.resident_bytes += share(resident);
        sum.huge_bytes += share(huge.iter().sum());
    }
    Ok(sum)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("")
}

/// The addresses of a mapping's first line.
fn bounds(line: &str) -> Option<Range<usize>> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    let address = |hex: &str| usize::from_str_radix(hex, 16).ok();
    Some(address(from)?..address(to)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
00400000-00500000 r-xp 00000000 08:02 17 /bin/tare
Rss:                1024 kB
AnonHugePages:         0 kB
FilePmdMapped:         0 kB
VmFlags: rd ex mr
40000000-40800000 rw-p 00000000 00:00 0
Size:               8192 kB
Rss:                8192 kB
AnonHugePages:      4096 kB
ShmemPmdMapped:        0 kB
FilePmdMapped:         0 kB
40800000-40c00000 r--p 00000000 08:02 18 /models/weights
Rss:                4096 kB
AnonHugePages:         0 kB
FilePmdMapped:      4096 kB
";

    #[test]
    fn a_range_gets_its_share_of_each_mapping_it_touches() {
        // The upper half of the anonymous mapping and all of the file.
        let got = among(SMAPS, &[0x4040_0000..0x4080_0000, 0x4080_0000..0x40c0_0000]).unwrap();
        assert_eq!(got, PageUse { bytes: 8 << 20, resident_bytes: 8 << 20, huge_bytes: 6 << 20 });
        let elsewhere = among(SMAPS, std::slice::from_ref(&(0x5000_0000..0x5000_1000))).unwrap();
        assert_eq!(elsewhere, PageUse { bytes: 4096, resident_bytes: 0, huge_bytes: 0 });
        assert_eq!(among(SMAPS, &[]).unwrap(), PageUse::default());
    }

    #[test]
    fn what_the_kernel_does_not_say_is_named() {
        let mapping = "40000000-40800000 rw-p 00000000 00:00 0\n";
        let whole = 0x4000_0000..0x4080_0000;
        let all = std::slice::from_ref(&whole);
        assert!(among(mapping, all).unwrap_err().contains("Rss"));
        assert!(among(&format!("{mapping}Rss: 4 kB\n"), all).unwrap_err().contains("AnonHugePages"));
        assert!(among("not a mapping\n", all).unwrap_err().contains("not a mapping"));
        let dir = tempfile::tempdir().unwrap();
        let none = read_from(&SystemFiles::under(dir.path()), all);
        assert!(none.available().is_none(), "{none:?}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_was_touched_is_resident() {
        // A mapping whose neighbours are its own: the kernel joins one to whatever other tests map beside it, and of such a
        // mapping only a share would be this test's.
        const BYTES: usize = 16 << 20;
        const GUARD: usize = 2 << 20;
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, wherever the kernel likes.
        let guard = unsafe { libc::mmap(std::ptr::null_mut(), BYTES + 2 * GUARD, libc::PROT_NONE, anonymous, -1, 0) };
        assert_ne!(guard, libc::MAP_FAILED);
        // SAFETY: inside the mapping, which nobody else knows of.
        let from = unsafe {
            let from = guard.byte_add(GUARD);
            assert_eq!(libc::mprotect(from, BYTES, libc::PROT_READ | libc::PROT_WRITE), 0);
            from.cast::<u8>().write_bytes(1, BYTES);
            from as usize
        };
        let got = page_use(std::slice::from_ref(&(from..from + BYTES))).available().copied().unwrap();
        assert_eq!((got.bytes, got.resident_bytes), (BYTES as u64, BYTES as u64), "{got:?}");
        let untouched = page_use(std::slice::from_ref(&(from - GUARD..from))).available().copied().unwrap();
        assert_eq!((untouched.bytes, untouched.resident_bytes), (GUARD as u64, 0));
        // SAFETY: the whole mapping, which nobody points into any more.
        assert_eq!(unsafe { libc::munmap(guard, BYTES + 2 * GUARD) }, 0);
    }
}
