//! On which CPUs this process may run, and binding a thread to one of them, for good or for a while.

#[cfg(any(target_os = "linux", target_os = "android"))]
pub use system::{Bound, allowed_cpus, pin_current_thread};

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub use nowhere::{Bound, allowed_cpus, pin_current_thread};

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use std::io::Error;
    use std::marker::PhantomData;

    use tare_core::Reading;

    /// CPUs that one set can name.
    const LIMIT: usize = 8 * size_of::<libc::cpu_set_t>();

    fn own_set() -> Result<libc::cpu_set_t, Error> {
        // SAFETY: cpu_set_t is a plain bit array, for which all zeros is the empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is ours, lives across the call and has the length that is stated.
        let status = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
        if status == 0 { Ok(set) } else { Err(Error::last_os_error()) }
    }

    fn run_on(set: &libc::cpu_set_t) -> Result<(), Error> {
        // SAFETY: the set lives across the call and has the length that is stated.
        let status = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) };
        if status == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }

    fn only(cpu: usize) -> Result<libc::cpu_set_t, String> {
        if cpu >= LIMIT {
            return Err(format!("CPU {cpu} is beyond what one CPU set can name"));
        }
        // SAFETY: cpu_set_t is a plain bit array, for which all zeros is the empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the index was checked against the number of bits in the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
        Ok(set)
    }

    /// The CPUs that the calling thread may run on, in rising order.
    pub fn allowed_cpus() -> Reading<Vec<usize>> {
        match own_set() {
            // SAFETY: every index is below the number of bits in the set.
            Ok(set) => Reading::Available((0..LIMIT).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()),
            Err(e) => Reading::unavailable(format!("sched_getaffinity: {e}")),
        }
    }

    /// Binds the calling thread to one CPU.
    ///
    /// # Errors
    /// A sentence when the system refuses: the CPU is offline or outside the process's set. The thread then goes on
    /// unbound.
    pub fn pin_current_thread(cpu: usize) -> Result<(), String> {
        run_on(&only(cpu)?).map_err(|e| format!("binding to CPU {cpu}: {e}"))
    }

    /// The thread that made it is bound to one CPU as long as it lives, and then has the CPUs again that it had.
    #[derive(Debug)]
    pub struct Bound {
        before: libc::cpu_set_t,
        /// It is about the thread that it was made on.
        _here: PhantomData<*const ()>,
    }

    impl Bound {
        /// Binds the calling thread to `cpu`; `None` where it may not run there or the system refuses: it then goes on as it was.
        pub fn here(cpu: usize) -> Option<Self> {
            let (before, only) = (own_set().ok()?, only(cpu).ok()?);
            // SAFETY: the index was checked against the number of bits in the set.
            let may = unsafe { libc::CPU_ISSET(cpu, &before) };
            (may && run_on(&only).is_ok()).then_some(Self { before, _here: PhantomData })
        }
    }

    impl Drop for Bound {
        fn drop(&mut self) {
            // What it had may have gone offline meanwhile: then it stays where it is.
            let _ = run_on(&self.before);
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod nowhere {
    use tare_core::Reading;

    const WHY: &str = "this system does not bind threads to CPUs";

    /// The CPUs that the calling thread may run on: unavailable here.
    pub fn allowed_cpus() -> Reading<Vec<usize>> {
        Reading::unavailable(WHY)
    }

    /// Binds the calling thread to one CPU.
    ///
    /// # Errors
    /// Always here: the system has no such call. The thread goes on unbound.
    pub fn pin_current_thread(_cpu: usize) -> Result<(), String> {
        Err(WHY.to_string())
    }

    /// A thread that is bound for a while: none here.
    #[derive(Debug)]
    pub enum Bound {}

    impl Bound {
        /// `None`: the system has no such call.
        pub fn here(_cpu: usize) -> Option<Self> {
            None
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use tare_core::Reading;

    #[test]
    fn a_bound_thread_has_its_cpus_again_afterwards() {
        let all = allowed_cpus().available().cloned().unwrap();
        let last = *all.last().unwrap();
        // A thread of its own, so that the test runner's thread keeps its set.
        let alone = std::thread::spawn(move || {
            let bound = Bound::here(last);
            assert!(bound.is_some());
            assert_eq!(allowed_cpus(), Reading::Available(vec![last]));
            drop(bound);
            assert_eq!(allowed_cpus(), Reading::Available(all.clone()));
            assert!(Bound::here(usize::MAX).is_none());
            pin_current_thread(all[0]).unwrap();
            let elsewhere = all.into_iter().next_back().filter(|cpu| Reading::Available(vec![*cpu]) != allowed_cpus());
            assert!(elsewhere.is_none_or(|cpu| Bound::here(cpu).is_none()), "whoever bound it is obeyed");
        });
        alone.join().unwrap();
    }

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
