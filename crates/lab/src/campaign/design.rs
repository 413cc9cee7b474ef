//! Which slots meet in which round: the order that a study's plan gives, as places that have samples.
//!
//! A *slot* is a place that has samples in every round and becomes one record. In a duet the baseline plays once against
//! each other arm, so that each pair has two slots of its own; in the other designs every arm has one.

use tare_core::Fault;
use tare_evidence::study::{Design, StudyPlan};

/// A place that has samples in every round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name, which no other slot has: the arm's label; of a baseline in a duet `baseline@other`.
    pub name: String,
    /// The label of its arm.
    pub label: String,
    /// The arm, in the order of [`StudyPlan::labels`].
    pub arm: usize,
}

/// Two slots whose times are divided by each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seats {
    /// Slot of the baseline.
    pub baseline: usize,
    /// Slot of the other.
    pub candidate: usize,
}

/// What happens in one round, step by step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// One slot runs alone.
    Alone(usize),
    /// Two live side by side and take turns.
    Together {
        /// The slot that has the first turn.
        opens: usize,
        /// The other.
        follows: usize,
    },
}

/// The slots of a campaign and their pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct Seating {
    plan: StudyPlan,
    /// Every slot.
    pub slots: Vec<Slot>,
    /// The pair of the baseline and its twin first, then one for each candidate.
    pub pairs: Vec<Seats>,
}

impl Seating {
    /// The seats of a study.
    pub fn new(plan: &StudyPlan) -> Self {
        let labels = plan.labels();
        let slot = |arm: usize| Slot { name: labels[arm].clone(), label: labels[arm].clone(), arm };
        let others = 1..labels.len();
        let (slots, pairs) = match plan.design {
            Design::Duet => {
                let beside = |arm: usize| Slot { name: format!("{}@{}", labels[0], labels[arm]), ..slot(0) };
                (
                    others.clone().flat_map(|arm| [beside(arm), slot(arm)]).collect(),
                    others.map(|arm| Seats { baseline: 2 * arm - 2, candidate: 2 * arm - 1 }).collect(),
                )
            }
            Design::Balanced | Design::Abba | Design::Permutations => (
                (0..labels.len()).map(slot).collect(),
                others.map(|arm| Seats { baseline: 0, candidate: arm }).collect(),
            ),
        };
        Self { plan: plan.clone(), slots, pairs }
    }

    /// The labels of a round in the order in which they begin.
    ///
    /// # Errors
    /// When there are too many arms to number their orders.
    pub fn order(&self, round: u32) -> Result<Vec<String>, Fault> {
        self.plan.order(round)
    }

    /// What happens in a round.
    ///
    /// # Errors
    /// As [`Seating::order`].
    pub fn round(&self, round: u32) -> Result<Vec<Meeting>, Fault> {
        let order = self.order(round)?;
        let meeting = |pair: &[String]| {
            let [first, second] = pair else { return None };
            let other = if *first == self.plan.baseline { second } else { first };
            let seats = self.pairs.iter().find(|p| self.slots[p.candidate].label == *other)?;
            Some(if other == second {
                Meeting::Together { opens: seats.baseline, follows: seats.candidate }
            } else {
                Meeting::Together { opens: seats.candidate, follows: seats.baseline }
            })
        };
        let alone = |label: &String| self.slots.iter().position(|s| s.label == *label).map(Meeting::Alone);
        let meetings: Option<Vec<Meeting>> = match self.plan.design {
            Design::Duet => order.chunks(2).map(meeting).collect(),
            Design::Balanced | Design::Abba | Design::Permutations => order.iter().map(alone).collect(),
        };
        meetings.ok_or_else(|| Fault::new("order", "labels of the study", format!("{order:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Study;

    fn seating(design: &str) -> Seating {
        let text = format!(
            "name = \"s\"\nquestion = \"q\"\nhypothesis = \"h\"\nfalsifier = \"f\"\nmisleads = \"m\"\n\
             under_study = [\"plan\"]\ndesign = \"{design}\"\nmetric = \"decode\"\nrounds = 6\n\
             role = \"screening\"\n[work]\nmodel = \"m\"\nprompt_tokens = 4\noutput_tokens = 9\n\
             [[arms]]\nlabel = \"base\"\n[[arms]]\nlabel = \"new\"\nplan = \"kv-cache\"\n"
        );
        Seating::new(&Study::parse(&text).unwrap().plan().unwrap())
    }

    #[test]
    fn every_arm_has_one_slot_and_runs_as_the_plan_says() {
        for design in ["balanced", "abba", "permutations"] {
            let s = seating(design);
            let names: Vec<&str> = s.slots.iter().map(|s| s.name.as_str()).collect();
            assert_eq!(names, ["base", "a-a", "new"]);
            for round in 0..6 {
                let ran: Vec<&str> = s
                    .round(round)
                    .unwrap()
                    .into_iter()
                    .map(|m| if let Meeting::Alone(slot) = m { s.slots[slot].label.as_str() } else { "two" })
                    .collect();
                assert_eq!(ran, s.order(round).unwrap(), "{design} round {round}");
            }
        }
    }

    #[test]
    fn a_duet_gives_every_pair_its_own_baseline_and_alternates_who_opens() {
        let s = seating("duet");
        let names: Vec<&str> = s.slots.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["base@a-a", "a-a", "base@new", "new"]);
        assert_eq!(s.pairs[1], Seats { baseline: 2, candidate: 3 });
        assert_eq!((s.slots[2].label.as_str(), s.slots[2].arm, s.slots[3].arm), ("base", 0, 2));
        let opens = |round| -> Vec<usize> {
            let opener = |m| if let Meeting::Together { opens, .. } = m { opens } else { usize::MAX };
            s.round(round).unwrap().into_iter().map(opener).collect()
        };
        assert_eq!((opens(0), opens(1), opens(2)), (vec![0, 2], vec![1, 3], vec![0, 2]));
    }
}
