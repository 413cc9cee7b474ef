//! What to attack next: both phases of a weighed request against their floors.
//!
//! [`findings`] knows the two phases of a request and which resource bounds each. [`look`] takes a step of each phase
//! apart and measures what the groups on top are worth; [`rank`] puts the groups of both phases in one order, by the time
//! of the request that would go if a group ran at its floor. That is where an hour of work pays most.

pub mod keep;
pub mod look;
pub mod rank;

use serde::Serialize;
use tare_core::Reading;
use tare_evidence::Record;
use tare_evidence::derive::Phase;
use tare_evidence::floor::Resource;

/// One phase against its floor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseGap {
    /// `prefill` or `decode`.
    pub phase: &'static str,
    /// Median time of the phase in a round.
    pub measured_ns: f64,
    /// The least time that the measured ceilings allow.
    pub floor_ns: f64,
    /// As the record has it: 100 is at the floor.
    pub percent_of_floor: f64,
    /// Which ceiling makes the floor.
    pub bound: Resource,
    /// Time above the floor: what could go.
    pub removable_ns: f64,
    /// Median tokens a second.
    pub rate_tokens_per_s: f64,
}

/// What the record says about where to go.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Findings {
    /// The record that every number here follows from.
    pub record: String,
    /// Largest removable time first.
    pub phases: Vec<PhaseGap>,
    /// Phases without a floor, and why.
    pub unknown: Vec<String>,
    /// A sentence for a person.
    pub advice: String,
}

/// Ranks the phases of a record whose gate passed; none when it failed.
pub fn findings(record: &Record) -> Option<Findings> {
    let derived = record.derived()?;
    let mut phases = Vec::new();
    let mut unknown = Vec::new();
    let mut take = |name, phase: &Phase| match gap(name, phase) {
        Ok(g) => phases.push(g),
        Err(why) => unknown.push(format!("{name}: {why}")),
    };
    take("prefill", &derived.prefill);
    match &derived.decode {
        Reading::Available(p) => take("decode", p),
        Reading::Unavailable { why } => unknown.push(format!("decode: {why}")),
    }
    phases.sort_by(|a, b| b.removable_ns.total_cmp(&a.removable_ns));
    let advice = phases.first().map_or_else(|| "no phase has a floor on this host".to_string(), advise);
    Some(Findings { record: record.id.clone(), phases, unknown, advice })
}

fn gap(name: &'static str, phase: &Phase) -> Result<PhaseGap, String> {
    let floor = match &phase.floor {
        Reading::Available(f) => f,
        Reading::Unavailable { why } => return Err(why.clone()),
    };
    let percent_of_floor = match &phase.percent_of_floor {
        Reading::Available(p) => *p,
        Reading::Unavailable { why } => return Err(why.clone()),
    };
    Ok(PhaseGap {
        phase: name,
        measured_ns: phase.ns.median,
        floor_ns: floor.ns,
        percent_of_floor,
        bound: floor.bound,
        removable_ns: (phase.ns.median - floor.ns).max(0.0),
        rate_tokens_per_s: phase.rate_tokens_per_s.median,
    })
}

fn advise(g: &PhaseGap) -> String {
    let (bound, meaning) = match g.bound {
        Resource::Bytes => ("bytes", "reading packed weights and KV from memory"),
        Resource::Flops => ("operations", "multiplying and adding in F32"),
    };
    format!(
        "attack {}: {:.0} ms of {:.0} ms lie above its floor, which {meaning} sets ({bound}); it runs at {:.0} % of it",
        g.phase,
        g.removable_ns / 1e6,
        g.measured_ns / 1e6,
        g.percent_of_floor
    )
}

/// The highest group in words: what it takes, how far it is from its floor, and what there is to gain.
pub fn advise_group(g: &rank::Ranked) -> String {
    let bound = match g.bound {
        Resource::Bytes => "reading its bytes from memory",
        Resource::Flops => "its multiply-adds",
    };
    let range = g.gain_interval.map(|i| format!(" ({:.1} to {:.1} %)", i.low, i.high)).unwrap_or_default();
    format!(
        "attack {} in {}: it takes {:.3} ms of a step where {bound} allows {:.3} ms ({:.0} % of floor); at its floor the \
         request would take {:.1} % less{range}",
        g.group,
        g.phase,
        g.measured_ns / 1e6,
        g.floor_ns / 1e6,
        g.percent_of_floor,
        g.gain_percent,
    )
}
