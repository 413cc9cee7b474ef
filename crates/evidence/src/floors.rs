//! How far the arms of a campaign are from their floors, on ceilings that arms of the same campaign measured.
//!
//! | figure | formula |
//! |---|---|
//! | `ceilings.median_per_s` | median of amount / time over all samples of all turns; `min_per_s` and `max_per_s` of the same |
//! | `arms.*.bytes_per_s` | bytes of the phase, those of its timed tokens / median time of the phase |
//! | `arms.*.flops_per_s` | likewise |
//! | `arms.*.percent_of_floor` | that of the arm's record: 100 * floor / median time of the phase |

use crate::campaign::Pair;
use crate::derive::{spread, timed_share};
use crate::floor::{Ceiling, Resource};
use crate::record::{Outcome, Record};
use crate::ruling::PairRecords;
use crate::schema::ReadingShape;
use crate::study::StudyPlan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tare_core::{Fault, Reading};

/// What the arms of a campaign did beside what the host can do. Nothing here is measured; all of it follows from the records
/// of the pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Floors {
    /// One for each ceiling arm.
    pub ceilings: Vec<CeilingRate>,
    /// One for each record: in a duet the baseline has several.
    pub arms: Vec<ArmFloor>,
}

/// What a ceiling arm measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CeilingRate {
    /// Label of the arm.
    pub arm: String,
    /// Name of the ceiling, to which demands refer.
    pub name: String,
    /// What is counted.
    pub resource: Resource,
    /// Threads that took part.
    pub threads: u32,
    /// Bytes that were walked over.
    pub working_set_bytes: u64,
    /// Samples of all turns; each is in the records.
    pub samples: u32,
    /// Their median, in bytes or operations a second.
    #[schemars(with = "ReadingShape<f64>")]
    pub median_per_s: Reading<f64>,
    /// The slowest.
    #[schemars(with = "ReadingShape<f64>")]
    pub min_per_s: Reading<f64>,
    /// The fastest.
    #[schemars(with = "ReadingShape<f64>")]
    pub max_per_s: Reading<f64>,
}

/// An arm beside the ceilings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArmFloor {
    /// Its label.
    pub arm: String,
    /// Id of the record.
    pub record: String,
    /// The prompts and the first tokens.
    pub prefill: PhaseFloor,
    /// The tokens after them.
    pub decode: PhaseFloor,
}

/// A phase beside the ceilings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PhaseFloor {
    /// Weights and keys and values that it had to move, in a second.
    #[schemars(with = "ReadingShape<f64>")]
    pub bytes_per_s: Reading<f64>,
    /// Operations that it had to do, in a second.
    #[schemars(with = "ReadingShape<f64>")]
    pub flops_per_s: Reading<f64>,
    /// 100 at the floor.
    #[schemars(with = "ReadingShape<f64>")]
    pub percent_of_floor: Reading<f64>,
}

impl Floors {
    /// What follows from the records of the pairs of `study`; none where it has no arm that measures a ceiling, or no record.
    ///
    /// # Errors
    /// When a ceiling has samples of no time.
    pub fn of(study: &StudyPlan, records: &PairRecords) -> Result<Option<Self>, Fault> {
        let mut all: Vec<&Record> = Vec::new();
        for record in records.iter().flat_map(|(baseline, candidate)| [baseline, candidate]) {
            if all.iter().all(|r| r.id != record.id) {
                all.push(record);
            }
        }
        if study.ceilings().next().is_none() || all.is_empty() {
            return Ok(None);
        }
        let ceilings = all.iter().find_map(|r| match &r.outcome {
            Outcome::Timed(t) => Some(&t.measured.ceilings),
            Outcome::Void(_) => None,
        });
        let measured = ceilings.into_iter().flatten().filter(|c| c.arm.is_some());
        let arm = |r: &&Record| ArmFloor {
            arm: r.method.label.clone().unwrap_or_default(),
            record: r.id.clone(),
            prefill: PhaseFloor::of(r, false),
            decode: PhaseFloor::of(r, true),
        };
        Ok(Some(Self {
            ceilings: measured.map(CeilingRate::of).collect::<Result<_, Fault>>()?,
            arms: all.iter().map(arm).collect(),
        }))
    }

    /// The arm of `pair`.
    pub fn arm_of(&self, pair: &Pair) -> Option<&ArmFloor> {
        self.arms.iter().find(|a| a.record == pair.candidate.id)
    }
}

impl CeilingRate {
    fn of(c: &Ceiling) -> Result<Self, Fault> {
        let rates = c.rates();
        let samples = rates.as_ref().map_or(0, |r| r.len() as u32);
        let spread = match rates {
            Ok(rates) => Reading::Available(spread("ceilings", &rates)?),
            Err(why) => Reading::unavailable(why),
        };
        let per_s = |ns: f64| ns * 1e9;
        Ok(Self {
            arm: c.arm.clone().unwrap_or_default(),
            name: c.name.clone(),
            resource: c.resource,
            threads: c.threads,
            working_set_bytes: c.working_set_bytes,
            samples,
            median_per_s: spread.clone().map(|s| per_s(s.median)),
            min_per_s: spread.clone().map(|s| per_s(s.min)),
            max_per_s: spread.map(|s| per_s(s.max)),
        })
    }
}

impl PhaseFloor {
    /// Prefill or decode of a record.
    fn of(record: &Record, decode: bool) -> Self {
        let Outcome::Timed(t) = &record.outcome else { return Self::none("its gate failed") };
        let (demands, derived) = (&t.measured.demands, &t.derived);
        let prefill = Reading::Available(derived.prefill.clone());
        let (demand, phase, share) = match decode {
            true => (&demands.decode, &derived.decode, timed_share(&t.measured.samples.rounds)),
            false => (&demands.prefill, &prefill, 1.0),
        };
        match (demand, phase) {
            (Reading::Available(demand), Reading::Available(phase)) => {
                let per_s = |amount: u128| Reading::Available(amount as f64 * share * 1e9 / phase.ns.median);
                Self {
                    bytes_per_s: per_s(demand.bytes()),
                    flops_per_s: per_s(u128::from(demand.flops)),
                    percent_of_floor: phase.percent_of_floor.clone(),
                }
            }
            (Reading::Unavailable { why }, _) | (_, Reading::Unavailable { why }) => Self::none(why),
        }
    }

    fn none(why: &str) -> Self {
        let none = || Reading::unavailable(why);
        Self { bytes_per_s: none(), flops_per_s: none(), percent_of_floor: none() }
    }
}
