//! What `clock`, `next` and `mutate` share: the request, the ceilings, the weighing itself with its progress.

use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tare_evidence::identity::lengths_told;
use tare_evidence::provenance::Provenance;
use tare_evidence::{Ledger, Record};
use tare_lab::campaign::live::now;
use tare_lab::{BuildInfo, ClockedRequest, Lengths, ReferenceStore, Rig, Stage, Weighing, host};
use tare_model::Model;
use tare_probe::Host;
use tare_probe::ceilings::{Ceilings, Effort, Origin, Stored};

use crate::args::{HowArgs, PrefillLogits, WorkArgs};
use crate::built::build_info;
use crate::interrupt::Interrupt;
use crate::progress::{bar, spinner};
use crate::settings::Settings;
use crate::setup::{How, read_ids, within_training};

/// Untimed rounds before the first timed one.
const WARMUPS: usize = 1;

/// The request that the flags describe.
pub(crate) fn request(args: &WorkArgs, model: &Model) -> Result<ClockedRequest> {
    let given = args.ids.as_deref().map(read_ids).transpose()?;
    let prompt_tokens = given.as_ref().map_or(args.prompt_tokens, Vec::len);
    let lengths = Lengths { depth: args.depth, prompt_tokens, output_tokens: args.max_tokens };
    // Before ids are drawn: a length beyond any model must not be allocated first.
    within_training(args.depth.saturating_add(prompt_tokens).saturating_add(args.max_tokens), model)?;
    let mut request = ClockedRequest::drawn(lengths, model.config().vocab, args.seed)?;
    if let Some(ids) = given {
        request.prompt = ids;
    }
    request.all_prompt_logits = args.prefill_logits == PrefillLogits::All;
    Ok(request)
}

/// The requests of `sequences` that run together: the one that the flags describe, and others as long.
pub(crate) fn requests(args: &WorkArgs, sequences: usize, model: &Model) -> Result<Vec<ClockedRequest>> {
    let first = request(args, model)?;
    if sequences == 1 {
        return Ok(vec![first]);
    }
    let lengths = Lengths { depth: args.depth, prompt_tokens: first.prompt.len(), output_tokens: first.output_tokens };
    let mut all = ClockedRequest::drawn_together(lengths, sequences, model.config().vocab, args.seed)?;
    all.iter_mut().for_each(|r| r.all_prompt_logits = first.all_prompt_logits);
    Ok(all)
}

/// The rig for `requests` that run together: its context is exactly what they need.
pub(crate) fn rig<'m>(
    model: &'m Model,
    how: &HowArgs,
    requests: &[ClockedRequest],
    settings: &Settings,
) -> Result<Rig<'m>> {
    let needed = requests.iter().map(ClockedRequest::total_tokens).max();
    let how = How::of(how, model, needed, settings)?;
    let max_rows = how.on.max_rows();
    Ok(Rig {
        model,
        on: how.on,
        cpu: how.cpu,
        plan: how.plan,
        class: how.class,
        sequences: requests.len(),
        context: how.context,
        max_rows,
        delay: None,
    })
}

/// This host's ceilings: kept from earlier in this boot, or measured now.
pub(crate) fn ceilings(settings: &Settings, host: &Host) -> Stored {
    let spinner = spinner("measuring the ceilings of this host, once per boot (about 5 s)");
    let stored = Ceilings::kept_at(&settings.ceilings(), host, &Effort::FULL);
    spinner.finish_and_clear();
    stored
}

/// What a weighing is called in the ledger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named<'a> {
    /// Folder of the study.
    pub(crate) study: &'a str,
    /// The question that it asks.
    pub(crate) question: &'a str,
    /// What this process weighed before, if anything.
    pub(crate) busy_before: Option<&'a str>,
}

/// A record and where it was written.
#[derive(Debug)]
pub(crate) struct Weighed {
    pub(crate) record: Record,
    pub(crate) path: PathBuf,
}

/// Weighs `requests` on `rig`, which run together, and appends the record to the ledger in `folder`.
pub(crate) fn weigh(
    rig: &Rig<'_>,
    requests: &[ClockedRequest],
    rounds: usize,
    named: Named<'_>,
    (settings, folder): (&Settings, Option<&Path>),
) -> Result<Weighed> {
    let host = Host::read();
    let stored = ceilings(settings, &host);
    let measured_now = "this process measured the ceilings of the host before it loaded the model";
    let busy_before = named.busy_before.or((stored.origin != Origin::Kept).then_some(measured_now));
    let build: BuildInfo = build_info()?;
    let store = ReferenceStore::at(settings.references(), &build.binary_sha256);
    let interrupt = Interrupt::listen()?;
    let bar = bar((WARMUPS + rounds + 2) as u64, "{spinner} {msg:40} {bar:30} {elapsed} of about {duration}")?;
    let request = requests.first().context("no sequence is to be weighed")?;
    let [sequences, prompt, output, depth] =
        [requests.len(), request.prompt.len(), request.output_tokens, request.prefix.len()].map(|n| n as u32);
    let title = format!(
        "{}, {}, class {}, plan {}",
        rig.model.describe()?.label(),
        lengths_told(sequences, prompt, output, depth),
        rig.class.name,
        rig.plan.name
    );
    let weighing = Weighing {
        rig,
        requests,
        rounds,
        warmups: WARMUPS,
        study: named.study,
        title: &title,
        question: named.question,
        host: &host,
        ceilings: &stored.ceilings,
        build: &build,
        store: &store,
        busy_before,
    };
    let record = weighing.run(now()?, &mut |stage| {
        bar.set_message(match stage {
            Stage::Loading => "packing weights".to_string(),
            Stage::WarmUp(n) => format!("warm-up {}", n + 1),
            Stage::Round(n) => format!("round {} of {rounds}", n + 1),
            Stage::Judging => "judging against the F32 reference".to_string(),
        });
        bar.inc(1);
        !interrupt.pressed()
    })?;
    bar.finish_and_clear();
    let scratch = settings.scratch_ledger();
    let folder = folder.unwrap_or(&scratch);
    let path = Ledger::at(folder)
        .append(&record)
        .with_context(|| format!("cannot keep the record in {}", folder.display()))?;
    Ok(Weighed { record, path })
}

/// On what, by what and from what this process makes a document.
pub(crate) fn provenance(config: Value) -> Result<Provenance> {
    let build = build_info()?;
    let host = host::describe(&Host::read(), host::Moment::default())?;
    let BuildInfo { software, source, binary_sha256 } = build;
    Ok(Provenance { host, software, source, binary_sha256, config })
}
