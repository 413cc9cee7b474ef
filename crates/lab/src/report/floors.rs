//! The arms of a campaign beside its ceilings, in words.

use tare_core::Reading;
use tare_core::units::human_bytes;
use tare_evidence::floor::Resource;
use tare_evidence::floors::{ArmFloor, CeilingRate, Floors, PhaseFloor};

/// What the ceiling arms measured, and how near each arm came to it.
pub fn floor_lines(floors: &Floors) -> Vec<String> {
    let rate = |per_s: &Reading<f64>, unit: &str| match per_s {
        Reading::Available(per_s) => format!("{:.1} G{unit}/s", per_s / 1e9),
        Reading::Unavailable { why } => format!("unavailable: {why}"),
    };
    let ceiling = |c: &CeilingRate| {
        let (unit, over) = match c.resource {
            Resource::Bytes => ("B", format!(" over {}", human_bytes(c.working_set_bytes))),
            Resource::Flops => ("FLOP", String::new()),
        };
        let (of, low, high) = (rate(&c.median_per_s, unit), rate(&c.min_per_s, unit), rate(&c.max_per_s, unit));
        format!("{}: {of} ({low} to {high}, {} samples){over}, {} threads", c.arm, c.samples, c.threads)
    };
    let flops = floors.ceilings.iter().any(|c| c.resource == Resource::Flops);
    let phase = |name: &str, p: &PhaseFloor| {
        let percent = p.percent_of_floor.clone().map(|p| format!("{p:.1} % of floor"));
        let products = if flops { format!(", {}", rate(&p.flops_per_s, "FLOP")) } else { String::new() };
        format!("{name} {}{products}, {percent}", rate(&p.bytes_per_s, "B"))
    };
    let arm = |a: &ArmFloor| format!("{}: {}; {}", a.arm, phase("prefill", &a.prefill), phase("decode", &a.decode));
    floors.ceilings.iter().map(ceiling).chain(floors.arms.iter().map(arm)).collect()
}
