//! The most that this host does: bytes read from memory a second, and operations a second, measured.
//!
//! These are the denominators of "percent of floor". Each is the median of at least five rounds, every round is kept,
//! and the readings follow from the kept rounds alone ([`Ceilings::readings_of`]).

mod dot;
mod fma;
mod kept;
mod sampler;
mod stream;
mod team;
mod tiles;

pub use kept::{Origin, Stored};
pub use sampler::{Sampled, Sampler};

use crate::amx;
use crate::clock::monotonic_ns;
use crate::host::Host;
use crate::memory::ResidentMemory;
use crate::quiet::Quietness;
use crate::region::Region;
use dot::Dot;
use fma::Fma;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::Duration;
use stream::Reader;
use tare_core::Reading;
use tare_core::units::human_bytes;
use tiles::Tiles;

/// What was measured, and from what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// The figures.
    #[serde(flatten)]
    pub readings: Readings,
    /// Threads behind the `_all` figures.
    pub threads: usize,
    /// What else ran just before: others' work lowers the figures.
    pub quietness: Quietness,
    /// Every series of rounds, in the order in which they ran.
    pub series: Vec<Series>,
    /// How long all of it took, in nanoseconds.
    pub spent_ns: u64,
}

/// The ceilings. Each is an aggregate over its threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Readings {
    /// Bytes that one thread reads from memory in a second.
    pub read_1t_bytes_per_s: Reading<u64>,
    /// Bytes that all usable threads together read from memory in a second.
    pub read_all_bytes_per_s: Reading<u64>,
    /// F32 operations (a multiply and an add are two) of one thread in a second.
    pub fma_f32_1t_flop_per_s: Reading<u64>,
    /// F32 operations of all usable threads together in a second.
    pub fma_f32_all_flop_per_s: Reading<u64>,
    /// Operations of products of bytes, of one thread in a second: in vectors, or where there are tiles twice those of BF16, whose tiles
    /// have half as many columns and take as long (Intel's optimization manual, on TMUL).
    pub dot_int8_1t_op_per_s: Reading<u64>,
    /// The same of all usable threads together.
    pub dot_int8_all_op_per_s: Reading<u64>,
    /// Operations of products of BF16 tiles that come out of L2, of one thread in a second.
    pub tiles_1t_flop_per_s: Reading<u64>,
    /// The same of all usable threads together.
    pub tiles_all_flop_per_s: Reading<u64>,
    /// Operations of products of BF16 tiles that stay in registers, of all usable threads together in a second. What
    /// separates it from the one before is L2.
    pub tile_registers_all_flop_per_s: Reading<u64>,
}

/// Rounds of the same work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// What was counted.
    pub what: Work,
    /// Threads that worked together.
    pub threads: usize,
    /// The instructions used, and for reads how far ahead they prefetch.
    pub kernel: String,
    /// Whether these rounds only chose between kernels. Their times do not enter the readings.
    pub screening: bool,
    /// Bytes or operations of one round, all threads together.
    pub per_round: u64,
    /// For reads: how much of the buffer lay in huge pages.
    pub huge_bytes: Reading<u64>,
    /// For reads: all L3 of this host together. A buffer of less than about four times this gives cache hits too.
    pub l3_bytes: Reading<u64>,
    /// Time of every round in nanoseconds.
    pub ns: Vec<u64>,
}

/// What a series counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Bytes read from memory.
    ReadBytes,
    /// F32 multiply-adds, two operations each.
    FmaF32Flop,
    /// Multiply-adds of bytes in vectors, two operations each.
    DotInt8Op,
    /// Multiply-adds in products of BF16 tiles out of L2, two operations each.
    TileFlop,
    /// The same of tiles that stay in registers.
    TileRegistersFlop,
}

/// How much to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// The most that the read buffer may take.
    pub buffer_bytes_limit: u64,
    /// How long one filling of the buffer may take; a slower host gets a shorter buffer, and the series says so.
    pub fill_ns_limit: u64,
    /// Rounds of each final series at least; fewer than five give no figure.
    pub rounds: usize,
    /// A read series goes on past `rounds` to about this length, so that short rounds are not all hit by one
    /// disturbance.
    pub read_series_ns: u64,
    /// Length of one multiply-add round.
    pub fma_round_ns: u64,
    /// How long to look at what else runs before measuring.
    pub quiet_window: Duration,
    /// A measurement made while others took more than this share of a spinning thread's time ([`Spin::lost_share`]) is
    /// given out and not kept.
    ///
    /// [`Spin::lost_share`]: crate::quiet::Spin::lost_share
    pub busy_limit: f64,
}

impl Effort {
    /// About two seconds on two quiet cores.
    pub const FULL: Self = Self {
        buffer_bytes_limit: 4 << 30,
        fill_ns_limit: 2_000_000_000,
        rounds: 7,
        read_series_ns: 250_000_000,
        fma_round_ns: 30_000_000,
        quiet_window: Duration::from_millis(100),
        busy_limit: 0.2,
    };
}

/// Fewer rounds than this give no figure.
const MIN_ROUNDS: usize = 5;
/// More rounds than this say nothing new.
const MAX_ROUNDS: usize = 51;

impl Ceilings {
    /// Measures this host. The calling thread waits; the work is done on threads of its own, bound to the CPUs that
    /// this process may use.
    pub fn measure(host: &Host, effort: &Effort) -> Self {
        let start = monotonic_ns();
        let quietness = Quietness::observe(effort.quiet_window);
        let cpus = bench_cpus(host);
        let mut series = Vec::new();
        for team in teams(&cpus) {
            series.push(fma_series(host, effort, team));
        }
        let tiles = amx::usable().available().is_some();
        for team in teams(&cpus) {
            if tiles {
                series.push(tile_series(effort, team, Work::TileFlop));
                series.push(tile_series(effort, team, Work::TileRegistersFlop));
            } else if let Some(dot) = Dot::best(&host.features) {
                series.push(dot_series(dot, effort, team));
            }
        }
        let mut refusals = Vec::new();
        for team in teams(&cpus) {
            match read_series(host, effort, team) {
                Ok(mut measured) => series.append(&mut measured),
                Err(why) => refusals.push((team.len(), why)),
            }
        }
        let mut readings = Self::readings_of(&series);
        for (threads, why) in refusals {
            if threads == 1 {
                readings.read_1t_bytes_per_s = Reading::unavailable(why.as_str());
            }
            if threads == cpus.len() {
                readings.read_all_bytes_per_s = Reading::unavailable(why.as_str());
            }
        }
        Self { readings, threads: cpus.len(), quietness, series, spent_ns: monotonic_ns() - start }
    }

    /// The figures that these series give: work of a round divided by the median time of the final series. On a host
    /// with one usable thread both readings of a pair come from the same series. Without a series of tiles, why this
    /// process cannot have one.
    pub fn readings_of(series: &[Series]) -> Readings {
        let all = series.iter().map(|s| s.threads).max().unwrap_or(1);
        let rate = |what: Work, threads: usize| -> Reading<u64> {
            let mut found = series.iter().filter(|s| s.what == what && s.threads == threads && !s.screening);
            match found.next() {
                None => match amx::usable() {
                    Reading::Unavailable { why } if what.is_of_tiles() => Reading::unavailable(why.as_str()),
                    _ => Reading::unavailable("no such series was measured"),
                },
                Some(s) if s.ns.len() < MIN_ROUNDS => {
                    Reading::unavailable(format!("{} rounds were measured; a figure needs {MIN_ROUNDS}", s.ns.len()))
                }
                Some(s) => Reading::Available((s.per_round as f64 * 1e9 / median(&s.ns)).round() as u64),
            }
        };
        let dots = |threads: usize| match rate(Work::TileFlop, threads) {
            Reading::Available(flops) => Reading::Available(Work::INT8_TO_BF16 * flops),
            Reading::Unavailable { .. } => rate(Work::DotInt8Op, threads),
        };
        Readings {
            read_1t_bytes_per_s: rate(Work::ReadBytes, 1),
            read_all_bytes_per_s: rate(Work::ReadBytes, all),
            fma_f32_1t_flop_per_s: rate(Work::FmaF32Flop, 1),
            fma_f32_all_flop_per_s: rate(Work::FmaF32Flop, all),
            dot_int8_1t_op_per_s: dots(1),
            dot_int8_all_op_per_s: dots(all),
            tiles_1t_flop_per_s: rate(Work::TileFlop, 1),
            tiles_all_flop_per_s: rate(Work::TileFlop, all),
            tile_registers_all_flop_per_s: rate(Work::TileRegistersFlop, all),
        }
    }
}

impl Work {
    /// Operations of a product of tiles of bytes to one of tiles of BF16.
    pub const INT8_TO_BF16: u64 = 2;

    fn is_of_tiles(self) -> bool {
        matches!(self, Work::TileFlop | Work::TileRegistersFlop)
    }
}

/// The CPUs to measure on: the allowed ones, no more than can run without throttling.
fn bench_cpus(host: &Host) -> Vec<usize> {
    let mut cpus = match &host.allowance.cpus {
        Reading::Available(cpus) => cpus.clone(),
        Reading::Unavailable { .. } => (0..host.usable_threads).collect(),
    };
    cpus.truncate(host.usable_threads.max(1));
    cpus
}

/// One thread alone and, when there are more, all together.
fn teams(cpus: &[usize]) -> impl Iterator<Item = &[usize]> {
    let alone = &cpus[..1.min(cpus.len())];
    [alone, cpus].into_iter().take(if cpus.len() > 1 { 2 } else { 1 })
}

fn fma_series(host: &Host, effort: &Effort, cpus: &[usize]) -> Series {
    let kind = Fma::best(&host.features);
    let run = move |turns: u64| _ = black_box(kind.run(turns));
    in_registers((Work::FmaF32Flop, kind.name(), kind.flop_per_turn()), effort, cpus, run)
}

fn dot_series(kind: Dot, effort: &Effort, cpus: &[usize]) -> Series {
    let run = move |turns: u64| _ = black_box(kind.run(turns));
    in_registers((Work::DotInt8Op, kind.name(), kind.ops_per_turn()), effort, cpus, run)
}

/// Rounds of turns that stay in registers, of so many operations each.
fn in_registers(
    (what, kernel, per_turn): (Work, &str, u64),
    effort: &Effort,
    cpus: &[usize],
    turns_of: impl Fn(u64) + Copy + Sync,
) -> Series {
    let run = |turns: u64| move |_thread: usize| turns_of(turns);
    // A first round wakes the units (wide vectors start at a reduced rate on some processors) and tells the speed.
    const TRIAL_TURNS: u64 = 1 << 20;
    let trial = team::timed_rounds(cpus, 2, run(TRIAL_TURNS));
    let turns = (TRIAL_TURNS as f64 * effort.fma_round_ns as f64 / trial[1] as f64).max(1.0) as u64;
    Series {
        what,
        threads: cpus.len(),
        kernel: kernel.to_string(),
        screening: false,
        per_round: per_turn * turns * cpus.len() as u64,
        huge_bytes: Reading::unavailable("multiply-adds read no buffer"),
        l3_bytes: Reading::unavailable("multiply-adds read no buffer"),
        ns: team::timed_rounds(cpus, effort.rounds, run(turns)),
    }
}

/// Rounds of products of tiles, each thread on tiles of its own.
fn tile_series(effort: &Effort, cpus: &[usize], what: Work) -> Series {
    let tiles = team::on_each(cpus, |thread| Tiles::new(thread as u64));
    let run = |turns: u64| {
        let tiles = &tiles;
        move |thread: usize| tiles[thread].run(what, turns)
    };
    // As with multiply-adds: a first round wakes the units.
    const TRIAL_TURNS: u64 = 64;
    let trial = team::timed_rounds(cpus, 2, run(TRIAL_TURNS));
    let turns = (TRIAL_TURNS as f64 * effort.fma_round_ns as f64 / trial[1] as f64).max(1.0) as u64;
    let none = || Reading::unavailable("products of tiles read no memory");
    Series {
        what,
        threads: cpus.len(),
        kernel: if what == Work::TileFlop { "amx-bf16 from L2" } else { "amx-bf16 in registers" }.to_string(),
        screening: false,
        per_round: Tiles::flop_per_turn() * turns * cpus.len() as u64,
        huge_bytes: none(),
        l3_bytes: none(),
        ns: team::timed_rounds(cpus, effort.rounds, run(turns)),
    }
}

/// One screening round for each prefetch distance, then the final series with the fastest.
fn read_series(host: &Host, effort: &Effort, cpus: &[usize]) -> Result<Vec<Series>, String> {
    let wanted = buffer_bytes(host, effort);
    let huge_before = ResidentMemory::read().huge_bytes;
    let fill_end = monotonic_ns().saturating_add(effort.fill_ns_limit);
    // Each thread reads what it touched first, so that on hosts with several memory nodes every read is local.
    let share = usize::try_from(wanted).unwrap_or(usize::MAX) / cpus.len();
    let filled = team::on_each(cpus, |thread| Region::filled(share, thread as u64, || monotonic_ns() < fill_end));
    let regions = filled.into_iter().collect::<Result<Vec<Region>, String>>()?;
    let bytes: u64 = regions.iter().map(|r| size_of_val(r.words()) as u64).sum();
    let huge_grown = match (huge_before, ResidentMemory::read().huge_bytes) {
        (Reading::Available(before), Reading::Available(after)) => Reading::Available(after.saturating_sub(before)),
        (Reading::Unavailable { why }, _) | (_, Reading::Unavailable { why }) => Reading::unavailable(why),
    };
    let reader = Reader::best(&host.features);
    let distances = reader.distances();
    let series = |ahead: usize, screening: bool, rounds: usize| Series {
        what: Work::ReadBytes,
        threads: cpus.len(),
        kernel: format!("{} prefetch {ahead}", reader.name()),
        screening,
        per_round: bytes,
        huge_bytes: huge_grown.clone(),
        l3_bytes: host.cpu.caches.l3.clone().map(|l3| l3.bytes()),
        ns: team::timed_rounds(cpus, rounds, |thread| _ = black_box(reader.fold(regions[thread].words(), ahead))),
    };
    let mut out: Vec<Series> = distances.iter().map(|&ahead| series(ahead, true, 1)).collect();
    let fastest = (0..out.len()).min_by_key(|&i| out[i].ns[0]).unwrap_or(0);
    let in_time = usize::try_from(effort.read_series_ns / out[fastest].ns[0]).unwrap_or(MAX_ROUNDS);
    out.push(series(distances[fastest], false, in_time.clamp(effort.rounds, MAX_ROUNDS.max(effort.rounds))));
    Ok(out)
}

/// Bytes of a buffer that is read over and over and still comes from memory: `least`, and four times all L3 (1 GiB where
/// its size is unknown), but no more than a quarter of what is available to this process.
///
/// # Errors
/// When that is less than `least`, or than twice all L3: what is read would lie in it.
pub fn past_caches(host: &Host, least: u64) -> Result<u64, String> {
    let l3 = host.cpu.caches.l3.available().map_or(UNKNOWN_L3, |l3| l3.bytes());
    let bytes = (4 * l3).max(least).min(affordable(host));
    let needed = (2 * l3).max(least);
    if bytes >= needed {
        return Ok(bytes);
    }
    Err(format!(
        "reading from memory and not from {} of L3 needs a buffer of {}, and a quarter of what is available is {}",
        human_bytes(l3),
        human_bytes(needed),
        human_bytes(bytes)
    ))
}

/// All L3 where its size is unknown.
const UNKNOWN_L3: u64 = 256 << 20;

/// Eight times all L3 (1 GiB where its size is unknown), at least 256 MiB; no more than the limit, nor than a quarter
/// of what is available to this process.
fn buffer_bytes(host: &Host, effort: &Effort) -> u64 {
    let wanted = host.cpu.caches.l3.available().map_or(1 << 30, |l3| 8 * l3.bytes()).max(256 << 20);
    wanted.min(affordable(host)).min(effort.buffer_bytes_limit)
}

/// A quarter of what is available to this process.
fn affordable(host: &Host) -> u64 {
    let available = host.memory.available_bytes.available().copied().unwrap_or(1 << 30);
    let left_in_group = match (&host.allowance.memory_limit_bytes, &host.allowance.memory_used_bytes) {
        (Reading::Available(Some(limit)), Reading::Available(used)) => limit.saturating_sub(*used),
        (Reading::Available(Some(limit)), Reading::Unavailable { .. }) => *limit,
        _ => u64::MAX,
    };
    (available / 4).min(left_in_group / 4)
}

/// The middle value, or the mean of the two middle ones. `ns` must not be empty.
fn median(ns: &[u64]) -> f64 {
    let mut sorted = ns.to_vec();
    sorted.sort_unstable();
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        (sorted[middle - 1] as f64 + sorted[middle] as f64) / 2.0
    } else {
        sorted[middle] as f64
    }
}

#[cfg(test)]
mod tests;
