//! Clocks that cost one system call at most, allocate nothing and are integers in nanoseconds.

#[cfg(not(unix))]
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
pub fn thread_cpu_ns() -> tare_core::Reading<u64> {
    cpu_clock(Scope::Thread)
}

/// CPU time of all threads of this process, in nanoseconds.
pub fn process_cpu_ns() -> tare_core::Reading<u64> {
    cpu_clock(Scope::Process)
}

#[derive(Clone, Copy)]
enum Scope {
    Thread,
    Process,
}

#[cfg(unix)]
fn cpu_clock(scope: Scope) -> tare_core::Reading<u64> {
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
