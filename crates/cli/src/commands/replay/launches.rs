//! A step of a device taken apart into its launches.

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use tare_core::units::human_bytes;
use tare_core::{Fault, Reading};
use tare_cuda::{CudaBackend, CudaConfig, Driver, ceilings};
use tare_evidence::floor::Resource;
use tare_lab::replay::launches::{LaunchReplay, LaunchReplaying, Part};
use tare_lab::specimen::Phase;
use tare_lab::{ClockedRequest, Rig};

use super::{ms, turn_by_turn};
use crate::args::ReplayArgs;

/// Runs the command on a device.
pub(super) fn run(
    args: &ReplayArgs,
    config: &CudaConfig,
    (rig, request, phase, iterations): (&Rig<'_>, &ClockedRequest, Phase, usize),
) -> Result<()> {
    if args.cold {
        let fault = Fault::new("--cold", "the processor, whose caches it is about", "a device");
        return Err(fault.remedy("leave out --cold or --backend").into());
    }
    let measured = Reading::from(ceilings::measure(config));
    let replaying = LaunchReplaying { rig, request, phase, iterations, ceilings: &measured };
    let backend = CudaBackend::new(Driver::open(config.clone())?);
    let replay = turn_by_turn(phase, iterations, |go_on| replaying.run(backend, go_on))?;
    if args.json {
        println!("{}", serde_json::to_string(&replay)?);
    } else {
        print(&replay, args.calls);
    }
    Ok(())
}

/// The replay for people.
fn print(r: &LaunchReplay, kernels: bool) {
    println!("{}", r.model);
    println!(
        "{} step of plan {}, class {}: {} rows at depth {}, {} launches, {} turns, on {}",
        r.phase, r.plan, r.class, r.rows, r.depth, r.launches, r.iterations, r.device
    );
    if let Some(delay) = &r.delay {
        println!("  planted  {delay} %");
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["launches of", "count", "ms", "share %", "floor ms", "% of floor", "bound by", "bytes"]);
    for part in &r.parts {
        table.add_row(row(part));
    }
    for i in 1..=5 {
        if let Some(c) = table.column_mut(i) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
    println!("  step     {} ms by the device's clock, {} ms by the host's (medians)", ms(r.step_ns), ms(r.host_ns));
    println!("  region   {} ms before and after the launches of any replay, taken off every part", ms(r.region_ns));
    println!(
        "  parts    {} ms together; beside each other they gain {} ms ({:+.1} % of the step left over)",
        ms(r.sum_ns),
        ms(r.overlap_ns),
        100.0 * (r.step_ns - r.region_ns - r.sum_ns) / r.step_ns
    );
    let mut removable: Vec<(&Part, f64)> =
        r.parts.iter().filter_map(|p| Some((p, *p.removable_ns.available()?))).collect();
    removable.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (part, ns) in removable.iter().take(5) {
        println!("  removable at most {} ms in {}: {:.1} % of the step", ms(*ns), part.name, 100.0 * ns / r.step_ns);
    }
    for part in r.parts.iter().filter(|_| kernels) {
        for (key, count) in &part.kernels {
            println!("  kernel   {count:>4} x {key}");
        }
    }
}

fn row(p: &Part) -> [String; 8] {
    let or_dash = |r: &Reading<f64>, show: fn(f64) -> String| r.available().map_or("-".to_string(), |v| show(*v));
    [
        p.name.clone(),
        p.launches.to_string(),
        ms(p.ns),
        format!("{:.1}", p.share_percent),
        or_dash(&p.floor_ns, ms),
        or_dash(&p.percent_of_floor, |p| format!("{p:.1}")),
        p.bound.map_or("-", |b| if b == Resource::Bytes { "bytes" } else { "flops" }).to_string(),
        human_bytes(p.bytes),
    ]
}
