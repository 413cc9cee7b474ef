//! Which processors this process may use, and pinning a thread to one of them.

use tare_core::Reading;

/// The processors that the process may run on, in rising order.
#[cfg(target_os = "linux")]
pub fn allowed() -> Reading<Vec<usize>> {
    let mut set = std::mem::MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: the kernel writes at most the size given into a set of that size.
    let rc = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) };
    if rc != 0 {
        return Reading::unavailable(format!("sched_getaffinity: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: zeroed is a valid set, and the call succeeded.
    let set = unsafe { set.assume_init() };
    let has = |cpu: usize| {
        // SAFETY: `cpu` is below CPU_SETSIZE.
        unsafe { libc::CPU_ISSET(cpu, &set) }
    };
    Reading::Available((0..libc::CPU_SETSIZE as usize).filter(|&c| has(c)).collect())
}

/// The processors that the process may run on, in rising order.
#[cfg(not(target_os = "linux"))]
pub fn allowed() -> Reading<Vec<usize>> {
    Reading::unavailable("this operating system has no sched_getaffinity")
}

/// Lets the calling thread run on processor `cpu` alone.
///
/// # Errors
/// The operating system's reason.
#[cfg(target_os = "linux")]
pub fn pin(cpu: usize) -> Result<(), String> {
    let mut set = std::mem::MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: a zeroed set is valid; CPU_SET panics when `cpu` lies outside of it.
    let rc = unsafe {
        libc::CPU_SET(cpu, set.assume_init_mut());
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set.as_ptr())
    };
    if rc == 0 { Ok(()) } else { Err(format!("sched_setaffinity: {}", std::io::Error::last_os_error())) }
}

/// Lets the calling thread run on processor `cpu` alone.
///
/// # Errors
/// Always: there is no such call here.
#[cfg(not(target_os = "linux"))]
pub fn pin(_cpu: usize) -> Result<(), String> {
    Err("this operating system cannot pin threads".to_string())
}
