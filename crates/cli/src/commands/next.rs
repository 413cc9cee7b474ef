//! `tare next`: clock a request, take its steps apart, measure what the groups on top are worth, say what to attack.

use anyhow::{Result, bail};
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde_json::json;
use std::time::{Duration, Instant};
use tare_core::Reading;
use tare_cuda::{CudaBackend, Driver, ceilings as device};
use tare_evidence::Ledger;
use tare_lab::next::keep::keep;
use tare_lab::next::look::{At, Effort, Looked, Looking};
use tare_lab::next::rank::Ranked;
use tare_lab::next::{Findings, advise_group, findings};
use tare_lab::replay::{Doing, TakenApart};
use tare_lab::sensitivity::Ends;
use tare_lab::{LabError, On, Rig};
use tare_probe::{Host, Quietness};

use crate::args::NextArgs;
use crate::commands::after;
use crate::commands::clock::{gate, notes, refuse_failed};
use crate::interrupt::Interrupt;
use crate::progress::bar;
use crate::settings::Settings;
use crate::setup::open_model;
use crate::weighing::{Named, Weighed, ceilings, request, rig, weigh};

/// Groups that the table shows.
const SHOWN: usize = 12;

/// Runs the command.
pub(crate) fn run(args: &NextArgs, settings: &Settings) -> Result<()> {
    if let Some(after) = &args.after {
        return after::run(after, args, settings);
    }
    let started = Instant::now();
    let model = open_model(&args.model, settings)?;
    let request = request(&args.work, &model)?;
    let rig = Rig { delay: args.delay, ..rig(&model, &args.how, std::slice::from_ref(&request), settings)? };
    let named = Named {
        study: "next",
        question: "Which group of which phase has most time to give, and how much?",
        busy_before: None,
    };
    let done =
        weigh(&rig, std::slice::from_ref(&request), args.work.rounds, named, (settings, args.output.as_deref()))?;
    refuse_failed(&done)?;
    let (Some(derived), Some(phases)) = (done.record.derived(), findings(&done.record)) else {
        bail!("the record {} has no figures", done.path.display())
    };
    let quiet = Quietness::observe(Duration::from_millis(200));
    let doubts = doubts(&quiet);
    let host = Host::read();
    let stored = ceilings(settings, &host);
    let looking = Looking {
        rig: &rig,
        request: &request,
        prefill_ns: derived.prefill.ns.median,
        decode_ns: derived.decode.available().map_or(0.0, |p| p.ns.median),
        decode_step_ns: derived.inter_token_ns.available().map_or(0.0, |p| p.p50),
        host: &host,
        ceilings: &stored.ceilings,
        effort: if rig.on == On::Cpu { Effort::FULL } else { Effort::DEVICE },
    };
    let seen = Seen { args, settings, done: &done, phases: &phases, doubts: &doubts, started };
    match &rig.on {
        On::Cpu => seen.conclude(with_progress(looking.effort, |go_on| looking.run(go_on))?),
        On::Cuda(config) => {
            let ceilings = Reading::from(device::measure(config));
            let mut backend = || Ok(CudaBackend::new(Driver::open(config.clone())?));
            seen.conclude(with_progress(looking.effort, |go_on| looking.on_device(&ceilings, &mut backend, go_on))?)
        }
    }
}

/// What there is when the steps have been taken apart.
struct Seen<'a> {
    args: &'a NextArgs,
    settings: &'a Settings,
    done: &'a Weighed,
    phases: &'a Findings,
    doubts: &'a [String],
    started: Instant,
}

impl Seen<'_> {
    /// Keeps the documents and says what follows.
    fn conclude<R: TakenApart>(&self, mut looked: Looked<R>) -> Result<()> {
        let Self { args, settings, done, phases, doubts, started } = *self;
        let scratch = settings.scratch_ledger();
        let ledger = Ledger::at(args.output.as_deref().unwrap_or(&scratch));
        // What a planted delay shows is true of no build: nothing of it may stand beside what is.
        let decision = match args.delay {
            None => keep(&ledger, &done.record, &mut looked, doubts)?,
            Some(_) => None,
        };
        let kept = match &decision {
            Some(_) => Some(after::keep_binary(settings, &done.record.provenance.binary_sha256)?),
            None => None,
        };
        if args.json {
            let v = json!({
                "gate": { "passed": true }, "findings": phases, "record": done.path, "ranking": looked.ranking,
                "replays": looked.replays, "sensitivities": looked.probes, "doubts": doubts, "decision": decision,
                "delay": args.delay, "spent_s": started.elapsed().as_secs_f64(),
            });
            println!("{v}");
        } else {
            print(done, phases, &looked, doubts);
            if let (Some(id), Some(kept)) = (&decision, &kept) {
                println!("decision draft: {id}; this build is kept as {}", kept.display());
                println!("after a change: {}", after::command(args, &done.record.arm.class, id));
            }
            if let Some(delay) = &args.delay {
                println!("planted: {delay} %; of all this the ledger keeps the record alone");
            }
            println!("took {:.0} s", started.elapsed().as_secs_f64());
        }
        Ok(())
    }
}

/// Does the work behind a progress bar that Ctrl-C ends.
fn with_progress<R>(
    effort: Effort,
    work: impl FnOnce(&mut dyn FnMut(At<'_>) -> bool) -> Result<Looked<R>, LabError>,
) -> Result<Looked<R>> {
    let interrupt = Interrupt::listen()?;
    let turns = effort.decode_turns + effort.prefill_turns + effort.probed * effort.blocks;
    let bar = bar(turns as u64, "{spinner} {msg:40} {bar:30} {elapsed} of about {duration}")?;
    let looked = work(&mut |at| {
        bar.set_message(match at {
            At::Replay(phase, Doing::Turn(n)) => format!("replay of {phase}, turn {}", n + 1),
            At::Replay(phase, _) => format!("taking a {phase} step apart"),
            At::Probe(phase, group, n) => format!("what {group} is worth in {phase}, block {}", n + 1),
        });
        bar.inc(1);
        !interrupt.pressed()
    });
    bar.finish_and_clear();
    Ok(looked?)
}

/// Why the conclusion is not to be trusted as it stands.
fn doubts(quiet: &Quietness) -> Vec<String> {
    let lost = quiet.spin.lost_share;
    if lost <= tare_probe::ceilings::Effort::FULL.busy_limit {
        return Vec::new();
    }
    vec![format!(
        "others took {:.0} % of a spinning thread's time before the steps were taken apart: the order may be theirs; \
         measure again on a quiet host",
        100.0 * lost
    )]
}

fn print<R: TakenApart>(done: &Weighed, phases: &Findings, looked: &Looked<R>, doubts: &[String]) {
    println!("{}", done.record.about.title);
    gate(&done.record);
    for p in &phases.phases {
        println!(
            "  {:8} {:.1} tok/s, {:.1} ms where the floor is {:.1} ms ({:.0} % of floor)",
            p.phase,
            p.rate_tokens_per_s,
            p.measured_ns / 1e6,
            p.floor_ns / 1e6,
            p.percent_of_floor
        );
    }
    for u in &phases.unknown {
        println!("  no floor for {u}");
    }
    println!("{}", table(&looked.ranking.groups));
    for why in &looked.ranking.withheld {
        println!("  withheld {why}");
    }
    for d in doubts {
        println!("  doubt    {d}");
    }
    match looked.ranking.groups.first() {
        Some(top) => {
            let qualified = if doubts.is_empty() { "" } else { ", with the doubt above" };
            println!("next: {}{qualified}", advise_group(top));
            let probe = top.sensitivity.as_deref().unwrap_or("none");
            println!("      evidence: record {}, replay {}, sensitivity {probe}", done.record.id, top.replay);
        }
        None => println!("next: no verdict; nothing could be ranked"),
    }
    notes(&done.record);
    println!("record: {}", done.path.display());
}

fn table(groups: &[Ranked]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["phase", "group", "ms a step", "floor ms", "% of floor", "worth", "gain % of request"]);
    for g in groups.iter().take(SHOWN) {
        let with = |value: String, ends: Option<Ends>| match ends {
            Some(e) => format!("{value} ({:.2} to {:.2})", e.low, e.high),
            None => value,
        };
        table.add_row([
            g.phase.to_string(),
            g.group.clone(),
            format!("{:.3}", g.measured_ns / 1e6),
            format!("{:.3}", g.floor_ns / 1e6),
            format!("{:.1}", g.percent_of_floor),
            match g.slope {
                None => "not measured".to_string(),
                Some(s) if s == g.worth => with(format!("{s:.2}"), g.slope_interval),
                Some(s) => format!("1, not told from {}", with(format!("{s:.2}"), g.slope_interval)),
            },
            with(format!("{:.2}", g.gain_percent), g.gain_interval),
        ]);
    }
    for i in 2..=6 {
        if let Some(c) = table.column_mut(i) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
