//! Ceilings sampled again and again while something else is measured: the buffer is filled once and kept.

use super::stream::Reader;
use super::tiles::Tiles;
use super::{Fma, Work, team};
use crate::amx;
use crate::host::Host;
use crate::memory::ResidentMemory;
use crate::region::Region;
use std::hint::black_box;
use tare_core::Reading;

/// Turns of the first multiply-add round, which tells the speed.
const TRIAL_TURNS: u64 = 1 << 18;

/// Turns of the first round of products of tiles.
const TRIAL_PASSES: u64 = 64;

/// A buffer and threads that read it, and the same threads multiplying and adding.
#[derive(Debug)]
pub struct Sampler {
    cpus: Vec<usize>,
    regions: Vec<Region>,
    huge_bytes: Reading<u64>,
    reader: Reader,
    ahead_bytes: usize,
    fma: Fma,
    sample_ns: u64,
    read_ns: u64,
    turns_per_us: f64,
    /// The tiles of each thread, and the turns that it does in a microsecond.
    tiles: Reading<(Vec<Tiles>, f64)>,
}

/// Pieces of a sample of arithmetic.
const PIECES: u64 = 4;

/// One pass over the buffer, or one piece of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Bytes or operations, all threads together.
    pub amount: u64,
    /// Nanoseconds, from the first thread's start to the last one's end.
    pub ns: u64,
}

impl Sampler {
    /// Fills a buffer of about `bytes` with `threads` threads bound to their CPUs, chooses the prefetch distance, and
    /// learns how much fits into `sample_ns`.
    ///
    /// # Errors
    /// When the system gives no memory of this size.
    pub fn new(host: &Host, threads: usize, bytes: u64, sample_ns: u64) -> Result<Self, String> {
        let mut cpus = super::bench_cpus(host);
        cpus.truncate(threads.max(1));
        let huge_before = ResidentMemory::read().huge_bytes;
        let share = usize::try_from(bytes).unwrap_or(usize::MAX) / cpus.len().max(1);
        let filled = team::on_each(&cpus, |thread| Region::filled(share, thread as u64, || true));
        let regions = filled.into_iter().collect::<Result<Vec<Region>, String>>()?;
        let huge_bytes = match (huge_before, ResidentMemory::read().huge_bytes) {
            (Reading::Available(before), Reading::Available(after)) => Reading::Available(after.saturating_sub(before)),
            (Reading::Unavailable { why }, _) | (_, Reading::Unavailable { why }) => Reading::unavailable(why),
        };
        let (reader, fma) = (Reader::best(&host.features), Fma::best(&host.features));
        let tiles = amx::usable().clone().map(|()| (team::on_each(&cpus, |thread| Tiles::new(thread as u64)), 0.0));
        let (ahead_bytes, read_ns, turns_per_us) = (0, 1, 0.0);
        let mut sampler =
            Self { cpus, regions, huge_bytes, reader, ahead_bytes, fma, sample_ns, read_ns, turns_per_us, tiles };
        sampler.choose();
        Ok(sampler)
    }

    /// Two passes at each distance, the faster of them counts; a first piece of arithmetic wakes the units.
    fn choose(&mut self) {
        let timed = |ahead: usize| self.passes(2, ahead).into_iter().min().unwrap_or(u64::MAX);
        let best = self.reader.distances().iter().map(|&ahead| (timed(ahead), ahead)).min().unwrap_or((1, 0));
        (self.read_ns, self.ahead_bytes) = (best.0.max(1), best.1);
        let trial = self.arithmetic(TRIAL_TURNS, 2);
        self.turns_per_us = TRIAL_TURNS as f64 * 1e3 / trial[1].max(1) as f64;
        if let Reading::Available((tiles, turns_per_us)) = &mut self.tiles {
            let trial = products(&self.cpus, tiles, TRIAL_PASSES, 2);
            *turns_per_us = TRIAL_PASSES as f64 * 1e3 / trial[1].max(1) as f64;
        }
    }

    fn passes(&self, rounds: usize, ahead: usize) -> Vec<u64> {
        team::timed_rounds(&self.cpus, rounds, |thread| {
            _ = black_box(self.reader.fold(self.regions[thread].words(), ahead));
        })
    }

    fn arithmetic(&self, turns: u64, rounds: usize) -> Vec<u64> {
        let kind = self.fma;
        team::timed_rounds(&self.cpus, rounds, |_thread| _ = black_box(kind.run(turns)))
    }

    /// Passes over the buffer, as many as fit into the time of a sample and at least one.
    pub fn read(&self) -> Vec<Sampled> {
        let rounds = (self.sample_ns / self.read_ns).clamp(1, 64) as usize;
        self.passes(rounds, self.ahead_bytes).into_iter().map(|ns| Sampled { amount: self.bytes(), ns }).collect()
    }

    /// Multiply-adds for about the time of a sample, in three pieces after one that wakes the units.
    pub fn multiply_add(&self) -> Vec<Sampled> {
        let turns = self.turns(self.turns_per_us);
        let amount = self.fma.flop_per_turn() * turns * self.cpus.len() as u64;
        let ns = self.arithmetic(turns, PIECES as usize);
        ns.into_iter().skip(1).map(|ns| Sampled { amount, ns }).collect()
    }

    /// Products of BF16 tiles out of L2 for about the time of a sample, in three pieces after one that wakes the units.
    pub fn multiply_tiles(&self) -> Reading<Vec<Sampled>> {
        let (tiles, turns) = match &self.tiles {
            Reading::Available((tiles, turns_per_us)) => (tiles, self.turns(*turns_per_us)),
            Reading::Unavailable { why } => return Reading::unavailable(why.as_str()),
        };
        let amount = Tiles::flop_per_turn() * turns * self.cpus.len() as u64;
        let ns = products(&self.cpus, tiles, turns, PIECES as usize);
        Reading::Available(ns.into_iter().skip(1).map(|ns| Sampled { amount, ns }).collect())
    }

    /// Turns of a piece of a sample.
    fn turns(&self, per_us: f64) -> u64 {
        ((self.sample_ns / PIECES) as f64 / 1e3 * per_us).max(1.0) as u64
    }

    /// Bytes of the buffer: what one pass reads.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(|r| size_of_val(r.words()) as u64).sum()
    }

    /// How much of the buffer lies in huge pages.
    pub fn huge_bytes(&self) -> &Reading<u64> {
        &self.huge_bytes
    }

    /// Threads that work together.
    pub fn threads(&self) -> usize {
        self.cpus.len()
    }
}

/// Products of tiles on every thread.
fn products(cpus: &[usize], tiles: &[Tiles], turns: u64, rounds: usize) -> Vec<u64> {
    team::timed_rounds(cpus, rounds, |thread| tiles[thread].run(Work::TileFlop, turns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_says_what_was_done_and_the_buffer_stays() {
        let host = Host::read();
        let sampler = Sampler::new(&host, 1, 4 << 20, 1_000_000).unwrap();
        assert_eq!((sampler.bytes(), sampler.threads()), (4 << 20, 1));
        for _ in 0..2 {
            let reads = sampler.read();
            assert!(!reads.is_empty() && reads.iter().all(|s| s.amount == 4 << 20 && s.ns > 0), "{reads:?}");
            let adds = sampler.multiply_add();
            assert!(adds.len() == 3 && adds.iter().all(|s| s.amount > 0 && s.ns > 0), "{adds:?}");
            match (sampler.multiply_tiles(), amx::usable()) {
                (Reading::Available(tiles), _) => {
                    assert!(tiles.len() == 3 && tiles.iter().all(|s| s.ns > 0), "{tiles:?}")
                }
                (Reading::Unavailable { why }, usable) => assert_eq!(*usable, Reading::unavailable(why)),
            }
        }
    }

    #[test]
    fn an_impossible_buffer_is_an_error() {
        assert!(Sampler::new(&Host::read(), 1, u64::MAX / 2, 1).is_err());
    }
}
