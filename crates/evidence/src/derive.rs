//! The one place where figures are computed from samples.
//!
//! | figure | formula, over the rounds of one arm |
//! |---|---|
//! | `prefill.ns` | `prefill_ns`; the first token belongs to prefill |
//! | `prefill.rate_tokens_per_s` | prompt tokens of all rows / `prefill_ns` |
//! | `decode.ns` | sum of `token_ns` |
//! | `decode.rate_tokens_per_s` | tokens after the first of each row / sum of `token_ns` |
//! | `ttft_ns` | `setup_ns` + `prefill_ns` |
//! | `end_to_end_ns` | `setup_ns` + `prefill_ns` + sum of `token_ns` * all tokens / timed tokens + `release_ns` |
//! | `inter_token_ns` | nearest-rank percentiles of the `token_ns` of all rounds together |
//! | `emitted_ids_sha256` | canonical digest of the ids, `[rounds][rows][tokens]` |
//! | `device.prefill_ns`, `device.decode_ns` | as `prefill.ns` and `decode.ns`, from the times of the device's own clock |
//! | `*.floor.byte_ns` | bytes of the phase / median rate of its byte ceiling; `flop_ns` likewise |
//! | `*.percent_of_floor` | 100 * floor / median time of the phase: 100 is at the floor |
//!
//! `token_ns` and the tokens after the first are those of the steps that are not in `untimed`; the floor of the decode
//! is that of its timed tokens.

use crate::canonical;
use crate::floor::{Ceiling, Demand, Demands, Resource};
use crate::identity::Work;
use crate::samples::{Samples, TimedRound};
use crate::schema::ReadingShape;
use crate::stats;
use crate::study::Metric;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tare_core::{Fault, Reading};

/// Every figure of a record. Nothing here is measured; all of it follows from the samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Derived {
    /// The prompt and the first token.
    pub prefill: Phase,
    /// The tokens after the first.
    #[schemars(with = "ReadingShape<Phase>")]
    pub decode: Reading<Phase>,
    /// Time to the first token.
    pub ttft_ns: Spread,
    /// From set-up to release.
    pub end_to_end_ns: Spread,
    /// Times between tokens.
    #[schemars(with = "ReadingShape<Percentiles>")]
    pub inter_token_ns: Reading<Percentiles>,
    /// Digest of the emitted ids, `[rounds][rows][tokens]`: equal where two arms said the same.
    pub emitted_ids_sha256: String,
    /// CPU time of the main thread.
    #[schemars(with = "ReadingShape<Spread>")]
    pub main_thread_cpu_ns: Reading<Spread>,
    /// What the device's own clock says; left out where a round has no such times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<OnDevice>,
}

/// Times of the two phases by the clock of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OnDevice {
    /// Of the prefill in one round.
    pub prefill_ns: Spread,
    /// Of the decode in one round.
    #[schemars(with = "ReadingShape<Spread>")]
    pub decode_ns: Reading<Spread>,
}

/// Figures of one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Time of the phase in one round.
    pub ns: Spread,
    /// Tokens per second.
    pub rate_tokens_per_s: Spread,
    /// The least time that the measured ceilings allow.
    #[schemars(with = "ReadingShape<Floor>")]
    pub floor: Reading<Floor>,
    /// 100 * floor / median time. More than 100 means that the ceiling was measured too low.
    #[schemars(with = "ReadingShape<f64>")]
    pub percent_of_floor: Reading<f64>,
}

/// The least time of a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Floor {
    /// The greater of the two parts that are known.
    pub ns: f64,
    /// Which part that is.
    pub bound: Resource,
    /// Time to move the bytes.
    #[schemars(with = "ReadingShape<f64>")]
    pub byte_ns: Reading<f64>,
    /// Time to do the flops.
    #[schemars(with = "ReadingShape<f64>")]
    pub flop_ns: Reading<f64>,
}

impl Floor {
    /// The floor of a share of the phase.
    fn of_share(self, share: f64) -> Self {
        let scaled = |ns: Reading<f64>| ns.map(|ns| ns * share);
        Self { ns: self.ns * share, bound: self.bound, byte_ns: scaled(self.byte_ns), flop_ns: scaled(self.flop_ns) }
    }
}

/// One value per round, summed up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Median absolute deviation from the median, unscaled.
    pub mad: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// Nearest-rank percentiles: each is a value that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Percentiles {
    /// 50th.
    pub p50: f64,
    /// 90th.
    pub p90: f64,
    /// 95th.
    pub p95: f64,
    /// 99th.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// All figures of the rounds of one arm.
///
/// # Errors
/// When there is no round, or a round is not the work that it claims.
pub fn derive(
    work: &Work,
    samples: &Samples<TimedRound>,
    ceilings: &[Ceiling],
    demands: &Demands,
) -> Result<Derived, Fault> {
    let rounds = &samples.rounds;
    rounds.iter().try_for_each(|r| r.check(work))?;
    let per_round =
        |f: &dyn Fn(&TimedRound) -> f64| spread("samples.rounds", &rounds.iter().map(f).collect::<Vec<_>>());
    let prompt: u64 = work.prompt_lengths.iter().map(|&n| u64::from(n)).sum();
    let prefill_ns = |r: &TimedRound| r.timing.prefill_ns as f64;
    let prefill = phase(
        per_round(&prefill_ns)?,
        per_round(&|r| rate(prompt as f64, prefill_ns(r)))?,
        floor(&demands.prefill, ceilings),
    );
    let decode = if rounds.iter().all(|r| r.emitted.decoded() > 0) {
        Reading::Available(phase(
            per_round(&decode_ns)?,
            per_round(&|r| rate(r.timed_tokens() as f64, decode_ns(r)))?,
            floor(&demands.decode, ceilings).map(|f| f.of_share(timed_share(rounds))),
        ))
    } else {
        Reading::unavailable("a round emitted no token after the first")
    };
    Ok(Derived {
        prefill,
        decode,
        ttft_ns: per_round(&|r| sum(&[r.timing.setup_ns, r.timing.prefill_ns]))?,
        end_to_end_ns: per_round(&end_to_end_ns)?,
        inter_token_ns: inter_token(rounds),
        emitted_ids_sha256: emitted_ids(rounds)?,
        main_thread_cpu_ns: main_thread(rounds)?,
        device: on_device(rounds)?,
    })
}

fn phase(ns: Spread, rate_tokens_per_s: Spread, floor: Reading<Floor>) -> Phase {
    let percent_of_floor = floor.clone().map(|f| 100.0 * f.ns / ns.median);
    Phase { ns, rate_tokens_per_s, floor, percent_of_floor }
}

fn rate(tokens: f64, ns: f64) -> f64 {
    tokens * 1e9 / ns
}

/// Wider than its terms, so that no record can make it overflow.
fn sum(ns: &[u64]) -> f64 {
    ns.iter().map(|&ns| u128::from(ns)).sum::<u128>() as f64
}

/// The decode steps of a round that count, in nanoseconds.
fn decode_ns(r: &TimedRound) -> f64 {
    r.timed_steps().map(|(_, ns)| u128::from(ns)).sum::<u128>() as f64
}

/// The whole request. Steps that do not count take as long as the others do in the mean.
fn end_to_end_ns(r: &TimedRound) -> f64 {
    let t = &r.timing;
    let decode = decode_ns(r);
    let all = if t.untimed.is_empty() { decode } else { decode * r.emitted.decoded() as f64 / r.timed_tokens() as f64 };
    sum(&[t.setup_ns, t.prefill_ns, t.release_ns]) + all
}

/// The share of the decoded tokens that count, over all rounds.
pub(crate) fn timed_share(rounds: &[TimedRound]) -> f64 {
    let all: usize = rounds.iter().map(|r| r.emitted.decoded()).sum();
    let timed: usize = rounds.iter().map(TimedRound::timed_tokens).sum();
    timed as f64 / all as f64
}

/// The step in the middle of those that count; 0 when there is none, which [`metric_ns`] refuses.
fn median_step_ns(r: &TimedRound) -> f64 {
    let steps: Vec<f64> = r.timed_steps().map(|(_, ns)| ns as f64).collect();
    stats::median(&steps).unwrap_or(0.0)
}

/// What a study compares of one round, in nanoseconds; the decode as the mean time of a token that counts, `inter_token`
/// as the median of the steps that count.
///
/// # Errors
/// When the round has no such time.
pub fn metric_ns(r: &TimedRound, metric: Metric) -> Result<f64, Fault> {
    let ns = match metric {
        Metric::Prefill => r.timing.prefill_ns as f64,
        Metric::Decode => decode_ns(r) / r.timed_tokens() as f64,
        Metric::InterToken => median_step_ns(r),
        Metric::EndToEnd => end_to_end_ns(r),
        Metric::Ttft => sum(&[r.timing.setup_ns, r.timing.prefill_ns]),
    };
    if ns.is_finite() && ns > 0.0 {
        return Ok(ns);
    }
    let at = format!("samples: round {}: {}", r.emitted.round, metric.name());
    Err(Fault::new(at, "a time above 0", "none").remedy("ask for more output tokens"))
}

pub(crate) fn spread(at: &str, values: &[f64]) -> Result<Spread, Fault> {
    let none = || Fault::new(at, "at least one value", "none");
    let (first, rest) = values.split_first().ok_or_else(none)?;
    Ok(Spread {
        median: stats::median(values).ok_or_else(none)?,
        mad: stats::mad(values).ok_or_else(none)?,
        min: rest.iter().fold(*first, |a, &b| a.min(b)),
        max: rest.iter().fold(*first, |a, &b| a.max(b)),
    })
}

fn inter_token(rounds: &[TimedRound]) -> Reading<Percentiles> {
    let all: Vec<f64> = rounds.iter().flat_map(TimedRound::timed_steps).map(|(_, ns)| ns as f64).collect();
    let at = |p| stats::nearest_rank(&all, p);
    match (at(0.5), at(0.9), at(0.95), at(0.99), at(1.0)) {
        (Some(p50), Some(p90), Some(p95), Some(p99), Some(max)) => {
            Reading::Available(Percentiles { p50, p90, p95, p99, max })
        }
        _ => Reading::unavailable("no round emitted a token after the first"),
    }
}

fn emitted_ids(rounds: &[TimedRound]) -> Result<String, Fault> {
    let ids = |r: &TimedRound| r.emitted.rows.iter().map(|row| row.ids.clone()).collect::<Vec<_>>();
    canonical::digest_of(&rounds.iter().map(ids).collect::<Vec<_>>())
}

fn main_thread(rounds: &[TimedRound]) -> Result<Reading<Spread>, Fault> {
    let mut values = Vec::with_capacity(rounds.len());
    for round in rounds {
        match &round.timing.main_thread_cpu_ns {
            Reading::Available(ns) => values.push(*ns as f64),
            Reading::Unavailable { why } => return Ok(Reading::unavailable(why)),
        }
    }
    spread("main_thread_cpu_ns", &values).map(Reading::Available)
}

/// Both phases by the device's clock, where every round has it.
fn on_device(rounds: &[TimedRound]) -> Result<Option<OnDevice>, Fault> {
    let clocked = |r: &TimedRound| {
        let device = r.timing.device.as_ref()?;
        let decode: u128 = r.counted(&device.token_ns).map(|(_, ns)| u128::from(ns)).sum();
        Some((device.prefill_ns as f64, decode as f64))
    };
    let Some(both) = rounds.iter().map(clocked).collect::<Option<Vec<_>>>() else { return Ok(None) };
    let (prefill, decode): (Vec<f64>, Vec<f64>) = both.into_iter().unzip();
    let decode_ns = match decode.iter().all(|ns| *ns > 0.0) {
        true => Reading::Available(spread("device.token_ns", &decode)?),
        false => Reading::unavailable("a round has no step after the first token"),
    };
    Ok(Some(OnDevice { prefill_ns: spread("device.prefill_ns", &prefill)?, decode_ns }))
}

/// The floor of a phase. It stands on the parts that are known: each alone is a true lower bound.
fn floor(demand: &Reading<Demand>, ceilings: &[Ceiling]) -> Reading<Floor> {
    let demand = match demand {
        Reading::Available(d) => d,
        Reading::Unavailable { why } => return Reading::unavailable(why),
    };
    let byte_ns = least_ns(demand.bytes(), &demand.byte_ceiling, Resource::Bytes, ceilings);
    let flop_ns = least_ns(u128::from(demand.flops), &demand.flop_ceiling, Resource::Flops, ceilings);
    let (ns, bound) = match (&byte_ns, &flop_ns) {
        (Reading::Available(b), Reading::Available(f)) if f > b => (*f, Resource::Flops),
        (Reading::Available(b), _) => (*b, Resource::Bytes),
        (_, Reading::Available(f)) => (*f, Resource::Flops),
        (Reading::Unavailable { why }, _) => return Reading::unavailable(why),
    };
    Reading::Available(Floor { ns, bound, byte_ns, flop_ns })
}

fn least_ns(amount: u128, name: &str, resource: Resource, ceilings: &[Ceiling]) -> Reading<f64> {
    let Some(ceiling) = ceilings.iter().find(|c| c.name == name && c.resource == resource) else {
        return Reading::unavailable(format!("no ceiling `{name}` was measured"));
    };
    let per_ns = ceiling.rates().map(|rates| stats::median(&rates));
    match per_ns {
        Ok(Some(per_ns)) => Reading::Available(amount as f64 / per_ns),
        Ok(None) => Reading::unavailable(format!("ceiling `{name}` has no usable sample")),
        Err(why) => Reading::unavailable(why),
    }
}
