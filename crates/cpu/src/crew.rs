//! How regions begin and end: one worker calls, the others come, and the caller waits until all have left. Not everybody
//! is in every region: the caller may leave workers out, who then sleep apart from the others until they are asked back.

use crate::bell::{Bell, Padded};
use crate::sync::{AtomicBool, AtomicUsize, Ordering::*};

/// The first region of a worker that is in none.
const NEVER: usize = usize::MAX;

/// The workers besides the one that calls.
#[derive(Debug)]
pub(crate) struct Crew {
    /// Regions begun so far; workers wait for it to change.
    begun: Padded<AtomicUsize>,
    called: Padded<Bell>,
    /// Workers that have not left the region.
    inside: Padded<AtomicUsize>,
    ended: Padded<Bell>,
    /// One for each worker, from worker 1.
    places: Box<[Padded<Place>]>,
    /// Where those sleep who are left out: a call wakes none of them.
    bench: Padded<Bell>,
    dismissed: AtomicBool,
}

/// What one worker is in the regions.
#[derive(Debug)]
struct Place {
    /// The first region that it is in, or [`NEVER`]. A number and not a flag: whoever comes late and sees a region begun that
    /// is over would else take what holds for the next one for its own.
    from: AtomicUsize,
    /// Its index there.
    index: AtomicUsize,
}

impl Crew {
    /// One of `others`, who are in every region under the indices 1 to `others`.
    pub(crate) fn new(others: usize) -> Self {
        let place = |index| Padded(Place { from: AtomicUsize::new(0), index: AtomicUsize::new(index) });
        Self {
            begun: Padded::default(),
            called: Padded::default(),
            inside: Padded::default(),
            ended: Padded::default(),
            places: (1..=others).map(place).collect(),
            bench: Padded::default(),
            dismissed: AtomicBool::new(false),
        }
    }

    /// Says what `worker` is from the next region on: under which index it is in, or that it is left out. Between regions.
    pub(crate) fn seat(&self, worker: usize, index: Option<usize>) {
        let place = &self.places[worker - 1].0;
        let Some(index) = index else {
            if place.from.swap(NEVER, Release) != NEVER {
                // It goes apart now: where all are left out, no call comes that would send it there.
                self.called.0.ring();
            }
            return;
        };
        place.index.store(index, Relaxed);
        if place.from.load(Relaxed) == NEVER {
            place.from.store(self.begun.0.load(Relaxed) + 1, Release);
            self.bench.0.ring();
        }
    }

    /// Begins a region for the `others` that are in it, all of whom have left the one before. They see what was written
    /// before.
    pub(crate) fn begin(&self, others: usize) {
        self.inside.0.store(others, Relaxed);
        self.call();
    }

    /// Waits until everybody has left the region, spinning at most `spins` turns. What they wrote is visible then.
    pub(crate) fn wait(&self, spins: usize) {
        self.ended.0.wait(spins, || self.inside.0.load(Acquire) == 0);
    }

    /// Waits for a region after the one that was `seen` (0 at first) which `worker` is in, spinning at most `spins` turns for
    /// each, and gives its index there. None when there will be none.
    pub(crate) fn enter(&self, worker: usize, seen: &mut usize, spins: usize) -> Option<usize> {
        let place = &self.places[worker - 1].0;
        let left_out = || place.from.load(Acquire) == NEVER;
        loop {
            self.called.0.wait(spins, || self.begun.0.load(Acquire) != *seen || left_out());
            *seen = self.begun.0.load(Acquire);
            if self.dismissed.load(Acquire) {
                return None;
            }
            let from = place.from.load(Acquire);
            if from <= *seen {
                // Who is in a region keeps it from ending, so that this is no later one's index.
                return Some(place.index.load(Relaxed));
            }
            if from == NEVER {
                self.bench.0.wait(0, || !left_out() || self.dismissed.load(Acquire));
            }
        }
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
        self.bench.0.ring();
    }

    /// How many sleep until the next region, or until they are asked back.
    pub(crate) fn asleep(&self) -> usize {
        // In this order: from the one to the other a worker goes to sleep apart, and is counted once.
        self.bench.0.asleep() + self.called.0.asleep()
    }

    /// Whether everybody sleeps where they belong: those that are left out apart from the others.
    pub(crate) fn rests(&self) -> bool {
        let out = self.places.iter().filter(|p| p.0.from.load(Relaxed) == NEVER).count();
        self.bench.0.asleep() >= out && self.called.0.asleep() >= self.places.len() - out
    }

    fn call(&self) {
        self.begun.0.fetch_add(1, Release);
        self.called.0.ring();
    }
}
