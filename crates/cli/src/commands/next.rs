//! `tare next`: measure, find the larger gap, say so.

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde_json::json;
use tare_lab::next::{Findings, findings};

use crate::args::NextArgs;
use crate::commands::clock::{gate, notes, refuse_failed};
use crate::settings::Settings;
use crate::setup::open_model;
use crate::weighing::{Named, Weighed, request, rig, weigh};

/// Runs the command.
pub(crate) fn run(args: &NextArgs, settings: &Settings) -> Result<()> {
    let model = open_model(&args.model, settings)?;
    let request = request(&args.work, &model)?;
    let rig = rig(&model, &args.how, &request, settings)?;
    let named = Named { study: "next", question: "Which phase is farthest from its floor, and what bounds it?" };
    let done = weigh(&rig, &request, args.work.rounds, named, (settings, args.output.as_deref()))?;
    let found = findings(&done.record);
    if args.json {
        let passed = done.record.passed();
        println!("{}", json!({ "gate": { "passed": passed }, "findings": found, "record": done.path }));
    } else {
        print(&done, found.as_ref());
    }
    refuse_failed(&done)
}

fn print(done: &Weighed, found: Option<&Findings>) {
    println!("{}", done.record.about.title);
    gate(&done.record);
    if let Some(f) = found {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header(["phase", "tok/s", "measured ms", "floor ms", "% of floor", "bound by", "removable ms"]);
        for p in &f.phases {
            table.add_row([
                p.phase.to_string(),
                format!("{:.1}", p.rate_tokens_per_s),
                format!("{:.1}", p.measured_ns / 1e6),
                format!("{:.1}", p.floor_ns / 1e6),
                format!("{:.1}", p.percent_of_floor),
                format!("{:?}", p.bound).to_lowercase(),
                format!("{:.1}", p.removable_ns / 1e6),
            ]);
        }
        for i in 1..=4 {
            if let Some(c) = table.column_mut(i) {
                c.set_cell_alignment(CellAlignment::Right);
            }
        }
        if let Some(c) = table.column_mut(6) {
            c.set_cell_alignment(CellAlignment::Right);
        }
        println!("{table}");
        for u in &f.unknown {
            println!("  no floor for {u}");
        }
        println!("next: {}", f.advice);
    }
    notes(&done.record);
    println!("record: {}", done.path.display());
}
