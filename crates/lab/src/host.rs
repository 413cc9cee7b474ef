//! The host as a record tells it.

use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use tare_core::{Fault, Reading};
use tare_evidence::floor::{Ceiling, CeilingSample, Resource};
use tare_evidence::provenance;
use tare_probe::ceilings::{Ceilings, Series, Work};
use tare_probe::{Host, Quietness};

use crate::floor::{BYTE_CEILING, FLOP_CEILING};

/// The probe's host in a record's words: what makes two machines alike, and what holds for the moment.
///
/// # Errors
/// When a fact has no JSON form.
pub fn describe(host: &Host, quiet: Option<&Quietness>) -> Result<provenance::Host, Fault> {
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
    if let Some(q) = quiet {
        put(&mut state, "quietness", q)?;
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

/// The two ceilings that bound a request, with every sample.
pub fn record_ceilings(ceilings: &Ceilings) -> Vec<Ceiling> {
    let of = |what, name: &str, resource| {
        let series = ceilings
            .series
            .iter()
            .find(|s| s.what == what && s.threads == ceilings.threads && !s.screening && !s.ns.is_empty());
        let Some(s) = series else {
            return Ceiling {
                name: name.into(),
                resource,
                threads: ceilings.threads as u32,
                working_set_bytes: 0,
                pages: "unknown".into(),
                samples: Reading::unavailable("no such series was measured"),
            };
        };
        Ceiling {
            name: name.into(),
            resource,
            threads: s.threads as u32,
            working_set_bytes: if resource == Resource::Bytes { s.per_round } else { 0 },
            pages: pages(s),
            samples: Reading::Available(
                s.ns.iter().map(|&ns| CeilingSample { round: None, amount: s.per_round, ns }).collect(),
            ),
        }
    };
    vec![of(Work::ReadBytes, BYTE_CEILING, Resource::Bytes), of(Work::FmaF32Flop, FLOP_CEILING, Resource::Flops)]
}

fn pages(s: &Series) -> String {
    match (&s.what, &s.huge_bytes) {
        (Work::FmaF32Flop, _) => "none: registers".into(),
        (_, Reading::Available(b)) => format!("{b} bytes in huge pages"),
        (_, Reading::Unavailable { why }) => format!("unknown: {why}"),
    }
}
