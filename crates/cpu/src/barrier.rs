//! The barrier that separates the stages of a region.

use crate::bell::{Bell, Padded};
use crate::sync::{AtomicBool, AtomicUsize, Ordering::*};

/// Turns of the spin at a barrier after spinning there was in vain again and again. Every waiter shortens the spin when it
/// was in vain, so that one slow stage brings sixteen workers down to this at once: it must still outlast the stages of
/// an undisturbed step.
const SPINS_IN_VAIN: usize = 10_000;

/// A sense-reversing barrier: the sense is a counter, so that a worker needs no state of its own.
#[derive(Debug)]
pub(crate) struct Barrier {
    arrived: Padded<AtomicUsize>,
    generation: Padded<AtomicUsize>,
    opened: Padded<Bell>,
    /// Turns that a waiter spins. They halve when that was not enough, since the worker that is waited for may want
    /// this very processor, and grow again while it is.
    patience: Padded<AtomicUsize>,
    spins: usize,
}

impl Barrier {
    /// One whose waiters spin `spins` turns at most.
    pub(crate) fn new(spins: usize) -> Self {
        Self {
            arrived: Padded::default(),
            generation: Padded::default(),
            opened: Padded::default(),
            patience: Padded(AtomicUsize::new(spins)),
            spins,
        }
    }

    /// Waits until all of `workers` are here: true, and what any of them wrote before is visible. False when `poisoned`
    /// was set first, and [`Barrier::give_up`] called.
    pub(crate) fn wait(&self, workers: usize, poisoned: &AtomicBool) -> bool {
        let now = self.generation.0.load(Relaxed);
        if self.arrived.0.fetch_add(1, AcqRel) + 1 == workers {
            self.arrived.0.store(0, Relaxed);
            self.generation.0.store(now.wrapping_add(1), Release);
            self.opened.0.ring();
            return true;
        }
        let opened = || self.generation.0.load(Acquire) != now;
        let patience = self.patience.0.load(Relaxed);
        let enough = self.opened.0.wait(patience, || opened() || poisoned.load(Acquire));
        if !enough {
            self.patience.0.store((patience / 2).max(SPINS_IN_VAIN.min(self.spins)), Relaxed);
        } else if patience < self.spins {
            self.patience.0.store((patience + patience / 8).min(self.spins), Relaxed);
        }
        opened()
    }

    /// Wakes those who wait for a worker that will not come: `poisoned` has been set with [`Release`].
    pub(crate) fn give_up(&self) {
        self.opened.0.ring();
    }

    /// Nobody is here: after a region in which somebody gave up, when all have left it.
    pub(crate) fn reset(&self) {
        self.arrived.0.store(0, Relaxed);
    }
}
