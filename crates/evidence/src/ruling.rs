//! The verdicts of a campaign, from the records of its pairs.

use crate::campaign::{Pair, PairRole};
use crate::canonical;
use crate::derive::metric_ns;
use crate::record::{Outcome, Record};
use crate::samples::TimedRound;
use crate::schema::ReadingShape;
use crate::stats::{self, EqualArms, Interval, Verdict};
use crate::study::{Design, Metric, StudyPlan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tare_core::{Fault, Reading};

/// Seed of the sign patterns that are drawn where there are too many to enumerate.
const SEED: u64 = 0;

/// The baseline's record and the arm's, for each pair of a campaign.
pub type PairRecords = [(Record, Record)];

/// The verdicts of a campaign and everything that they follow from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ruled {
    /// The baseline against its twin.
    pub a_a: Twin,
    /// One for each candidate that is not identical to another arm, in the order of the pairs.
    pub rulings: Vec<ArmRuling>,
}

/// The baseline against its twin: how far two equal arms lie apart on this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Twin {
    /// `ln(baseline / twin)` of the metric, one for each sample.
    pub log_ratios: Vec<f64>,
    /// Standard deviation of one sample.
    #[schemars(with = "ReadingShape<f64>")]
    pub spread: Reading<f64>,
    /// The smallest effect that the campaign can tell from none.
    #[schemars(with = "ReadingShape<f64>")]
    pub detectable: Reading<f64>,
}

impl Twin {
    /// Mean of `log_ratios`: 0 but for the noise of the host.
    pub fn effect(&self) -> f64 {
        mean(&self.log_ratios)
    }
}

/// The verdict on one candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArmRuling {
    /// Its label.
    pub arm: String,
    /// `ln(baseline / candidate)` of the metric, one for each sample: above 0 is a gain.
    pub log_ratios: Vec<f64>,
    /// The same end to end.
    pub end_to_end_log_ratios: Vec<f64>,
    /// Mean of `log_ratios`.
    pub effect: f64,
    /// Interval of the effect, of level `1 - alpha`.
    #[schemars(with = "ReadingShape<Interval>")]
    pub interval: Reading<Interval>,
    /// Interval end to end.
    #[schemars(with = "ReadingShape<Interval>")]
    pub end_to_end_interval: Reading<Interval>,
    /// p-value of the effect.
    pub p: f64,
    /// The same, adjusted for the number of candidates.
    pub p_adjusted: f64,
    /// The verdict.
    pub verdict: Verdict,
}

/// The verdicts that follow from the records of the pairs of a campaign.
///
/// # Errors
/// When a pair has no times, or not the planned rounds, or there is no A/A pair.
pub fn rule(study: &StudyPlan, pairs: &[Pair], records: &PairRecords) -> Result<Ruled, Fault> {
    let ratios = |(baseline, candidate): &(Record, Record), metric| log_ratios(study, baseline, candidate, metric);
    let twin = pairs.iter().position(|p| p.role == PairRole::AA).and_then(|i| records.get(i));
    let twin = twin.ok_or_else(|| Fault::new("pairs", "an A/A pair", "none"))?;
    let twin_ratios = ratios(twin, study.metric)?;
    let a_a = EqualArms::of(&twin_ratios, &ratios(twin, Metric::EndToEnd)?, study.alpha, SEED);
    let ruled: Vec<_> = pairs
        .iter()
        .zip(records)
        .filter(|(p, _)| p.role == PairRole::Candidate && p.identical_to.is_none())
        .map(|(p, r)| Ok((p.arm.clone(), ratios(r, study.metric)?, ratios(r, Metric::EndToEnd)?)))
        .collect::<Result<_, Fault>>()?;
    let p_values: Vec<f64> = ruled.iter().map(|(_, primary, _)| stats::p_value(primary, SEED)).collect();
    let rulings = ruled
        .into_iter()
        .zip(p_values.iter().zip(stats::holm(&p_values)))
        .map(|((arm, log_ratios, end_to_end_log_ratios), (&p, p_adjusted))| {
            let judge = |a_a| {
                stats::judge(&stats::Comparison {
                    phase: &log_ratios,
                    end_to_end: &end_to_end_log_ratios,
                    p_adjusted,
                    candidates: p_values.len(),
                    a_a,
                    worthwhile: study.worthwhile,
                    tolerance: study.tolerance,
                    alpha: study.alpha,
                    rule: study.rule,
                    seed: SEED,
                })
            };
            let judged = a_a.and_then(judge);
            let effect = mean(&log_ratios);
            let (interval, end_to_end_interval, verdict) = match judged {
                Ok(r) => (Reading::Available(r.phase), Reading::Available(r.end_to_end), r.verdict),
                Err(few) => {
                    let missing = || Reading::unavailable(few.to_string());
                    (missing(), missing(), Verdict::Inconclusive { needs_rounds: few.needs })
                }
            };
            let verdict = in_rounds(verdict, study.design);
            ArmRuling {
                arm,
                log_ratios,
                end_to_end_log_ratios,
                effect,
                interval,
                end_to_end_interval,
                p,
                p_adjusted,
                verdict,
            }
        })
        .collect();
    let detectable = a_a.map(|a_a| a_a.detectable()).into();
    Ok(Ruled { a_a: Twin { spread: spread(&twin_ratios), detectable, log_ratios: twin_ratios }, rulings })
}

/// Statistics count samples, a person counts rounds.
fn in_rounds(verdict: Verdict, design: Design) -> Verdict {
    match verdict {
        Verdict::Inconclusive { needs_rounds } => {
            Verdict::Inconclusive { needs_rounds: needs_rounds.saturating_mul(design.block_rounds()) }
        }
        decided => decided,
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Sample standard deviation.
fn spread(values: &[f64]) -> Reading<f64> {
    stats::standard_deviation(values).map_or_else(|| Reading::unavailable("fewer than two samples"), Reading::Available)
}

/// `ln(baseline / candidate)` of each sample: of a round, or of the mean over a block of rounds.
fn log_ratios(study: &StudyPlan, baseline: &Record, candidate: &Record, metric: Metric) -> Result<Vec<f64>, Fault> {
    let (of_baseline, of_candidate) = (timed_rounds(study, baseline)?, timed_rounds(study, candidate)?);
    let per_round = if study.design == Design::Duet && metric == Metric::InterToken {
        let pairs = of_baseline.iter().zip(of_candidate);
        pairs.map(|(b, c)| step_log_ratio(b, c).map_err(|f| f.within(&candidate.id))).collect::<Result<_, _>>()?
    } else {
        let side = |record: &Record, rounds: &[TimedRound]| -> Result<Vec<f64>, Fault> {
            rounds.iter().map(|r| metric_ns(r, metric).map_err(|f| f.within(&record.id))).collect()
        };
        stats::paired_log_ratios(&side(baseline, of_baseline)?, &side(candidate, of_candidate)?)?
    };
    Ok(per_round.chunks(study.design.block_rounds()).map(mean).collect())
}

/// The median of `ln(baseline / candidate)` over the steps of a round of a duet, each with the step of the same number of
/// the other arm: what disturbs the host for longer than a turn is in both and falls out.
fn step_log_ratio(baseline: &TimedRound, candidate: &TimedRound) -> Result<f64, Fault> {
    let (left_out, its) = (&baseline.timing.untimed, &candidate.timing.untimed);
    if left_out != its {
        let at = format!("samples: round {}: untimed", candidate.emitted.round);
        return Err(Fault::new(at, format!("{left_out:?}, as the baseline has it"), format!("{its:?}")));
    }
    let steps = |r: &TimedRound| r.timed_steps().map(|(_, ns)| ns as f64).collect::<Vec<_>>();
    let ratios = stats::paired_log_ratios(&steps(baseline), &steps(candidate))?;
    stats::median(&ratios).ok_or_else(|| {
        let at = format!("samples: round {}: {}", candidate.emitted.round, Metric::InterToken.name());
        Fault::new(at, "a step that counts", "none").remedy("ask for more output tokens")
    })
}

/// The rounds of a record whose gate passed, as many as were planned.
fn timed_rounds<'r>(study: &StudyPlan, record: &'r Record) -> Result<&'r [TimedRound], Fault> {
    let Outcome::Timed(timed) = &record.outcome else {
        return Err(Fault::new(&record.id, "a record whose gate passed", "one whose gate failed")
            .remedy("close the campaign unruled: there is no verdict over a failed gate"));
    };
    let rounds = &timed.measured.samples.rounds[..];
    if rounds.len() != study.rounds as usize {
        let expected = format!("{} rounds, as `study.rounds` planned", study.rounds);
        return Err(Fault::new(&record.id, expected, rounds.len().to_string()));
    }
    Ok(rounds)
}

/// The label of the first of `others` that ran what `candidate` ran: the same kernels of the same binary with the same
/// settings. Names of plans do not count. The two are drawn once, and nothing is ruled on.
pub fn identical_to<'a>(
    candidate: &Record,
    mut others: impl Iterator<Item = (&'a str, &'a Record)>,
) -> Option<&'a str> {
    let ran = dispatch(candidate).ok()?;
    others.find(|(_, other)| dispatch(other).is_ok_and(|its| its == ran)).map(|(label, _)| label)
}

/// What a record says about its dispatch: the arm and the calls, without the names of the plan and the digests that
/// hold them.
fn dispatch(record: &Record) -> Result<Value, Fault> {
    let mut arm = canonical::value_of(&record.arm)?;
    let mut plan = record.plan.resolved.clone();
    let without = |value: &mut Value, keys: &[&str]| {
        if let Value::Object(map) = value {
            keys.iter().for_each(|k| drop(map.remove(*k)));
        }
    };
    without(&mut arm, &["plan", "plan_sha256"]);
    without(&mut plan, &["name"]);
    if let Some(widest) = plan.get_mut("widest") {
        without(widest, &["name"]);
    }
    if let Some(Value::Array(buckets)) = plan.get_mut("buckets") {
        buckets.iter_mut().for_each(|b| without(b, &["sha256"]));
    }
    Ok(json!({ "arm": arm, "plan": plan }))
}
