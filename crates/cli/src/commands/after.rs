//! `tare next --after`: the build of before against this one, interleaved, and the decision that follows.

use anyhow::{Context, Result, bail};
use serde_json::json;
use std::path::{Path, PathBuf};
use tare_core::Fault;
use tare_core::digest::sha256_hex;
use tare_evidence::campaign::CampaignOutcome;
use tare_evidence::decision::{Decided, Decision, RestsOn};
use tare_evidence::document::{AnyDocument, Document};
use tare_evidence::identity::{PrefillLogits as LogitsOf, prompt_ids_sha256};
use tare_evidence::ledger::Shown;
use tare_evidence::record::{About, Role};
use tare_evidence::study::{Design, Metric, Rule, UnderStudy};
use tare_evidence::{Ledger, Utc};
use tare_lab::Study;
use tare_lab::campaign::live::now;
use tare_lab::study::{ArmSpec, WorkSpec};

use crate::args::{BackendName, CampaignArgs, NextArgs, PrefillLogits};
use crate::campaigning::{Ready, conduct};
use crate::settings::Settings;
use crate::setup::{on, open_model};
use crate::weighing::{request, rig};

/// Rounds of the comparison: the least with which a verdict at 5 % is possible, and two to spare.
const ROUNDS: u32 = 8;
/// Label of this build.
const CANDIDATE: &str = "candidate";

/// Keeps the running binary, so that a later build can be held against it. Gives where.
pub(crate) fn keep_binary(settings: &Settings, sha256: &str) -> Result<PathBuf> {
    let folder = settings.home.join("builds");
    let kept = folder.join(format!("tare-{}", &sha256[..16]));
    if !is(&kept, sha256) {
        let own = std::env::current_exe().context("cannot find the running binary")?;
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let half = folder.join(format!(".{}.{}", &sha256[..16], std::process::id()));
        std::fs::copy(&own, &half).with_context(|| format!("cannot keep {} in {}", own.display(), folder.display()))?;
        if !is(&half, sha256) {
            let _ = std::fs::remove_file(&half);
            bail!("{} was built anew while it ran: run `tare next` again", own.display());
        }
        std::fs::rename(&half, &kept).with_context(|| format!("cannot keep {}", kept.display()))?;
    }
    Ok(kept)
}

/// Whether the file at `path` is there and has this digest.
fn is(path: &Path, sha256: &str) -> bool {
    std::fs::read(path).is_ok_and(|bytes| sha256_hex(&bytes) == sha256)
}

/// The command that holds a later build against the one of decision `id`, on the same request and in `class`, in which
/// it ran: another build may have another default.
pub(crate) fn command(args: &NextArgs, class: &str, id: &str) -> String {
    let w = &args.work;
    let mut words = vec![format!("tare next -m {} -p {} -n {}", args.model, w.prompt_tokens, w.max_tokens)];
    let given = [
        ("--depth", (w.depth > 0).then(|| w.depth.to_string())),
        ("--seed", (w.seed > 0).then(|| w.seed.to_string())),
        ("--backend", backend(args)),
        ("--plan", args.how.plan.clone()),
        ("--class", Some(class.to_string())),
        ("--isa", args.how.isa.clone()),
        ("--threads", args.how.threads.map(|n| n.to_string())),
        ("--output", args.output.as_ref().map(|p| p.display().to_string())),
    ];
    words.extend(given.into_iter().filter_map(|(flag, value)| value.map(|v| format!("{flag} {v}"))));
    words.extend(args.how.keep_workers.then(|| "--keep-workers".to_string()));
    words.push(format!("--after {id}"));
    words.join(" ")
}

/// The backend that was asked for; none where it is the one that is meant when nobody says.
fn backend(args: &NextArgs) -> Option<String> {
    (args.how.backend != BackendName::default()).then(|| args.how.backend.name().to_string())
}

/// That the flags describe the request of the decision: a verdict on another one would not be about it.
fn same_request(draft: &Document<Decision>, ledger: &Ledger, args: &NextArgs, settings: &Settings) -> Result<()> {
    let id = draft.body.support.first().context("the decision names no record")?;
    let Shown::Record(entry) = ledger.find(id)? else { bail!("{id}, on which the decision rests, is no record") };
    let record = &entry.record;
    let model = open_model(&args.model, settings)?;
    let request = request(&args.work, &model)?;
    let rig = rig(&model, &args.how, std::slice::from_ref(&request), settings)?;
    let ids = prompt_ids_sha256(&[request.input()])?;
    let wanted = [
        ("weights", record.work.weights_values_sha256.clone(), model.values_digest()?),
        ("prompt", record.work.prompt_ids_sha256.clone(), ids),
        ("output tokens", format!("{:?}", record.work.output_lengths), format!("{:?}", [args.work.max_tokens])),
        ("depth", record.work.depth.to_string(), args.work.depth.to_string()),
        ("plan", record.arm.plan.clone(), rig.plan.name.clone()),
        ("class", record.arm.class.clone(), rig.class.name.to_string()),
        ("backend", record.arm.backend.clone(), rig.on.name().to_string()),
        ("keep-workers", record.arm.keeps_workers().to_string(), args.how.keep_workers.to_string()),
    ];
    for (what, decided, given) in wanted {
        if decided != given {
            return Err(Fault::new(format!("{what} of the request"), decided, given)
                .remedy("give the flags with which `tare next` made the decision: it printed the whole command")
                .into());
        }
    }
    Ok(())
}

/// Runs the comparison. `after` is a binary, or the id of a decision whose build was kept.
pub(crate) fn run(after: &str, args: &NextArgs, settings: &Settings) -> Result<()> {
    let scratch = settings.scratch_ledger();
    let ledger = Ledger::at(args.output.as_deref().unwrap_or(&scratch));
    let draft = if Path::new(after).is_file() { None } else { Some(decision(&ledger, after)?) };
    if args.work.ids.is_some() || args.work.prefill_logits == PrefillLogits::All {
        bail!("--after compares drawn prompts whose last logits are computed: leave --ids and --prefill-logits out");
    }
    let old = match &draft {
        None => PathBuf::from(after),
        Some(d) => {
            same_request(d, &ledger, args, settings)?;
            kept(settings, &d.provenance.binary_sha256)?
        }
    };
    let class = on(&args.how, settings).class(&open_model(&args.model, settings)?, args.how.class.as_deref())?;
    let ready = Ready::new(study(args, &old, class.name), settings)?;
    let how =
        CampaignArgs { output: args.output.clone(), resume: false, close: false, dry_run: false, json: args.json };
    let closed = conduct(&ready, &how, settings)?;
    let ruled = match &closed.document.body.outcome {
        CampaignOutcome::Ruled(ruled) => ruled,
        CampaignOutcome::Unruled { why } => bail!("no verdict: {why}; {}", closed.path.display()),
    };
    let Some(ruling) = ruled.rulings.first() else {
        bail!("both builds dispatch the same kernels: there is nothing to decide; {}", closed.path.display())
    };
    let percent = |log_ratio: f64| 100.0 * (1.0 - (-log_ratio).exp());
    let effect = match ruling.interval.available() {
        Some(i) => format!(
            "the request takes {:.2} % less time than with the build of before ({:.2} to {:.2} %)",
            percent(ruling.effect),
            percent(i.low),
            percent(i.high)
        ),
        None => format!("the request takes {:.2} % less time, without an interval", percent(ruling.effect)),
    };
    let verdict = Decided::from(ruling.verdict);
    if !args.json {
        println!("{}: {effect}; campaign {}", verdict.name(), closed.document.id);
    }
    let Some(draft) = draft else { return Ok(()) };
    let decided = Decision {
        observed_effect: effect,
        verdict,
        next_experiment: match verdict {
            Decided::Inconclusive => format!("the same with more rounds: {:?}", ruling.verdict),
            _ => "run `tare next` again: another group may be on top now".to_string(),
        },
        rests_on: Some(RestsOn { campaign: closed.document.id.clone(), arm: CANDIDATE.to_string() }),
        support: [draft.body.support.clone(), vec![draft.id.clone()]].concat(),
        ..draft.body.clone()
    };
    let at: Utc = now()?;
    let about = About { created_at: at, notes: Vec::new(), ..draft.about.clone() };
    let document = Document::seal(about, closed.document.provenance.clone(), decided)?;
    let path = ledger.append_document(&document)?;
    if args.json {
        println!("{}", json!({ "decision": document, "path": path, "campaign": closed.document.id }));
    } else {
        println!("decision: {} in {}", document.id, path.display());
    }
    Ok(())
}

fn decision(ledger: &Ledger, id: &str) -> Result<Document<Decision>> {
    let refuse = |found: &str| {
        Fault::new("--after", "a tare binary, or the id of a decision in this ledger", format!("`{id}`, {found}"))
            .remedy("`tare ledger list` shows the ids")
    };
    let shown = ledger.find(id).map_err(|e| refuse(&e.to_string()))?;
    let Shown::Document(entry) = shown else { return Err(refuse("a record").into()) };
    match &entry.document {
        AnyDocument::Decision(d) => Ok((**d).clone()),
        _ => Err(refuse("another document").into()),
    }
}

/// The binary that `tare next` kept under this digest.
fn kept(settings: &Settings, sha256: &str) -> Result<PathBuf> {
    let path = settings.home.join("builds").join(format!("tare-{}", &sha256[..16]));
    if is(&path, sha256) {
        return Ok(path);
    }
    let found = if path.exists() { "another build" } else { "nothing" };
    Err(Fault::new("--after", format!("the build of that decision at {}", path.display()), found)
        .remedy("give the old binary itself: `tare next --after PATH`")
        .into())
}

/// The request of `tare next`, by the old build and by this one, both in `class`.
fn study(args: &NextArgs, old: &Path, class: &str) -> Study {
    let arm = |label: &str, build: Option<&Path>| ArmSpec {
        label: label.to_string(),
        plan: args.how.plan.clone(),
        class: Some(class.to_string()),
        threads: args.how.threads,
        keep_workers: args.how.keep_workers,
        isa: args.how.isa.clone(),
        backend: backend(args),
        build: build.map(Path::to_path_buf),
        ..ArmSpec::default()
    };
    let w = &args.work;
    Study {
        name: "next-after".to_string(),
        question: "Did the change bring what was predicted?".to_string(),
        hypothesis: "The whole request takes less time with this build than with the one of before.".to_string(),
        falsifier: "An interval of the gain that does not lie above 0.".to_string(),
        misleads: "One request at one length: a gain there may be a loss elsewhere.".to_string(),
        under_study: vec![UnderStudy::Build],
        design: Design::Abba,
        work: WorkSpec {
            model: args.model.clone(),
            written_as: None,
            head_as: None,
            sequences: 1,
            prompt_tokens: w.prompt_tokens,
            output_tokens: w.max_tokens,
            depth: w.depth,
            prefill_logits: LogitsOf::Last,
            seed: w.seed,
        },
        metric: Metric::EndToEnd,
        rounds: Some(2 * ROUNDS),
        power: None,
        alpha: 0.05,
        worthwhile: 0.005,
        tolerance: 0.01,
        rule: Rule::Gain,
        turn_tokens: 4,
        warmups: 1,
        warmup_tokens: 3,
        role: Role::HeldOut,
        arms: vec![arm("baseline", Some(old)), arm(CANDIDATE, None)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        next: NextArgs,
    }

    #[test]
    fn the_class_is_named_to_both_builds_whoever_chose_it() {
        let asked: [&[&str]; 2] = [&[], &["--class", "w4a15"]];
        for more in asked {
            let args = Line::parse_from([&["next", "-m", "m", "-p", "24", "-n", "6"], more].concat()).next;
            assert_eq!(command(&args, "w4a15", "ID"), "tare next -m m -p 24 -n 6 --class w4a15 --after ID");
            let arms = study(&args, Path::new("old"), "w4a15").arms;
            assert!(arms.len() == 2 && arms.iter().all(|a| a.class.as_deref() == Some("w4a15")), "{arms:?}");
        }
    }
}
