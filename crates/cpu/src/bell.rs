//! Where threads wait for what another thread does: they spin for a while, then sleep until it rings.
//!
//! Why sleep, and not yield: beside other busy processes the thread that is waited for is often off its processor. A
//! waiter that yields again and again goes on being charged for processor time that it does not use (Linux takes a
//! whole slice off a thread that yields), so that it is out of turn when its work comes. A waiter that sleeps saves its
//! share and leaves its processor to the one that is waited for.

use crate::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering::*, fence, spin_loop};

/// Alone on its cache lines (two: the adjacent-line prefetcher pairs them).
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Padded<T>(pub(crate) T);

/// Sleepers of one kind. Nobody sleeps on a quiet machine, and then [`Bell::ring`] is a fence and a load.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    asleep: AtomicUsize,
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// Returns once `done` says so: asked `spins` times, then after each ring. Gives whether spinning was enough.
    ///
    /// `done` reads atomics with [`Acquire`] at least and does not panic.
    #[inline]
    pub(crate) fn wait(&self, spins: usize, done: impl Fn() -> bool) -> bool {
        for _ in 0..spins {
            if done() {
                return true;
            }
            spin_loop();
        }
        self.sleep(done);
        false
    }

    #[cold]
    fn sleep(&self, done: impl Fn() -> bool) {
        let mut guard = self.guard();
        // Two fences, here and in `ring`: either `done` sees what was stored before a ring, or that ring sees a sleeper.
        // It then needs the lock, which is free only before `done` is asked or once this thread sleeps.
        self.asleep.fetch_add(1, Release);
        fence(SeqCst);
        while !done() {
            guard = self.rung.wait(guard).unwrap_or_else(|e| e.into_inner());
        }
        self.asleep.fetch_sub(1, Relaxed);
    }

    /// How many sleep now. Whoever is counted here is no longer counted at the bell where it slept before.
    pub(crate) fn asleep(&self) -> usize {
        self.asleep.load(Acquire)
    }

    /// Wakes all sleepers. What they wait for has been stored with [`Release`] before.
    #[inline]
    pub(crate) fn ring(&self) {
        fence(SeqCst);
        if self.asleep.load(Relaxed) > 0 {
            drop(self.guard());
            self.rung.notify_all();
        }
    }

    fn guard(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(|e| e.into_inner())
    }
}
