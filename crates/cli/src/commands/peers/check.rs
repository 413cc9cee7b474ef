//! `tare peers check`: the gate on a peer, and what it says of itself; no time is shown.

use anyhow::Result;
use serde_json::json;
use tare_evidence::gate::{GateReport, Judgement};
use tare_evidence::samples::RowTokens;
use tare_lab::clock::{Baton, Turns};
use tare_lab::gate::{Gate, Run};
use tare_lab::peers::PeerRunner;
use tare_lab::thresholds::Thresholds;
use tare_lab::{ClockedRequest, LabError, Lengths, On, ReferenceStore, Rig};
use tare_model::{Model, PlanSpec};
use tare_ops::{Class, class::CLASSES};
use tare_probe::Host;

use super::model_path;
use crate::args::CheckArgs;
use crate::built::build_info;
use crate::interrupt::{Interrupt, cancelled};
use crate::progress::spinner;
use crate::settings::Settings;
use crate::setup::within_training;

/// Runs of the request: the second one starts from what the first one left behind.
const RUNS: usize = 2;

/// Runs the command.
pub(super) fn run(args: &CheckArgs, settings: &Settings) -> Result<()> {
    let path = model_path(&args.model, (args.written_as.as_deref(), args.head_as.as_deref()), settings)?;
    let model = Model::open(&path.to_string_lossy())?;
    let lengths = Lengths { depth: args.depth, prompt_tokens: args.prompt_tokens, output_tokens: args.max_tokens };
    within_training(args.depth.saturating_add(args.prompt_tokens).saturating_add(args.max_tokens), &model)?;
    let request = ClockedRequest::drawn(lengths, model.config().vocab, args.seed)?;
    let threads = args.threads.unwrap_or_else(|| Host::read().usable_threads);
    let interrupt = Interrupt::listen()?;
    let ask = || if interrupt.pressed() { Err(cancelled(LabError::Interrupted)) } else { Ok(()) };
    let (requests, context) = (std::slice::from_ref(&request), request.total_tokens());
    let bar = spinner(format!("{} loads {}", args.name, path.display()));
    let mut peer = PeerRunner::open(&args.name, &settings.home, &path, (threads, context), 1)?;
    let mut runs = Vec::new();
    for n in 0..RUNS {
        ask()?;
        bar.set_message(format!("{}: run {} of {RUNS}", args.name, n + 1));
        runs.push((format!("run {n}"), draw(&mut peer, requests)?));
    }
    ask()?;
    bar.set_message("judging by the F32 reference");
    let rig = Rig {
        on: On::Cpu,
        model: &model,
        cpu: tare_cpu::CpuConfig { threads, isa: tare_cpu::detect_isa(), pin: true, keep_workers: false },
        plan: PlanSpec::find(PlanSpec::DEFAULT)?,
        class: Class::by_name(CLASSES[0].name)?,
        sequences: 1,
        context,
        max_rows: On::Cpu.max_rows(),
        delay: None,
    };
    let store = ReferenceStore::at(settings.references(), &build_info()?.binary_sha256);
    let thresholds = Thresholds::built_in()?;
    let gate = Gate { rig: &rig, requests, thresholds: &thresholds, store: &store };
    let judgement = gate.judge_emitted(peer.class()?, &judged(&runs))?.judge()?;
    bar.finish_and_clear();
    show(args, &peer, &judgement)?;
    anyhow::ensure!(matches!(judgement, Judgement::Passed(_)), "the gate failed: this peer may not be timed");
    Ok(())
}

/// Label and tokens of one run.
type Emitted = (String, Vec<RowTokens>);

fn draw(peer: &mut PeerRunner, requests: &[ClockedRequest]) -> Result<Vec<RowTokens>, LabError> {
    let mut run = Turns::begin(peer, requests)?;
    let steps = requests.first().map_or(0, |r| r.output_tokens - 1);
    run.decode(peer, steps, Baton::Kept)?;
    Ok(run.end(peer)?.tokens)
}

fn judged(runs: &[Emitted]) -> Vec<Run<'_>> {
    runs.iter().map(|(label, rows)| Run { label, rows }).collect()
}

fn show(args: &CheckArgs, peer: &PeerRunner, judgement: &Judgement) -> Result<()> {
    let report: &GateReport = match judgement {
        Judgement::Passed(g) => g.report(),
        Judgement::Failed(g) => g.report(),
    };
    let identity = peer.identity();
    if args.json {
        let streamed = peer.streamed_bytes();
        let gate = json!({ "checks": report.checks, "misses": report.misses, "limits": report.thresholds_version });
        let shown = json!({
            "peer": identity,
            "class": peer.class()?,
            "declared": peer.declared(),
            "streamed_bytes_per_token": streamed,
            "proof": peer.proof(),
            "doubt": peer.doubt(),
            "gate": gate,
        });
        println!("{shown}");
        return Ok(());
    }
    println!("{} {}: class {}", identity.name, identity.version, peer.class()?);
    println!("  bytes    {} streamed a token", peer.streamed_bytes());
    for line in peer.proof() {
        println!("  log      {line}");
    }
    if let Some(doubt) = peer.doubt() {
        println!("  doubt    {doubt}");
    }
    for c in &report.checks {
        println!("  gate     {}: {} values, largest error {:.4}, limit {}", c.name, c.compared, c.max_error, c.limit);
    }
    for m in &report.misses {
        println!("  miss     {} at {}: expected {}, found {}", m.check, m.at, m.expected, m.found);
    }
    Ok(())
}
