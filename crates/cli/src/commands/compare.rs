//! `tare compare`: two builds of tare as a study.

use anyhow::{Result, bail};
use std::path::Path;
use std::sync::Arc;
use tare_core::{Fault, Reading};
use tare_evidence::Ledger;
use tare_evidence::campaign::CampaignOutcome;
use tare_evidence::document::AnyDocument;
use tare_evidence::identity::PrefillLogits;
use tare_evidence::ledger::Shown;
use tare_evidence::record::Role;
use tare_evidence::study::{Design, Metric, Rule, UnderStudy};
use tare_lab::Study;
use tare_lab::arm::process::{ArmProcess, GoOn};
use tare_lab::study::{ArmSpec, Power, WorkSpec};

use crate::args::{CompareArgs, CompareMetric};
use crate::commands::study::campaign;
use crate::settings::Settings;

/// Runs the command.
pub(crate) fn run(args: &CompareArgs, settings: &Settings) -> Result<()> {
    let differences = toolchains(args)?;
    for d in &differences {
        eprintln!("tare: the builds differ in more than their source: {d}");
    }
    let study = comparison(args, &differences, settings)?;
    campaign(Study::checked(study)?, &args.run, settings)
}

/// What two builds were made with, where that differs: a toolchain that changed is a second change.
fn toolchains(args: &CompareArgs) -> Result<Vec<String>> {
    let build = |path: &Path| {
        let go_on: GoOn = Arc::new(|| true);
        ArmProcess::start(path, go_on)
            .map(|(_, build)| build)
            .map_err(|lost| anyhow::anyhow!("{}: {lost}", path.display()))
    };
    let (a, b) = (build(&args.baseline)?, build(&args.candidate)?);
    if a.binary_sha256 == b.binary_sha256 {
        bail!("both are the same binary: `tare study aa-duet` measures one build against itself");
    }
    let (a, b) = (a.software, b.software);
    let parts = [
        ("rustc", a.rustc.to_string(), b.rustc.to_string()),
        ("profile", a.profile, b.profile),
        ("target", a.target, b.target),
    ];
    Ok(parts.into_iter().filter(|(_, a, b)| a != b).map(|(name, a, b)| format!("{name} {a} against {b}")).collect())
}

/// Two builds as a study.
fn comparison(args: &CompareArgs, differences: &[String], settings: &Settings) -> Result<Study> {
    let arm = |label: &str, build: &Path| ArmSpec {
        label: label.to_string(),
        plan: args.plan.clone(),
        class: args.class.clone(),
        build: Some(build.to_path_buf()),
        ..ArmSpec::default()
    };
    let (metric, design) = match args.metric {
        CompareMetric::Prefill => (Metric::Prefill, Design::Duet),
        CompareMetric::Decode => (Metric::Decode, Design::Duet),
        CompareMetric::InterToken => (Metric::InterToken, Design::Duet),
        CompareMetric::EndToEnd => (Metric::EndToEnd, Design::Abba),
    };
    let what = match args.metric {
        CompareMetric::Prefill => "prefill",
        CompareMetric::Decode => "decode",
        CompareMetric::InterToken => "tokens",
        CompareMetric::EndToEnd => "requests",
    };
    let toolchain = match differences {
        [] => "Both were made by the same compiler, for the same target, in the same profile.".to_string(),
        more => format!("The builds differ in more than their source: {}.", more.join("; ")),
    };
    let power = match (args.effect, &args.spread_from) {
        (Some(effect), Some(from)) => {
            let spread = spread_of(from, args.run.output.as_deref(), settings)?;
            Some(Power { effect, power: args.power, spread, from: from.clone() })
        }
        _ => None,
    };
    Ok(Study {
        name: "compare".to_string(),
        question: format!("Did {what} get slower between two builds?"),
        hypothesis: "The newer build is no slower than the older one.".to_string(),
        falsifier: "An interval that lies below 0 by more than the tolerance.".to_string(),
        misleads: format!("One request at one length: another shape may lose all the same. {toolchain}"),
        under_study: vec![UnderStudy::Build],
        design,
        work: WorkSpec {
            model: args.model.clone(),
            written_as: None,
            head_as: None,
            sequences: 1,
            prompt_tokens: args.prompt_tokens,
            output_tokens: args.max_tokens,
            depth: 0,
            prefill_logits: PrefillLogits::Last,
            seed: 0,
        },
        metric,
        rounds: power.is_none().then_some(args.rounds),
        power,
        alpha: 0.05,
        worthwhile: 0.01,
        tolerance: 0.01,
        rule: Rule::NoRegression,
        turn_tokens: 2,
        warmups: 1,
        warmup_tokens: 3,
        role: Role::HeldOut,
        arms: vec![arm("baseline", &args.baseline), arm("candidate", &args.candidate)],
    })
}

/// How far a round's log-ratio spread in the A/A arm of a campaign.
fn spread_of(id: &str, output: Option<&Path>, settings: &Settings) -> Result<f64> {
    let scratch = settings.scratch_ledger();
    let ledger = Ledger::at(output.unwrap_or(&scratch));
    let refuse = |found: &str| {
        Fault::new("--spread-from", "the id of a campaign with verdicts in this ledger", format!("`{id}`, {found}"))
            .remedy("run `tare study aa-duet` first, and give the id of its closing")
    };
    let Shown::Document(entry) = ledger.find(id)? else { return Err(refuse("a record").into()) };
    let AnyDocument::Campaign(campaign) = &entry.document else { return Err(refuse("another document").into()) };
    match &campaign.body.outcome {
        CampaignOutcome::Ruled(ruled) => match &ruled.a_a.spread {
            Reading::Available(spread) => Ok(*spread),
            Reading::Unavailable { why } => Err(refuse(why).into()),
        },
        CampaignOutcome::Unruled { why } => Err(refuse(why).into()),
    }
}
