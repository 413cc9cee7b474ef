//! A pool of spinning workers, and the barrier that separates the stages of one parallel region.
//!
//! A step of a model is *one* region: every worker walks the same list of stages and meets the others at a barrier
//! after each. Starting a region costs one atomic increment while the workers still spin; after a bounded spin they
//! sleep, so that an idle engine uses no processor, and a worker that waits for one whom other processes keep off its
//! processor does not stand in its way. The thread that calls [`Pool::run`] is worker 0.
//!
//! A region may run without some of the workers: those whose processors other processes keep busy ([`Pool::new`] says when).

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tare_core::Reading;
use tare_ops::Benched;
use tare_probe::affinity::pin_current_thread;
use tare_probe::{Allowance, Waits};

use crate::barrier::Barrier;
use crate::bench::FEWEST;
use crate::crew::Crew;
use crate::watch::{System, Watch, seat};

pub use crate::watch::Witness;

/// Turns of the spin loop before a worker sleeps: 1 to 3 ms, longer than a stage that one worker does alone, such as
/// the choice of a token from the logits.
const SPINS: usize = 40_000;
/// The same when there are more workers than can run at once, so that spinning only keeps the others from working.
const SPINS_CROWDED: usize = 32;

/// How often [`Pool::rest`] looks whether all workers sleep.
const REST_LOOK: Duration = Duration::from_micros(200);

/// A worker panicked. The region ended on every worker; what it wrote is unspecified.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("worker {worker} panicked: {message}")]
pub struct WorkerPanic {
    /// Which worker, by its index in the region.
    pub worker: usize,
    /// The panic's message.
    pub message: String,
}

/// What a worker sees of the region it runs in.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    /// This worker, from 0 and without a gap: the same thread may have another index in another region.
    pub worker: usize,
    /// How many workers run the region: all of the pool's, or fewer.
    pub workers: usize,
    shared: &'a Shared,
}

impl Region<'_> {
    /// Waits until every worker of the region is here. What any of them wrote before is visible to all after.
    ///
    /// # Panics
    /// When another worker panicked, so that nobody waits for it for ever.
    #[inline]
    pub fn barrier(&self) {
        if self.workers > 1 && !self.shared.barrier.wait(self.workers, &self.shared.poisoned) {
            resume_unwind(Box::new(Poisoned));
        }
    }

    /// This worker's share of `items` when they are dealt out in runs of `chunk`: contiguous, in order of workers.
    pub fn share(&self, items: usize, chunk: usize) -> Range<usize> {
        share_of(items, chunk, self.worker, self.workers)
    }
}

/// The share of `worker` among `workers`: see [`Region::share`].
pub fn share_of(items: usize, chunk: usize, worker: usize, workers: usize) -> Range<usize> {
    let chunks = items.div_ceil(chunk);
    let at = |w: usize| (chunks * w / workers * chunk).min(items);
    at(worker)..at(worker + 1)
}

/// The payload with which a worker leaves a region because another one panicked.
struct Poisoned;

type Job = *const (dyn Fn(Region) + Sync);

#[derive(Debug)]
struct Shared {
    crew: Crew,
    barrier: Barrier,
    poisoned: AtomicBool,
    /// What runs, and how many workers run it.
    job: UnsafeCell<Option<(Job, usize)>>,
    panic: Mutex<Option<WorkerPanic>>,
    spins: usize,
}

// SAFETY: `job` is written by `Pool::run` alone, while no worker is inside a region, and published by `Crew::begin`; the
// closure behind it is `Sync`. Everything else is atomic or locked.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only followed while the closure it points to is borrowed by `Pool::run`.
unsafe impl Send for Shared {}

impl Shared {
    /// Runs the job on `worker` and keeps its panic, if any.
    fn work(&self, worker: usize, workers: usize, job: &(dyn Fn(Region) + Sync)) {
        let region = Region { worker, workers, shared: self };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(region))) {
            if !payload.is::<Poisoned>() {
                let mut first = self.panic.lock().unwrap_or_else(|e| e.into_inner());
                first.get_or_insert(WorkerPanic { worker, message: message_of(&*payload) });
                // Dropping a payload may panic in turn, and nothing may unwind from here while the others run.
                std::mem::forget(payload);
            }
            self.poisoned.store(true, Release);
            self.barrier.give_up();
        }
    }

    fn worker_loop(&self, worker: usize) {
        let mut seen = 0;
        while let Some(index) = self.crew.enter(worker, &mut seen, self.spins) {
            // SAFETY: the region has begun, so `run` has stored a job, and it waits until this worker has left before it
            // returns: the closure is alive and nobody writes the cell.
            if let Some((job, workers)) = unsafe { *self.job.get() } {
                // SAFETY: as above.
                self.work(index, workers, unsafe { &*job });
            }
            self.crew.leave();
        }
    }
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_string())
}

/// Who tells that workers wait.
enum Watched {
    BySystem,
    By(Box<dyn Witness>),
    /// Nobody: all stay in.
    Never,
}

/// A fixed set of workers. Dropping it ends them.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    workers: usize,
    /// Those of the last region.
    active: usize,
    placement: Reading<Vec<usize>>,
    watch: Reading<Watch>,
}

impl Pool {
    /// A pool of `workers`, the calling thread included (0 counts as 1).
    ///
    /// With `pin`, worker `w` above 0 is bound to the `w`-th processor that the process may use. The calling thread is
    /// left to the scheduler, since it is not ours; with one processor a worker it finds the first one free.
    ///
    /// Workers that are bound, two or more and no more than can run at once, are watched. Whom the system again and again lets
    /// wait for its processor sits out for a while where that costs less than waiting for it, and comes back on trial. For a
    /// caller who waits another worker sits out, and leaves a processor free.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn new(workers: usize, pin: bool) -> std::io::Result<Self> {
        Self::start(workers, pin, Watched::BySystem)
    }

    /// The same with every worker in every region, whoever waits for its processor.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn kept(workers: usize, pin: bool) -> std::io::Result<Self> {
        Self::start(workers, pin, Watched::Never)
    }

    /// The same, watched through the eyes of `witness`, bound or not.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn watched(workers: usize, pin: bool, witness: Box<dyn Witness>) -> std::io::Result<Self> {
        Self::start(workers, pin, Watched::By(witness))
    }

    fn start(workers: usize, pin: bool, watched: Watched) -> std::io::Result<Self> {
        let workers = workers.max(1);
        let online = thread::available_parallelism().map_or(1, usize::from);
        let allowance = Allowance::read();
        let usable = allowance.usable_threads(online);
        let spins = if workers > usable { SPINS_CROWDED } else { SPINS };
        let placement = place(workers, pin, allowance.cpus);
        let shared = Arc::new(Shared {
            crew: Crew::new(workers - 1),
            barrier: Barrier::new(spins),
            poisoned: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            spins,
        });
        let watch = Reading::unavailable("the workers have not begun");
        let mut pool = Self { shared, handles: Vec::new(), workers, active: workers, placement, watch };
        let (send, waits) = mpsc::channel();
        for worker in 1..workers {
            let (shared, send) = (Arc::clone(&pool.shared), send.clone());
            let cpu = pool.placement.available().map(|cpus| cpus[worker]);
            let body = move || {
                // A cpuset that shrank since it was read costs speed, not correctness: the worker then floats.
                let _ = cpu.map(pin_current_thread);
                // Nobody listens where nobody watches.
                let _ = send.send((worker, Waits::of_this_thread()));
                drop(send);
                shared.worker_loop(worker);
            };
            pool.handles.push(thread::Builder::new().name(format!("tare-cpu-{worker}")).spawn(body)?);
        }
        drop(send);
        pool.watch = match (watched, &pool.placement) {
            (Watched::Never, _) => Reading::unavailable("every worker is kept in, as was asked"),
            _ if workers <= FEWEST => Reading::unavailable("there is one worker alone"),
            (Watched::By(witness), _) => Reading::Available(Watch::new(workers, witness)),
            (Watched::BySystem, Reading::Unavailable { why }) => {
                Reading::unavailable(format!("workers are not bound: {why}"))
            }
            _ if workers > usable => {
                Reading::unavailable(format!("{workers} workers, of whom {usable} can run at once"))
            }
            (Watched::BySystem, Reading::Available(_)) => {
                let mut waits: Vec<_> = waits.iter().collect();
                waits.sort_unstable_by_key(|(worker, _)| *worker);
                let system = System::new(waits.into_iter().map(|(_, waits)| waits));
                system.map(|system| Watch::new(workers, Box::new(system))).into()
            }
        };
        Ok(pool)
    }

    /// How many workers, the caller of [`Pool::run`] included.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// How many of them ran the last region: all before the first one.
    pub fn active(&self) -> usize {
        self.active
    }

    /// The processor of each worker (that of worker 0 is left free for it), or why they are not pinned.
    pub fn placement(&self) -> &Reading<Vec<usize>> {
        &self.placement
    }

    /// How often workers sat out of regions so far, those of loading left out, or why none ever does.
    pub fn benched(&self) -> Reading<Benched> {
        match &self.watch {
            Reading::Available(watch) => Reading::Available(watch.so_far),
            Reading::Unavailable { why } => Reading::unavailable(why.as_str()),
        }
    }

    /// From now on every region has the workers that the last one had: nobody begins to sit out, and nobody comes back. With
    /// `held` false they do again. For regions whose times or shares are compared. What held before.
    pub fn hold(&mut self, held: bool) -> bool {
        match &mut self.watch {
            Reading::Available(watch) => watch.hold(held),
            Reading::Unavailable { .. } => false,
        }
    }

    /// From now on regions are those of loading: nobody begins to sit out or comes back, and [`Pool::benched`] does not
    /// count them. In loading the caller works long by itself while the others sleep, and may be on one of their
    /// processors when they wake: what they wait then says nothing of steps. With `aside` false they are those of steps
    /// again. What they were before.
    pub fn set_aside(&mut self, aside: bool) -> bool {
        match &mut self.watch {
            Reading::Available(watch) => watch.set_aside(aside),
            Reading::Unavailable { .. } => false,
        }
    }

    /// Runs `job` once on every worker that does not sit out, the caller being worker 0, and waits for all of them.
    ///
    /// # Errors
    /// When a worker panicked. The others leave at their next barrier; the pool stays usable.
    pub fn run<F: Fn(Region) + Sync>(&mut self, job: F) -> Result<(), WorkerPanic> {
        let shared = &*self.shared;
        let workers = match &mut self.watch {
            Reading::Available(watch) => watch.begin(&shared.crew),
            Reading::Unavailable { .. } => self.workers,
        };
        self.active = workers;
        if workers > 1 {
            let borrowed: *const (dyn Fn(Region) + Sync + '_) = &job;
            // SAFETY: only the lifetime changes. No worker follows the pointer after it has left the region, which
            // is waited for below, before `job` goes away; nothing between can unwind.
            let job: Job = unsafe { std::mem::transmute::<*const (dyn Fn(Region) + Sync + '_), Job>(borrowed) };
            // SAFETY: no region is running (`&mut self`, and `run` waits), so no worker reads the cell.
            unsafe { *shared.job.get() = Some((job, workers)) };
            shared.crew.begin(workers - 1);
        }
        shared.work(0, workers, &job);
        shared.crew.wait(shared.spins);
        if let Reading::Available(watch) = &mut self.watch
            && let Err(why) = watch.end()
        {
            seat(&shared.crew, self.workers, |_| false);
            self.watch = Reading::unavailable(why);
        }
        if !shared.poisoned.swap(false, AcqRel) {
            return Ok(());
        }
        shared.barrier.reset();
        let first = shared.panic.lock().unwrap_or_else(|e| e.into_inner()).take();
        Err(first.unwrap_or(WorkerPanic { worker: 0, message: "no message".to_string() }))
    }

    /// Waits until every worker sleeps, which each does when its bounded spin was in vain. The next [`Pool::run`] wakes
    /// them.
    pub fn rest(&self) {
        while !self.shared.crew.rests() {
            thread::sleep(REST_LOOK);
        }
    }

    /// Workers that sleep until the next [`Pool::run`], or until they are asked back.
    pub fn asleep(&self) -> usize {
        self.shared.crew.asleep()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.crew.dismiss();
        for handle in self.handles.drain(..) {
            // A worker's panics are caught inside its loop, so that joining it cannot fail.
            let _ = handle.join();
        }
    }
}

fn place(workers: usize, pin: bool, cpus: Reading<Vec<usize>>) -> Reading<Vec<usize>> {
    match cpus {
        _ if !pin => Reading::unavailable("pinning was not asked for"),
        Reading::Available(cpus) if cpus.len() < workers => {
            Reading::unavailable(format!("{workers} workers on {} processors", cpus.len()))
        }
        Reading::Available(cpus) => Reading::Available(cpus[..workers].to_vec()),
        missing => missing,
    }
}
