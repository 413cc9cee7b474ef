//! Threads bound to CPUs that start each round together.

use crate::affinity::pin_current_thread;
use crate::clock::monotonic_ns;
use std::sync::Barrier;

/// Runs `make` on one bound thread per CPU and returns what they made, in the order of `cpus`.
pub(super) fn on_each<S: Send>(cpus: &[usize], make: impl Fn(usize) -> S + Sync) -> Vec<S> {
    std::thread::scope(|scope| {
        let make = &make;
        let workers: Vec<_> = cpus
            .iter()
            .enumerate()
            .map(|(thread, &cpu)| {
                scope.spawn(move || {
                    bind(cpu);
                    make(thread)
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().expect("measuring code does not panic")).collect()
    })
}

/// Runs `work` on every CPU `rounds` times, all threads starting each round together, and returns the time of each
/// round in nanoseconds: from the first thread's start to the last thread's end.
pub(super) fn timed_rounds(cpus: &[usize], rounds: usize, work: impl Fn(usize) + Sync) -> Vec<u64> {
    let gate = Barrier::new(cpus.len());
    let spans: Vec<Vec<(u64, u64)>> = on_each(cpus, |thread| {
        (0..rounds)
            .map(|_| {
                gate.wait();
                let start = monotonic_ns();
                work(thread);
                (start, monotonic_ns())
            })
            .collect()
    });
    (0..rounds)
        .map(|round| {
            let start = spans.iter().map(|s| s[round].0).min().unwrap_or(0);
            let end = spans.iter().map(|s| s[round].1).max().unwrap_or(0);
            (end - start).max(1)
        })
        .collect()
}

/// Binds where the system can. An unbound thread measures the same thing with more noise, which the kept samples show.
fn bind(cpu: usize) {
    let _unbound_is_fine = pin_current_thread(cpu);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_thread_works_in_every_round() {
        let calls = [const { AtomicUsize::new(0) }; 3];
        let ns = timed_rounds(&[0, 0, 0], 5, |thread| {
            calls[thread].fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ns.len(), 5);
        assert!(calls.iter().all(|c| c.load(Ordering::Relaxed) == 5));
        assert_eq!(on_each(&[0, 0], |thread| thread * 10), [0, 10]);
    }
}
