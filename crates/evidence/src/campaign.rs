//! The closing of a campaign: what was run, in which order, and what follows from the records that it names.

use crate::check;
use crate::document::{Body, Document, Kind};
use crate::floors::Floors;
use crate::opening::study_fault;
use crate::pooled;
use crate::record::About;
use crate::ruling::{PairRecords, Ruled, rule};
use crate::schema::ReadingShape;
use crate::shelf::Shelf;
use crate::study::{A_A, StudyPlan};
use crate::turns;
use crate::utc::Utc;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tare_core::{Fault, Reading};

/// A campaign after its last sample. `about.campaign` is the campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Campaign {
    /// Ids of its openings, one for each attempt, in order.
    pub openings: Vec<String>,
    /// The study as it was opened.
    pub study: StudyPlan,
    /// Every attempt, in order.
    pub attempts: Vec<Attempt>,
    /// Every round that was completed, in order.
    pub rounds: Vec<RoundLog>,
    /// The baseline alone at the start and the end of each attempt.
    pub control: Vec<Control>,
    /// The records that were held against each other: the twin of the baseline first, then the candidates.
    pub pairs: Vec<Pair>,
    /// What follows from them.
    pub outcome: CampaignOutcome,
    /// How far the arms are from their floors on the ceilings that arms of this campaign measured; left out where none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floors: Option<Floors>,
}

/// One attempt at a campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// Its number, from 1.
    pub number: u32,
    /// When its opening was written.
    pub opened_at: Utc,
    /// When it ended.
    pub ended_at: Utc,
    /// Rounds that it completed.
    pub rounds: u32,
    /// How it ended.
    pub ended: Ended,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ended {
    /// With the last planned round.
    Complete,
    /// Somebody stopped it.
    Interrupted,
    /// A process of it was lost, or something changed under it.
    Lost {
        /// What.
        why: String,
    },
}

/// One round as it ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RoundLog {
    /// Its number, from 0.
    pub round: u32,
    /// The attempt that completed it.
    pub attempt: u32,
    /// Labels in the order in which they ran, as [`StudyPlan::order`] has them.
    pub order: Vec<String>,
    /// What was seen of others right before it.
    #[schemars(with = "BTreeMap<String, ReadingShape<Value>>")]
    pub quietness: BTreeMap<String, Reading<Value>>,
    /// Anything else worth knowing.
    pub notes: Vec<String>,
}

/// The baseline alone before the first and after the last round of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// The attempt.
    pub attempt: u32,
    /// Its time end to end at the start, in nanoseconds.
    #[schemars(with = "ReadingShape<u64>")]
    pub start_ns: Reading<u64>,
    /// The same at the end.
    #[schemars(with = "ReadingShape<u64>")]
    pub end_ns: Reading<u64>,
    /// `ln(start / end)`: above 0 the host became faster.
    #[schemars(with = "ReadingShape<f64>")]
    pub drift: Reading<f64>,
}

impl Control {
    /// A control with its drift.
    pub fn of(attempt: u32, start_ns: Reading<u64>, end_ns: Reading<u64>) -> Self {
        let drift = match (&start_ns, &end_ns) {
            (Reading::Available(s), Reading::Available(e)) if *s > 0 && *e > 0 => {
                Reading::Available((*s as f64 / *e as f64).ln())
            }
            (Reading::Unavailable { why }, _) | (_, Reading::Unavailable { why }) => Reading::unavailable(why),
            _ => Reading::unavailable("a control took no time"),
        };
        Self { attempt, start_ns, end_ns, drift }
    }
}

/// A record with the digest of its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordRef {
    /// Its id.
    pub id: String,
    /// SHA-256 of its file.
    pub sha256: String,
}

/// Two records that are held against each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Label of the arm that is not the baseline.
    pub arm: String,
    /// What it is to the study.
    pub role: PairRole,
    /// Label of the baseline or of an earlier candidate whose kernels, binary and settings are the same: it is drawn
    /// once and not ruled on. Left out where there is none, and for the twin of the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identical_to: Option<String>,
    /// The record of the baseline.
    pub baseline: RecordRef,
    /// The record of the arm.
    pub candidate: RecordRef,
}

/// What a pair is to its study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PairRole {
    /// The baseline twice.
    AA,
    /// A candidate against the baseline.
    Candidate,
}

/// What came of a campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CampaignOutcome {
    /// Every candidate has a verdict.
    Ruled(Ruled),
    /// None has.
    Unruled {
        /// Why not.
        why: String,
    },
}

impl Body for Campaign {
    const KIND: Kind = Kind::Campaign;

    fn faults(&self, about: &About) -> Vec<Fault> {
        let mut faults = self.study.faults();
        faults.extend(study_fault(&self.study, about));
        faults.extend(self.attempt_faults(about));
        faults.extend(self.round_faults());
        faults.extend(self.control_faults());
        match &self.outcome {
            CampaignOutcome::Unruled { why } if why.trim().is_empty() => {
                faults.push(Fault::new("outcome.unruled.why", "a reason", "none"));
            }
            CampaignOutcome::Unruled { .. } if self.is_complete() => faults.extend(self.pair_faults()),
            CampaignOutcome::Unruled { .. } => {}
            CampaignOutcome::Ruled(_) => {
                faults.extend(self.completeness_faults());
                faults.extend(self.pair_faults());
            }
        }
        faults
    }

    fn faults_in(document: &Document<Self>, shelf: &Shelf) -> Vec<Fault> {
        match pooled::records(document, shelf) {
            Ok(records) => faults_with(document, &records, shelf),
            Err(missing) => pooled::opening_faults(document, shelf).into_iter().chain(missing).collect(),
        }
    }
}

/// Everything that does not hold against the openings in `shelf` and against `records`, those of each pair: what
/// [`Body::faults_in`] asks, before the records are in a ledger.
pub fn faults_with(document: &Document<Campaign>, records: &PairRecords, shelf: &Shelf) -> Vec<Fault> {
    let campaign = &document.body;
    let mut faults = pooled::opening_faults(document, shelf);
    faults.extend(pooled::closing_faults(document, shelf));
    faults.extend(pooled::place_faults(document, records));
    faults.extend(turns::faults(campaign, records));
    check::follows("floors", Floors::of(&campaign.study, records), &campaign.floors, &mut faults);
    let mut against = pooled::binary_faults(document, shelf);
    against.extend(pooled::confounds(campaign, records));
    let derived = rule(&campaign.study, &campaign.pairs, records);
    match &campaign.outcome {
        CampaignOutcome::Ruled(written) => {
            faults.extend(against);
            check::follows("outcome.ruled", derived, written, &mut faults);
        }
        CampaignOutcome::Unruled { .. } if campaign.is_complete() && against.is_empty() && derived.is_ok() => {
            let expected = "verdicts: every round ran, and nothing stands against them";
            faults.push(Fault::new("outcome", expected, "none").remedy("a verdict is not taken away"));
        }
        CampaignOutcome::Unruled { .. } => {}
    }
    faults
}

impl Campaign {
    fn attempt_faults(&self, about: &About) -> Vec<Fault> {
        let mut faults = Vec::new();
        let numbers: Vec<u32> = self.attempts.iter().map(|a| a.number).collect();
        let expected: Vec<u32> = (1..=numbers.len() as u32).collect();
        if numbers != expected || numbers.is_empty() {
            faults.push(
                Fault::new("attempts", "numbers from 1 without a gap", format!("{numbers:?}"))
                    .remedy("name every attempt: none is dropped"),
            );
        }
        if self.openings.len() != self.attempts.len() {
            let found = format!("{} openings, {} attempts", self.openings.len(), self.attempts.len());
            faults.push(Fault::new("openings", "one opening for each attempt", found));
        }
        for a in &self.attempts {
            let at = format!("attempts: {}", a.number);
            let completed = self.rounds.iter().filter(|r| r.attempt == a.number).count();
            if completed != a.rounds as usize {
                let expected = format!("{completed} rounds, as `rounds` says");
                faults.push(Fault::new(&at, expected, a.rounds.to_string()));
            }
            if a.ended_at < a.opened_at || about.created_at < a.ended_at {
                let found = format!("{} to {}, closed {}", a.opened_at, a.ended_at, about.created_at);
                faults.push(Fault::new(at, "an end after its opening and before the closing", found));
            }
        }
        for pair in self.attempts.windows(2) {
            if pair[1].opened_at < pair[0].ended_at || pair[0].ended == Ended::Complete {
                let found = format!("attempt {} after a complete or later one", pair[1].number);
                faults.push(Fault::new("attempts", "each after the incomplete one before it", found));
            }
        }
        faults
    }

    fn round_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (place, log) in self.rounds.iter().enumerate() {
            let at = format!("rounds: {place}");
            if log.round as usize != place {
                faults.push(Fault::new(&at, format!("round {place}"), format!("round {}", log.round)));
            }
            if !self.attempts.iter().any(|a| a.number == log.attempt) {
                faults.push(Fault::new(&at, "an attempt that `attempts` has", log.attempt.to_string()));
            }
            match self.study.order(log.round) {
                Ok(order) if order == log.order => {}
                Ok(order) => {
                    let design = self.study.design.name();
                    let expected = format!("{order:?}, as design {design} has round {}", log.round);
                    faults.push(Fault::new(format!("{at}: order"), expected, format!("{:?}", log.order)));
                }
                Err(fault) => faults.push(fault),
            }
        }
        if self.rounds.windows(2).any(|w| w[1].attempt < w[0].attempt) {
            faults.push(Fault::new("rounds", "attempts in order", "a later round of an earlier attempt"));
        }
        faults
    }

    fn control_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let found: Vec<u32> = self.control.iter().map(|c| c.attempt).collect();
        let expected: Vec<u32> = self.attempts.iter().map(|a| a.number).collect();
        if found != expected {
            faults.push(Fault::new("control", format!("one for each of attempts {expected:?}"), format!("{found:?}")));
        }
        for c in &self.control {
            let derived = Control::of(c.attempt, c.start_ns.clone(), c.end_ns.clone()).drift;
            check::follows(&format!("control: {}: drift", c.attempt), Ok(derived), &c.drift, &mut faults);
        }
        faults
    }

    /// Whether every planned round ran, in attempts of which the last says so.
    fn is_complete(&self) -> bool {
        self.completeness_faults().is_empty()
    }

    /// Rounds and attempts that a verdict needs.
    fn completeness_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let remedy = "a campaign without it is closed unruled";
        if self.rounds.len() != self.study.rounds as usize {
            let expected = format!("{} rounds, as `study.rounds` planned", self.study.rounds);
            faults.push(Fault::new("rounds", expected, self.rounds.len().to_string()).remedy(remedy));
        }
        if self.attempts.last().is_none_or(|a| a.ended != Ended::Complete) {
            faults.push(Fault::new("attempts", "a last attempt that is complete", "none").remedy(remedy));
        }
        faults
    }

    /// Pairs that a complete campaign has, with a verdict or without.
    fn pair_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let remedy = "name the records of every arm that ran";
        let twins = self.pairs.iter().filter(|p| p.role == PairRole::AA).count();
        if twins != 1 {
            faults.push(Fault::new("pairs", "one A/A pair", twins.to_string()).remedy(remedy));
        }
        let found: BTreeSet<&str> = self.pairs.iter().map(|p| p.arm.as_str()).collect();
        let labels = self.study.labels();
        let expected: BTreeSet<&str> = labels[1..].iter().map(String::as_str).collect();
        if found != expected || self.pairs.len() != expected.len() {
            let found = self.pairs.iter().map(|p| p.arm.as_str()).collect::<Vec<_>>();
            faults.push(
                Fault::new("pairs", format!("one for each of {expected:?}"), format!("{found:?}")).remedy(remedy),
            );
        }
        for pair in &self.pairs {
            if (pair.role == PairRole::AA) != (pair.arm == A_A) {
                faults.push(Fault::new(
                    format!("pairs: {}: role", pair.arm),
                    format!("a_a for `{A_A}` alone"),
                    "another",
                ));
            }
        }
        faults
    }
}
