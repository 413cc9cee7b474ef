//! A study as a person writes it: one question, the arms that answer it, and everything that is decided before the first
//! sample.
//!
//! A study is a TOML file. Those in `studies/` are inside the binary and known by name. What may differ between two arms
//! is declared (`under_study`); a difference that was not declared is refused before anything runs, since a ratio would
//! then answer another question than the one that was asked.

mod check;
mod shipped;

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tare_core::Fault;
use tare_evidence::canonical;
use tare_evidence::identity::{Delay, PrefillLogits};
use tare_evidence::record::Role;
use tare_evidence::stats;
use tare_evidence::study::{A_A, ArmPlan, Design, Metric, RoundsBy, Rule, StudyPlan, UnderStudy, WorkPlan};

use crate::floor::CeilingKind;

/// A study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// Folder name of its records.
    pub name: String,
    /// What it asks.
    pub question: String,
    /// What is expected, and by which mechanism.
    pub hypothesis: String,
    /// What would show that the hypothesis is wrong.
    pub falsifier: String,
    /// How its result could mislead.
    pub misleads: String,
    /// Fields of an arm that may differ from the baseline's; empty when all arms are the same.
    pub under_study: Vec<UnderStudy>,
    /// How arms follow each other.
    pub design: Design,
    /// What every arm computes.
    pub work: WorkSpec,
    /// The primary metric.
    pub metric: Metric,
    /// Planned rounds; exactly one of this and `power`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
    /// What the rounds must be able to find.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
    /// Level of significance.
    #[serde(default = "five_percent")]
    pub alpha: f64,
    /// The smallest gain, as a log-ratio, for which a change would be kept.
    #[serde(default = "one_percent")]
    pub worthwhile: f64,
    /// The loss end to end, as a log-ratio, that still counts as not worse.
    #[serde(default = "one_percent")]
    pub tolerance: f64,
    /// What the verdict is about.
    #[serde(default = "gain")]
    pub rule: Rule,
    /// Tokens of one turn in a duet.
    #[serde(default = "four")]
    pub turn_tokens: usize,
    /// Requests before the timed one in every process.
    #[serde(default = "one")]
    pub warmups: usize,
    /// Tokens that a warm-up draws; the whole request's when it is left out of a short one.
    #[serde(default = "three")]
    pub warmup_tokens: usize,
    /// What its records may be used for.
    pub role: Role,
    /// The arms; the first is the baseline. A second run of the baseline, the A/A arm, is added to every study.
    pub arms: Vec<ArmSpec>,
}

/// Rounds from what they must be able to find.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// The effect, as a ratio less 1: 0.03 is 3 %.
    pub effect: f64,
    /// The chance of finding it, 0 to 1.
    pub power: f64,
    /// Standard deviation of a round's log-ratio.
    pub spread: f64,
    /// Id of the campaign whose A/A arm had that spread, in the ledger into which this one goes.
    pub from: String,
}

/// What every arm computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkSpec {
    /// A folder, a .gguf file, a pulled name or `synthetic:NAME`.
    pub model: String,
    /// A format: a synthetic model is written to a file of it once, so that another engine can read it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_as: Option<String>,
    /// The format of that file's output head, where it is another; only with `written_as`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_as: Option<String>,
    /// Sequences that run together, each with a prompt of its own: every decode step has one row of each.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub sequences: usize,
    /// Tokens of the prompt of each.
    pub prompt_tokens: usize,
    /// Tokens to draw for each; the first belongs to prefill.
    pub output_tokens: usize,
    /// Tokens in the cache before the prompt.
    #[serde(default)]
    pub depth: usize,
    /// Which prompt positions go through the head.
    #[serde(default = "last")]
    pub prefill_logits: PrefillLogits,
    /// Seed of the prompt's ids.
    #[serde(default)]
    pub seed: u64,
}

/// One arm. What is left out is the default of the engine that runs it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArmSpec {
    /// Its name in the study.
    pub label: String,
    /// Plan, by name or path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Arithmetic class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// What computes: `cpu`, which is the default, or `cuda`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Whether every worker is in every step, also one whose processor another process keeps busy; else it sits out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub keep_workers: bool,
    /// Highest instruction-set level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isa: Option<String>,
    /// Another tare binary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<PathBuf>,
    /// Another model file with the same values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Another engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// A delay that is put into one group of operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Delay>,
    /// No engine, but a loop that shows what the host can do: it has a turn beside every meeting of a round, and floors
    /// stand on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<CeilingKind>,
}

impl Study {
    /// A study by the name of one inside the binary, or from a file when `name` ends in `.toml`.
    ///
    /// # Errors
    /// When there is no such study, or it does not parse (see [`Study::parse`]).
    pub fn find(name: &str) -> Result<Self, Fault> {
        if name.ends_with(".toml") {
            let text =
                std::fs::read_to_string(name).map_err(|e| Fault::new(name, "a readable study", e.to_string()))?;
            return Self::parse(&text).map_err(|f| f.within(name));
        }
        let found = shipped::STUDIES.iter().find(|(n, _)| *n == name).ok_or_else(|| {
            let names: Vec<&str> = Self::names().collect();
            Fault::new("study", format!("one of {}, or a .toml file", names.join(", ")), format!("`{name}`"))
                .remedy("`tare study --list` says what each of them asks")
        })?;
        Self::parse(found.1).map_err(|f| f.within(name))
    }

    /// Names of the studies inside the binary.
    pub fn names() -> impl Iterator<Item = &'static str> {
        shipped::STUDIES.iter().map(|(name, _)| *name)
    }

    /// Reads a study and checks all that can be checked without a model.
    ///
    /// # Errors
    /// When a field is missing, unknown or out of range, or arms differ in what is not under study.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let study: Self =
            toml::from_str(text).map_err(|e| Fault::new("study", "the fields of a study", e.to_string().trim_end()))?;
        Self::checked(study)
    }

    /// A study that was put together in code, held to the same rules as one that was read.
    ///
    /// # Errors
    /// As [`Study::parse`].
    pub fn checked(study: Self) -> Result<Self, Fault> {
        study.check()?;
        Ok(study)
    }

    /// Digest of everything in it: an attempt goes on with the study that it began.
    ///
    /// # Errors
    /// Never for a study that was read.
    pub fn digest(&self) -> Result<String, Fault> {
        canonical::digest_of(self)
    }

    /// The arms as they run: baseline, A/A, candidates.
    pub fn cast(&self) -> Vec<ArmSpec> {
        let baseline = self.arms[0].clone();
        let again = ArmSpec { label: A_A.to_string(), ..baseline.clone() };
        [baseline, again].into_iter().chain(self.timed().skip(1).cloned()).collect()
    }

    /// The arms that run the work.
    pub(crate) fn timed(&self) -> impl Iterator<Item = &ArmSpec> {
        self.arms.iter().filter(|a| a.ceiling.is_none())
    }

    /// The arms that measure a ceiling: label and kind.
    pub fn ceilings(&self) -> impl Iterator<Item = (&str, CeilingKind)> {
        self.arms.iter().filter_map(|a| Some((a.label.as_str(), a.ceiling?)))
    }

    /// The study as its documents have it, with the number of its rounds.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn plan(&self) -> Result<StudyPlan, Fault> {
        let w = &self.work;
        let small =
            |at: &str, n: usize| u32::try_from(n).map_err(|_| Fault::new(at, "a number below 2^32", n.to_string()));
        let arm = |a: &ArmSpec| Ok(ArmPlan { label: a.label.clone(), what: canonical::value_of(&a.shown())? });
        Ok(StudyPlan {
            name: self.name.clone(),
            question: self.question.clone(),
            hypothesis: self.hypothesis.clone(),
            falsifier: self.falsifier.clone(),
            under_study: self.under_study.clone(),
            design: self.design,
            work: WorkPlan {
                model: shown_model(&w.model),
                prompt_tokens: small("work.prompt_tokens", w.prompt_tokens)?,
                output_tokens: small("work.output_tokens", w.output_tokens)?,
                depth: small("work.depth", w.depth)?,
                seed: w.seed,
                prefill_logits: w.prefill_logits,
                written_as: w.written_as.clone(),
                head_as: w.head_as.clone(),
                sequences: small("work.sequences", w.sequences)?,
            },
            metric: self.metric,
            rounds: self.planned_rounds()?,
            rounds_by: self.power.as_ref().map_or(RoundsBy::Fixed, |p| RoundsBy::Power {
                effect: p.effect.ln_1p(),
                power: p.power,
                spread: p.spread,
                spread_from: p.from.clone(),
            }),
            rule: self.rule,
            alpha: self.alpha,
            worthwhile: self.worthwhile,
            tolerance: self.tolerance,
            arms: self.arms.iter().map(arm).collect::<Result<_, Fault>>()?,
            baseline: self.arms[0].label.clone(),
            warmups: small("warmups", self.warmups)?,
            warmup_tokens: Some(small("warmup_tokens", self.warmup_output())?),
            turn_tokens: match self.design {
                Design::Duet => Some(small("turn_tokens", self.turn_tokens)?),
                Design::Balanced | Design::Abba | Design::Permutations => None,
            },
            role: self.role,
        })
    }

    /// Rounds that are planned: those that were chosen, or those that find the effect with the power.
    ///
    /// # Errors
    /// When no number of rounds that a study may have finds it.
    pub fn planned_rounds(&self) -> Result<u32, Fault> {
        let Some(p) = self.power.as_ref().filter(|_| self.rounds.is_none()) else {
            return Ok(self.rounds.unwrap_or_default());
        };
        let Self { rule, alpha, worthwhile, tolerance, .. } = *self;
        let terms =
            stats::Terms { rule, alpha, worthwhile, tolerance, candidates: self.timed().count().saturating_sub(1) };
        let samples = stats::samples_for_power(p.effect.ln_1p(), p.power, p.spread, &terms)?;
        let rounds = self.design.rounds_for(samples, self.timed().count() + 1).and_then(|n| u32::try_from(n).ok());
        rounds.ok_or_else(|| Fault::new("power", "fewer than 2^32 rounds", "more orders of the arms"))
    }

    /// Tokens that a warm-up draws.
    pub fn warmup_output(&self) -> usize {
        self.warmup_tokens.min(self.work.output_tokens)
    }
}

impl ArmSpec {
    /// What computes in it.
    pub fn backend(&self) -> &str {
        self.backend.as_deref().unwrap_or("cpu")
    }

    /// The arm as its documents show it: a binary or a file by its name, never by its path.
    fn shown(&self) -> Self {
        let name = |path: &Path| path.file_name().map_or_else(PathBuf::new, PathBuf::from);
        Self { build: self.build.as_deref().map(name), model: self.model.as_deref().map(shown_model), ..self.clone() }
    }
}

/// A model as documents show it: a file by its name.
pub(crate) fn shown_model(spec: &str) -> String {
    let path = Path::new(spec);
    let name = path.file_name().filter(|_| path.exists());
    name.map_or_else(|| spec.to_string(), |n| n.to_string_lossy().into_owned())
}

fn gain() -> Rule {
    Rule::Gain
}

fn last() -> PrefillLogits {
    PrefillLogits::Last
}

fn five_percent() -> f64 {
    0.05
}

fn one_percent() -> f64 {
    0.01
}

fn four() -> usize {
    4
}

fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands it a reference")]
fn is_one(n: &usize) -> bool {
    *n == 1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands it a reference")]
fn is_false(b: &bool) -> bool {
    !*b
}

fn three() -> usize {
    3
}
