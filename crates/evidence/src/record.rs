//! The record: one arm of one campaign, written once.

use crate::canonical;
use crate::derive::{Derived, derive};
use crate::floor::{Ceiling, Demands};
use crate::gate::{FailedGate, GateReport, GateShape, Judgement, PassedGate};
use crate::identity::{Arm, Work};
use crate::provenance::{Provenance, check_folder_name};
use crate::samples::{Emitted, RoundShape, Samples, TimedRound};
use crate::schema::ReadingShape;
use crate::state::State;
use crate::utc::Utc;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use tare_core::{Fault, Reading};

/// Version of the written form. A change that an old reader would misread raises it.
///
/// Version 2 adds fields that may be left out: `timing.untimed`, `arm.settings`, `arm.delay`, `method.label`, `arm` of a
/// ceiling and `turn` of its samples, `memory.peak_rss_bytes`, `startup`; and rows of a peer may have no logits.
pub const SCHEMA_VERSION: u32 = 2;

/// The versions that are read.
pub(crate) const READ_VERSIONS: [u32; 2] = [1, SCHEMA_VERSION];

/// One arm of one campaign: what was asked, done, checked and timed, and what follows from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Version of the schema that the record was written to.
    pub schema_version: u32,
    /// Moment of creation and the first 16 digits of the canonical digest of everything else in the record.
    pub id: String,
    /// Why it was made.
    pub about: About,
    /// What was computed.
    pub work: Work,
    /// Canonical digest of `work`.
    pub work_sha256: String,
    /// How it was computed.
    pub arm: Arm,
    /// Canonical digest of `arm`.
    pub arm_sha256: String,
    /// On what, by what, from what.
    pub provenance: Provenance,
    /// The resolved plan.
    pub plan: ResolvedPlan,
    /// How times were taken.
    pub method: Method,
    /// Where memory went.
    pub memory: Memory,
    /// State at the time of writing; later states are amendments beside the record.
    pub state: State,
    /// Gate and samples, and, when the gate passed, ceilings, demands and figures.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Why a record was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// What the record may be used for.
    pub role: Role,
    /// Folder name of the study.
    pub study: String,
    /// The interleaved campaign: times are compared within one only.
    pub campaign: String,
    /// When it was written.
    pub created_at: Utc,
    /// One line for a person.
    pub title: String,
    /// The question that the study asks.
    pub question: String,
    /// Anything else worth knowing.
    pub notes: Vec<String>,
}

/// What a record may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// To choose between candidates.
    Tuning,
    /// To confirm a choice on work that took no part in it.
    HeldOut,
    /// To understand; never to decide.
    Diagnostic,
    /// To decide what is worth measuring well.
    Screening,
}

/// A plan as data, with its digest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolvedPlan {
    /// What the planner resolved: the calls of the widest bucket, each bound to its kernel, and for every bucket the
    /// digest of its plan and its kernels with the number of their calls.
    pub resolved: Value,
    /// Canonical digest of `resolved`.
    pub sha256: String,
}

/// How times were taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Method {
    /// What the clocks include.
    pub timing_contract: TimingContract,
    /// Scheme of the order, such as `solo`, `abba` or `duet`.
    pub scheme: String,
    /// Labels of the arms as they ran, `[rounds][arms]`.
    pub order: Vec<Vec<String>>,
    /// Rounds that were planned before the first sample.
    pub planned_rounds: u32,
    /// Number of the attempt at this campaign, from 1.
    pub attempt: u32,
    /// What this arm is called in `order`; left out when the order has one name alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// Three clocks and what each includes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimingContract {
    /// Work on the device.
    #[schemars(with = "ReadingShape<Clock>")]
    pub device: Reading<Clock>,
    /// One request, from cache set-up to the last id on the host, release included.
    #[schemars(with = "ReadingShape<Clock>")]
    pub request: Reading<Clock>,
    /// The process.
    #[schemars(with = "ReadingShape<Clock>")]
    pub wall: Reading<Clock>,
}

/// A clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// Where its ticks come from.
    pub source: String,
    /// What happens while it runs.
    pub inside: Vec<String>,
    /// What happens while it stands still.
    pub outside: Vec<String>,
}

/// Where memory went, in bytes: peaks where they are counted, resident memory as it was after the last round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Peak of the allocator during the request.
    #[schemars(with = "ReadingShape<u64>")]
    pub allocator_peak_bytes: Reading<u64>,
    /// Resident memory without a file behind it, after the last round.
    #[schemars(with = "ReadingShape<u64>")]
    pub anonymous_rss_bytes: Reading<u64>,
    /// Resident memory of mapped files, after the last round.
    #[schemars(with = "ReadingShape<u64>")]
    pub file_rss_bytes: Reading<u64>,
    /// Memory of the device.
    #[schemars(with = "ReadingShape<u64>")]
    pub device_bytes: Reading<u64>,
    /// KV cache at its fullest.
    #[schemars(with = "ReadingShape<u64>")]
    pub kv_bytes: Reading<u64>,
    /// The most that was resident at once of the process that ran the rounds, from its start to the end of the last of them:
    /// loading is part of it, the judge, which comes after, is not. Left out of records that are older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ReadingShape<u64>>")]
    pub peak_rss_bytes: Option<Reading<u64>>,
}

/// What came of it. Times exist only behind a passed gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "OutcomeShape", into = "OutcomeShape")]
pub enum Outcome {
    /// The gate passed.
    Timed(Box<Timed>),
    /// The gate failed: what was emitted is kept, times are not.
    Void(Box<Void>),
}

/// What is kept behind a passed gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// The gate.
    pub gate: PassedGate,
    /// What was measured.
    pub measured: Measured,
    /// What follows from it.
    pub derived: Derived,
}

/// What is kept behind a failed gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Void {
    /// The gate.
    pub gate: FailedGate,
    /// What was emitted.
    pub samples: Samples<Emitted>,
}

/// What a campaign measured of one arm.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The rounds.
    pub samples: Samples<TimedRound>,
    /// The ceilings of the host.
    pub ceilings: Vec<Ceiling>,
    /// Bytes and flops of one round.
    pub demands: Demands,
    /// How long the process took until it answered; none of an arm that answers in several processes.
    pub startup: Option<Startup>,
}

/// From the moment at which the system started the process, which then loaded the model and answered one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Startup {
    /// Until weights were packed, a plan was compiled and the first request could be handed over, in nanoseconds.
    #[schemars(with = "ReadingShape<u64>")]
    pub ready_ns: Reading<u64>,
    /// Until the first token of the first request, which was no timed round, was on the host, in nanoseconds.
    #[schemars(with = "ReadingShape<u64>")]
    pub first_token_ns: Reading<u64>,
}

/// What a writer has to say; [`Record::seal`] adds what follows from it.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Why it was made.
    pub about: About,
    /// What was computed.
    pub work: Work,
    /// How it was computed.
    pub arm: Arm,
    /// On what, by what, from what.
    pub provenance: Provenance,
    /// What the planner resolved.
    pub plan: Value,
    /// How times were taken.
    pub method: Method,
    /// Where memory went.
    pub memory: Memory,
    /// The verdict of the gate.
    pub gate: Judgement,
    /// What was measured; its times are dropped when the gate failed.
    pub measured: Measured,
}

impl Record {
    /// A complete record: digests, figures and id are computed, and everything that [`Record::faults`] looks at holds.
    ///
    /// # Errors
    /// The first thing that does not fit together.
    pub fn seal(draft: Draft) -> Result<Self, Fault> {
        let Draft { about, work, arm, provenance, plan, method, memory, gate, measured } = draft;
        check_folder_name("about.study", &about.study)?;
        check_folder_name("provenance.host.name", &provenance.host.name)?;
        let outcome = match gate {
            Judgement::Passed(gate) => {
                let derived = derive(&work, &measured.samples, &measured.ceilings, &measured.demands)?;
                Outcome::Timed(Box::new(Timed { gate, measured, derived }))
            }
            Judgement::Failed(gate) => {
                Outcome::Void(Box::new(Void { gate, samples: measured.samples.without_times() }))
            }
        };
        let mut record = Self {
            schema_version: SCHEMA_VERSION,
            id: String::new(),
            about,
            work_sha256: canonical::digest_of(&work)?,
            work,
            arm_sha256: canonical::digest_of(&arm)?,
            arm,
            provenance,
            plan: ResolvedPlan { sha256: canonical::digest(&plan), resolved: plan },
            method,
            memory,
            state: State::Valid,
            outcome,
        };
        record.id = record_id(record.about.created_at, &canonical::value_of(&record)?);
        match record.faults()?.into_iter().next() {
            None => Ok(record),
            Some(fault) => Err(fault),
        }
    }

    /// Whether the gate passed.
    pub fn passed(&self) -> bool {
        matches!(self.outcome, Outcome::Timed(_))
    }

    /// What the gate looked at and what it found.
    pub fn gate(&self) -> &GateReport {
        match &self.outcome {
            Outcome::Timed(t) => t.gate.report(),
            Outcome::Void(v) => v.gate.report(),
        }
    }

    /// The figures, when the gate passed.
    pub fn derived(&self) -> Option<&Derived> {
        match &self.outcome {
            Outcome::Timed(t) => Some(&t.derived),
            Outcome::Void(_) => None,
        }
    }
}

/// The id of a record created at `at` whose JSON is `record`; the `id` in it does not count.
pub(crate) fn record_id(at: Utc, record: &Value) -> String {
    let mut rest = record.clone();
    if let Value::Object(map) = &mut rest {
        map.remove("id");
    }
    format!("{}-{}", at.compact(), &canonical::digest(&rest)[..16])
}

/// The written form of an [`Outcome`], flat in the record.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OutcomeShape {
    /// The verdict on correctness.
    gate: GateShape,
    /// The raw logs.
    samples: Samples<RoundShape>,
    /// The ceilings of the host; absent exactly when the gate failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ceilings: Option<Vec<Ceiling>>,
    /// Bytes and flops of one round; absent exactly when the gate failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    demands: Option<Demands>,
    /// How long the process took until it answered; absent when the gate failed, of arms of campaigns and of older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    startup: Option<Startup>,
    /// What follows from the samples; absent exactly when the gate failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    derived: Option<Derived>,
}

impl JsonSchema for Outcome {
    fn schema_name() -> Cow<'static, str> {
        "Outcome".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        OutcomeShape::json_schema(generator)
    }
}

impl From<Outcome> for OutcomeShape {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Timed(timed) => {
                let Timed { gate, measured: Measured { samples, ceilings, demands, startup }, derived } = *timed;
                let rounds = samples.rounds.into_iter().map(Into::into).collect();
                Self {
                    gate: gate.report().into(),
                    samples: Samples { warmups: samples.warmups, rounds },
                    ceilings: Some(ceilings),
                    demands: Some(demands),
                    startup,
                    derived: Some(derived),
                }
            }
            Outcome::Void(void) => {
                let Void { gate, samples } = *void;
                let rounds = samples.rounds.into_iter().map(Into::into).collect();
                let samples = Samples { warmups: samples.warmups, rounds };
                Self {
                    gate: gate.report().into(),
                    samples,
                    ceilings: None,
                    demands: None,
                    startup: None,
                    derived: None,
                }
            }
        }
    }
}

impl TryFrom<OutcomeShape> for Outcome {
    type Error = Fault;
    fn try_from(shape: OutcomeShape) -> Result<Self, Fault> {
        let OutcomeShape { gate, samples, ceilings, demands, startup, derived } = shape;
        let Samples { warmups, rounds } = samples;
        match Judgement::try_from(gate)? {
            Judgement::Passed(gate) => {
                let absent = |what: &str| Fault::new(what, "a value: the gate passed", "none");
                let measured = Measured {
                    samples: Samples { warmups, rounds: convert(rounds)? },
                    ceilings: ceilings.ok_or_else(|| absent("ceilings"))?,
                    demands: demands.ok_or_else(|| absent("demands"))?,
                    startup,
                };
                let derived = derived.ok_or_else(|| absent("derived"))?;
                Ok(Self::Timed(Box::new(Timed { gate, measured, derived })))
            }
            Judgement::Failed(gate) => {
                if ceilings.is_some() || demands.is_some() || startup.is_some() || derived.is_some() {
                    return Err(Fault::new(
                        "ceilings, demands, startup, derived",
                        "nothing: the gate failed",
                        "a value",
                    ));
                }
                let samples = Samples { warmups, rounds: convert(rounds)? };
                Ok(Self::Void(Box::new(Void { gate, samples })))
            }
        }
    }
}

fn convert<R: TryFrom<RoundShape, Error = Fault>>(rounds: Vec<RoundShape>) -> Result<Vec<R>, Fault> {
    rounds.into_iter().map(R::try_from).collect()
}
