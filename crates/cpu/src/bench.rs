//! Who sits out: the rules by which a pool runs without a worker that other processes keep off its processor.
//!
//! Every worker owns a share of every stage, so that all wait for one whose processor was taken away, for a whole slice of
//! the scheduler. Without it the others have a little more to do each. Nothing here looks at a clock or at a thread: what
//! the system says is handed in.

use std::cmp::Reverse;

/// Time of regions after which it is looked who waited: several slices of a scheduler, which are about 3 ms.
const WINDOW_NS: u64 = 16_000_000;
/// How long a worker is late without a break before it is left out. What the system itself does on a processor is over by
/// then.
const LATE_NS: u64 = 2 * WINDOW_NS;
/// How long a worker is left out at first. Each time that it is late as soon as it is back, the term doubles.
const FIRST_TERM_NS: u64 = 500_000_000;
/// The longest term: a window in which all wait for a worker on trial is then a five-hundredth of the time.
const LONGEST_TERM_NS: u64 = 8_000_000_000;
/// Workers that are never left out: the caller can always go on by itself.
pub(crate) const FEWEST: usize = 1;
/// What leaving workers out must be worth.
const GAIN: f64 = 1.1;

/// The workers of a pool, of whom 0 is the caller and is always in.
#[derive(Debug)]
pub(crate) struct Bench {
    seats: Vec<Seat>,
    /// Time of regions since the last look.
    ran_ns: u64,
    /// When the next term ends.
    next_ns: u64,
    /// Who was left out in the caller's stead.
    stand_in: Option<usize>,
    /// Workers besides the caller that are in, the latest first.
    order: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Seat {
    /// What it waited since the look before.
    waited_ns: u64,
    /// How long it has been late without a break.
    late_ns: u64,
    /// How long it will be left out.
    term_ns: u64,
    /// When it comes back, of one that is out.
    back_ns: Option<u64>,
    /// Whether it has just come back: late once, it goes again.
    trial: bool,
}

impl Bench {
    /// Of `workers`, who are all in.
    pub(crate) fn new(workers: usize) -> Self {
        let seat = Seat { waited_ns: 0, late_ns: 0, term_ns: FIRST_TERM_NS, back_ns: None, trial: false };
        Self {
            seats: vec![seat; workers],
            ran_ns: 0,
            next_ns: u64::MAX,
            stand_in: None,
            order: Vec::with_capacity(workers),
        }
    }

    /// Whether `worker` is left out.
    pub(crate) fn is_out(&self, worker: usize) -> bool {
        self.seats[worker].back_ns.is_some()
    }

    /// Forgets what ran since the last look: what was waited since then was not waited in regions.
    pub(crate) fn forget(&mut self) {
        self.ran_ns = 0;
    }

    /// Takes those back whose term is over at `now`, once a look is over. Whether there were any.
    pub(crate) fn take_back(&mut self, now: u64) -> bool {
        // A trial is a whole window: a slice that is fresh says nothing of the next one.
        if now < self.next_ns || self.ran_ns > 0 {
            return false;
        }
        for seat in self.seats.iter_mut().filter(|s| s.back_ns.is_some_and(|back| back <= now)) {
            *seat = Seat { back_ns: None, trial: true, late_ns: 0, ..*seat };
        }
        self.next_ns = self.seats.iter().filter_map(|s| s.back_ns).min().unwrap_or(u64::MAX);
        true
    }

    /// Counts a region of `ns`. Whether it is time to look.
    pub(crate) fn ran(&mut self, ns: u64) -> bool {
        self.ran_ns += ns;
        self.ran_ns >= WINDOW_NS
    }

    /// Looks at what each worker `waited` since the look before, and leaves out those who are late again and again.
    /// Whether there were any.
    ///
    /// # Errors
    /// That of `waited`; nobody is left out for it.
    pub(crate) fn look(
        &mut self,
        now: u64,
        mut waited: impl FnMut(usize) -> Result<u64, String>,
    ) -> Result<bool, String> {
        let window = std::mem::take(&mut self.ran_ns).max(1);
        for (worker, seat) in self.seats.iter_mut().enumerate() {
            seat.waited_ns = waited(worker)?.min(window);
        }
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend((1..self.seats.len()).filter(|w| !self.is_out(*w)));
        order.sort_unstable_by_key(|&w| Reverse((self.seats[w].waited_ns, w)));
        let share = |w: usize| self.seats[w].waited_ns as f64 / window as f64;
        let (late, caller_late) = (late(&order, share, share(0)), caller_is_late(1 + order.len(), share(0)));
        let mut count = |worker: usize, late: bool| {
            let seat = &mut self.seats[worker];
            seat.late_ns = if late { seat.late_ns + window } else { 0 };
        };
        count(0, caller_late);
        order.iter().enumerate().for_each(|(n, &worker)| count(worker, n < late));
        let changed = self.sentence(now, &order);
        self.order = order;
        Ok(changed)
    }

    fn sentence(&mut self, now: u64, order: &[usize]) -> bool {
        let caller_late_ns = self.seats[0].late_ns;
        let mut changed = false;
        for &worker in order {
            let stands_in = self.stand_in == Some(worker);
            let seat = &mut self.seats[worker];
            let on_trial = std::mem::take(&mut seat.trial);
            let late = seat.late_ns > 0 || stands_in && caller_late_ns > 0;
            if late && on_trial || seat.late_ns >= LATE_NS {
                self.leave_out(worker, now);
                changed = true;
            } else if on_trial {
                seat.term_ns = FIRST_TERM_NS;
                self.stand_in = self.stand_in.filter(|_| !stands_in);
            }
        }
        if caller_late_ns >= LATE_NS && self.stand_in.is_none() {
            // The caller is bound to no processor: it finds one that another leaves, or what disturbs it does. Whoever has just been
            // left out was most likely on the caller's.
            self.stand_in = order.iter().copied().find(|&w| self.is_out(w) || !changed);
            if let Some(worker) = self.stand_in.filter(|w| !self.is_out(*w)) {
                self.leave_out(worker, now);
                changed = true;
            }
        }
        changed
    }

    fn leave_out(&mut self, worker: usize, now: u64) {
        let seat = &mut self.seats[worker];
        let back = now.saturating_add(seat.term_ns);
        *seat = Seat { back_ns: Some(back), late_ns: 0, term_ns: (2 * seat.term_ns).min(LONGEST_TERM_NS), ..*seat };
        self.next_ns = self.next_ns.min(back);
    }
}

/// How many of the workers in `order`, the latest first, are late: as many as it is worth to do without.
///
/// All wait for the latest of those that are in, and those have the work of the others to do: without the first `n` of W, the
/// caller among them, a region goes at (W - n) / W of the full rate, times the share of the time in which worker `n` had its
/// processor. The caller by itself waits for nobody. What it waits is not counted, since it finds the processor that another leaves,
/// but of two: there both wait as often as either does, and nobody else can stand in for it.
fn late(order: &[usize], waited_share: impl Fn(usize) -> f64, callers_share: f64) -> usize {
    let workers = 1 + order.len();
    let caller_runs = if workers == 2 { 1.0 - callers_share } else { 1.0 };
    let both_run = |worker: &usize| (1.0 - waited_share(*worker)) * caller_runs;
    let rate = |n: usize| (1.0 - n as f64 / workers as f64) * order.get(n).map_or(1.0, both_run);
    let best = (1..=workers.saturating_sub(FEWEST)).map(|n| (n, rate(n)));
    let best = best.reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.filter(|(_, best)| *best > GAIN * rate(0)).map_or(0, |(n, _)| n)
}

/// Whether it is worth it to do without one of `workers` so that the caller waits no longer.
fn caller_is_late(workers: usize, waited_share: f64) -> bool {
    workers > FEWEST && 1.0 - 1.0 / workers as f64 > GAIN * (1.0 - waited_share)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: [usize; 0] = [];

    /// A bench on which time passes by windows.
    struct Scene {
        bench: Bench,
        now: u64,
    }

    impl Scene {
        fn new(workers: usize) -> Self {
            Self { bench: Bench::new(workers), now: 0 }
        }

        /// A window in which the workers waited so many hundredths of the time; who is out after it.
        fn window(&mut self, waited: &[(usize, u64)]) -> Vec<usize> {
            self.now += WINDOW_NS;
            self.bench.take_back(self.now);
            assert!(self.bench.ran(WINDOW_NS), "a window is long enough");
            let of = |w: usize| waited.iter().find(|(late, _)| *late == w).map_or(0, |(_, percent)| *percent);
            self.bench.look(self.now, |w| Ok(of(w) * WINDOW_NS / 100)).unwrap();
            (0..self.bench.seats.len()).filter(|w| self.bench.is_out(*w)).collect()
        }

        /// Windows until nobody is out.
        fn until_back(&mut self) -> u64 {
            let began = self.now;
            while self.bench.seats.iter().any(|s| s.back_ns.is_some()) {
                self.now += WINDOW_NS;
                self.bench.take_back(self.now);
            }
            self.now - began
        }
    }

    /// How many of the workers besides the caller are late who waited these hundredths.
    fn late_of(waited: &[u64]) -> usize {
        beside_a_caller(0, waited)
    }

    /// The same, where the caller waited too.
    fn beside_a_caller(callers: u64, waited: &[u64]) -> usize {
        let mut order: Vec<usize> = (0..waited.len()).collect();
        order.sort_by_key(|w| Reverse(waited[*w]));
        late(&order, |w| waited[w] as f64 / 100.0, callers as f64 / 100.0)
    }

    #[test]
    fn late_is_who_costs_more_than_its_share() {
        let of = |late: &[u64], workers: usize| late_of(&[late, &vec![0; workers - 1 - late.len()]].concat());
        assert_eq!(of(&[50], 16), 1, "a neighbour's half of one processor of sixteen");
        assert_eq!(of(&[50, 50], 16), 2);
        assert_eq!(of(&[50, 5], 16), 1, "who waits a little costs less than its share");
        assert_eq!(of(&[12], 16), 0, "not worth it");
        assert_eq!(of(&[50], 4), 1);
        assert_eq!(of(&[50], 3), 1);
        assert_eq!(of(&[30], 3), 0);
        assert_eq!(of(&[50], 2), 0, "half of the workers is what it costs as well");
        assert_eq!(of(&[54], 2), 0, "not worth a tenth more");
        assert_eq!(of(&[55], 2), 1, "the caller by itself is worth more");
        assert_eq!(of(&[60, 60], 3), 0, "two thirds of the workers cost more");
        assert_eq!(of(&[90, 90], 3), 2);
        assert_eq!(beside_a_caller(50, &[50]), 1, "a neighbour that floats: one waits, and then the other");
        assert_eq!(beside_a_caller(30, &[30]), 0);
        assert_eq!(beside_a_caller(60, &[0]), 1);
        assert_eq!(beside_a_caller(50, &[50, 0, 0]), 1, "more than two: as if the caller had not waited");
        for callers in [51, 67, 78, 95] {
            assert_eq!(
                beside_a_caller(callers, &[51, 0]),
                1,
                "who did not wait stays, though the caller waits {callers} %"
            );
            assert_eq!(beside_a_caller(callers, &[67, 0, 0]), 1);
            assert_eq!(beside_a_caller(callers, &[0; 2]), 0, "another one stands in for it");
            assert_eq!(beside_a_caller(callers, &[0; 15]), 0);
        }
        assert_eq!(of(&[50; 15], 16), 0, "all wait: there is nobody to do without");
        assert_eq!(of(&[50; 8], 16), 0, "half of them cost a half");
        assert_eq!(of(&[50; 6], 16), 6);
        assert_eq!(of(&[], 16), 0);
        assert_eq!(of(&[], 1), 0);
    }

    #[test]
    fn who_is_late_twice_in_a_row_sits_out() {
        let mut scene = Scene::new(16);
        assert_eq!(scene.window(&[(5, 50)]), NOBODY);
        assert_eq!(scene.window(&[]), NOBODY, "a window without a wait begins the count again");
        assert_eq!(scene.window(&[(5, 50)]), NOBODY);
        assert_eq!(scene.window(&[(7, 50)]), NOBODY, "another worker");
        assert_eq!(scene.window(&[(7, 50)]), [7]);
    }

    #[test]
    fn one_long_region_is_as_good_as_two_windows() {
        let mut bench = Bench::new(4);
        assert!(!bench.ran(WINDOW_NS - 1));
        assert!(bench.ran(LATE_NS));
        assert_eq!(bench.look(1, |w| Ok(u64::from(w == 2) * WINDOW_NS)), Ok(true));
        assert!(bench.is_out(2));
    }

    #[test]
    fn terms_double_while_a_worker_is_late_on_its_return_and_begin_anew_after() {
        let mut scene = Scene::new(16);
        scene.window(&[(5, 50)]);
        let mut terms = Vec::new();
        for _ in 0..8 {
            assert_eq!(scene.window(&[(5, 50)]), [5], "the first window on trial is enough");
            terms.push(scene.until_back());
        }
        let windows = |ns: u64| ns.next_multiple_of(WINDOW_NS);
        let expected = [1, 2, 4, 8, 16, 16, 16, 16].map(|n| windows(n * FIRST_TERM_NS));
        // A term may end inside a window.
        assert!(terms.iter().zip(expected).all(|(t, e)| t.abs_diff(e) <= WINDOW_NS), "{terms:?}");
        assert_eq!(scene.window(&[]), NOBODY, "the trial is passed");
        scene.window(&[(5, 50)]);
        assert_eq!(scene.window(&[(5, 50)]), [5], "as if for the first time");
        assert!(scene.until_back().abs_diff(FIRST_TERM_NS) <= WINDOW_NS);
    }

    #[test]
    fn for_a_late_caller_another_worker_sits_out() {
        let mut scene = Scene::new(16);
        scene.window(&[(0, 50)]);
        assert_eq!(scene.window(&[(0, 50)]), [15], "any does");
        assert_eq!(scene.window(&[(0, 50)]), [15], "one is all that can help");
        scene.until_back();
        assert_eq!(scene.window(&[(0, 50)]), [15], "late at once: the same again");
        scene.until_back();
        assert_eq!(scene.window(&[]), NOBODY);
        scene.window(&[(0, 50), (9, 5)]);
        assert_eq!(scene.window(&[(0, 50), (9, 5)]), [9], "the latest of the others");
    }

    #[test]
    fn a_worker_and_a_caller_that_share_a_processor_cost_one_worker() {
        for (workers, waited) in [(3, 50), (3, 55), (4, 50), (4, 67), (16, 50), (16, 95)] {
            let mut scene = Scene::new(workers);
            scene.window(&[(0, waited), (2, waited)]);
            assert_eq!(scene.window(&[(0, waited), (2, waited)]), [2], "of {workers}, {waited} %");
            assert_eq!(scene.window(&[]), [2], "and nobody else");
        }
    }

    #[test]
    fn nobody_comes_back_within_a_window() {
        let mut scene = Scene::new(4);
        scene.window(&[(2, 50)]);
        assert_eq!(scene.window(&[(2, 50)]), [2]);
        let over = scene.now + FIRST_TERM_NS;
        assert!(!scene.bench.ran(WINDOW_NS / 2));
        assert!(!scene.bench.take_back(over) && scene.bench.is_out(2), "half a window would be its trial");
        scene.bench.forget();
        assert!(scene.bench.take_back(over) && !scene.bench.is_out(2));
    }

    #[test]
    fn the_caller_stays() {
        let mut scene = Scene::new(3);
        scene.window(&[(1, 90)]);
        assert_eq!(scene.window(&[(1, 90)]), [1]);
        scene.window(&[(2, 90)]);
        for _ in 0..4 {
            assert_eq!(scene.window(&[(0, 90), (2, 90)]), [1, 2]);
        }
    }

    #[test]
    fn what_cannot_be_read_leaves_nobody_out() {
        let mut bench = Bench::new(4);
        assert!(bench.ran(LATE_NS));
        let read = |w: usize| if w == 3 { Err("gone".to_string()) } else { Ok(u64::from(w == 1) * LATE_NS) };
        assert_eq!(bench.look(1, read), Err("gone".to_string()));
        assert!((0..4).all(|w| !bench.is_out(w)));
    }
}
