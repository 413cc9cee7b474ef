//! Whether anything else was running: data for the caller to judge.

use crate::clock::monotonic_ns;
use crate::files::SystemFiles;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::Duration;
use tare_core::Reading;

/// What was seen of others during a short window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quietness {
    /// How long was looked, in nanoseconds.
    pub window_ns: u64,
    /// Runnable and waiting tasks, averaged by the kernel over one minute.
    pub load_1m: Reading<f64>,
    /// The share of all CPUs' time in the window that the hypervisor gave to others, 0 to 1. The kernel counts in
    /// ticks (usually 10 ms), so a short window shows steps.
    pub steal_share: Reading<f64>,
    /// The share of all CPUs' time in the window that was not idle, this process's own spinning included, 0 to 1.
    pub busy_share: Reading<f64>,
    /// The same share of stolen time since boot.
    pub steal_share_since_boot: Reading<f64>,
    /// Times of equal pieces of pure register work on one thread.
    pub spin: Spin,
}

/// Times of equal pieces of work that touches no memory: what spreads them is the machine, not the work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spin {
    /// Every piece in order, in nanoseconds.
    pub ns: Vec<u64>,
    /// The fastest piece.
    pub fastest_ns: u64,
    /// The middle piece.
    pub median_ns: u64,
    /// The slowest piece.
    pub slowest_ns: u64,
    /// How much longer the whole took than if every piece had been the fastest: 0.02 is 2 % lost to others or to
    /// changes of frequency.
    pub lost_share: f64,
}

impl Quietness {
    /// Spins on the calling thread for about `window` (at least one piece of about a millisecond) and looks at the
    /// kernel's counters before and after.
    pub fn observe(window: Duration) -> Self {
        Self::observe_in(&SystemFiles::live(), window)
    }

    fn observe_in(files: &SystemFiles, window: Duration) -> Self {
        let before = Ticks::read(files);
        let start = monotonic_ns();
        let spin = Spin::run(window);
        let window_ns = monotonic_ns() - start;
        let after = Ticks::read(files);
        let change = before.and_then(|before| Ok(after.clone()?.since(&before)));
        let share = |ticks: &Result<Ticks, String>, part: fn(&Ticks) -> u64| -> Reading<f64> {
            ticks.as_ref().map_err(|why| why.clone()).and_then(|t| t.share(part(t))).into()
        };
        Self {
            window_ns,
            load_1m: files.text("proc/loadavg").and_then(|t| first_number(&t)).into(),
            steal_share: share(&change, |t| t.steal),
            busy_share: share(&change, |t| t.total - t.idle),
            steal_share_since_boot: share(&after, |t| t.steal),
            spin,
        }
    }
}

fn first_number(text: &str) -> Result<f64, String> {
    let word = text.split_whitespace().next().unwrap_or("");
    word.parse().map_err(|_| format!("/proc/loadavg: expected a number, found \"{word}\""))
}

/// CPU time of all CPUs together in kernel ticks, from the first line of `/proc/stat`.
#[derive(Clone, Debug, PartialEq)]
struct Ticks {
    total: u64,
    idle: u64,
    steal: u64,
}

impl Ticks {
    fn read(files: &SystemFiles) -> Result<Self, String> {
        Self::parse(&files.text("proc/stat")?)
    }

    /// `cpu user nice system idle iowait irq softirq steal guest guest_nice`; guest time is inside user time already.
    fn parse(stat: &str) -> Result<Self, String> {
        let bad = || "/proc/stat: expected a first line \"cpu\" with eight numbers or more".to_string();
        let line = stat.lines().next().and_then(|l| l.strip_prefix("cpu ")).ok_or_else(bad)?;
        let ticks: Result<Vec<u64>, _> = line.split_whitespace().take(8).map(str::parse).collect();
        match ticks.as_deref() {
            Ok(all @ &[_, _, _, idle, iowait, _, _, steal]) => {
                Ok(Self { total: all.iter().sum(), idle: idle + iowait, steal })
            }
            _ => Err(bad()),
        }
    }

    /// The change since `before`. The kernel may correct idle time downwards by a tick; that counts as no change.
    fn since(&self, before: &Self) -> Self {
        let (idle, steal) = (self.idle.saturating_sub(before.idle), self.steal.saturating_sub(before.steal));
        Self { total: self.total.saturating_sub(before.total).max(idle + steal), idle, steal }
    }

    fn share(&self, part: u64) -> Result<f64, String> {
        if self.total == 0 {
            return Err("the window was shorter than one kernel tick".to_string());
        }
        Ok(part as f64 / self.total as f64)
    }
}

impl Spin {
    fn run(window: Duration) -> Self {
        const PIECE_STEPS: u64 = 1 << 20;
        let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        let start = monotonic_ns();
        let mut ns = Vec::with_capacity(1024);
        // One untimed piece: its start pays for a sleeping core's waking.
        piece(PIECE_STEPS);
        loop {
            let before = monotonic_ns();
            piece(PIECE_STEPS);
            let after = monotonic_ns();
            ns.push(after - before);
            if after - start >= window_ns {
                return Self::of(ns);
            }
        }
    }

    /// The figures of these times; `ns` must not be empty.
    fn of(ns: Vec<u64>) -> Self {
        let mut sorted = ns.clone();
        sorted.sort_unstable();
        let (fastest_ns, slowest_ns) = (sorted[0], sorted[sorted.len() - 1]);
        let ideal = fastest_ns as f64 * ns.len() as f64;
        let spent: u64 = ns.iter().sum();
        let lost_share = if spent == 0 { 0.0 } else { 1.0 - ideal / spent as f64 };
        Self { fastest_ns, median_ns: sorted[sorted.len() / 2], slowest_ns, lost_share, ns }
    }
}

/// A chain of dependent integer steps (Marsaglia's xorshift), which no compiler can shorten.
fn piece(steps: u64) {
    let mut x = black_box(0x9E37_79B9_7F4A_7C15u64);
    for _ in 0..steps {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_from_the_tick_counts() {
        let before = Ticks::parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8\n").unwrap();
        let after = Ticks::parse("cpu  150 0 60 820 55 0 5 10 0 0\n").unwrap();
        let change = after.since(&before);
        assert_eq!(change, Ticks { total: 100, idle: 25, steal: 10 });
        assert_eq!(change.share(change.steal), Ok(0.10));
        assert!(change.since(&change).share(0).unwrap_err().contains("tick"));
        assert!(Ticks::parse("cpu 1 2 3").is_err());
        assert!(Ticks::parse("intr 1 2 3 4 5 6 7 8").is_err());
    }

    #[test]
    fn spin_figures_follow_from_the_times() {
        let spin = Spin::of(vec![100, 125, 100, 175]);
        assert_eq!((spin.fastest_ns, spin.median_ns, spin.slowest_ns), (100, 125, 175));
        assert!((spin.lost_share - 0.2).abs() < 1e-12);
    }

    #[test]
    fn a_window_is_observed_and_survives_json() {
        let q = Quietness::observe(Duration::from_millis(30));
        assert!(q.window_ns >= 30_000_000);
        assert!(q.spin.ns.iter().all(|&ns| ns > 0));
        assert!((0.0..1.0).contains(&q.spin.lost_share));
        if cfg!(target_os = "linux") {
            assert!(q.load_1m.available().is_some() && q.steal_share_since_boot.available().is_some());
        }
        let back: Quietness = serde_json::from_str(&serde_json::to_string(&q).unwrap()).unwrap();
        assert_eq!(back.spin.ns, q.spin.ns);
        assert!((back.spin.lost_share - q.spin.lost_share).abs() < 1e-12);
    }

    #[test]
    fn without_proc_the_reasons_are_given_and_the_spin_remains() {
        let dir = tempfile::tempdir().unwrap();
        let q = Quietness::observe_in(&SystemFiles::under(dir.path()), Duration::ZERO);
        assert!(q.steal_share.to_string().contains("/proc/stat"), "{}", q.steal_share);
        assert!(q.load_1m.available().is_none());
        assert_eq!(q.spin.ns.len(), 1);
    }
}
