//! The host as a record tells it.

use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use tare_core::units::human_bytes;
use tare_core::{Fault, PageUse, Reading};
use tare_cuda::ceilings as device;
use tare_cuda::nvml::DeviceState;
use tare_evidence::floor::{Ceiling, CeilingSample, Resource};
use tare_evidence::{SatOut, provenance};
use tare_ops::Benched;
use tare_probe::ceilings::{Ceilings, Effort, Series, Work};
use tare_probe::{Host, Quietness};

use crate::floor::{BYTE_CEILING, FLOP_CEILING, INT8_CEILING, PRODUCT_CEILING};

/// How a backend's memory lies in the pages of the host, by what it is for.
pub type Pages = BTreeMap<String, PageUse>;

/// What held while a record was made, beside what the host says of itself. It is state and not configuration: two processes
/// of one arm may get other pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment<'a> {
    /// How quiet the host was.
    pub quiet: Option<&'a Quietness>,
    /// What a device did, once for each time that it was looked at.
    pub device: &'a [Reading<DeviceState>],
    /// How the backend's memory lay in pages, once for each process that was looked at.
    pub pages: &'a [Reading<Pages>],
    /// How often threads of the backend sat out since it began, in the same way.
    pub benched: &'a [Reading<Benched>],
}

/// The probe's host in a record's words: what makes two machines alike, and what holds for the moment.
///
/// # Errors
/// When a fact has no JSON form.
pub fn describe(host: &Host, moment: Moment<'_>) -> Result<provenance::Host, Fault> {
    let mut class = BTreeMap::new();
    put(&mut class, "os", &host.os)?;
    put(&mut class, "arch", &host.arch)?;
    put(&mut class, "hypervisor", &host.hypervisor)?;
    put(&mut class, "cpu_vendor", &host.cpu.vendor)?;
    put(&mut class, "cpu_model", &host.cpu.model_name)?;
    put(&mut class, "cpu_cores", &host.cpu.cores)?;
    put(&mut class, "cpu_caches", &host.cpu.caches)?;
    put(&mut class, "features", &host.features.names())?;
    put(&mut class, "usable_threads", &host.usable_threads)?;
    put(&mut class, "memory_total_bytes", &host.memory.total_bytes)?;
    let mut state = BTreeMap::new();
    put(&mut state, "kernel", &host.kernel)?;
    put(&mut state, "governor", &host.cpu.governor)?;
    put(&mut state, "current_hz", &host.cpu.current_hz)?;
    put(&mut state, "memory_available_bytes", &host.memory.available_bytes)?;
    put(&mut state, "transparent_huge_pages", &host.memory.transparent_huge_pages)?;
    put(&mut state, "allowance", &host.allowance)?;
    if let Some(q) = moment.quiet {
        put(&mut state, "quietness", q)?;
    }
    if !moment.device.is_empty() {
        put(&mut state, "device_after_requests", &moment.device)?;
    }
    if !moment.pages.is_empty() {
        put(&mut state, "pages_after_requests", &moment.pages)?;
    }
    if !moment.benched.is_empty() {
        put(&mut state, "benched_after_requests", &moment.benched)?;
    }
    provenance::Host::new(&folder_name(host), class, state)
}

fn put(map: &mut BTreeMap<String, Reading<Value>>, key: &str, value: &impl Serialize) -> Result<(), Fault> {
    let value = serde_json::to_value(value).map_err(|e| Fault::new(key, "a JSON value", e.to_string()))?;
    let reading = match value.get("unavailable").and_then(Value::as_str) {
        Some(why) => Reading::unavailable(why),
        None => Reading::Available(value),
    };
    map.insert(key.to_string(), reading);
    Ok(())
}

/// A folder name for the class of host: `amd-epyc-2t`.
fn folder_name(host: &Host) -> String {
    let model = host.cpu.model_name.available().cloned().unwrap_or_else(|| host.arch.clone());
    let words: Vec<String> = model
        .to_ascii_lowercase()
        .replace("(r)", " ")
        .replace("(tm)", " ")
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|w| !w.is_empty() && !["cpu", "processor"].contains(w))
        .take(5)
        .map(str::to_string)
        .collect();
    format!("{}-{}t", words.join("-"), host.usable_threads)
}

/// The ceilings that bound a request run by `threads`, with every sample: those of as many threads where they were
/// measured, else those of all, which no part of them can exceed.
pub fn record_ceilings(ceilings: &Ceilings, threads: usize) -> Vec<Ceiling> {
    let measured = ceilings.series.iter().any(|s| s.threads == threads);
    let threads = if measured { threads } else { ceilings.threads };
    let of = |what, name: &str, resource| {
        // Tiles of bytes are those of BF16 with twice the operations.
        let tiles = final_series(ceilings, Work::TileFlop, threads).filter(|_| what == Work::DotInt8Op);
        let times = if tiles.is_some() { Work::INT8_TO_BF16 } else { 1 };
        let series = tiles.or_else(|| final_series(ceilings, what, threads));
        let Some(s) = series else {
            return Ceiling {
                name: name.into(),
                arm: None,
                resource,
                threads: threads as u32,
                working_set_bytes: 0,
                pages: "unknown".into(),
                samples: match &ceilings.readings.tiles_all_flop_per_s {
                    Reading::Unavailable { why } if what == Work::TileFlop => Reading::unavailable(why.as_str()),
                    _ => Reading::unavailable("no such series was measured"),
                },
            };
        };
        Ceiling {
            name: name.into(),
            arm: None,
            resource,
            threads: s.threads as u32,
            working_set_bytes: if resource == Resource::Bytes { s.per_round } else { 0 },
            pages: if tiles.is_some() {
                format!("none: {times} times the samples of {PRODUCT_CEILING}")
            } else {
                pages(s)
            },
            samples: Reading::Available(
                s.ns.iter()
                    .map(|&ns| CeilingSample { round: None, turn: None, amount: times * s.per_round, ns })
                    .collect(),
            ),
        }
    };
    vec![
        of(Work::ReadBytes, BYTE_CEILING, Resource::Bytes),
        of(Work::FmaF32Flop, FLOP_CEILING, Resource::Flops),
        of(Work::DotInt8Op, INT8_CEILING, Resource::Flops),
        of(Work::TileFlop, PRODUCT_CEILING, Resource::Flops),
    ]
}

/// The same ceilings of a device, products on its tensor cores, or why they are not known.
pub fn device_ceilings(measured: &Reading<device::Ceilings>) -> Vec<Ceiling> {
    let of = |name: &str, resource, series: fn(&device::Ceilings) -> Reading<&[device::Sample]>| Ceiling {
        name: name.into(),
        arm: None,
        resource,
        threads: 1,
        working_set_bytes: match (resource, measured.available()) {
            (Resource::Bytes, Some(c)) => c.working_set_bytes,
            _ => 0,
        },
        pages: "memory of the device".into(),
        samples: match measured {
            Reading::Available(c) => series(c).map(|all| all.iter().map(sample).collect()),
            Reading::Unavailable { why } => Reading::unavailable(why.as_str()),
        },
    };
    vec![
        of(BYTE_CEILING, Resource::Bytes, |c| Reading::Available(&c.read)),
        of(FLOP_CEILING, Resource::Flops, |c| Reading::Available(&c.flops)),
        of(PRODUCT_CEILING, Resource::Flops, device::Ceilings::products),
    ]
}

fn sample(s: &device::Sample) -> CeilingSample {
    CeilingSample { round: None, turn: None, amount: s.amount, ns: s.ns }
}

/// The rounds that give a figure, not those that chose a kernel.
fn final_series(ceilings: &Ceilings, what: Work, threads: usize) -> Option<&Series> {
    ceilings.series.iter().find(|s| s.what == what && s.threads == threads && !s.screening && !s.ns.is_empty())
}

/// What a reader must know before believing the ceilings and a request that streams `streamed_bytes` a token.
pub fn doubts(ceilings: &Ceilings, quiet: &Quietness, streamed_bytes: u64) -> Vec<String> {
    let mut doubts = Vec::new();
    let mut busy = |when: &str, q: &Quietness, effect: &str| {
        let lost = q.spin.lost_share;
        if lost > Effort::FULL.busy_limit {
            let percent = 100.0 * lost;
            doubts.push(format!("{when} others took {percent:.0} % of a spinning thread's time: {effect}"));
        }
    };
    busy(
        "before the ceilings were measured",
        &ceilings.quietness,
        "the ceilings may be too low, percents of floor too high",
    );
    busy("before the rounds", quiet, "the times may be too long");
    let read = final_series(ceilings, Work::ReadBytes, ceilings.threads);
    let l3 = read.and_then(|s| s.l3_bytes.available());
    doubts.extend(l3.and_then(|l3| fits_in_cache(streamed_bytes, *l3)));
    doubts
}

/// A word where threads sat out.
pub(crate) fn short_handed(benched: &[Reading<Benched>]) -> Option<String> {
    let told = benched.iter().filter_map(Reading::available).map(|b| (b.regions, b.short, b.most as u64));
    SatOut::sum(told).map(|all| all.to_string())
}

/// A word where the bytes of a token may lie in the last-level cache, which those of the byte ceiling do not.
pub(crate) fn fits_in_cache(streamed_bytes: u64, l3_bytes: u64) -> Option<String> {
    (streamed_bytes <= l3_bytes).then(|| {
        format!(
            "the {} that a token streams fit in the {} of L3, which the byte ceiling does not: a warm decode may pass \
             100 % of that floor",
            human_bytes(streamed_bytes),
            human_bytes(l3_bytes)
        )
    })
}

fn pages(s: &Series) -> String {
    match (&s.what, &s.huge_bytes) {
        (Work::FmaF32Flop | Work::DotInt8Op, _) => "none: registers".into(),
        (_, Reading::Available(b)) => format!("{b} bytes in huge pages"),
        (_, Reading::Unavailable { why }) => format!("unknown: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_bytes_are_measured_or_said_to_follow_from_tiles() {
        let of = |what, per_round| Series {
            what,
            threads: 2,
            kernel: "k".into(),
            screening: false,
            per_round,
            huge_bytes: Reading::unavailable("x"),
            l3_bytes: Reading::unavailable("x"),
            ns: vec![100; 5],
        };
        let dots = |series: Vec<Series>| {
            let (readings, quietness) = (Ceilings::readings_of(&series), Quietness::observe(std::time::Duration::ZERO));
            let ceilings = Ceilings { readings, threads: 2, quietness, series, spent_ns: 0 };
            let found = record_ceilings(&ceilings, 2).into_iter().find(|c| c.name == INT8_CEILING).unwrap();
            (found.samples.map(|all| all[0].amount), found.pages)
        };
        let (amount, pages) = dots(vec![of(Work::DotInt8Op, 300)]);
        assert_eq!((amount, pages.as_str()), (Reading::Available(300), "none: registers"));
        let (amount, pages) = dots(vec![of(Work::TileFlop, 700)]);
        assert_eq!((amount, pages.as_str()), (Reading::Available(1400), "none: 2 times the samples of products-bf16"));
        assert!(dots(vec![of(Work::FmaF32Flop, 300)]).0.available().is_none());
    }
}
