//! How regions begin and end: one worker calls, the others come, and the caller waits until all have left.

use crate::bell::{Bell, Padded};
use crate::sync::{AtomicBool, AtomicUsize, Ordering::*};

/// The workers besides the one that calls.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    /// Regions begun so far; workers wait for it to change.
    begun: Padded<AtomicUsize>,
    called: Padded<Bell>,
    /// Workers that have not left the region.
    inside: Padded<AtomicUsize>,
    ended: Padded<Bell>,
    dismissed: AtomicBool,
}

impl Crew {
    /// Begins a region for `others`, all of whom have left the one before. They see what was written before.
    pub(crate) fn begin(&self, others: usize) {
        self.inside.0.store(others, Relaxed);
        self.call();
    }

    /// Waits until everybody has left the region, spinning at most `spins` turns. What they wrote is visible then.
    pub(crate) fn wait(&self, spins: usize) {
        self.ended.0.wait(spins, || self.inside.0.load(Acquire) == 0);
    }

    /// Waits for the region after the one that was `seen` (0 at first), spinning at most `spins` turns. False when there
    /// will be none.
    pub(crate) fn enter(&self, seen: &mut usize, spins: usize) -> bool {
        self.called.0.wait(spins, || self.begun.0.load(Acquire) != *seen);
        *seen = self.begun.0.load(Acquire);
        !self.dismissed.load(Acquire)
    }

    /// Leaves the region.
    pub(crate) fn leave(&self) {
        if self.inside.0.fetch_sub(1, AcqRel) == 1 {
            self.ended.0.ring();
        }
    }

    /// Ends the workers' waiting for good.
    pub(crate) fn dismiss(&self) {
        self.dismissed.store(true, Release);
        self.call();
    }

    /// How many sleep until the next region.
    pub(crate) fn asleep(&self) -> usize {
        self.called.0.asleep()
    }

    fn call(&self) {
        self.begun.0.fetch_add(1, Release);
        self.called.0.ring();
    }
}
