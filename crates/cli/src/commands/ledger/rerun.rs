//! `tare ledger reproduce` of a campaign: its study, run again on this host.

use anyhow::{Result, bail};
use serde_json::json;
use tare_core::Fault;
use tare_evidence::campaign::{Campaign, CampaignOutcome};
use tare_evidence::replicate::{self, Replication};
use tare_evidence::study::{ArmPlan, StudyPlan, UnderStudy};
use tare_evidence::{Document, Ledger, compare};
use tare_lab::Study;
use tare_lab::study::{ArmSpec, WorkSpec};

use crate::args::{CampaignArgs, ReproduceArgs};
use crate::campaigning::{Ready, conduct};
use crate::settings::Settings;

/// Tokens of a warm-up where the plan does not say.
const WARMUP_TOKENS: u32 = 3;
/// Turns of a duet whose plan does not bound them by tokens.
const TURN_TOKENS: usize = 4;

/// Runs the study of a campaign again and holds the rulings against each other. The new campaign is kept in any case.
pub(super) fn run(
    ledger: &Ledger,
    first: &Document<Campaign>,
    args: &ReproduceArgs,
    settings: &Settings,
) -> Result<()> {
    let CampaignOutcome::Ruled(before) = &first.body.outcome else {
        bail!("{}: expected a ruled campaign, found one without a verdict: there is nothing to repeat", first.id);
    };
    if before.rulings.is_empty() {
        bail!("{}: expected a campaign that ruled on a candidate, found the baseline and its twin alone", first.id);
    }
    let ready = Ready::new(study(ledger, first, args)?, settings)?;
    // Before anything runs: another model may take as long, and its answer would be thrown away.
    let baseline = ledger.show(&first.body.pairs[0].baseline.id)?.record;
    compare::same_work(&baseline.work, &ready.work(settings)?).map_err(|e| {
        Fault::new("work", format!("that of {}", first.id), e.to_string()).remedy("name the model: --model")
    })?;
    let how =
        CampaignArgs { output: args.output.clone(), resume: false, close: false, dry_run: false, json: args.json };
    let closed = conduct(&ready, &how, settings)?;
    let again = &closed.document;
    let CampaignOutcome::Ruled(after) = &again.body.outcome else {
        bail!("the repetition has no verdict: {}", closed.path.display());
    };
    let answer = replicate::campaign(before, after);
    let other_class = first.provenance.host.class_sha256 != again.provenance.host.class_sha256;
    if args.json {
        println!(
            "{}",
            json!({ "first": first.id, "again": again.id, "answer": answer, "other_host_class": other_class, "rule": replicate::CAMPAIGN_RULE })
        );
    } else {
        println!("{}  {}\n{}  {}", first.id, first.provenance.host.name, again.id, again.provenance.host.name);
        super::reproduce::print(&answer, replicate::CAMPAIGN_RULE);
    }
    match answer {
        Replication::DoesNotReplicate { .. } => bail!("{} does not replicate: {}", first.id, closed.path.display()),
        Replication::Replicates | Replication::OtherHostClass => Ok(()),
    }
}

/// The study that a campaign ran, as it can be run again: with the rounds that were planned then.
fn study(ledger: &Ledger, first: &Document<Campaign>, args: &ReproduceArgs) -> Result<Study> {
    let plan: &StudyPlan = &first.body.study;
    let w = &plan.work;
    let arms: Vec<ArmSpec> = plan.arms.iter().map(|a| arm(a, ledger, first)).collect::<Result<_>>()?;
    let study = Study {
        name: plan.name.clone(),
        question: plan.question.clone(),
        hypothesis: plan.hypothesis.clone(),
        falsifier: plan.falsifier.clone(),
        misleads: format!("It repeats {}, whose choices it shares.", first.id),
        under_study: under_study(plan, &arms),
        design: plan.design,
        work: WorkSpec {
            model: args.model.clone().unwrap_or_else(|| w.model.clone()),
            written_as: w.written_as.clone().filter(|_| args.model.is_none()),
            head_as: w.head_as.clone().filter(|_| args.model.is_none()),
            sequences: w.sequences as usize,
            prompt_tokens: w.prompt_tokens as usize,
            output_tokens: w.output_tokens as usize,
            depth: w.depth as usize,
            prefill_logits: w.prefill_logits,
            seed: w.seed,
        },
        metric: plan.metric,
        rounds: Some(plan.rounds),
        power: None,
        alpha: plan.alpha,
        worthwhile: plan.worthwhile,
        tolerance: plan.tolerance,
        rule: plan.rule,
        turn_tokens: plan.turn_tokens.map_or(TURN_TOKENS, |n| n as usize),
        warmups: plan.warmups as usize,
        warmup_tokens: plan.warmup_tokens.unwrap_or(WARMUP_TOKENS).min(w.output_tokens) as usize,
        role: plan.role,
        arms,
    };
    Ok(Study::checked(study)?)
}

/// What the plan varied. A peer names no class, so that arms which name theirs now differ from it in that too.
fn under_study(plan: &StudyPlan, arms: &[ArmSpec]) -> Vec<UnderStudy> {
    let mut varied = plan.under_study.clone();
    let mut classes = arms.iter().filter(|a| a.ceiling.is_none()).map(|a| &a.class);
    let first = classes.next();
    if varied.contains(&UnderStudy::Peer)
        && !varied.contains(&UnderStudy::Class)
        && classes.any(|class| Some(class) != first)
    {
        varied.push(UnderStudy::Class);
    }
    varied
}

/// An arm as the plan describes it, in the class that it ran in: when none is named, another one may be taken today.
/// Another build is known by its name and digest alone, which start no process.
fn arm(plan: &ArmPlan, ledger: &Ledger, first: &Document<Campaign>) -> Result<ArmSpec> {
    let id = &first.id;
    let spec: ArmSpec = serde_json::from_value(plan.what.clone())
        .map_err(|e| Fault::new(format!("{id}: study.arms: {}", plan.label), "an arm of a study", e.to_string()))?;
    if let Some(build) = &spec.build {
        bail!("{id}: arm `{}` is the build {}: run `tare compare` with that binary", plan.label, build.display())
    }
    if spec.class.is_some() || spec.peer.is_some() || spec.ceiling.is_some() {
        return Ok(spec);
    }
    Ok(ArmSpec { class: Some(class_of(&plan.label, ledger, first)?), ..spec })
}

/// The class that the record of an arm names.
fn class_of(label: &str, ledger: &Ledger, first: &Document<Campaign>) -> Result<String, Fault> {
    let pairs = &first.body.pairs;
    let kept = match first.body.study.baseline == label {
        true => pairs.first().map(|p| &p.baseline),
        false => pairs.iter().find(|p| p.arm == label).map(|p| &p.candidate),
    };
    let unknown = |found: String| {
        let at = format!("{}: study.arms: {label}: class", first.id);
        Fault::new(at, "the record of the arm, which names it", found)
            .remedy("name the ledger that holds the records of the campaign: --ledger")
    };
    let kept = kept.ok_or_else(|| unknown("none in `pairs`".to_string()))?;
    let entry = ledger.show(&kept.id).map_err(|e| unknown(e.to_string()))?;
    Ok(entry.record.arm.class)
}
