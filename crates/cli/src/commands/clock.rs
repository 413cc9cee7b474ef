//! `tare clock`: view 1, the request clock.

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tare_core::Reading;
use tare_core::units::human_ns;
use tare_evidence::derive::Phase;
use tare_evidence::{Outcome, Record};

use crate::args::ClockArgs;
use crate::settings::Settings;
use crate::setup::open_model;
use crate::weighing::{Named, Weighed, request, rig, weigh};

/// Runs the command. A failed gate is an error: the record is kept without times.
pub(crate) fn run(args: &ClockArgs, settings: &Settings) -> Result<()> {
    let model = open_model(&args.model.model, settings)?;
    let request = request(&args.work, &model)?;
    let rig = rig(&model, &args.model.how, &request)?;
    let named = Named { study: "clock", question: "What does one request cost, and how far is it from its floor?" };
    let done = weigh(&rig, &request, args.work.rounds, named, (settings, args.output.as_deref()))?;
    if args.json {
        println!("{}", as_json(&done)?);
    } else {
        print(&done);
    }
    refuse_failed(&done)
}

/// An error when the gate failed.
pub(crate) fn refuse_failed(done: &Weighed) -> Result<()> {
    if done.record.passed() {
        return Ok(());
    }
    bail!("the gate failed: times are void; what was emitted and each miss is kept in {}", done.path.display())
}

/// The record as scripts read it: the written record and, beside it, `record` (its path) and the flat figures.
pub(crate) fn as_json(done: &Weighed) -> Result<Value> {
    let mut v = serde_json::to_value(&done.record)?;
    let derived = v.get("derived").cloned().unwrap_or(json!({}));
    if let Value::Object(map) = &mut v {
        if let Value::Object(figures) = derived {
            map.extend(figures);
        }
        map.insert("record".into(), json!(done.path));
    }
    Ok(v)
}

/// The record for people, and where it is.
pub(crate) fn print(done: &Weighed) {
    print_record(&done.record);
    println!("  record   {}", done.path.display());
}

/// The record for people.
pub(crate) fn print_record(record: &Record) {
    println!("{}", record.about.title);
    gate(record);
    if let Some(d) = record.derived() {
        phase("prefill", &d.prefill);
        match &d.decode {
            Reading::Available(p) => phase("decode", p),
            Reading::Unavailable { why } => println!("  decode   unavailable: {why}"),
        }
        println!("  TTFT     {}", human_ns(d.ttft_ns.median as u64));
        if let Reading::Available(p) = &d.inter_token_ns {
            let ms = |ns: f64| format!("{:.2}", ns / 1e6);
            println!("  between tokens  p50 {}  p90 {}  p99 {}  max {} ms", ms(p.p50), ms(p.p90), ms(p.p99), ms(p.max));
        }
    }
    notes(record);
}

/// What a reader must know to read the figures: slow paths, a busy host, caches.
pub(crate) fn notes(record: &Record) {
    for note in &record.about.notes {
        println!("  note     {note}");
    }
}

/// The verdict of the gate, one line, and each miss.
pub(crate) fn gate(record: &Record) {
    let report = match &record.outcome {
        Outcome::Timed(t) => t.gate.report(),
        Outcome::Void(v) => v.gate.report(),
    };
    let compared: u64 = report.checks.iter().map(|c| c.compared).sum();
    let verdict = if record.passed() { "passed" } else { "FAILED" };
    println!(
        "  gate     {verdict}: {} checks over {compared} values (limits version {})",
        report.checks.len(),
        report.thresholds_version
    );
    for m in &report.misses {
        println!("           {} at {}: expected {}, found {}", m.check, m.at, m.expected, m.found);
    }
}

fn phase(name: &str, p: &Phase) {
    let floor = match (&p.floor, &p.percent_of_floor) {
        (Reading::Available(f), Reading::Available(percent)) => {
            format!("floor {} by {:?}, {percent:.1} % of floor", human_ns(f.ns as u64), f.bound).to_lowercase()
        }
        (Reading::Unavailable { why }, _) | (_, Reading::Unavailable { why }) => format!("floor unavailable: {why}"),
    };
    let r = &p.rate_tokens_per_s;
    println!(
        "  {name:8} {:.1} tok/s ({:.1} to {:.1}), {}; {floor}",
        r.median,
        r.min,
        r.max,
        human_ns(p.ns.median as u64)
    );
}
