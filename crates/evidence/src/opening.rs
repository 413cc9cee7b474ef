//! The opening of a campaign: what was settled before the first sample, written before it.

use crate::document::{Body, Document, Kind};
use crate::record::About;
use crate::shelf::Shelf;
use crate::study::{RoundsBy, StudyPlan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tare_core::Fault;

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
        let mut faults = Vec::new();
        if let RoundsBy::Power { spread_from, .. } = &document.body.study.rounds_by {
            faults.extend(shelf.check_known("study.rounds_by.spread_from", spread_from).err());
        }
        faults
    }
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
