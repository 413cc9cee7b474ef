//! A pool that runs without some of its workers: whom the system keeps off its processor sits out, and comes back.

mod witness;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::thread;

use tare_cpu::pool::{Pool, Witness};
use tare_ops::Benched;
use witness::{Script, TICK_NS};

/// Regions in the first term of a worker that sits out: each takes one tick, and so does what is between two.
const TERM: usize = (500_000_000 / (2 * TICK_NS)) as usize;

fn pool(workers: usize, script: &Script) -> Pool {
    Pool::watched(workers, false, Box::new(script.clone())).unwrap()
}

/// A region with two stages: who ran it, by name and index.
fn region(pool: &mut Pool) -> Vec<(String, usize)> {
    let (ran, met) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    pool.run(|r| {
        met.fetch_add(1, Relaxed);
        r.barrier();
        assert_eq!(met.load(Relaxed), r.workers, "all met");
        r.barrier();
        let name =
            thread::current().name().filter(|name| name.starts_with("tare-cpu-")).unwrap_or("caller").to_string();
        ran.lock().unwrap().push((name, r.worker));
    })
    .unwrap();
    let mut ran = ran.into_inner().unwrap();
    ran.sort_by_key(|(_, index)| *index);
    assert!(ran.iter().map(|(_, index)| *index).eq(0..pool.active()), "indices have no gap: {ran:?}");
    ran
}

fn names(ran: &[(String, usize)]) -> Vec<&str> {
    ran.iter().map(|(name, _)| &**name).collect()
}

/// The pool with worker `late` left out.
fn without(workers: usize, late: usize) -> (Pool, Script) {
    let script = Script::default();
    let mut pool = pool(workers, &script);
    // One of two has to be waited for more than half of the time, which takes both.
    script.late(if workers == 2 { &[0, 1] } else { std::slice::from_ref(&late) });
    (0..2).for_each(|_| assert_eq!(region(&mut pool).len(), workers));
    assert_eq!(region(&mut pool).len(), workers - 1);
    script.late(&[]);
    (pool, script)
}

#[test]
fn a_late_worker_sits_out_and_comes_back() {
    let (mut pool, script) = without(4, 2);
    let three = ["caller", "tare-cpu-1", "tare-cpu-3"];
    assert_eq!(names(&region(&mut pool)), three);
    // Two regions without it have passed.
    let mut back = (0usize..).find(|_| region(&mut pool).len() == 4);
    assert!(back.is_some_and(|n| n.abs_diff(TERM - 2) <= 1), "after {back:?} regions of {TERM}");
    script.late(&[2]);
    assert_eq!(region(&mut pool).len(), 4, "the trial was passed: one window says nothing");
    assert_eq!(region(&mut pool).len(), 4);
    assert_eq!(names(&region(&mut pool)), three);
    back = (0usize..).find(|_| region(&mut pool).len() == 4);
    assert!(back.is_some_and(|n| n.abs_diff(TERM - 1) <= 1));
    assert_eq!(names(&region(&mut pool)), three, "late as soon as it is back");
    back = (0usize..).find(|_| region(&mut pool).len() == 4);
    assert!(back.is_some_and(|n| n.abs_diff(2 * TERM - 1) <= 2), "twice as long: {back:?}");
}

/// One of two: the caller goes on by itself, in regions of one.
#[test]
fn of_two_workers_one_sits_out_and_comes_back() {
    let script = Script::default();
    let mut pool = pool(2, &script);
    // A neighbour that floats: now the one waits, now the other.
    script.late(&[0, 1]);
    (0..2).for_each(|_| assert_eq!(region(&mut pool).len(), 2));
    for _ in 0..4 {
        assert_eq!(region(&mut pool), [("caller".to_string(), 0)]);
    }
    script.late(&[1]);
    let back = (0usize..).find(|_| region(&mut pool).len() == 2);
    assert!(back.is_some_and(|n| n.abs_diff(TERM - 4) <= 1), "after {back:?} regions of {TERM}");
    (0..4).for_each(|_| {
        assert_eq!(region(&mut pool).len(), 2, "half of the time is what half of the workers cost as well")
    });
}

#[test]
fn what_sat_out_is_told() {
    let script = Script::default();
    let mut pool = pool(3, &script);
    assert_eq!(pool.benched().available(), Some(&Benched::default()));
    script.late(&[1]);
    for _ in 0..5 {
        region(&mut pool);
    }
    assert_eq!(pool.benched().available(), Some(&Benched { regions: 5, short: 3, most: 1 }));
}

#[test]
fn for_the_caller_another_one_sits_out() {
    let (mut pool, _) = without(3, 0);
    assert_eq!(names(&region(&mut pool)), ["caller", "tare-cpu-1"]);
}

#[test]
fn several_sit_out_as_long_as_it_is_worth_it() {
    let script = Script::default();
    let mut pool = pool(6, &script);
    script.late(&[1, 3]);
    region(&mut pool);
    region(&mut pool);
    assert_eq!(names(&region(&mut pool)), ["caller", "tare-cpu-2", "tare-cpu-4", "tare-cpu-5"]);
    for late in [[2, 4, 5], [4, 5, 2], [5, 2, 4]].concat() {
        script.late(&[late]);
        (0..4).for_each(|_| assert!(region(&mut pool).len() >= 2, "half of the time is what half of the workers cost"));
    }
}

/// Why nobody ever sits out.
fn why(pool: &Pool) -> String {
    pool.benched().map(|benched| format!("{benched:?}")).to_string()
}

#[test]
fn pools_that_cannot_do_without_anybody_say_so() {
    let script = Script::default();
    let mut alone = pool(1, &script);
    script.late(&[0]);
    for _ in 0..4 {
        assert_eq!(region(&mut alone).len(), 1);
    }
    assert!(why(&alone).contains("one worker alone"));
    let floating = Pool::new(3, false).unwrap();
    assert!(why(&floating).contains("not bound"));
}

#[test]
fn nobody_sits_out_of_a_pool_that_keeps_its_workers() {
    let mut pool = Pool::kept(4, false).unwrap();
    for _ in 0..4 {
        assert_eq!(region(&mut pool).len(), 4);
    }
    assert!(why(&pool).contains("every worker is kept in"), "{}", why(&pool));
    assert!(!pool.hold(true) && !pool.hold(true), "there is nothing to hold");
}

#[test]
fn a_held_pool_neither_loses_nor_takes_back_a_worker() {
    let script = Script::default();
    let mut whole = pool(4, &script);
    script.late(&[2]);
    region(&mut whole);
    assert!(!whole.hold(true));
    assert!((0..TERM).all(|_| region(&mut whole).len() == 4), "late, and in all the same");
    assert!(whole.hold(false));
    assert_eq!(region(&mut whole).len(), 4);
    assert_eq!(region(&mut whole).len(), 3, "late for the second time");

    let (mut short, _) = without(4, 2);
    short.hold(true);
    assert!((0..2 * TERM).all(|_| names(&region(&mut short)) == ["caller", "tare-cpu-1", "tare-cpu-3"]));
    let told = *short.benched().available().unwrap();
    assert_eq!(
        told,
        Benched { regions: 3 + 2 * TERM as u64, short: 1 + 2 * TERM as u64, most: 1 },
        "held ones count too"
    );
    short.hold(false);
    assert!((0..=TERM).any(|_| region(&mut short).len() == 4), "its term passes now");
}

#[test]
fn regions_of_loading_are_neither_looked_at_nor_counted() {
    let script = Script::default();
    let mut whole = pool(4, &script);
    assert!(!whole.set_aside(true));
    script.late(&[2]);
    assert!((0..TERM).all(|_| region(&mut whole).len() == 4), "late, and in all the same");
    assert!(whole.set_aside(false));
    assert_eq!(whole.benched().available(), Some(&Benched::default()));
    script.late(&[]);
    assert!((0..4).all(|_| region(&mut whole).len() == 4), "what was waited before is forgotten");
    assert_eq!(whole.benched().available(), Some(&Benched { regions: 4, short: 0, most: 0 }));

    let (mut short, _) = without(4, 2);
    short.set_aside(true);
    assert!((0..2 * TERM).all(|_| names(&region(&mut short)) == ["caller", "tare-cpu-1", "tare-cpu-3"]));
    assert_eq!(short.benched().available(), Some(&Benched { regions: 3, short: 1, most: 1 }));
}

/// A system that stops telling.
#[derive(Debug)]
struct Falling(Script, usize);

impl Witness for Falling {
    fn now_ns(&mut self) -> u64 {
        self.0.now_ns()
    }

    fn waited_ns(&mut self, worker: usize) -> Result<u64, String> {
        self.1 = self.1.checked_sub(1).ok_or("the file is gone")?;
        self.0.waited_ns(worker)
    }
}

#[test]
fn when_the_system_stops_telling_all_come_back() {
    let script = Script::default();
    let mut pool = Pool::watched(3, false, Box::new(Falling(script.clone(), 3 * 3))).unwrap();
    script.late(&[1]);
    region(&mut pool);
    region(&mut pool);
    assert_eq!(region(&mut pool).len(), 2);
    assert_eq!(region(&mut pool).len(), 2, "its last words were before");
    assert_eq!(region(&mut pool).len(), 3);
    assert!(why(&pool).contains("the file is gone"));
}

#[test]
fn shares_cover_everything_without_a_worker() {
    let (mut pool, _) = without(4, 1);
    for (items, chunk) in [(0, 4), (1, 4), (10, 4), (192, 16), (7, 1), (2, 1)] {
        let seen: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
        pool.run(|r| r.share(items, chunk).for_each(|i| _ = seen[i].fetch_add(1, Relaxed))).unwrap();
        assert_eq!(pool.active(), 3);
        assert!(seen.iter().all(|s| s.load(Relaxed) == 1), "{items} items in chunks of {chunk}");
    }
}

#[test]
fn panics_are_reported_without_a_worker_and_the_pool_survives() {
    let (mut pool, _) = without(4, 1);
    for culprit in [0, 1, 2] {
        let result = pool.run(|r| {
            r.barrier();
            assert!(r.worker != culprit, "planted in {culprit}");
            r.barrier();
        });
        assert_eq!(result.unwrap_err().worker, culprit);
        assert_eq!(region(&mut pool).len(), 3);
    }
    assert!((0..2 * TERM).any(|_| region(&mut pool).len() == 4), "who sat out was in none of it and comes back");
}

#[test]
fn a_resting_pool_sleeps_whole_and_wakes_without_a_worker() {
    for workers in [2, 4] {
        let (mut pool, _) = without(workers, workers - 1);
        for _ in 0..3 {
            pool.rest();
            assert_eq!(pool.asleep(), workers - 1);
            assert_eq!(region(&mut pool).len(), workers - 1);
        }
        assert!((0..TERM).any(|_| region(&mut pool).len() == workers), "it slept, and still comes back");
    }
}

#[test]
fn a_pool_is_dropped_whoever_sits_out() {
    for regions in 0..TERM + 4 {
        let (mut pool, script) = without(4, 2);
        script.late(&[1, 3]);
        (0..regions).for_each(|_| _ = region(&mut pool));
    }
}

#[test]
fn workers_come_and_go_at_any_time() {
    let mut pool = pool(5, &Script::by_turns(0));
    let mut sizes = BTreeSet::new();
    for _ in 0..1_000 {
        sizes.insert(region(&mut pool).len());
    }
    assert!(sizes.len() > 2, "{sizes:?}");
}

/// A system on which a model is loaded between regions, while worker 1 and the caller wait.
#[derive(Debug, Default)]
struct Loading {
    now_ns: u64,
    reads: usize,
    owed: [u64; 4],
}

impl Witness for Loading {
    fn now_ns(&mut self) -> u64 {
        self.reads += 1;
        if self.reads % 2 == 1 {
            self.owed[..2].fill(300_000_000);
            self.now_ns += 300_000_000;
        } else {
            self.now_ns += 100_000_000;
        }
        self.now_ns
    }

    fn waited_ns(&mut self, worker: usize) -> Result<u64, String> {
        Ok(std::mem::take(&mut self.owed[worker]))
    }
}

#[test]
fn what_is_waited_between_regions_leaves_nobody_out() {
    let mut pool = Pool::watched(4, false, Box::new(Loading::default())).unwrap();
    for _ in 0..6 {
        assert_eq!(region(&mut pool).len(), 4);
    }
}
