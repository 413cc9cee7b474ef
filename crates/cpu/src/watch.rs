//! Who tells a pool that a worker was kept off its processor, and the pool's acting upon it.

use std::fmt::Debug;

use tare_ops::Benched;
use tare_probe::{Waits, clock::monotonic_ns};

use crate::bench::Bench;
use crate::crew::Crew;

/// Time between two regions from which on waits until the next one are not those of regions: a model was loaded, or nobody asked.
const APART_NS: u64 = 16_000_000;

/// What a pool is told of time and of waits. The tests of a pool put a script in the system's place.
pub trait Witness: Debug + Send {
    /// Nanoseconds of a clock that does not go back.
    fn now_ns(&mut self) -> u64;

    /// Nanoseconds that the thread of `worker` was ready to run and had no processor since it was last asked; that of worker
    /// 0 is the calling one.
    ///
    /// # Errors
    /// A sentence when the system does not say. It is not asked again.
    fn waited_ns(&mut self, worker: usize) -> Result<u64, String>;
}

/// The operating system: what it counts of each thread.
#[derive(Debug)]
pub(crate) struct System {
    /// Of each worker the waits, and how long they were when last asked.
    threads: Vec<(Waits, u64)>,
}

impl System {
    /// That of a pool whose workers besides the caller have these waits.
    ///
    /// # Errors
    /// When those of a thread cannot be read.
    pub(crate) fn new(others: impl Iterator<Item = Result<Waits, String>>) -> Result<Self, String> {
        let since = |waits: Waits| waits.ns().map(|ns| (waits, ns));
        let all = std::iter::once(Waits::of_this_thread()).chain(others);
        Ok(Self { threads: all.map(|waits| waits.and_then(since)).collect::<Result<_, _>>()? })
    }
}

impl Witness for System {
    fn now_ns(&mut self) -> u64 {
        monotonic_ns()
    }

    fn waited_ns(&mut self, worker: usize) -> Result<u64, String> {
        let (waits, last) = &mut self.threads[worker];
        if worker == 0 && !waits.are_of_this_thread() {
            // Another thread calls than before: what it waited until now was not in a region.
            *waits = Waits::of_this_thread()?;
            *last = waits.ns()?;
        }
        let now = waits.ns()?;
        Ok(now.saturating_sub(std::mem::replace(last, now)))
    }
}

/// A pool's eye on its workers.
#[derive(Debug)]
pub(crate) struct Watch {
    witness: Box<dyn Witness>,
    bench: Bench,
    workers: usize,
    /// Workers of the region, and when it began; then when it ended.
    region: (usize, u64),
    /// Whether the bench has changed since the crew was last told.
    changed: bool,
    /// Whether everybody stays where they are.
    held: bool,
    /// Whether regions are those of loading, which are neither looked at nor counted.
    aside: bool,
    pub(crate) so_far: Benched,
}

impl Watch {
    /// On `workers` through the eyes of `witness`.
    pub(crate) fn new(workers: usize, witness: Box<dyn Witness>) -> Self {
        Self {
            witness,
            bench: Bench::new(workers),
            workers,
            region: (workers, 0),
            changed: false,
            held: false,
            aside: false,
            so_far: Benched::default(),
        }
    }

    /// From now on nobody begins to sit out and nobody comes back, or, when `held` is false, they do again. What held before.
    pub(crate) fn hold(&mut self, held: bool) -> bool {
        self.pause();
        std::mem::replace(&mut self.held, held)
    }

    /// From now on regions are those of loading, or, when `aside` is false, of steps. What they were before.
    pub(crate) fn set_aside(&mut self, aside: bool) -> bool {
        self.pause();
        std::mem::replace(&mut self.aside, aside)
    }

    /// What is waited until the next region that is looked at counts for nothing.
    fn pause(&mut self) {
        self.region.1 = 0;
    }

    /// Before a region: tells the crew who is in it, and gives how many these are.
    pub(crate) fn begin(&mut self, crew: &Crew) -> usize {
        if !self.held && !self.aside {
            self.reseat(crew);
        }
        if !self.aside {
            let out = self.workers - self.region.0;
            self.so_far.regions += 1;
            self.so_far.short += u64::from(out > 0);
            self.so_far.most = self.so_far.most.max(out);
        }
        self.region.0
    }

    fn reseat(&mut self, crew: &Crew) {
        let now = self.witness.now_ns();
        if now.saturating_sub(self.region.1) > APART_NS {
            self.bench.forget();
            // What cannot be read here cannot be read at the next look, which says so.
            (0..self.workers).for_each(|worker| _ = self.witness.waited_ns(worker));
        }
        self.changed |= self.bench.take_back(now);
        if std::mem::take(&mut self.changed) {
            self.region.0 = seat(crew, self.workers, |w| self.bench.is_out(w));
        }
        self.region.1 = now;
    }

    /// After a region.
    ///
    /// # Errors
    /// When the witness has nothing more to say.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        if self.held || self.aside {
            return Ok(());
        }
        let now = self.witness.now_ns();
        if self.bench.ran(now.saturating_sub(std::mem::replace(&mut self.region.1, now))) {
            self.changed |= self.bench.look(now, |worker| self.witness.waited_ns(worker))?;
        }
        Ok(())
    }
}

/// Gives everybody who is not `out` the next index, and how many these are with the caller.
pub(crate) fn seat(crew: &Crew, workers: usize, out: impl Fn(usize) -> bool) -> usize {
    let mut active = 1;
    for worker in 1..workers {
        let index = (!out(worker)).then_some(active);
        active += usize::from(index.is_some());
        crew.seat(worker, index);
    }
    active
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_what_came_since_it_was_last_asked() {
        std::thread::scope(|scope| {
            let (send, waits) = std::sync::mpsc::channel();
            let (end, asked) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                send.send(Waits::of_this_thread()).unwrap();
                asked.recv().unwrap_err();
            });
            // Where the system counts nothing, it says so at once.
            let Ok(mut system) = System::new(waits.recv().into_iter()) else { return drop(end) };
            system.threads[1].1 = 0;
            let (before, since) = (system.waited_ns(1).unwrap(), system.waited_ns(1).unwrap());
            assert_eq!(before + since, system.threads[1].1, "no wait is told twice, and none is lost");
            let elsewhere = scope.spawn(move || {
                system.threads[0].1 = 0;
                system.waited_ns(0)
            });
            assert_eq!(elsewhere.join().unwrap(), Ok(0), "another thread calls");
            drop(end);
        });
    }
}
