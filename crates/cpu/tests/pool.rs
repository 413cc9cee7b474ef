//! The worker pool: every worker runs, barriers order, nothing hangs.

use std::sync::atomic::{AtomicUsize, Ordering::*};
use tare_cpu::pool::Pool;

#[test]
fn every_worker_runs_each_region_once() {
    for workers in [1, 2, 3] {
        let mut pool = Pool::kept(workers, true).unwrap();
        let hits: Vec<AtomicUsize> = (0..workers).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..2_000 {
            pool.run(|r| {
                hits[r.worker].fetch_add(1, Relaxed);
            })
            .unwrap();
        }
        assert!(hits.iter().all(|h| h.load(Relaxed) == 2_000));
    }
}

#[test]
fn a_barrier_separates_stages_even_when_oversubscribed() {
    const WORKERS: usize = 8;
    let mut pool = Pool::new(WORKERS, false).unwrap();
    let cells: Vec<AtomicUsize> = (0..WORKERS).map(|_| AtomicUsize::new(0)).collect();
    let bad = AtomicUsize::new(0);
    for round in 0..20 {
        pool.run(|r| {
            for stage in 1..=10 {
                cells[r.worker].store(round * 100 + stage, Relaxed);
                r.barrier();
                let late = cells.iter().filter(|c| c.load(Relaxed) != round * 100 + stage).count();
                bad.fetch_add(late, Relaxed);
                r.barrier();
            }
        })
        .unwrap();
    }
    assert_eq!(bad.load(Relaxed), 0, "a worker saw a cell of another stage");
}

#[test]
fn workers_that_slept_wake_up() {
    let mut pool = Pool::new(3, false).unwrap();
    for _ in 0..5 {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let ran = AtomicUsize::new(0);
        pool.run(|_| {
            ran.fetch_add(1, Relaxed);
        })
        .unwrap();
        assert_eq!(ran.load(Relaxed), 3);
    }
}

#[test]
fn a_panic_is_reported_and_the_pool_survives() {
    let mut pool = Pool::new(3, false).unwrap();
    for culprit in [0, 1, 2] {
        let result = pool.run(|r| {
            r.barrier();
            assert!(r.worker != culprit, "planted in {culprit}");
            r.barrier();
            r.barrier();
        });
        let panic = result.unwrap_err();
        assert_eq!(panic.worker, culprit);
        assert!(panic.message.contains("planted in"), "{panic}");
        pool.run(|r| r.barrier()).unwrap();
    }
}

#[test]
fn shares_cover_everything_once_in_order() {
    let mut pool = Pool::new(3, false).unwrap();
    for (items, chunk) in [(0, 4), (1, 4), (10, 4), (192, 16), (7, 1), (2, 1)] {
        let seen: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
        pool.run(|r| {
            let share = r.share(items, chunk);
            assert!(share.start % chunk == 0 || share.is_empty());
            for i in share {
                seen[i].fetch_add(1, Relaxed);
            }
        })
        .unwrap();
        assert!(seen.iter().all(|s| s.load(Relaxed) == 1), "{items} items in chunks of {chunk}");
    }
}

/// A payload that panics when it is dropped.
struct Sour;

impl Drop for Sour {
    fn drop(&mut self) {
        panic!("a payload that does not go quietly");
    }
}

#[test]
fn a_payload_that_panics_when_dropped_does_not_hang_the_pool() {
    let mut pool = Pool::new(2, false).unwrap();
    for culprit in [0, 1] {
        let result = pool.run(|r| {
            if r.worker == culprit {
                std::panic::panic_any(Sour);
            }
            r.barrier();
        });
        assert_eq!(result.unwrap_err().message, "no message");
        pool.run(|r| r.barrier()).unwrap();
    }
}

#[test]
fn waiters_sleep_while_one_worker_is_long_away() {
    let mut pool = Pool::new(2, false).unwrap();
    let done = AtomicUsize::new(0);
    for slow in [0, 1] {
        pool.run(|r| {
            if r.worker == slow {
                std::thread::sleep(std::time::Duration::from_millis(30));
            }
            r.barrier();
            if r.worker != slow {
                std::thread::sleep(std::time::Duration::from_millis(30));
            }
            done.fetch_add(1, Relaxed);
        })
        .unwrap();
    }
    assert_eq!(done.load(Relaxed), 4, "both were woken, at the barrier and at the end");
}

#[test]
fn a_resting_pool_sleeps_whole_and_wakes_whole() {
    for workers in [1, 2, 5] {
        let mut pool = Pool::new(workers, false).unwrap();
        for _ in 0..10 {
            pool.run(|r| r.barrier()).unwrap();
            pool.rest();
            assert_eq!(pool.asleep(), workers - 1);
            let ran = AtomicUsize::new(0);
            pool.run(|_| {
                ran.fetch_add(1, Relaxed);
            })
            .unwrap();
            assert_eq!(ran.load(Relaxed), workers);
        }
    }
}
