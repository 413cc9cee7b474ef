//! On which CPUs this process may run, and pinning a thread to one of them.

use tare_core::Reading;

/// The CPUs that the calling thread may run on, in rising order.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn allowed_cpus() -> Reading<Vec<usize>> {
    // SAFETY: cpu_set_t is a plain bit array, for which all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours, lives across the call and has the length that is stated.
    let status = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if status != 0 {
        return Reading::unavailable(format!("sched_getaffinity: {}", std::io::Error::last_os_error()));
    }
    let limit = 8 * size_of::<libc::cpu_set_t>();
    // SAFETY: every index is below the number of bits in the set.
    Reading::Available((0..limit).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

/// The CPUs that the calling thread may run on, in rising order.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn allowed_cpus() -> Reading<Vec<usize>> {
    Reading::unavailable("this system does not bind threads to CPUs")
}

/// Binds the calling thread to one CPU.
///
/// # Errors
/// A sentence when the system refuses (the CPU is offline or outside the process's set) or has no such call. The
/// thread then goes on unbound.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn pin_current_thread(cpu: usize) -> Result<(), String> {
    if cpu >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(format!("CPU {cpu} is beyond what one CPU set can name"));
    }
    // SAFETY: cpu_set_t is a plain bit array, for which all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the index was checked against the number of bits in the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is ours, lives across the call and has the length that is stated.
    let status = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if status == 0 { Ok(()) } else { Err(format!("binding to CPU {cpu}: {}", std::io::Error::last_os_error())) }
}

/// Binds the calling thread to one CPU.
///
/// # Errors
/// Always here: the system has no such call. The thread goes on unbound.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn pin_current_thread(_cpu: usize) -> Result<(), String> {
    Err("this system does not bind threads to CPUs".to_string())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_run_on_its_cpu_alone() {
        let all = allowed_cpus().available().cloned().unwrap();
        let last = *all.last().unwrap();
        // A thread of its own, so that the test runner's thread keeps its set.
        let seen = std::thread::spawn(move || {
            pin_current_thread(last).unwrap();
            allowed_cpus()
        });
        assert_eq!(seen.join().unwrap(), Reading::Available(vec![last]));
        assert!(pin_current_thread(usize::MAX).is_err());
    }
}
