//! `tare clock --url`: view 1 at a server, as its client sees it.

mod asked;
mod shown;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tare_core::digest::sha256_hex;
use tare_core::{Fault, Reading};
use tare_evidence::gate::{GateReport, Judgement};
use tare_evidence::samples::RowTokens;
use tare_lab::campaign::live::now;
use tare_lab::gate::{Gate, Run};
use tare_lab::http_clock::{Address, Ask, Figures, HttpClock, Overhead, Round};
use tare_lab::thresholds::Thresholds;
use tare_lab::{ClockedRequest, ReferenceStore};
use tare_model::Model;

use crate::args::{BackendName, ClockArgs, HowArgs, PrefillLogits, WorkArgs};
use crate::built::build_info;
use crate::interrupt::Interrupt;
use crate::progress::spinner;
use crate::settings::Settings;
use crate::setup::open_model;
use crate::weighing::rig;
use asked::{Source, ask};
use shown::print;

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
    /// Whose limits judged it.
    gate_class: Option<String>,
}

/// Runs the command. A failed gate is an error, and its times are not kept.
pub(crate) fn run(url: &str, args: &ClockArgs, settings: &Settings) -> Result<()> {
    refuse_meaningless(args)?;
    if let Some(class) = &args.remote.gate_class {
        Thresholds::built_in()?.accuracy(class)?;
    }
    let held = args.remote.gate_model.as_deref().map(|name| open_model(name, settings)).transpose()?;
    let key = args.remote.api_key_env.as_deref().map(Settings::variable).transpose()?;
    let address = Address { url: url.to_string(), key, silence: Duration::from_secs_f64(args.remote.timeout) };
    let interrupt = Interrupt::listen()?;
    let go_on = || !interrupt.pressed();
    let vocabulary = held.as_ref().map_or(args.remote.vocabulary.unwrap_or(VOCABULARY), |m| m.config().vocab);
    let nonce = held.is_none().then(|| args.remote.nonce.unwrap_or_else(ns_of_this_moment));
    let source = Source { vocabulary, nonce };
    let bar = spinner(format!("reaching {url}"));
    let mut clock = HttpClock::reach(&address, args.model.as_deref())?;
    let mut depths = Vec::new();
    for work in args.works() {
        let (warm_up, requests) = source.requests(&work)?;
        bar.set_message(format!("depth {}: warm-up", work.depth));
        if depths.is_empty() {
            clock.settle(&ask(&warm_up), args.remote.endpoint.map(Into::into), &go_on)?;
        } else {
            clock.prime(&ask(&warm_up), &go_on)?;
        }
        let mut rounds = Vec::new();
        for (n, request) in requests.iter().enumerate() {
            bar.set_message(format!("depth {}: round {} of {}", work.depth, n + 1, work.rounds));
            if !request.prefix.is_empty() {
                clock.prime(&Ask { ids: request.prefix.clone(), output_tokens: 1 }, &go_on)?;
            }
            rounds.push(clock.round(&ask(request), &go_on)?);
        }
        bar.set_message("judging against the F32 reference");
        let (gate_class, gate) = match &held {
            Some(model) => {
                let (class, gate) = judge(args, model, &requests, &rounds, settings)?;
                (Some(class), gate)
            }
            None => (None, Reading::unavailable(NOT_HELD)),
        };
        depths.push(AtDepth { work, requests, rounds, gate, gate_class });
    }
    bar.set_message("measuring the client");
    let overhead = clock.overhead(&ask(&depths[0].requests[0]))?;
    bar.finish_and_clear();
    let document = document(url, &clock, &depths, nonce, &overhead)?;
    let path = keep(&document, settings)?;
    if args.json {
        let mut shown = document;
        shown["document"] = json!(path);
        println!("{shown}");
    } else {
        print(url, &clock, &depths, &overhead);
        println!("  kept     {} (a diagnostic: no record, no verdict)", path.display());
    }
    match depths.iter().find(|d| failed(&d.gate)).map(|d| d.gate_class.as_deref().unwrap_or_default()) {
        Some(class) => bail!(
            "the gate failed by the limits of class {class}: times are void; ids and misses are kept in {}",
            path.display()
        ),
        None => Ok(()),
    }
}

/// Flags that say how an engine of ours runs say nothing about a server.
fn refuse_meaningless(args: &ClockArgs) -> Result<(), Fault> {
    let how = &args.how;
    let judged = args.remote.gate_model.is_some();
    let given = [
        ("--backend cuda", how.backend == BackendName::Cuda),
        ("--plan", how.plan.is_some()),
        ("--isa", how.isa.is_some()),
        ("--keep-workers", how.keep_workers),
        ("--context", how.context.is_some()),
        ("--output", args.output.is_some()),
        ("--prefill-logits all", args.work.prefill_logits == PrefillLogits::All),
        ("--class (the server's is --gate-class)", how.class.is_some()),
        ("--threads without --gate-model", how.threads.is_some() && !judged),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Fault::new("--url", "flags that a server can honour", *flag)
            .remedy("leave it out: how the server runs is said where it is started")),
        None => Ok(()),
    }
}

/// Nanoseconds since 1970: another number in every run.
fn ns_of_this_moment() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64)
}

/// The class whose limits count, and the reference's verdict on the ids of all rounds or why there is none.
fn judge(
    args: &ClockArgs,
    model: &Model,
    requests: &[ClockedRequest],
    rounds: &[Round],
    settings: &Settings,
) -> Result<(String, Reading<GateReport>)> {
    let request = &requests[0];
    let rig = rig(model, &HowArgs { class: None, ..args.how.clone() }, std::slice::from_ref(request), settings)?;
    // Of a stranger's server nobody knows that its activations are integers.
    let class = args.remote.gate_class.clone().unwrap_or_else(|| rig.class.plain().name.to_string());
    let ids = match judgeable(request, rounds) {
        Reading::Available(ids) => ids,
        Reading::Unavailable { why } => return Ok((class, Reading::unavailable(why))),
    };
    let labels: Vec<String> = (0..ids.len()).map(|n| format!("round {n}")).collect();
    let row = |ids: &&Vec<u32>| [RowTokens { ids: (*ids).clone(), logits: Vec::new() }];
    let rows: Vec<[RowTokens; 1]> = ids.iter().map(row).collect();
    let runs: Vec<Run<'_>> = rows.iter().zip(&labels).map(|(rows, label)| Run { label, rows }).collect();
    let store = ReferenceStore::at(settings.references(), &build_info()?.binary_sha256);
    let thresholds = Thresholds::built_in()?;
    let gate = Gate { rig: &rig, requests: std::slice::from_ref(request), thresholds: &thresholds, store: &store };
    let report = gate.judge_emitted(&class, &runs)?;
    Ok((class, Reading::Available(report)))
}

/// The ids of all rounds, when they answer the ids that were sent.
fn judgeable<'a>(request: &ClockedRequest, rounds: &'a [Round]) -> Reading<Vec<&'a Vec<u32>>> {
    let mut ids = Vec::new();
    for round in rounds {
        match &round.ids {
            Reading::Available(all) if all.len() == request.output_tokens => ids.push(all),
            Reading::Available(all) => {
                let (n, wanted) = (all.len(), request.output_tokens);
                return Reading::unavailable(format!("an answer had {n} tokens where {wanted} were asked for"));
            }
            Reading::Unavailable { why } => return Reading::unavailable(why),
        }
    }
    match rounds.iter().find_map(|r| r.template_tokens.available().filter(|n| **n != 0)) {
        Some(n) => {
            Reading::unavailable(format!("the server's prompt differs by {n} tokens from the ids that were sent"))
        }
        None => Reading::Available(ids),
    }
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
    if depth.requests.len() > 1 && one_prompt(depth) {
        let one = "warm-up and rounds send one prompt: what a prefix cache keeps of it is not in TTFT";
        notes.push(one.to_string());
    }
    let made = clock.connections_ns().len();
    if made > 1 {
        notes.push(format!("{made} connections were made: the server closes them, and TTFT holds the making"));
    }
    notes
}

fn one_prompt(depth: &AtDepth) -> bool {
    depth.requests.iter().all(|r| *r == depth.requests[0])
}

fn document(
    url: &str,
    clock: &HttpClock,
    depths: &[AtDepth],
    nonce: Option<u64>,
    overhead: &Overhead,
) -> Result<Value> {
    let at = |d: &AtDepth| {
        let gate = match &d.gate {
            Reading::Available(report) => {
                json!({ "passed": !failed(&d.gate), "class": d.gate_class, "thresholds_version": report.thresholds_version,
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
            "nonce": nonce,
            "one_prompt_for_all_rounds": one_prompt(d),
            "gate": gate,
            "notes": notes(clock, d),
        });
        if failed(&d.gate) {
            at["emitted_ids"] = json!(d.rounds.iter().map(|r| &r.ids).collect::<Vec<_>>());
        } else {
            at["rounds"] = json!(d.rounds);
            at["figures"] = json!(Figures::of(&d.rounds));
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
