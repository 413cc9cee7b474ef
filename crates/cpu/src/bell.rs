//! Where threads wait for what another thread does: they spin for a while, then sleep until it rings.
//!
//! Why sleep, and not yield: beside other busy processes the thread that is waited for is often off its processor. A
//! waiter that yields again and again goes on being charged for processor time that it does not use (Linux takes a
//! whole slice off a thread that yields), so that it is out of turn when its work comes. A waiter that sleeps saves its
//! share and leaves its processor to the one that is waited for.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Sleepers of one kind. Nobody sleeps on a quiet machine, and then [`Bell::ring`] is one load.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    asleep: AtomicUsize,
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// Returns once `done` says so: asked `spins` times, then after each ring. Gives whether spinning was enough.
    ///
    /// `done` reads atomics with [`SeqCst`] and does not panic.
    #[inline]
    pub(crate) fn wait(&self, spins: usize, done: impl Fn() -> bool) -> bool {
        for _ in 0..spins {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        self.sleep(done);
        false
    }

    #[cold]
    fn sleep(&self, done: impl Fn() -> bool) {
        let mut guard = self.guard();
        // Sequentially consistent on both sides: either `done` sees what was stored before a ring, or that ring sees
        // a sleeper. It then needs the lock, which is free only before `done` is asked or once this thread sleeps.
        self.asleep.fetch_add(1, SeqCst);
        while !done() {
            guard = self.rung.wait(guard).unwrap_or_else(|e| e.into_inner());
        }
        self.asleep.fetch_sub(1, SeqCst);
    }

    /// How many sleep now.
    pub(crate) fn asleep(&self) -> usize {
        self.asleep.load(SeqCst)
    }

    /// Wakes all sleepers. What they wait for has been stored with [`SeqCst`] before.
    #[inline]
    pub(crate) fn ring(&self) {
        if self.asleep.load(SeqCst) > 0 {
            drop(self.guard());
            self.rung.notify_all();
        }
    }

    fn guard(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without spinning, every turn of this game is a sleep and a ring: a ring that is lost hangs it.
    #[test]
    fn no_ring_is_lost() {
        const TURNS: usize = 600;
        let (bell, ball) = (Bell::default(), AtomicUsize::new(0));
        let play = |me: usize| {
            for turn in (me..TURNS).step_by(3) {
                bell.wait(0, || ball.load(SeqCst) == turn);
                ball.store(turn + 1, SeqCst);
                bell.ring();
            }
        };
        std::thread::scope(|s| (0..3).for_each(|me| drop(s.spawn(move || play(me)))));
        assert_eq!(ball.load(SeqCst), TURNS);
    }
}
