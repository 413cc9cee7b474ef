//! Clocks that cost one system call at most, allocate nothing and are integers in nanoseconds.

use crate::files::SystemFiles;
use tare_core::Reading;

/// Nanoseconds of a clock that never goes back and is not adjusted by hand. Its zero is arbitrary; only differences
/// within one boot mean something.
pub fn monotonic_ns() -> u64 {
    #[cfg(unix)]
    {
        // CLOCK_MONOTONIC exists on every Unix that Rust runs on, so a refusal would be a broken system; 0 then makes
        // differences 0 instead of wild.
        read(libc::CLOCK_MONOTONIC).unwrap_or(0)
    }
    #[cfg(not(unix))]
    {
        use std::sync::OnceLock;
        use std::time::Instant;
        static ZERO: OnceLock<Instant> = OnceLock::new();
        u64::try_from(ZERO.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// CPU time that the calling thread has used, user and system together, in nanoseconds. Called from the main thread
/// it is the main thread's cost of dispatch (`main_thread_cpu_ns`).
pub fn thread_cpu_ns() -> Reading<u64> {
    cpu_clock(Scope::Thread)
}

/// CPU time of all threads of this process, in nanoseconds.
pub fn process_cpu_ns() -> Reading<u64> {
    cpu_clock(Scope::Process)
}

/// How long ago the system started this process, in nanoseconds, to one tick of its own (10 ms).
pub fn process_age_ns() -> Reading<u64> {
    age(&SystemFiles::live()).into()
}

#[cfg(target_os = "linux")]
fn age(files: &SystemFiles) -> Result<u64, String> {
    let stat = files.text("proc/self/stat")?;
    let started =
        started_ticks(&stat).ok_or_else(|| format!("/proc/self/stat: expected 22 fields, found \"{stat}\""))?;
    // SAFETY: sysconf reads a constant of the system.
    let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let tick_ns = 1_000_000_000u64.checked_div(ticks_per_second as u64).ok_or("the system has no ticks")?;
    let now = read(libc::CLOCK_BOOTTIME).map_err(|e| e.to_string())?;
    Ok(now.saturating_sub(started * tick_ns))
}

#[cfg(not(target_os = "linux"))]
fn age(_: &SystemFiles) -> Result<u64, String> {
    Err("the start of a process is read from /proc/self/stat, which this system lacks".to_string())
}

/// Field 22 of `/proc/self/stat`, the start in ticks since boot: the name in field 2 may have spaces and brackets of its own.
#[cfg(target_os = "linux")]
fn started_ticks(stat: &str) -> Option<u64> {
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_whitespace().nth(22 - 3)?.parse().ok()
}

#[derive(Clone, Copy)]
enum Scope {
    Thread,
    Process,
}

#[cfg(unix)]
fn cpu_clock(scope: Scope) -> Reading<u64> {
    let id = match scope {
        Scope::Thread => libc::CLOCK_THREAD_CPUTIME_ID,
        Scope::Process => libc::CLOCK_PROCESS_CPUTIME_ID,
    };
    read(id).into()
}

#[cfg(not(unix))]
fn cpu_clock(scope: Scope) -> Reading<u64> {
    let of = match scope {
        Scope::Thread => "a thread",
        Scope::Process => "the process",
    };
    Reading::unavailable(format!("CPU time of {of} is read through clock_gettime, which this system lacks"))
}

#[cfg(unix)]
fn read(id: libc::clockid_t) -> Result<u64, std::io::Error> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec of ours for the length of the call.
    let status = unsafe { libc::clock_gettime(id, &raw mut time) };
    if status != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // Both fields are non-negative for these clocks; the cast keeps platforms with 32-bit time fields compiling.
    Ok((time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_go_back() {
        let mut last = monotonic_ns();
        for _ in 0..10_000 {
            let now = monotonic_ns();
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_is_as_old_as_its_start_says() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 4321 1000 10 18446744073709551615";
        assert_eq!(started_ticks(stat), Some(4321));
        assert_eq!(started_ticks("7 (a) S 1"), None);
        let before = *process_age_ns().available().unwrap();
        let began = monotonic_ns();
        while monotonic_ns() - began < 30_000_000 {
            std::hint::spin_loop();
        }
        let grown = *process_age_ns().available().unwrap() - before;
        assert!(grown >= 29_000_000, "{grown} ns in more than 30 ms");
        assert!(before < 3_600_000_000_000, "a test process is no hour old: {before}");
    }

    #[test]
    #[cfg(unix)]
    fn work_is_charged_to_its_thread_and_to_the_process() {
        let main_before = *thread_cpu_ns().available().unwrap();
        let process_before = *process_cpu_ns().available().unwrap();
        let worker = std::thread::spawn(|| {
            let start = *thread_cpu_ns().available().unwrap();
            // Spins by CPU time, not by wall time, so that a busy machine cannot starve the claim.
            while thread_cpu_ns().available().unwrap() - start < 20_000_000 {
                std::hint::spin_loop();
            }
            thread_cpu_ns().available().unwrap() - start
        });
        let spent = worker.join().unwrap();
        let process_spent = process_cpu_ns().available().unwrap() - process_before;
        let main_spent = thread_cpu_ns().available().unwrap() - main_before;
        assert!(process_spent >= spent, "process {process_spent} thread {spent}");
        assert!(main_spent < spent, "waiting must not be charged: {main_spent} against {spent}");
    }
}
