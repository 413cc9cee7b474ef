//! `tare clock --url`: view 1 at a server, as its client sees it.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use tare_core::digest::sha256_hex;
use tare_core::units::human_ns;
use tare_core::{Fault, Reading};
use tare_evidence::derive::{Percentiles, Spread};
use tare_evidence::gate::{GateReport, Judgement};
use tare_lab::campaign::live::now;
use tare_lab::gate::{Gate, Run};
use tare_lab::http_clock::{Address, Ask, Figures, HttpClock, Overhead, Round};
use tare_lab::thresholds::Thresholds;
use tare_lab::{ClockedRequest, Lengths, ReferenceStore};
use tare_model::Model;

use crate::args::{ClockArgs, PrefillLogits, WorkArgs};
use crate::built::build_info;
use crate::commands::clock::gate_lines;
use crate::interrupt::Interrupt;
use crate::settings::Settings;
use crate::setup::{open_model, read_ids};
use crate::weighing::{rig, spinner};

/// Prompt ids are drawn below this when nobody knows the server's vocabulary: fewer than any current model has.
const VOCABULARY: usize = 20_000;
/// Why an HTTP measurement has no verdict of its own.
const NOT_HELD: &str = "this host does not hold the served weights; --gate-model names them where it does";

/// What was measured at one depth.
struct AtDepth {
    work: WorkArgs,
    requests: Vec<ClockedRequest>,
    rounds: Vec<Round>,
    gate: Reading<GateReport>,
}

/// Runs the command. A failed gate is an error, and its times are not kept.
pub(crate) fn run(url: &str, args: &ClockArgs, settings: &Settings) -> Result<()> {
    refuse_meaningless(args)?;
    let held = args.remote.gate_model.as_deref().map(|name| open_model(name, settings)).transpose()?;
    let key = args.remote.api_key_env.as_deref().map(Settings::variable).transpose()?;
    let address = Address { url: url.to_string(), key, silence: Duration::from_secs_f64(args.remote.timeout) };
    let interrupt = Interrupt::listen()?;
    let go_on = || !interrupt.pressed();
    let bar = spinner(format!("reaching {url}"));
    let mut clock = HttpClock::reach(&address, args.model.as_deref())?;
    let mut depths = Vec::new();
    for work in args.works() {
        let (warm_up, requests) = requests(&work, args, held.as_ref())?;
        bar.set_message(format!("depth {}: warm-up", work.depth));
        if depths.is_empty() {
            clock.settle(&ask(&warm_up), args.remote.endpoint.map(Into::into), &go_on)?;
        } else {
            clock.round(&ask(&warm_up), &go_on)?;
        }
        let mut rounds = Vec::new();
        for (n, request) in requests.iter().enumerate() {
            bar.set_message(format!("depth {}: round {} of {}", work.depth, n + 1, work.rounds));
            if !request.prefix.is_empty() {
                clock.round(&Ask { ids: request.prefix.clone(), output_tokens: 1 }, &go_on)?;
            }
            rounds.push(clock.round(&ask(request), &go_on)?);
        }
        bar.set_message("judging against the F32 reference");
        let gate = judge(args, held.as_ref(), &requests, &rounds, settings)?;
        depths.push(AtDepth { work, requests, rounds, gate });
    }
    bar.set_message("measuring the client");
    let overhead = clock.overhead(&ask(&depths[0].requests[0]))?;
    bar.finish_and_clear();
    let document = document(url, &clock, &depths, &overhead)?;
    let path = keep(&document, settings)?;
    if args.json {
        let mut shown = document;
        shown["document"] = json!(path);
        println!("{shown}");
    } else {
        print(url, &clock, &depths, &overhead);
        println!("  kept     {} (a diagnostic: no record, no verdict)", path.display());
    }
    match depths.iter().any(|d| failed(&d.gate)) {
        true => bail!("the gate failed: times are void; ids and misses are kept in {}", path.display()),
        false => Ok(()),
    }
}

/// Flags that say how an engine of ours runs say nothing about a server.
fn refuse_meaningless(args: &ClockArgs) -> Result<(), Fault> {
    let how = &args.how;
    let judged = args.remote.gate_model.is_some();
    let given = [
        ("--plan", how.plan.is_some()),
        ("--isa", how.isa.is_some()),
        ("--context", how.context.is_some()),
        ("--output", args.output.is_some()),
        ("--prefill-logits all", args.work.prefill_logits == PrefillLogits::All),
        ("--class without --gate-model", how.class.is_some() && !judged),
        ("--threads without --gate-model", how.threads.is_some() && !judged),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Fault::new("--url", "flags that a server can honour", *flag)
            .remedy("leave it out: how the server runs is said where it is started")),
        None => Ok(()),
    }
}

/// The request of the warm-up and those of the rounds. Where nothing judges them, each has a prompt of its own, which no
/// prefix cache knows.
fn requests(work: &WorkArgs, args: &ClockArgs, held: Option<&Model>) -> Result<(ClockedRequest, Vec<ClockedRequest>)> {
    let given = work.ids.as_deref().map(read_ids).transpose()?;
    let prompt_tokens = given.as_ref().map_or(work.prompt_tokens, Vec::len);
    let lengths = Lengths { depth: work.depth, prompt_tokens, output_tokens: work.max_tokens };
    let vocabulary = held.map_or(args.remote.vocabulary.unwrap_or(VOCABULARY), |m| m.config().vocab);
    let of_round = |round: u64| -> Result<ClockedRequest> {
        let seed = if held.is_some() { work.seed } else { work.seed.wrapping_add(round) };
        let mut request = ClockedRequest::drawn(lengths, vocabulary, seed)?;
        if let Some(ids) = &given {
            request.prompt.clone_from(ids);
        }
        Ok(request)
    };
    let rounds = work.rounds as u64;
    Ok((of_round(rounds)?, (0..rounds).map(of_round).collect::<Result<_>>()?))
}

fn ask(request: &ClockedRequest) -> Ask {
    Ask { ids: request.input(), output_tokens: request.output_tokens }
}

/// The reference's verdict on the ids of all rounds, or why there is none.
fn judge(
    args: &ClockArgs,
    held: Option<&Model>,
    requests: &[ClockedRequest],
    rounds: &[Round],
    settings: &Settings,
) -> Result<Reading<GateReport>> {
    let Some(model) = held else { return Ok(Reading::unavailable(NOT_HELD)) };
    let mut ids = Vec::new();
    for round in rounds {
        match &round.ids {
            Reading::Available(all) if all.len() == requests[0].output_tokens => ids.push(all),
            Reading::Available(all) => {
                let (n, wanted) = (all.len(), requests[0].output_tokens);
                return Ok(Reading::unavailable(format!("an answer had {n} tokens where {wanted} were asked for")));
            }
            Reading::Unavailable { why } => return Ok(Reading::unavailable(why)),
        }
    }
    if let Some(extra) = rounds.iter().find_map(|r| r.template_tokens.available().filter(|n| **n != 0)) {
        let why = format!("the server's prompt differs by {extra} tokens from the ids that were sent");
        return Ok(Reading::unavailable(why));
    }
    let labels: Vec<String> = (0..ids.len()).map(|n| format!("round {n}")).collect();
    let runs: Vec<Run<'_>> = ids.iter().zip(&labels).map(|(ids, label)| Run { label, ids, logits: &[] }).collect();
    let request = &requests[0];
    let rig = rig(model, &args.how, request)?;
    let store = ReferenceStore::at(settings.references(), &build_info()?.binary_sha256);
    let thresholds = Thresholds::built_in()?;
    let gate = Gate { rig: &rig, request, thresholds: &thresholds, store: &store };
    Ok(Reading::Available(gate.judge_emitted(rig.class.name, &runs)?))
}

fn failed(gate: &Reading<GateReport>) -> bool {
    gate.available().is_some_and(|report| matches!(report.clone().judge(), Ok(Judgement::Failed(_)) | Err(_)))
}

/// What a reader must know before believing the figures.
fn notes(clock: &HttpClock, depth: &AtDepth) -> Vec<String> {
    let mut notes = Vec::new();
    if !clock.endpoint().sends_ids() {
        let text = "the prompt went out as text: its tokens are the server's, and the work is not that of a record with \
                    the same lengths";
        notes.push(text.to_string());
    }
    notes.extend(clock.given_up().iter().map(|e| format!("the server does not take {}: {}", e.name(), e.loss())));
    let asked = depth.work.max_tokens as u64;
    let other = depth.rounds.iter().filter_map(|r| r.tokens.available()).find(|n| **n != asked);
    notes.extend(other.map(|n| format!("an answer had {n} tokens where {asked} were asked for")));
    let wanted = depth.work.depth as u64;
    notes.extend(match depth.rounds.iter().map(|r| &r.cached_tokens).find(|c| c.available() != Some(&wanted)) {
        Some(Reading::Available(n)) => {
            Some(format!("the server found {n} tokens in its prefix cache where the depth is {wanted}"))
        }
        Some(Reading::Unavailable { why }) => Some(format!("cached tokens of the prompt are unknown: {why}")),
        None => None,
    });
    let made = clock.connections_ns().len();
    if made > 1 {
        notes.push(format!("{made} connections were made: the server closes them, and TTFT holds the making"));
    }
    notes
}

fn document(url: &str, clock: &HttpClock, depths: &[AtDepth], overhead: &Overhead) -> Result<Value> {
    let at = |d: &AtDepth| {
        let gate = match &d.gate {
            Reading::Available(report) => {
                json!({ "passed": !failed(&d.gate), "thresholds_version": report.thresholds_version,
                    "checks": report.checks, "misses": report.misses })
            }
            Reading::Unavailable { why } => json!({ "unavailable": why }),
        };
        let mut at = json!({
            "depth": d.work.depth,
            "prompts_sha256": sha256_hex(json!(d.requests).to_string().as_bytes()),
            "prompt_tokens": d.requests[0].prompt.len(),
            "output_tokens": d.work.max_tokens,
            "seed": d.work.seed,
            "one_prompt_for_all_rounds": d.requests.iter().all(|r| *r == d.requests[0]),
            "gate": gate,
            "notes": notes(clock, d),
        });
        if failed(&d.gate) {
            at["emitted_ids"] = json!(d.rounds.iter().map(|r| &r.ids).collect::<Vec<_>>());
        } else {
            at["rounds"] = json!(d.rounds);
            at["figures"] = json!(Figures::of(&d.rounds, d.work.depth));
        }
        at
    };
    Ok(json!({
        "kind": "http-clock",
        "schema_version": 1,
        "role": "diagnostic",
        "created_at": now()?,
        "url": url,
        "model": clock.model,
        "listed": clock.listed,
        "endpoint": clock.endpoint(),
        "parameters_not_taken": clock.given_up(),
        "client": { "connections_ns": clock.connections_ns(), "overhead": overhead, "build": build_info()? },
        "depths": depths.iter().map(at).collect::<Vec<_>>(),
    }))
}

/// Writes the document under a name of its own; nothing is ever replaced.
fn keep(document: &Value, settings: &Settings) -> Result<PathBuf> {
    let folder = settings.diagnostics();
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let text = serde_json::to_string_pretty(document)? + "\n";
    let path = folder.join(format!("http-{}-{}.json", now()?.compact(), &sha256_hex(text.as_bytes())[..16]));
    let cannot = || format!("cannot write {}", path.display());
    let mut file = std::fs::File::create_new(&path).with_context(cannot)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).with_context(cannot)?;
    Ok(path)
}

fn print(url: &str, clock: &HttpClock, depths: &[AtDepth], overhead: &Overhead) {
    println!("{} at {url}, {}", clock.model, clock.endpoint().path());
    for d in depths {
        let w = &d.work;
        println!("depth {}: {} in, {} out, {} rounds", w.depth, d.requests[0].prompt.len(), w.max_tokens, w.rounds);
        match &d.gate {
            Reading::Available(report) => gate_lines(report, !failed(&d.gate)),
            Reading::Unavailable { why } => println!("  gate     unavailable: {why}"),
        }
        if let Some(f) = Figures::of(&d.rounds, w.depth).filter(|_| !failed(&d.gate)) {
            figures(&f, &d.rounds);
        }
        for note in notes(clock, d) {
            println!("  note     {note}");
        }
    }
    let made: Vec<String> = clock.connections_ns().iter().map(|&ns| human_ns(ns)).collect();
    println!("  connect  {} (in no figure but the first warm-up's)", made.join(", "));
    let ns = |v: f64| human_ns(v as u64);
    println!(
        "  client   {} of every TTFT, {} of a chunk's time (p99 {}): {}",
        ns(overhead.ttft_ns),
        ns(overhead.chunk_p50_ns),
        ns(overhead.chunk_p99_ns),
        overhead.how
    );
}

fn figures(f: &Figures, rounds: &[Round]) {
    println!("  TTFT     {}", spread_ms(&f.ttft_ns));
    println!("  prompt   {}", rate(&f.prompt_rate_tokens_per_s));
    match (&f.decode_rate_at_least_tokens_per_s, &f.decode_rate_at_most_tokens_per_s) {
        (least, most) if least == most => println!("  decode   {}", rate(least)),
        (least, most) => {
            println!("  decode   at least {}", rate(least));
            println!("           at most  {}", rate(most));
        }
    }
    println!("  between chunks  {}", percentiles_ms(&f.between_chunks_ns));
    println!("  between tokens  {}", percentiles_ms(&f.inter_token_ns));
    println!("  whole    {}", spread_ms(&f.end_to_end_ns));
    if let Some(first) = rounds.first() {
        let shown = |r: &Reading<u64>| match r {
            Reading::Available(n) => n.to_string(),
            Reading::Unavailable { why } => format!("unknown ({why})"),
        };
        let template = match &first.template_tokens {
            Reading::Available(n) => format!("{n} beyond the ids sent"),
            Reading::Unavailable { why } => format!("unknown beyond what was sent ({why})"),
        };
        println!(
            "  counts   {} tokens in {} chunks; prompt {}, {template}",
            shown(&first.tokens),
            first.chunks,
            shown(&first.prompt_tokens)
        );
    }
}

fn spread_ms(s: &Spread) -> String {
    format!("{:.2} ms ({:.2} to {:.2})", s.median / 1e6, s.min / 1e6, s.max / 1e6)
}

fn rate(reading: &Reading<Spread>) -> String {
    match reading {
        Reading::Available(s) => format!("{:.1} tok/s ({:.1} to {:.1})", s.median, s.min, s.max),
        Reading::Unavailable { why } => format!("unavailable: {why}"),
    }
}

fn percentiles_ms(reading: &Reading<Percentiles>) -> String {
    match reading {
        Reading::Available(p) => {
            let ms = |ns: f64| format!("{:.2}", ns / 1e6);
            format!("p50 {}  p90 {}  p99 {}  max {} ms", ms(p.p50), ms(p.p90), ms(p.p99), ms(p.max))
        }
        Reading::Unavailable { why } => format!("unavailable: {why}"),
    }
}
