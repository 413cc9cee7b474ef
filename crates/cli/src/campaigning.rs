//! What `study` and `compare` share: from a study to a campaign that runs here, with its progress, its journal and its
//! documents.

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tare_core::units::human_ns;
use tare_core::{Fault, Reading};
use tare_evidence::Ledger;
use tare_evidence::identity::{PrefillLogits, Work};
use tare_evidence::record::Role;
use tare_evidence::study::StudyPlan;
use tare_lab::arm::hold;
use tare_lab::arm::process::{ArmProcess, GoOn};
use tare_lab::campaign::journal::{Attempt, Line, Opened, When};
use tare_lab::campaign::live::{LiveBench, Start, now};
use tare_lab::campaign::{Campaign, Closed, Ended, Journal, Seating, Step, Writer};
use tare_lab::floor::CeilingKind;
use tare_lab::peers::tune::Frozen;
use tare_lab::{BuildInfo, ClockedRequest, Lengths, Study, facts, host, peers};
use tare_model::Model;
use tare_probe::Host;

use crate::args::CampaignArgs;
use crate::built::build_info;
use crate::commands::quantize::written_as;
use crate::interrupt::{Cancelled, Interrupt};
use crate::progress::bar;
use crate::settings::Settings;
use crate::setup::{model_spec, within_training};

/// A study that can run here: every arm has its binary and its model, and the request is drawn.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) study: Study,
    pub(crate) plan: StudyPlan,
    pub(crate) starts: Vec<Start>,
    requests: Vec<ClockedRequest>,
    host: Host,
}

impl Ready {
    /// Resolves everything, and refuses what would only fail in the middle of a campaign.
    pub(crate) fn new(study: Study, settings: &Settings) -> Result<Self> {
        device_is_here(&study)?;
        let plan = study.plan()?;
        let spec = match &study.work.written_as {
            Some(format) => written_as(&study.work.model, format, study.work.head_as.as_deref(), settings)?,
            None => model_spec(&study.work.model, settings)?,
        };
        let model = Model::open(&spec)?;
        let requests = requests(&study, &model)?;
        let host = Host::read();
        let own = std::env::current_exe().context("cannot find the running binary")?;
        let mut starts = Vec::new();
        for arm in study.cast() {
            let model = arm.model.as_deref().map_or(Ok(spec.clone()), |m| model_spec(m, settings))?;
            let binary = arm.build.clone().unwrap_or_else(|| own.clone());
            starts.push(Start { spec: arm, binary, model });
        }
        for start in &starts {
            check(start, study.role, &own, &requests, &host, settings)
                .with_context(|| format!("arm `{}`", start.spec.label))?;
        }
        Ok(Self { study, plan, starts, requests, host })
    }

    /// What the baseline will be asked to compute.
    pub(crate) fn work(&self, settings: &Settings) -> Result<Work> {
        let baseline = &self.starts[0];
        let model = Model::open(&baseline.model)?;
        let rig = hold::rig(&baseline.spec, &model, &self.requests, (self.host.usable_threads, &settings.kernels()))?;
        Ok(facts::work(&rig, &self.requests)?)
    }

    /// Folder of this study's journals.
    fn journals(&self, settings: &Settings) -> PathBuf {
        settings.home.join("studies").join(&self.study.name)
    }
}

/// Refuses a study of a device that this host does not have.
fn device_is_here(study: &Study) -> Result<(), Fault> {
    match study.arms[0].backend() {
        "cuda" => match tare_cuda::probe(0) {
            Reading::Available(_) => Ok(()),
            Reading::Unavailable { why } => Err(Fault::new("backend", "a CUDA device that can be used", why)
                .remedy("`tare doctor --backend cuda` shows what this host has")),
        },
        _ => Ok(()),
    }
}

/// The request of each sequence of a study.
fn requests(study: &Study, model: &Model) -> Result<Vec<ClockedRequest>> {
    let w = &study.work;
    let lengths = Lengths { depth: w.depth, prompt_tokens: w.prompt_tokens, output_tokens: w.output_tokens };
    within_training(w.depth.saturating_add(w.prompt_tokens).saturating_add(w.output_tokens), model)?;
    let mut all = ClockedRequest::drawn_together(lengths, w.sequences, model.config().vocab, w.seed)?;
    all.iter_mut().for_each(|r| r.all_prompt_logits = w.prefill_logits == PrefillLogits::All);
    Ok(all)
}

/// Whether an arm can be made: a plan and a class of this build are looked at here, another build is greeted, a peer
/// must be installed, and tuned where the study is held out.
fn check(
    start: &Start,
    role: Role,
    own: &Path,
    requests: &[ClockedRequest],
    host: &Host,
    settings: &Settings,
) -> Result<()> {
    if let Some(name) = &start.spec.peer {
        let entry = peers::registry::entry(name)?;
        entry.runs_together(requests.len())?;
        if let Reading::Unavailable { why } = peers::install::found(entry, &settings.home) {
            return Err(Fault::new("peer", format!("{name}, installed"), why)
                .remedy(format!("run `tare peers install {name}`"))
                .into());
        }
        if role == Role::HeldOut {
            let threads = start.spec.threads.unwrap_or(host.usable_threads);
            Frozen::required(entry, &settings.home, Path::new(&start.model), threads)?;
        }
    }
    if start.binary != own {
        let go_on: GoOn = Arc::new(|| true);
        ArmProcess::start(&start.binary, go_on).map_err(|lost| anyhow::anyhow!("{lost}"))?;
    } else {
        let model = Model::open(&start.model)?;
        hold::rig(&start.spec, &model, requests, (host.usable_threads, &settings.kernels()))?;
    }
    Ok(())
}

/// Runs a campaign, or what is left of one, and closes it.
pub(crate) fn conduct(ready: &Ready, args: &CampaignArgs, settings: &Settings) -> Result<Closed> {
    let interrupt = Interrupt::listen()?;
    let go_on: GoOn = Arc::new(move || !interrupt.pressed());
    let (starts, requests, host) = (ready.starts.clone(), ready.requests.clone(), ready.host.clone());
    let ceilings: Vec<CeilingKind> = ready.study.ceilings().map(|(_, kind)| kind).collect();
    let mut bench = LiveBench::new(starts, (requests, &ceilings), host, &settings.kernels(), go_on)?;
    let build = build_info()?;
    let mut journal = journal(ready, args, settings, (bench.sources(), &build))?;
    // What was settled when the campaign was opened holds to its end, whatever is asked for now.
    let opened = journal.opened()?.clone();
    let ledger = Ledger::at(&opened.ledger);
    let writer = Writer { host: &ready.host, build: &build, ledger: &ledger };
    let number = journal.attempts().count() as u32 + 1;
    let left_open = writer.left_open(&opened.campaign, number)?;
    if args.close || journal.completed() {
        if let Some(attempt) = left_open {
            journal.add(Line::Attempt(attempt))?;
        }
        return close(&writer, &mut journal);
    }
    let attempt = match left_open {
        Some(attempt) => attempt,
        None => match open(&writer, &opened, ready, number) {
            Ok(attempt) => attempt,
            Err(e) if number == 1 => {
                journal.abandon()?;
                return Err(e);
            }
            Err(e) => return Err(e),
        },
    };
    let (seating, planned_rounds) = (Seating::new(&opened.plan), opened.plan.rounds);
    let campaign = Campaign { study: &opened.study, seating: &seating, planned_rounds };
    if let Some(least) = opened.plan.deciding_rounds().filter(|&least| least > planned_rounds as usize) {
        eprintln!("tare: {planned_rounds} rounds can only be inconclusive: a verdict needs {least}");
    }
    let progress = Progress::new(&campaign, journal.rounds().count())?;
    let ended = campaign.run(attempt, &mut bench, &mut journal, &mut |step| progress.tell(step))?;
    progress.bar.finish_and_clear();
    let (kept, name) = (journal.rounds().count(), &ready.study.name);
    let on = format!("`--resume` goes on, `--close` ends it without a verdict; {}", journal.path().display());
    match ended {
        Ended::Interrupted => {
            eprintln!("tare: {kept} of {planned_rounds} rounds of `{name}` are kept: {on}");
            Err(Cancelled.into())
        }
        Ended::Stopped(s) if s.resumable => bail!("{}; {kept} of {planned_rounds} rounds are kept: {on}", s.why),
        Ended::Complete | Ended::Stopped(_) => close(&writer, &mut journal),
    }
}

/// Opens the next attempt in the ledger.
fn open(writer: &Writer<'_>, opened: &Opened, ready: &Ready, number: u32) -> Result<Attempt> {
    let at = now()?;
    Ok(Attempt { number, at, opening: writer.open(opened, &ready.starts, number, at)? })
}

/// The journal to write: a new one, or the last one that was not finished.
fn journal(
    ready: &Ready,
    args: &CampaignArgs,
    settings: &Settings,
    (sources, build): (&BTreeMap<String, String>, &BuildInfo),
) -> Result<Journal> {
    let at = now()?;
    let ledger = |folder: &Path| std::path::absolute(folder).context("cannot name the folder of the ledger");
    let asked = args.output.as_deref().map(ledger).transpose()?;
    let mut opened = Opened {
        campaign: format!("{}-{}", at.compact(), std::process::id()),
        at,
        study: ready.study.clone(),
        study_sha256: ready.study.digest()?,
        plan: ready.plan.clone(),
        host_class_sha256: host::describe(&ready.host, host::Moment::default())?.class_sha256,
        sources: sources.clone(),
        binary_sha256: build.binary_sha256.clone(),
        ledger: asked.clone().map_or_else(|| ledger(&settings.scratch_ledger()), Ok)?,
    };
    let folder = ready.journals(settings);
    let unfinished = Journal::unfinished(&folder, &opened.study_sha256)?;
    if !args.resume && !args.close {
        if let Some(j) = unfinished.journal {
            let kept = j.rounds().count();
            eprintln!("tare: an unfinished campaign of `{}` has {kept} rounds; this one begins anew", ready.study.name);
        }
        return Ok(Journal::create(&folder, opened)?);
    }
    let Some(found) = unfinished.journal else {
        let none = Fault::new("campaign", format!("an unfinished one of `{}`", ready.study.name), "none")
            .remedy("run the study without --resume or --close");
        return Err(unfinished.unreadable.into_iter().next().unwrap_or(none).into());
    };
    let began = found.opened()?;
    if asked.is_none() {
        opened.ledger.clone_from(&began.ledger);
    }
    if args.resume {
        found.can_go_on(&opened)?;
    }
    if opened.ledger != began.ledger {
        let remedy = "name that ledger, or leave --output out";
        let (began, asked) = (began.ledger.display().to_string(), opened.ledger.display().to_string());
        return Err(Fault::new("--output", format!("{began}, where it was opened"), asked).remedy(remedy).into());
    }
    if found.completed() && began.binary_sha256 != opened.binary_sha256 {
        let expected = format!("binary {}, which ran every round", began.binary_sha256);
        let remedy = "close it with that binary: its verdict is not yet written";
        return Err(Fault::new("campaign", expected, &opened.binary_sha256).remedy(remedy).into());
    }
    Ok(found)
}

fn close(writer: &Writer<'_>, journal: &mut Journal) -> Result<Closed> {
    let at = now()?;
    let closed = writer.close(journal, at)?;
    journal.add(Line::Closed { at })?;
    Ok(closed)
}

/// The line that moves, and a line for every round.
struct Progress {
    bar: ProgressBar,
    planned_rounds: u32,
}

impl Progress {
    fn new(campaign: &Campaign<'_>, done: usize) -> Result<Self> {
        let left = (campaign.planned_rounds as usize).saturating_sub(done);
        let parts = (left * campaign.seating.slots.len() + 2) as u64;
        let bar = bar(parts, "{spinner} {msg:44!} {bar:24} {elapsed}, about {eta} left")?;
        Ok(Self { bar, planned_rounds: campaign.planned_rounds })
    }

    fn tell(&self, step: Step<'_>) {
        let planned = self.planned_rounds;
        match step {
            Step::Control(When::Start) => self.bar.set_message("the baseline alone, before the first round"),
            Step::Control(When::End) => self.bar.set_message("the baseline alone, after the last round"),
            Step::Quiet(round, quiet) => {
                let lost = 100.0 * quiet.spin.lost_share;
                let steal =
                    quiet.steal_share.available().map_or(String::new(), |s| format!(", {:.0} % stolen", 100.0 * s));
                self.say(&format!("round {} of {planned}: others take {lost:.0} % of a thread{steal}", round + 1));
            }
            Step::Loading(slot) => self.bar.set_message(format!("{slot}: packing weights")),
            Step::Timing(slot) => self.bar.set_message(format!("{slot}: timed")),
            Step::Judging(slot) => {
                self.bar.set_message(format!("{slot}: judged"));
                self.bar.inc(1);
            }
            Step::Round(log) => {
                self.say(&format!("round {} of {planned}: kept after {}", log.round + 1, human_ns(log.spent_ns)));
            }
        }
    }

    fn say(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }
}
