//! `tare ledger reproduce` of a record: its work, run again on this host.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tare_core::Fault;
use tare_evidence::identity::{PrefillLogits as Written, Work};
use tare_evidence::ledger::Shown;
use tare_evidence::replicate::{self, Replication};
use tare_evidence::{AnyDocument, Ledger, Record};

use crate::args::{BackendName, HowArgs, PrefillLogits, ReproduceArgs, WorkArgs};
use crate::settings::Settings;
use crate::setup::open_model;
use crate::weighing::{Named, requests, rig, weigh};

/// Runs the work of a record again. A record that does not replicate is an error; the new record is kept all the same.
pub(super) fn run(ledger: &Ledger, args: &ReproduceArgs, settings: &Settings) -> Result<()> {
    let first = match ledger.find(&args.id)? {
        Shown::Record(entry) => entry.record,
        Shown::Document(entry) => match &entry.document {
            AnyDocument::Campaign(campaign) => return super::rerun::run(ledger, campaign, args, settings),
            other => {
                bail!("{}: expected a record or a campaign, found a document of kind {}", args.id, other.kind().name())
            }
        },
    };
    let name = model_of(&first, args)?;
    let model = open_model(&name, settings)?;
    let backend = if first.arm.backend == "cuda" { BackendName::Cuda } else { BackendName::Cpu };
    let how = HowArgs {
        backend,
        // Those of a device are not the processors that judge it.
        threads: first.arm.threads.available().filter(|_| backend == BackendName::Cpu).map(|&n| n as usize),
        keep_workers: first.arm.keeps_workers(),
        class: Some(first.arm.class.clone()),
        plan: Some(first.arm.plan.clone()),
        isa: None,
        context: None,
    };
    let rounds = first.method.planned_rounds as usize;
    let requests = requests(&work(&first.work, rounds, args)?, first.work.rows as usize, &model)?;
    let rig = rig(&model, &how, &requests, settings)?;
    let question = format!("Does {} replicate on this host?", first.id);
    let named = Named { study: &first.about.study, question: &question, busy_before: None };
    let done = weigh(&rig, &requests, rounds, named, (settings, args.output.as_deref()))?;
    let answer = replicate::record(&first, &done.record)?;
    report(&first, &done.record, &answer, args.json)?;
    match answer {
        Replication::DoesNotReplicate { .. } => {
            bail!("{} does not replicate; the new record is {}", first.id, done.path.display())
        }
        Replication::Replicates | Replication::OtherHostClass => Ok(()),
    }
}

fn report(first: &Record, again: &Record, answer: &Replication, as_json: bool) -> Result<()> {
    if as_json {
        println!(
            "{}",
            json!({ "first": first.id, "again": again.id, "answer": answer, "rule": replicate::RECORD_RULE })
        );
        return Ok(());
    }
    let rate = |r: &Record| r.derived().and_then(|d| d.decode.available().map(|p| p.rate_tokens_per_s.median));
    for r in [first, again] {
        let decode = rate(r).map_or("no decode rate".to_string(), |rate| format!("decode {rate:.1} tok/s"));
        println!("{}  {decode}  {}", r.id, r.provenance.host.name);
    }
    print(answer, replicate::RECORD_RULE);
    Ok(())
}

/// An answer and the rule that gave it.
pub(super) fn print(answer: &Replication, rule: &str) {
    match answer {
        Replication::Replicates => println!("replicates"),
        Replication::OtherHostClass => {
            println!("other host class: the work and its gate hold here, times are not compared");
        }
        Replication::DoesNotReplicate { why } => {
            println!("does not replicate");
            why.iter().for_each(|w| println!("  {w}"));
        }
    }
    println!("  rule     {rule}");
}

/// The model that a record names, unless the flags name another.
fn model_of(first: &Record, args: &ReproduceArgs) -> Result<String> {
    if let Some(peer) = &first.arm.peer {
        bail!("{}: expected a record of tare, found one of {}; run its study again: `tare study`", first.id, peer.name);
    }
    let named = first.provenance.config.get("model").and_then(Value::as_str);
    let name = args.model.clone().or_else(|| named.map(str::to_string));
    name.context("the record names no model: name one with --model")
}

fn work(work: &Work, rounds: usize, args: &ReproduceArgs) -> Result<WorkArgs> {
    let same = |lengths: &[u32]| lengths.iter().all(|n| Some(n) == lengths.first());
    let lengths = (&work.prompt_lengths[..], &work.output_lengths[..]);
    let (true, true, [prompt_tokens, ..], [output_tokens, ..]) =
        (same(lengths.0), same(lengths.1), lengths.0, lengths.1)
    else {
        let expected = "sequences of one length, as `tare clock` runs";
        return Err(Fault::new("work.rows", expected, format!("{lengths:?}")).into());
    };
    Ok(WorkArgs {
        prompt_tokens: *prompt_tokens as usize,
        max_tokens: *output_tokens as usize,
        depth: work.depth as usize,
        rounds,
        prefill_logits: match work.prefill_logits {
            Written::Last => PrefillLogits::Last,
            Written::All => PrefillLogits::All,
        },
        seed: args.seed,
        ids: None,
    })
}
