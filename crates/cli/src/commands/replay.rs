//! `tare replay`: view 2, a step taken apart into the groups of its plan, on a device into its launches.

mod launches;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use std::time::Duration;
use tare_core::Reading;
use tare_core::units::human_bytes;
use tare_evidence::floor::Resource;
use tare_lab::replay::taken_apart::REMAINDER_LIMIT_PERCENT;
use tare_lab::replay::{Doing, GroupTime, Replay, Replaying, Warmth};
use tare_lab::specimen::Phase;
use tare_lab::{ClockedRequest, LabError, Lengths, On, Rig};
use tare_probe::{Host, Quietness};

use crate::args::{PhaseArg, ReplayArgs};
use crate::interrupt::Interrupt;
use crate::progress::bar;
use crate::settings::Settings;
use crate::setup::{open_model, within_training};
use crate::weighing::{ceilings, rig};

/// Tokens cached before a decode step when nobody says.
const DECODE_DEPTH: usize = 128;
/// Turns when nobody says.
const DECODE_TURNS: usize = 30;
const PREFILL_TURNS: usize = 7;

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs, settings: &Settings) -> Result<()> {
    let model = open_model(&args.model, settings)?;
    let (phase, lengths) = match args.phase {
        PhaseArg::Prefill => (Phase::Prefill, (args.depth.unwrap_or(0), args.prompt_tokens)),
        PhaseArg::Decode => (Phase::Decode, (0, args.depth.unwrap_or(DECODE_DEPTH))),
    };
    let lengths = Lengths { depth: lengths.0, prompt_tokens: lengths.1, output_tokens: 3 };
    within_training(lengths.depth.saturating_add(lengths.prompt_tokens).saturating_add(3), &model)?;
    let request = ClockedRequest::drawn(lengths, model.config().vocab, args.seed)?;
    let rig = Rig { delay: args.delay, ..rig(&model, &args.how, std::slice::from_ref(&request), settings)? };
    let iterations = args.iterations.unwrap_or(match phase {
        Phase::Decode => DECODE_TURNS,
        Phase::Prefill => PREFILL_TURNS,
    });
    if let On::Cuda(config) = &rig.on {
        return launches::run(args, config, (&rig, &request, phase, iterations));
    }
    let host = Host::read();
    let stored = ceilings(settings, &host);
    let warmth = if args.cold { Warmth::Cold } else { Warmth::Warm };
    let replaying =
        Replaying { rig: &rig, request: &request, phase, iterations, warmth, host: &host, ceilings: &stored.ceilings };
    let quiet = Quietness::observe(Duration::from_millis(200));
    let replay = with_progress(&replaying)?;
    if args.json {
        println!("{}", serde_json::to_string(&replay)?);
    } else {
        println!("{}", model.describe()?.label());
        print(&replay, args.calls);
        if quiet.spin.lost_share > tare_probe::ceilings::Effort::FULL.busy_limit {
            let percent = 100.0 * quiet.spin.lost_share;
            println!("  note     others took {percent:.0} % of a spinning thread's time before the turns");
        }
    }
    Ok(())
}

/// Runs a replay behind a progress bar that Ctrl-C ends.
pub(crate) fn with_progress(replaying: &Replaying<'_>) -> Result<Replay> {
    turn_by_turn(replaying.phase, replaying.iterations, |go_on| replaying.run(go_on))
}

/// Does what takes `iterations` turns behind a progress bar that Ctrl-C ends.
fn turn_by_turn<T>(
    phase: Phase,
    iterations: usize,
    work: impl FnOnce(&mut dyn FnMut(Doing) -> bool) -> Result<T, LabError>,
) -> Result<T> {
    let interrupt = Interrupt::listen()?;
    let bar = bar(iterations as u64 + 2, "{spinner} {msg:40} {bar:30} {elapsed} of about {duration}")?;
    let done = work(&mut |doing| {
        bar.set_message(match doing {
            Doing::Reaching => format!("running up to the {phase} step"),
            Doing::Parting => "taking the step apart".to_string(),
            Doing::Turn(n) => format!("{phase} turn {} of {iterations}", n + 1),
        });
        bar.inc(1);
        !interrupt.pressed()
    });
    bar.finish_and_clear();
    Ok(done?)
}

/// The replay for people.
pub(crate) fn print(r: &Replay, calls: bool) {
    println!(
        "{} step of plan {}, class {}: {} rows at depth {}, {} threads, {} turns, {}",
        r.phase,
        r.plan,
        r.class,
        r.rows,
        r.depth,
        r.threads,
        r.iterations,
        if r.copies.count > 1 { format!("{} copies of the weights", r.copies.count) } else { "one copy".into() },
    );
    if let Some(note) = sat_out(r.sat_out, r.threads) {
        println!("  note     {note}");
    }
    if let Some(delay) = &r.delay {
        println!("  planted  {delay} %");
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["group", "calls", "ms", "share %", "in step ms", "floor ms", "% of floor", "bound by", "bytes"]);
    for g in &r.groups {
        table.add_row(row(g));
    }
    for i in 1..=6 {
        if let Some(c) = table.column_mut(i) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
    println!("  step     {} ms (untraced, median; an empty region takes {} ms)", ms(r.step_ns), ms(r.region_ns));
    match &r.remainder {
        Reading::Available(left) => {
            println!(
                "  groups   {} ms together; the step takes {} ms more ({:+.1} %)",
                ms(left.sum_ns),
                ms(left.ns),
                left.percent
            );
            println!(
                "           of that {} ms: a stage costs another time between its neighbours; {} ms: the traced step waits where the step does not",
                ms(left.neighbours_ns),
                ms(left.meetings_ns)
            );
            if left.percent.abs() > REMAINDER_LIMIT_PERCENT {
                println!(
                    "  note     more than {REMAINDER_LIMIT_PERCENT} % is left over: do not rank groups by these times"
                );
            }
        }
        Reading::Unavailable { why } => println!("  groups   no sum: {why}"),
    }
    println!(
        "  coverage {}: {} stages in the step, {} in the groups, trace {}",
        if r.coverage.complete { "complete" } else { "INCOMPLETE" },
        r.coverage.step_stages,
        r.coverage.group_stages,
        &r.coverage.step_sha256[..12],
    );
    for g in r.groups.iter().filter(|g| g.bytes > 0 && g.group.is_projection()) {
        println!("  cache    {:12} {}", g.group, g.cache);
    }
    if calls {
        print_calls(r);
    }
}

/// A word where threads sat out of all that was timed.
pub(crate) fn sat_out(out: usize, threads: usize) -> Option<String> {
    (out > 0).then(|| {
        format!(
            "{out} of {} threads waited for their processors before the turns, and sat out of all of them: measure again on a \
             quiet host, or with --keep-workers",
            threads + out
        )
    })
}

fn row(g: &GroupTime) -> [String; 9] {
    let or_dash = |r: &Reading<f64>, show: fn(f64) -> String| r.available().map_or("-".to_string(), |v| show(*v));
    [
        g.group.to_string(),
        g.calls.to_string(),
        ms(g.ns),
        format!("{:.1}", g.share_percent),
        ms(g.in_step_ns),
        or_dash(&g.floor_ns, ms),
        or_dash(&g.percent_of_floor, |p| format!("{p:.1}")),
        g.bound.map_or("-", |b| if b == Resource::Bytes { "bytes" } else { "flops" }).to_string(),
        human_bytes(g.bytes),
    ]
}

fn print_calls(r: &Replay) {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["group", "stages", "kernel", "stage", "rows", "n", "k", "who did what"]);
    for (g, k) in r.groups.iter().flat_map(|g| g.kinds.iter().map(move |k| (g, k))) {
        table.add_row([
            g.group.to_string(),
            k.count.to_string(),
            k.kernel.clone(),
            k.stage.clone(),
            k.rows.to_string(),
            k.n.to_string(),
            k.k.to_string(),
            k.split.clone(),
        ]);
    }
    println!("{table}");
}

fn ms(ns: f64) -> String {
    format!("{:.3}", ns / 1e6)
}
