//! A decision: what dominated, what was changed, what was seen, and what comes next.

use crate::campaign::{Campaign, CampaignOutcome};
use crate::document::{Body, Document, Kind};
use crate::record::{About, Role};
use crate::shelf::Shelf;
use crate::stats::Verdict;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tare_core::Fault;

/// What was decided and why. Nothing in it may be left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// The group of operators, or the phase, that cost the most.
    pub dominant_group: String,
    /// Why it costs that.
    pub mechanism: String,
    /// Ids of the records and documents that show it.
    pub support: Vec<String>,
    /// What the change was thought to do.
    pub hypothesis: String,
    /// What would have shown that it does not.
    pub falsifier: String,
    /// What was seen.
    pub observed_effect: String,
    /// What was decided.
    pub verdict: Decided,
    /// What comes next.
    pub next_experiment: String,
    /// The ruling that it rests on; left out where no campaign was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_on: Option<RestsOn>,
}

/// A ruling of a campaign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestsOn {
    /// Id of the closing of the campaign.
    pub campaign: String,
    /// Label of the candidate.
    pub arm: String,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decided {
    /// To keep the change.
    Keep,
    /// To drop it.
    Reject,
    /// Nothing yet.
    Inconclusive,
}

impl Decided {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Reject => "reject",
            Self::Inconclusive => "inconclusive",
        }
    }
}

impl From<Verdict> for Decided {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Keep => Self::Keep,
            Verdict::Reject => Self::Reject,
            Verdict::Inconclusive { .. } => Self::Inconclusive,
        }
    }
}

impl Body for Decision {
    const KIND: Kind = Kind::Decision;

    fn faults(&self, _about: &About) -> Vec<Fault> {
        let texts = [
            ("dominant_group", &self.dominant_group),
            ("mechanism", &self.mechanism),
            ("hypothesis", &self.hypothesis),
            ("falsifier", &self.falsifier),
            ("observed_effect", &self.observed_effect),
            ("next_experiment", &self.next_experiment),
        ];
        let empty = texts.into_iter().filter(|(_, text)| text.trim().is_empty());
        let mut faults: Vec<Fault> = empty.map(|(at, _)| Fault::new(at, "a sentence", "none")).collect();
        if self.support.is_empty() {
            faults.push(Fault::new("support", "ids of evidence", "none"));
        }
        if self.verdict == Decided::Keep && self.rests_on.is_none() {
            faults.push(
                Fault::new("rests_on", "the campaign that ruled `keep`", "none")
                    .remedy("without a ruling nothing is kept: the verdict is inconclusive"),
            );
        }
        faults
    }

    fn faults_in(document: &Document<Self>, shelf: &Shelf) -> Vec<Fault> {
        let decision = &document.body;
        let mut faults: Vec<Fault> =
            decision.support.iter().filter_map(|id| shelf.check_known("support", id).err()).collect();
        if let Some(rests_on) = &decision.rests_on {
            faults.extend(verdict_fault(decision.verdict, rests_on, shelf));
        }
        faults
    }
}

/// The verdict is that of the campaign, and nothing is kept for what a choice was made by.
fn verdict_fault(verdict: Decided, rests_on: &RestsOn, shelf: &Shelf) -> Option<Fault> {
    let RestsOn { campaign, arm } = rests_on;
    let closing = match shelf.document::<Campaign>("rests_on.campaign", campaign) {
        Ok(closing) => closing,
        Err(fault) => return Some(fault),
    };
    if verdict == Decided::Keep && matches!(closing.about.role, Role::Tuning | Role::Screening) {
        let found = format!("one for {}", if closing.about.role == Role::Tuning { "tuning" } else { "screening" });
        return Some(
            Fault::new("rests_on.campaign", "a campaign that may confirm", found)
                .remedy("run the study again as it was planned, on a request that nothing was chosen by"),
        );
    }
    let ruled = match &closing.body.outcome {
        CampaignOutcome::Ruled(ruled) => ruled.rulings.iter().find(|r| r.arm == *arm).map(|r| Decided::from(r.verdict)),
        CampaignOutcome::Unruled { .. } => Some(Decided::Inconclusive),
    };
    match ruled {
        None => Some(Fault::new("rests_on.arm", format!("an arm that {campaign} ruled on"), format!("`{arm}`"))),
        Some(ruled) if ruled == verdict => None,
        Some(ruled) => {
            let expected = format!("{}, as {campaign} ruled on `{arm}`", ruled.name());
            Some(Fault::new("verdict", expected, verdict.name()))
        }
    }
}
