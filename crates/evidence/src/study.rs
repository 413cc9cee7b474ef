//! A study as data: what is asked, of which arms, in which order, and by which rule it is answered.

use crate::identity::{PrefillLogits, lengths_told};
use crate::record::Role;
use crate::stats::{Terms, least_rounds};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use tare_core::Fault;

/// The label of the twin of the baseline, which every study has.
pub const A_A: &str = "a-a";

/// Everything that is settled before the first sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StudyPlan {
    /// Name of the study, and of its folder in the ledger.
    pub name: String,
    /// What it asks.
    pub question: String,
    /// What is thought to be so.
    pub hypothesis: String,
    /// What would show that it is not.
    pub falsifier: String,
    /// What may differ between arms; anything else that differs is a confound and refused. Empty when the baseline has
    /// its twin alone beside it.
    pub under_study: Vec<UnderStudy>,
    /// How the arms take turns.
    pub design: Design,
    /// The request that every arm runs.
    pub work: WorkPlan,
    /// What is compared.
    pub metric: Metric,
    /// Rounds to run.
    pub rounds: u32,
    /// How that number was found.
    pub rounds_by: RoundsBy,
    /// When a candidate is kept.
    pub rule: Rule,
    /// Level of significance, of all candidates together.
    pub alpha: f64,
    /// The smallest gain for which a change would be kept, as a log-ratio.
    pub worthwhile: f64,
    /// The loss that still counts as none, as a log-ratio.
    pub tolerance: f64,
    /// Every arm but the twin of the baseline, in order.
    pub arms: Vec<ArmPlan>,
    /// Label of the arm that the others are held against.
    pub baseline: String,
    /// Untimed requests of each process before its first timed one.
    pub warmups: u32,
    /// Tokens that each of them drew. Left out by writers before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_tokens: Option<u32>,
    /// Tokens of one turn of a duet; none when its turns are bounded by time, or the design has no turns.
    pub turn_tokens: Option<u32>,
    /// What its records may be used for.
    pub role: Role,
}

/// One arm of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArmPlan {
    /// Its name.
    pub label: String,
    /// What it is, in the words of the study file: a plan, a build, a peer and so on.
    pub what: Value,
}

/// The request of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkPlan {
    /// The model, as it was named.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens to emit.
    pub output_tokens: u32,
    /// Tokens in the cache before the prompt.
    pub depth: u32,
    /// Seed of the prompt ids.
    pub seed: u64,
    /// Positions whose logits prefill computes.
    pub prefill_logits: PrefillLogits,
    /// A format: the synthetic model was written to a file of it, which every arm read. Left out where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_as: Option<String>,
    /// The format of that file's output head. Left out where it is that of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_as: Option<String>,
    /// Sequences of these lengths that run in the same steps. Left out where one runs alone.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub sequences: u32,
}

impl WorkPlan {
    /// Its lengths for people, as [`lengths_told`] has them.
    pub fn lengths(&self) -> String {
        lengths_told(self.sequences, self.prompt_tokens, self.output_tokens, self.depth)
    }
}

fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands it a reference")]
fn is_one(n: &u32) -> bool {
    *n == 1
}

/// Something that a study may vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnderStudy {
    /// The plan, its cache and pages.
    Plan,
    /// The arithmetic class.
    Class,
    /// The binary.
    Build,
    /// The file that the same weights lie in.
    Model,
    /// Another engine.
    Peer,
    /// The level of the instruction set.
    Isa,
    /// The number of threads.
    Threads,
    /// A planted delay.
    Delay,
    /// Settings of an arm beyond its plan.
    Settings,
}

impl ArmPlan {
    /// What an arm that measures a ceiling of the host walks over, in the words of the study file; none of the others.
    pub fn ceiling(&self) -> Option<&str> {
        self.what.get("ceiling")?.as_str()
    }
}

impl UnderStudy {
    /// The fields of an arm that differ when this does.
    pub fn arm_fields(self) -> &'static [&'static str] {
        match self {
            Self::Plan => &["plan", "plan_sha256", "cache", "page_tokens", "isa", "streamed_bytes_per_token"],
            Self::Class => &["class", "plan", "plan_sha256", "isa", "streamed_bytes_per_token"],
            // The storage and packing that a build gives a plan are its own; another plan or class by default is not.
            Self::Build => &["binary_sha256", "plan_sha256", "isa", "page_tokens", "streamed_bytes_per_token"],
            Self::Model => &["file_sha256", "file_format", "head_format", "plan_sha256", "streamed_bytes_per_token"],
            Self::Peer => &[
                "peer",
                "plan",
                "plan_sha256",
                "binary_sha256",
                "class",
                "file_format",
                "file_sha256",
                "head_format",
                "cache",
                "page_tokens",
                "isa",
                "backend",
                "streamed_bytes_per_token",
                "threads",
                "settings",
            ],
            Self::Isa => &["isa", "plan_sha256", "settings"],
            Self::Threads => &["threads", "plan_sha256"],
            Self::Delay => &["delay"],
            Self::Settings => &["settings", "plan_sha256", "isa"],
        }
    }
}

/// How the arms take turns. A round runs every arm once, in fresh processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Design {
    /// Two processes live side by side, and a baton goes to and fro; the baseline begins even rounds. Two rounds are one
    /// sample: which of two equal processes was started first shows in their ratio.
    Duet,
    /// One after the other, forward in even rounds and backward in odd ones.
    Balanced,
    /// As `balanced`; two rounds are one sample.
    Abba,
    /// One after the other, round `r` in permutation `r mod n!` in lexicographic order.
    Permutations,
}

impl Design {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Duet => "duet",
            Self::Balanced => "balanced",
            Self::Abba => "abba",
            Self::Permutations => "permutations",
        }
    }

    /// Rounds that make one sample.
    pub fn block_rounds(self) -> usize {
        match self {
            Self::Duet | Self::Abba => 2,
            Self::Balanced | Self::Permutations => 1,
        }
    }

    /// Rounds in which every order of `arms` arms, the twin of the baseline included, comes once; none when nobody could
    /// run so many.
    pub fn balanced_rounds(self, arms: usize) -> Option<usize> {
        match self {
            Self::Duet | Self::Balanced | Self::Abba => Some(2),
            Self::Permutations => (1..=arms).try_fold(1usize, usize::checked_mul),
        }
    }

    /// The least rounds that make `samples` samples and in which every order comes equally often.
    pub fn rounds_for(self, samples: usize, arms: usize) -> Option<usize> {
        samples.checked_mul(self.block_rounds())?.checked_next_multiple_of(self.balanced_rounds(arms)?)
    }
}

/// What is compared between arms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Time of the prefill.
    Prefill,
    /// Mean time of a token after the first; of several sequences that run together, a step's time over its tokens.
    Decode,
    /// Median time of a step after the first token: a disturbance that hits some tokens leaves it alone, and so does a loss
    /// that does. In a duet the ratio of a round is the median over the ratios of its steps: each step of one arm has the
    /// other arm's a moment later.
    InterToken,
    /// Time of the whole request.
    EndToEnd,
    /// Time to the first token.
    Ttft,
}

impl Metric {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::InterToken => "inter_token",
            Self::EndToEnd => "end_to_end",
            Self::Ttft => "ttft",
        }
    }
}

/// When a candidate is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// It gains.
    Gain,
    /// It loses no more than the tolerance.
    NoRegression,
}

/// How the number of rounds was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RoundsBy {
    /// Somebody chose it.
    Fixed,
    /// It finds an effect with a certain power.
    Power {
        /// The effect, as a log-ratio.
        effect: f64,
        /// The share of studies that would find it.
        power: f64,
        /// Standard deviation of the log-ratio of one round without an effect.
        spread: f64,
        /// Id of the campaign whose A/A arm had that spread.
        spread_from: String,
    },
}

impl StudyPlan {
    /// Labels of all arms, the twin of the baseline right after it, then the candidates in order.
    pub fn labels(&self) -> Vec<String> {
        let candidates = self.candidates().map(|a| a.label.clone());
        [self.baseline.clone(), A_A.to_string()].into_iter().chain(candidates).collect()
    }

    /// The terms on which its candidates are judged.
    pub fn terms(&self) -> Terms {
        let Self { rule, alpha, worthwhile, tolerance, .. } = *self;
        Terms { rule, alpha, worthwhile, tolerance, candidates: self.candidates().count() }
    }

    /// The least rounds that can end in a verdict at the level that all candidates share; none when nobody could run them.
    pub fn deciding_rounds(&self) -> Option<usize> {
        let samples = least_rounds(self.alpha / self.candidates().count().max(1) as f64);
        self.design.rounds_for(samples, self.labels().len())
    }

    /// Every arm that is held against the baseline: all others but those that measure a ceiling.
    pub fn candidates(&self) -> impl Iterator<Item = &ArmPlan> {
        self.arms.iter().filter(|a| a.label != self.baseline && a.ceiling().is_none())
    }

    /// The arms that measure a ceiling of the host. Each has a turn beside every meeting of a round, right before it in
    /// even rounds and right after it in odd ones; they are in no order and in no pair.
    pub fn ceilings(&self) -> impl Iterator<Item = &ArmPlan> {
        self.arms.iter().filter(|a| a.ceiling().is_some())
    }

    /// The order of the arms in `round`, from 0. In a duet, labels come in pairs, the one that begins first.
    ///
    /// # Errors
    /// When there are too many arms to number their permutations.
    pub fn order(&self, round: u32) -> Result<Vec<String>, Fault> {
        let labels = self.labels();
        let odd = round % 2 == 1;
        match self.design {
            Design::Duet => {
                let pair = |other: &String| {
                    let pair = [self.baseline.clone(), other.clone()];
                    if odd { pair.into_iter().rev().collect::<Vec<_>>() } else { pair.to_vec() }
                };
                Ok(labels[1..].iter().flat_map(pair).collect())
            }
            Design::Balanced | Design::Abba => Ok(if odd { labels.into_iter().rev().collect() } else { labels }),
            Design::Permutations => permutation(labels, u64::from(round)),
        }
    }

    /// Everything about the plan that does not hold together.
    pub fn faults(&self) -> Vec<Fault> {
        let at = |field: &str| format!("study.{field}");
        let mut faults = Vec::new();
        for (field, text) in [
            ("question", &self.question),
            ("hypothesis", &self.hypothesis),
            ("falsifier", &self.falsifier),
            ("work.model", &self.work.model),
        ] {
            if text.trim().is_empty() {
                faults.push(Fault::new(at(field), "a sentence", "none"));
            }
        }
        if self.under_study.is_empty() && self.candidates().next().is_some() {
            faults.push(Fault::new(at("under_study"), "what may differ between arms", "nothing"));
        }
        let labels: BTreeSet<&str> = self.arms.iter().map(|a| a.label.as_str()).collect();
        if labels.len() != self.arms.len() || labels.contains(A_A) || labels.contains("") {
            faults.push(Fault::new(at("arms"), format!("labels that differ, none empty or `{A_A}`"), "others"));
        }
        if !self.arms.iter().any(|a| a.label == self.baseline && a.ceiling().is_none()) {
            let expected = "the label of an arm that is timed";
            faults.push(Fault::new(at("baseline"), expected, format!("`{}`", self.baseline)));
        }
        let balanced = self.design.balanced_rounds(self.labels().len()).unwrap_or(usize::MAX);
        if self.rounds == 0 || !(self.rounds as usize).is_multiple_of(balanced) {
            let expected = format!("a multiple of {balanced} above 0, for design {}", self.design.name());
            faults.push(Fault::new(at("rounds"), expected, self.rounds.to_string()));
        }
        if self.work.sequences == 0 {
            faults.push(Fault::new(at("work.sequences"), "at least 1", "0"));
        }
        if self.work.prompt_tokens == 0 || self.work.output_tokens == 0 {
            faults.push(Fault::new(at("work"), "prompt and output of at least one token", "a length of 0"));
        }
        if self.design == Design::Duet && (1..3).contains(&self.work.output_tokens) {
            let expected = "at least 3 output tokens in a duet: the first of a turn is not timed";
            faults.push(Fault::new(at("work"), expected, self.work.output_tokens.to_string()));
        }
        if self.turn_tokens == Some(0) {
            faults.push(Fault::new(at("turn_tokens"), "at least 1", "0"));
        }
        let between = |v: f64, low: f64, high: f64| v.is_finite() && v >= low && v < high;
        if !(between(self.alpha, 1e-6, 1.0) && self.alpha > 0.0) {
            faults.push(Fault::new(at("alpha"), "a level between 0.000001 and 1", self.alpha.to_string()));
        }
        for (field, value) in [("worthwhile", self.worthwhile), ("tolerance", self.tolerance)] {
            if !between(value, 0.0, 10.0) {
                faults.push(Fault::new(at(field), "a log-ratio from 0 to 10", value.to_string()));
            }
        }
        if let RoundsBy::Power { effect, power, spread, .. } = &self.rounds_by
            && !(between(*effect, 1e-9, 10.0) && between(*power, 0.01, 1.0) && between(*spread, 0.0, 10.0))
        {
            let found = format!("effect {effect}, power {power}, spread {spread}");
            faults.push(Fault::new(at("rounds_by"), "an effect above 0, a power from 0.01 to 1, a spread", found));
        }
        faults
    }
}

/// Permutation `number mod n!` of `items` in lexicographic order of their places.
fn permutation(mut items: Vec<String>, number: u64) -> Result<Vec<String>, Fault> {
    let n = items.len() as u64;
    let all = (1..=n).try_fold(1u64, u64::checked_mul);
    let all = all.ok_or_else(|| Fault::new("study.arms", "at most 20 arms", n.to_string()))?;
    let (mut number, mut block) = (number % all, all);
    let mut out = Vec::with_capacity(items.len());
    while !items.is_empty() {
        block /= items.len() as u64;
        out.push(items.remove((number / block) as usize));
        number %= block;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_comes_equally_often() {
        assert_eq!(Design::Balanced.rounds_for(7, 3), Some(8));
        assert_eq!(Design::Duet.rounds_for(7, 3), Some(14));
        assert_eq!(Design::Abba.rounds_for(7, 3), Some(14));
        assert_eq!(Design::Permutations.rounds_for(7, 3), Some(12));
        assert_eq!(Design::Permutations.rounds_for(1, 30), None);
    }

    #[test]
    fn permutations_come_in_order_and_each_once() {
        let items = || ["a", "b", "c"].map(String::from).to_vec();
        let all: Vec<String> = (0..6).map(|n| permutation(items(), n).unwrap().concat()).collect();
        assert_eq!(all, ["abc", "acb", "bac", "bca", "cab", "cba"]);
        assert_eq!(permutation(items(), 7).unwrap(), permutation(items(), 1).unwrap());
        let many = (0..21).map(|n| n.to_string()).collect();
        assert!(permutation(many, 0).is_err());
    }
}
