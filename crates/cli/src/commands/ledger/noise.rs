//! `tare ledger simulate` and `plan`: what the noise of a campaign means for studies like it.

use anyhow::{Context, Result, bail};
use serde_json::json;
use tare_core::Reading;
use tare_evidence::Ledger;
use tare_evidence::campaign::{Campaign, CampaignOutcome};
use tare_evidence::ruling::Ruled;
use tare_evidence::stats::{Terms, power_of, samples_for_power, simulate_no_difference};
use tare_evidence::study::{Rule, StudyPlan};

use crate::args::{PlanArgs, RuleArg};
use crate::progress::spinner;

/// What to simulate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) studies: usize,
    pub(super) samples: Option<usize>,
    pub(super) seed: u64,
}

/// Simulates studies of equal arms.
pub(super) fn simulate(ledger: &Ledger, id: &str, asked: Asked, as_json: bool) -> Result<()> {
    let (study, ruled) = campaign(ledger, id)?;
    let terms = study.terms();
    let samples = asked.samples.unwrap_or(ruled.a_a.log_ratios.len());
    let bar = spinner(format!("simulating {} studies of {samples} samples", asked.studies));
    let verdicts = simulate_no_difference(&ruled.a_a.log_ratios, samples, asked.studies, asked.seed, &terms)?;
    bar.finish_and_clear();
    let share = verdicts.false_share(study.rule);
    let erred = if study.rule == Rule::Gain { "kept" } else { "rejected" };
    if as_json {
        println!(
            "{}",
            json!({ "campaign": id, "samples": samples, "verdicts": verdicts, "false_share": share, "alpha": study.alpha })
        );
    } else {
        println!(
            "{} studies of {samples} samples with the A/A noise of {id}, arms without a difference:\n  \
             {} keep, {} reject, {} inconclusive\n  falsely {erred}: {:.2} %; the level is {:.2} %",
            verdicts.studies(),
            verdicts.keep,
            verdicts.reject,
            verdicts.inconclusive,
            100.0 * share,
            100.0 * study.alpha
        );
    }
    if share > study.alpha {
        bail!("the rule errs more often than its level: {share} against {}", study.alpha);
    }
    Ok(())
}

/// Rounds for an effect, or the power of rounds.
pub(super) fn plan(ledger: &Ledger, args: &PlanArgs) -> Result<()> {
    let (study, ruled) = campaign(ledger, &args.from)?;
    let rule = match args.rule {
        None => study.rule,
        Some(RuleArg::Gain) => Rule::Gain,
        Some(RuleArg::NoRegression) => Rule::NoRegression,
    };
    let terms = Terms { rule, ..study.terms() };
    let spread = match ruled.a_a.spread {
        Reading::Available(spread) => spread,
        Reading::Unavailable { why } => bail!("{}: no spread: {why}", args.from),
    };
    let (block, arms) = (study.design.block_rounds(), study.labels().len());
    let effect = args.effect.ln_1p();
    let bar = spinner("simulating studies");
    let (rounds, power) = match args.rounds {
        Some(rounds) if rounds.is_multiple_of(block) => (rounds, power_of(rounds / block, effect, spread, &terms)?),
        Some(rounds) => bail!("--rounds: expected a multiple of {block}, which make one sample, found {rounds}"),
        None => {
            let samples = samples_for_power(effect, args.power, spread, &terms)?;
            let rounds = study.design.rounds_for(samples, arms).context("there are too many orders of the arms")?;
            (rounds, power_of(rounds / block, effect, spread, &terms)?)
        }
    };
    bar.finish_and_clear();
    if args.json {
        println!(
            "{}",
            json!({ "rounds": rounds, "power": power, "effect": effect, "spread": spread, "spread_from": args.from, "rule": rule, "alpha": terms.alpha })
        );
    } else {
        let what = if rule == Rule::Gain { "gain" } else { "loss" };
        println!(
            "{rounds} rounds of design {} find a {what} of {:.2} % in {:.0} % of studies (spread of a sample {:.2} %, level {:.2} %)",
            study.design.name(),
            100.0 * args.effect,
            100.0 * power,
            100.0 * spread,
            100.0 * terms.alpha
        );
    }
    Ok(())
}

/// The study and the rulings of a campaign.
fn campaign(ledger: &Ledger, id: &str) -> Result<(StudyPlan, Ruled)> {
    let document = ledger.shelf()?.document::<Campaign>("campaign", id).context("name the closing of a campaign")?;
    match document.body.outcome {
        CampaignOutcome::Ruled(ruled) => Ok((document.body.study, ruled)),
        CampaignOutcome::Unruled { why } => {
            bail!("{id}: expected a ruled campaign, found one without a verdict: {why}")
        }
    }
}
