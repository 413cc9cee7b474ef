//! The pool's protocol under every interleaving: bell, barrier and crew are compiled here once more, from the same source,
//! on a model checker's primitives. A ring that is lost, a worker that sees a stale value or a barrier that opens too
//! early shows as a deadlock or a failed assertion, however rare it would be on a processor.

/// What `src/sync.rs` is there.
mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
}

#[path = "../src/barrier.rs"]
#[allow(dead_code, reason = "the pool alone uses a barrier again after a panic")]
mod barrier;
#[path = "../src/bell.rs"]
mod bell;
#[path = "../src/crew.rs"]
mod crew;

use barrier::Barrier;
use bell::Bell;
use crew::Crew;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::{AtomicBool, AtomicUsize, Ordering::*};

/// Every interleaving with at most `switches` switches away from a thread that could go on: three find all known faults
/// of such protocols, and keep the number of interleavings within a test's time.
fn explore(switches: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(model);
}

#[test]
fn no_ring_is_lost() {
    // Without a turn of spinning every wait is a sleep; with one, the ring may come between spin and sleep.
    for spins in [0, 1] {
        explore(3, move || {
            let shared = Arc::new((Bell::default(), AtomicUsize::new(0)));
            let other = Arc::clone(&shared);
            let thrower = thread::spawn(move || {
                let (bell, ball) = &*other;
                ball.store(1, Release);
                bell.ring();
                bell.wait(spins, || ball.load(Acquire) == 2);
            });
            let (bell, ball) = &*shared;
            bell.wait(spins, || ball.load(Acquire) == 1);
            ball.store(2, Release);
            bell.ring();
            thrower.join().unwrap();
        });
    }
}

#[test]
fn a_barrier_opens_for_all_and_shows_what_was_written() {
    const STAGES: usize = 2;
    for (workers, spins, switches) in [(2, 0, 3), (2, 1, 3), (3, 0, 2)] {
        explore(switches, move || {
            let cells: Vec<_> = (0..workers).map(|_| UnsafeCell::new(0)).collect();
            let shared = Arc::new((Barrier::new(spins), AtomicBool::new(false), cells));
            let work = move |me: usize, shared: &(Barrier, AtomicBool, Vec<UnsafeCell<usize>>)| {
                let (barrier, poisoned, cells) = shared;
                for stage in 1..=STAGES {
                    // A cell that two threads touch at once is an error of its own.
                    cells[me].with_mut(|cell| {
                        // SAFETY: the others read it only after the barrier below and before the next one.
                        unsafe { *cell = stage }
                    });
                    assert!(barrier.wait(workers, poisoned));
                    for cell in cells {
                        // SAFETY: as above.
                        cell.with(|cell| assert_eq!(unsafe { *cell }, stage));
                    }
                    if stage < STAGES {
                        assert!(barrier.wait(workers, poisoned));
                    }
                }
            };
            let others: Vec<_> = (1..workers)
                .map(|me| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || work(me, &shared))
                })
                .collect();
            work(0, &shared);
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }
}

#[test]
fn who_waits_for_a_worker_that_gave_up_is_told() {
    explore(3, || {
        let shared = Arc::new((Barrier::new(0), AtomicBool::new(false)));
        let other = Arc::clone(&shared);
        let fails = thread::spawn(move || {
            other.1.store(true, Release);
            other.0.give_up();
        });
        assert!(!shared.0.wait(2, &shared.1), "nobody else comes");
        fails.join().unwrap();
    });
}

#[test]
fn regions_begin_and_end_for_everybody() {
    const REGIONS: usize = 2;
    for (others, spins, switches) in [(1, 0, 3), (1, 1, 3), (2, 0, 2)] {
        explore(switches, move || {
            let shared = Arc::new((Crew::new(others), UnsafeCell::new(0), AtomicUsize::new(0)));
            let workers: Vec<_> = (1..=others)
                .map(|me| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        let (crew, job, sum) = &*shared;
                        let (mut seen, mut ran) = (0, 0);
                        while let Some(index) = crew.enter(me, &mut seen, spins) {
                            assert_eq!(index, me);
                            // SAFETY: the caller writes it only while nobody is inside a region.
                            job.with(|job| sum.fetch_add(unsafe { *job }, Relaxed));
                            ran += 1;
                            crew.leave();
                        }
                        assert_eq!(ran, REGIONS);
                    })
                })
                .collect();
            let (crew, job, sum) = &*shared;
            for region in 1..=REGIONS {
                job.with_mut(|job| {
                    // SAFETY: as above.
                    unsafe { *job = region }
                });
                crew.begin(others);
                crew.wait(spins);
                assert_eq!(sum.load(Relaxed), others * region * (region + 1) / 2);
            }
            crew.dismiss();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
    }
}

/// What `worker`, from 1, is in a region that those are in whose letter is `+`: its index, the caller being 0.
fn seated(worker: usize, region: &str) -> Option<usize> {
    let is_in = |w: &usize| region.as_bytes()[w - 1] == b'+';
    is_in(&worker).then(|| (1..=worker).filter(is_in).count())
}

#[test]
fn who_is_left_out_of_a_region_is_in_none_but_its_own() {
    // The caller does not wait for those that it leaves out: whoever comes late meets the seats of later regions.
    const STORIES: [(&[&str], usize, usize); 7] = [
        (&["+", "-", "+"], 0, 3),
        (&["-", "+", "-", "+"], 0, 2),
        (&["-", "-", "+"], 1, 2),
        (&["+", "-"], 1, 3),
        (&["-+", "+-"], 0, 2),
        (&["++", "-+"], 0, 2),
        (&["+-", "--"], 0, 2),
    ];
    for (story, spins, switches) in STORIES {
        let workers = story[0].len();
        explore(switches, move || {
            let ran: Vec<_> = (0..workers).map(|_| UnsafeCell::new(0)).collect();
            let shared = Arc::new((Crew::new(workers), UnsafeCell::new(0), ran));
            let threads: Vec<_> = (1..=workers)
                .map(|me| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        let (crew, job, ran) = &*shared;
                        let mut seen = 0;
                        while let Some(index) = crew.enter(me, &mut seen, spins) {
                            // SAFETY: the caller writes it only while nobody is inside a region.
                            let region = job.with(|job| unsafe { *job });
                            assert_eq!(seated(me, story[region]), Some(index), "worker {me} in region {region}");
                            // SAFETY: the caller reads it only between regions.
                            ran[me - 1].with_mut(|ran| unsafe { *ran += 1 });
                            crew.leave();
                        }
                    })
                })
                .collect();
            let (crew, job, ran) = &*shared;
            for region in 0..story.len() {
                (1..=workers).for_each(|worker| crew.seat(worker, seated(worker, story[region])));
                // SAFETY: as above.
                job.with_mut(|job| unsafe { *job = region });
                // As the pool does it: where the caller is alone, it calls nobody.
                let others = story[region].matches('+').count();
                if others > 0 {
                    crew.begin(others);
                    crew.wait(spins);
                }
                for worker in 1..=workers {
                    let times = story[..=region].iter().filter(|region| seated(worker, region).is_some()).count();
                    // SAFETY: as above.
                    ran[worker - 1]
                        .with(|ran| assert_eq!(unsafe { *ran }, times, "worker {worker} by region {region}"));
                }
            }
            // Whoever is in sleeps until the next region, and whoever is not apart from them, also where no region sent it there.
            while !crew.rests() {
                thread::yield_now();
            }
            assert_eq!(crew.asleep(), workers);
            crew.dismiss();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
