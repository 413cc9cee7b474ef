//! The opening of a campaign: what was settled before the first sample, written before it.

use crate::campaign::{Campaign, CampaignOutcome};
use crate::document::{Body, Document, Kind};
use crate::record::About;
use crate::shelf::Shelf;
use crate::stats::samples_for_power;
use crate::study::{RoundsBy, StudyPlan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tare_core::{Fault, Reading};

/// One attempt at a campaign, before its first sample. `about.campaign` is the campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Opening {
    /// The study.
    pub study: StudyPlan,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// What is known of each arm before it runs: its binary, its file, its peer.
    pub arms: Vec<OpenedArm>,
}

/// What is known of an arm before it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenedArm {
    /// Its label.
    pub label: String,
    /// Facts about it.
    pub facts: Value,
}

impl Body for Opening {
    const KIND: Kind = Kind::Opening;

    fn faults(&self, about: &About) -> Vec<Fault> {
        let mut faults = self.study.faults();
        if self.attempt == 0 {
            faults.push(Fault::new("attempt", "a number from 1", "0"));
        }
        faults.extend(study_fault(&self.study, about));
        let labels: Vec<&str> = self.arms.iter().map(|a| a.label.as_str()).collect();
        let expected: Vec<&str> = self.study.arms.iter().map(|a| a.label.as_str()).collect();
        if labels != expected {
            faults.push(Fault::new("arms", format!("{expected:?}, as `study.arms` has them"), format!("{labels:?}")));
        }
        faults
    }

    fn faults_in(document: &Document<Self>, shelf: &Shelf) -> Vec<Fault> {
        match &document.body.study.rounds_by {
            RoundsBy::Fixed => Vec::new(),
            RoundsBy::Power { effect, power, spread, spread_from } => {
                power_faults(&document.body.study, (*effect, *power, *spread), spread_from, shelf)
            }
        }
    }
}

/// What does not hold about rounds that follow from a power: the spread is that of the A/A arm of a campaign of the same
/// design and metric, and so many rounds find the effect.
fn power_faults(
    study: &StudyPlan,
    (effect, power, spread): (f64, f64, f64),
    spread_from: &str,
    shelf: &Shelf,
) -> Vec<Fault> {
    let at = |what: &str| format!("study.rounds_by.{what}");
    let campaign = match shelf.document::<Campaign>(&at("spread_from"), spread_from) {
        Ok(document) => document.body,
        Err(fault) => return vec![fault],
    };
    let mut faults = Vec::new();
    let sampled = |s: &StudyPlan| format!("{} in design {}", s.metric.name(), s.design.name());
    let (expected, found) = (sampled(study), sampled(&campaign.study));
    if expected != found {
        let remedy = "take the spread of a campaign of the same metric and design";
        faults.push(Fault::new(at("spread_from"), format!("a campaign of {expected}"), found).remedy(remedy));
    }
    let known = match &campaign.outcome {
        CampaignOutcome::Ruled(ruled) => ruled.a_a.spread.clone(),
        CampaignOutcome::Unruled { why } => Reading::unavailable(why),
    };
    match known {
        Reading::Available(known) if (known - spread).abs() <= 1e-12 * known.abs() => {}
        Reading::Available(known) => {
            faults.push(Fault::new(at("spread"), format!("{known}, as {spread_from} has it"), spread.to_string()));
        }
        Reading::Unavailable { why } => faults.push(Fault::new(at("spread_from"), "a campaign with a spread", why)),
    }
    match samples_for_power(effect, power, spread, &study.terms()) {
        Ok(samples) => {
            let needed = study.design.rounds_for(samples, study.labels().len());
            if needed != Some(study.rounds as usize) {
                let expected =
                    needed.map_or("rounds that somebody could run".into(), |n| format!("{n}, which find it"));
                faults.push(Fault::new("study.rounds", expected, study.rounds.to_string()));
            }
        }
        Err(fault) => faults.push(fault.within("study.rounds_by")),
    }
    faults
}

/// A study says in two places what it is called and may be used for.
pub(crate) fn study_fault(study: &StudyPlan, about: &About) -> Option<Fault> {
    let said = (&study.name, &study.question, study.role);
    let named = (&about.study, &about.question, about.role);
    (said != named).then(|| {
        Fault::new("about", format!("study, question and role {said:?}, as `study` says"), format!("{named:?}"))
            .remedy("restore the file as it was written, or mend its writer")
    })
}
