//! `tare clock`: view 1, the request clock.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tare_core::Reading;
use tare_core::units::{human_bytes, human_ns};
use tare_evidence::derive::{Derived, OnDevice, Phase, Spread};
use tare_evidence::gate::GateReport;
use tare_evidence::identity::together_told;
use tare_evidence::record::{Memory, Startup};
use tare_evidence::{Outcome, Record};

use crate::args::ClockArgs;
use crate::commands::clock_url;
use crate::settings::Settings;
use crate::setup::open_model;
use crate::weighing::{Named, Weighed, requests, rig, weigh};

/// Runs the command. A failed gate is an error: the record is kept without times.
pub(crate) fn run(args: &ClockArgs, settings: &Settings) -> Result<()> {
    if let Some(url) = &args.remote.url {
        return clock_url::run(url, args, settings);
    }
    let name = args.model.as_deref().context("no model is named: give -m MODEL")?;
    let model = open_model(name, settings)?;
    let mut all = Vec::new();
    for work in args.works() {
        let requests = requests(&work, args.sequences, &model)?;
        let rig = rig(&model, &args.how, &requests, settings)?;
        let named = Named {
            study: "clock",
            question: "What does one request cost, and how far is it from its floor?",
            busy_before: (!all.is_empty()).then_some("this process weighed another request before"),
        };
        let done = weigh(&rig, &requests, work.rounds, named, (settings, args.output.as_deref()))?;
        if !args.json {
            print(&done);
        }
        all.push(done);
    }
    if args.json {
        let mut documents = all.iter().map(as_json).collect::<Result<Vec<_>>>()?;
        println!("{}", if args.depths.is_empty() { documents.remove(0) } else { json!(documents) });
    }
    all.iter().try_for_each(refuse_failed)
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
        let sequences = record.work.rows;
        phase("prefill", &d.prefill, sequences);
        match &d.decode {
            Reading::Available(p) => phase("decode", p, sequences),
            Reading::Unavailable { why } => println!("  decode   unavailable: {why}"),
        }
        println!("  TTFT     {}", human_ns(d.ttft_ns.median as u64));
        println!("  whole    {}", human_ns(d.end_to_end_ns.median as u64));
        if let Reading::Available(p) = &d.inter_token_ns {
            let ms = |ns: f64| format!("{:.2}", ns / 1e6);
            println!(
                "  between tokens  p50 {}  p90 {}  p95 {}  p99 {}  max {} ms",
                ms(p.p50),
                ms(p.p90),
                ms(p.p95),
                ms(p.p99),
                ms(p.max)
            );
        }
        if let Some(device) = &d.device {
            on_device(device, d);
        }
        if let Outcome::Timed(t) = &record.outcome {
            t.measured.startup.iter().for_each(startup);
        }
        memory(&record.memory);
    }
    notes(record);
}

/// What the device's own clock says: the rest of a phase is the host's.
fn on_device(device: &OnDevice, d: &Derived) {
    let share = |name: &str, device: &Spread, request: &Spread| {
        format!("{name} {}, {:.1} % of it", human_ns(device.median as u64), 100.0 * device.median / request.median)
    };
    let prefill = share("prefill", &device.prefill_ns, &d.prefill.ns);
    let decode = match (&device.decode_ns, &d.decode) {
        (Reading::Available(ns), Reading::Available(p)) => share("decode", ns, &p.ns),
        (Reading::Unavailable { why }, _) | (_, Reading::Unavailable { why }) => format!("decode unavailable: {why}"),
    };
    println!("  device   {prefill}; {decode}");
}

/// From the start of the process; one reason where both are missing.
fn startup(startup: &Startup) {
    match (&startup.ready_ns, &startup.first_token_ns) {
        (Reading::Available(ready), Reading::Available(first)) => {
            println!("  start    ready after {}, first token after {}", human_ns(*ready), human_ns(*first));
        }
        (Reading::Unavailable { why }, _) | (_, Reading::Unavailable { why }) => {
            println!("  start    unavailable: {why}");
        }
    }
}

/// Where memory went; what cannot be told apart is said once.
fn memory(m: &Memory) {
    let parts = [
        ("allocated at the peak", &m.allocator_peak_bytes),
        ("KV cache", &m.kv_bytes),
        ("resident without a file", &m.anonymous_rss_bytes),
        ("resident of files", &m.file_rss_bytes),
        ("device", &m.device_bytes),
    ];
    let process =
        m.peak_rss_bytes.iter().map(|peak| ("resident at the peak, loading included and the judge not", peak));
    let shown: Vec<String> = parts
        .into_iter()
        .chain(process)
        .map(|(name, reading)| match reading {
            Reading::Available(bytes) => format!("{name} {}", human_bytes(*bytes)),
            Reading::Unavailable { why } => format!("{name} unavailable: {why}"),
        })
        .collect();
    println!("  memory   {}", shown.join("; "));
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
    gate_lines(report, record.passed());
}

/// The verdict on a report, one line, and each miss.
pub(crate) fn gate_lines(report: &GateReport, passed: bool) {
    let compared: u64 = report.checks.iter().map(|c| c.compared).sum();
    let verdict = if passed { "passed" } else { "FAILED" };
    println!(
        "  gate     {verdict}: {} checks over {compared} values (limits version {})",
        report.checks.len(),
        report.thresholds_version
    );
    for m in &report.misses {
        println!("           {} at {}: expected {}, found {}", m.check, m.at, m.expected, m.found);
    }
}

/// A phase: tokens per second of all sequences together and, where there are several, of one.
fn phase(name: &str, p: &Phase, sequences: u32) {
    let floor = match (&p.floor, &p.percent_of_floor) {
        (Reading::Available(f), Reading::Available(percent)) => {
            format!("floor {} by {:?}, {percent:.1} % of floor", human_ns(f.ns as u64), f.bound).to_lowercase()
        }
        (Reading::Unavailable { why }, _) | (_, Reading::Unavailable { why }) => format!("floor unavailable: {why}"),
    };
    let r = &p.rate_tokens_per_s;
    let of_one = match sequences {
        1 => String::new(),
        n => format!("{}, {:.1} of one", together_told(n), r.median / f64::from(n)),
    };
    println!(
        "  {name:8} {:.1} tok/s{of_one} ({:.1} to {:.1}), {}; {floor}",
        r.median,
        r.min,
        r.max,
        human_ns(p.ns.median as u64)
    );
}
