//! `tare study ops`: every kernel that could take a call against the one that does, and guards that follow.

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde_json::json;
use std::path::Path;
use tare_core::digest::sha256_hex;
use tare_core::{Fault, Reading};
use tare_evidence::Ledger;
use tare_lab::ops_study::guard::{Crossover, EndToEnd, LEAST_PASSES, Subject, crossovers, earned, end_to_end, written};
use tare_lab::ops_study::{MOST_ROWS, Measured, OpsStudy};
use tare_lab::replay::Warmth;
use tare_lab::{ClockedRequest, LabError, Lengths};
use tare_model::Guard;
use tare_ops::OpName;
use tare_probe::Host;

use crate::args::OpsArgs;
use crate::commands::replay::sat_out;
use crate::interrupt::{Interrupt, cancelled};
use crate::progress::bar;
use crate::settings::Settings;
use crate::setup::open_model;
use crate::weighing::{ceilings, rig};

/// Runs the command.
pub(crate) fn run(args: &OpsArgs, settings: &Settings) -> Result<()> {
    if let Some(plan) = &args.write_guard {
        guardable(args, plan)?;
    }
    let model = open_model(&args.model, settings)?;
    let lengths = Lengths { depth: 0, prompt_tokens: MOST_ROWS, output_tokens: 2 };
    let request = ClockedRequest::drawn(lengths, model.config().vocab, 0)?;
    let rig = rig(&model, &args.how, std::slice::from_ref(&request), settings)?;
    let host = Host::read();
    let stored = ceilings(settings, &host);
    let mut rows = args.rows.clone();
    rows.sort_unstable();
    rows.dedup();
    let mut study = OpsStudy {
        rig: &rig,
        operators: args.operators.iter().map(|name| operator(name)).collect::<Result<_, _>>()?,
        rows,
        context: args.depth,
        passes: args.passes,
        warmth: Warmth::Warm,
        host: &host,
        ceilings: &stored.ceilings,
    };
    let interrupt = Interrupt::listen()?;
    let bar = bar(0, "{spinner} {msg:44!} {bar:30} {pos} of {len}, {elapsed}")?.with_message("packing");
    let warmths: &[Warmth] = match (args.warm, args.cold) {
        (true, _) => &[Warmth::Warm],
        (_, true) => &[Warmth::Cold],
        _ => &[Warmth::Warm, Warmth::Cold],
    };
    let (mut warm, mut cold) = (Vec::new(), Vec::new());
    let (mut done, mut all) = (0, 0);
    let ended = warmths.iter().enumerate().try_for_each(|(n, &warmth)| {
        study.warmth = warmth;
        let kept = if warmth == Warmth::Warm { &mut warm } else { &mut cold };
        study.run(kept, &mut |ahead| {
            let at = (n * ahead.of + ahead.done, warmths.len() * ahead.of);
            // Most questions come between two samples, which a line that is drawn would disturb.
            if at != (done, all) {
                (done, all) = at;
                bar.set_length(all as u64);
                bar.set_position(done as u64);
                bar.set_message(ahead.what.to_string());
            }
            !interrupt.pressed()
        })?;
        done = (n + 1) * (all / warmths.len());
        Ok(())
    });
    bar.finish_and_clear();
    // Pressed after the last sample, it would not be asked about again.
    let ended = ended.and_then(|()| if interrupt.pressed() { Err(LabError::Interrupted) } else { Ok(()) });
    let whole = ended.is_ok();
    let found = crossovers(if warm.is_empty() { &cold } else { &warm });
    // An interruption or a fault loses nothing that was measured before it.
    if args.json && all > 0 {
        println!("{}", json!({ "complete": whole, "warm": warm, "cold": cold, "crossovers": found }));
    } else if !args.json && (whole || !(warm.is_empty() && cold.is_empty())) {
        print(&warm, &cold, &found, (whole, args.calls));
    }
    if !whole && all > 0 {
        let guard = if args.write_guard.is_some() { "; no guard is written" } else { "" };
        eprintln!("tare: it ended after {done} of {all} operators and numbers of rows{guard}");
    }
    ended.map_err(cancelled)?;
    let Some(plan) = &args.write_guard else { return Ok(()) };
    let subject = Subject { shape: model.describe()?.name, class: rig.class.name.to_string() };
    write_guards(plan, &found, &subject, (&warm, &cold), whole_requests(args, settings)?.as_ref())
}

/// A guard goes into the plan that was studied, from passes enough to speak of every one of them.
fn guardable(args: &OpsArgs, plan: &Path) -> Result<(), Fault> {
    if args.passes < LEAST_PASSES {
        let expected = format!("at least {LEAST_PASSES} with --write-guard");
        return Err(Fault::new("--passes", expected, args.passes.to_string()));
    }
    if args.how.plan.as_deref().map(Path::new) != Some(plan) {
        let found = args.how.plan.clone().unwrap_or_else(|| "no --plan".into());
        return Err(Fault::new("--write-guard", format!("the plan that is studied: --plan {}", plan.display()), found));
    }
    Ok(())
}

/// What the study that `--study` names says.
fn whole_requests(args: &OpsArgs, settings: &Settings) -> Result<Option<EndToEnd>> {
    let Some(id) = &args.study else { return Ok(None) };
    let folder = args.ledger.clone().unwrap_or_else(|| settings.scratch_ledger());
    Ok(Some(end_to_end(&Ledger::at(folder), id)?))
}

fn operator(name: &str) -> Result<OpName, Fault> {
    OpName::ALL.into_iter().find(|op| op.name() == name).ok_or_else(|| {
        let names: Vec<&str> = OpName::ALL.iter().map(|op| op.name()).collect();
        Fault::new("--op", format!("one of {}", names.join(", ")), format!("`{name}`"))
    })
}

/// Appends every guard that was earned, and writes the tables beside the plan; an error names what the others lack.
fn write_guards(
    path: &Path,
    found: &[Crossover],
    subject: &Subject,
    (warm, cold): (&[Measured], &[Measured]),
    study: Option<&EndToEnd>,
) -> Result<()> {
    if found.is_empty() {
        return Err(Fault::new("--write-guard", "a kernel that beats the plan's in every pass", "none").into());
    }
    let tables = serde_json::to_string(&json!({ "warm": warm, "cold": cold }))?;
    let sha256 = sha256_hex(tables.as_bytes());
    let judged: Vec<_> = found.iter().map(|c| earned(c, subject, (warm, cold), (study, &sha256))).collect();
    let guards: Vec<&Guard> = judged.iter().filter_map(|g| g.as_ref().ok()).collect();
    if !guards.is_empty() {
        let mut text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        for guard in &guards {
            text = written(&text, guard)?;
        }
        replace(&path.with_extension(format!("{}.json", &sha256[..16])), &tables)?;
        replace(path, &text)?;
        for g in guards {
            eprintln!("tare: {} now takes {} for {} x {} at {:?} rows", path.display(), g.kernel, g.n, g.k, g.rows);
        }
    }
    judged.into_iter().find_map(Result::err).map_or(Ok(()), |why| Err(why.into()))
}

/// Puts `text` at `path` as a whole or not at all.
fn replace(path: &Path, text: &str) -> Result<()> {
    let half = path.with_extension(format!("{}.part", std::process::id()));
    let put = std::fs::write(&half, text).and_then(|()| std::fs::rename(&half, path));
    put.with_context(|| format!("cannot write {}", path.display()))
}

/// The tables for people; `whole` when everything that was asked for is in them.
fn print(warm: &[Measured], cold: &[Measured], found: &[Crossover], (whole, calls): (bool, bool)) {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["operator", "n x k", "rows", "weights", "kernel", "us", "ratio", "% of floor", "wins"]);
    for m in warm.iter().chain(cold) {
        let winner = m.winner().map(|w| w.kernel.as_str());
        for k in &m.kernels {
            let floor = match &k.percent_of_floor {
                Reading::Available(p) => format!("{p:.1}"),
                Reading::Unavailable { .. } => "-".into(),
            };
            table.add_row([
                m.operator.to_string(),
                format!("{} x {}", m.n, m.k),
                m.rows.to_string(),
                if m.warmth == Warmth::Cold { format!("cold, {}", m.copies) } else { "warm".into() },
                format!("{}{}", k.kernel, if k.kernel == m.chosen { " (plan)" } else { "" }),
                format!("{:.1}", k.ns / 1e3),
                format!("{:.3}", k.ratio),
                floor,
                if winner == Some(k.kernel.as_str()) { "every pass".into() } else { String::new() },
            ]);
        }
    }
    for i in [2, 5, 6, 7] {
        if let Some(c) = table.column_mut(i) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
    for m in warm.iter().chain(cold) {
        if let Some(note) = sat_out(m.sat_out, m.threads) {
            println!("  note     {}, {} rows: {note}", m.of, m.rows);
        }
    }
    if calls {
        for k in warm.iter().chain(cold).flat_map(|m| &m.kernels) {
            println!("  {}", k.stages.join("; "));
        }
    }
    if found.is_empty() && whole {
        println!("no kernel beats the plan's in every pass at any number of rows");
    }
    for c in found {
        println!(
            "{} beats {} for {} at {} to {} rows in every pass, by {:.3} at the least",
            c.kernel, c.over, c.of, c.rows[0], c.rows[1], c.ratio
        );
    }
}
