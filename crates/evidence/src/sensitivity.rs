//! What a delay in one group of operators does to the request: how much of a group's time can be won back.

use crate::check;
use crate::document::{Body, Document, Kind};
use crate::record::About;
use crate::replay::ReplayedStep;
use crate::schema::ReadingShape;
use crate::shelf::Shelf;
use crate::stats::{self, Interval};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tare_core::{Fault, Reading};

/// Seed of the sign patterns that are drawn where there are too many to enumerate.
const SEED: u64 = 0;

/// What was delayed and measured, and what follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sensitivity {
    /// What was delayed and measured.
    pub measured: SensitivityMeasured,
    /// What follows from it.
    pub derived: SensitivityFigures,
}

/// What was delayed and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SensitivityMeasured {
    /// The step whose group was delayed.
    pub step: ReplayedStep,
    /// Name of the group, as a replay names it.
    pub group: String,
    /// Id of the replay that gave the group its time.
    pub replay: String,
    /// Pairs of the same work with and without the delay.
    pub samples: Vec<DelaySample>,
    /// Level of significance of the interval.
    pub alpha: f64,
}

/// The same work with and without a delay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DelaySample {
    /// Number of the round, from 0; each round has every delay once.
    pub round: u32,
    /// How much longer each call of the group took, in percent of its time.
    pub percent: f64,
    /// The delay that was injected over the whole work, in nanoseconds.
    pub injected_ns: u64,
    /// Time with the delay, in nanoseconds.
    pub with_ns: u64,
    /// Time without it, in nanoseconds.
    pub without_ns: u64,
}

/// Every figure of a sensitivity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SensitivityFigures {
    /// d(request) / d(group) in each round: least squares through 0 over its delays.
    pub slopes: Vec<f64>,
    /// Their mean: 1 where each nanosecond of the group is one of the request.
    pub slope: f64,
    /// Its interval, of level `1 - alpha`.
    #[schemars(with = "ReadingShape<Interval>")]
    pub interval: Reading<Interval>,
}

impl Sensitivity {
    /// A sensitivity with its figures.
    ///
    /// # Errors
    /// When a round has no delay.
    pub fn of(measured: SensitivityMeasured) -> Result<Self, Fault> {
        let derived = figures(&measured)?;
        Ok(Self { measured, derived })
    }
}

fn figures(measured: &SensitivityMeasured) -> Result<SensitivityFigures, Fault> {
    let mut rounds = BTreeMap::<u32, (f64, f64)>::new();
    for s in &measured.samples {
        let (x, y) = (s.injected_ns as f64, s.with_ns as f64 - s.without_ns as f64);
        let (xy, xx) = rounds.entry(s.round).or_default();
        *xy += x * y;
        *xx += x * x;
    }
    if rounds.is_empty() || rounds.values().any(|(_, xx)| *xx <= 0.0) {
        return Err(Fault::new("samples", "rounds with a delay above 0 in each", "none"));
    }
    let slopes: Vec<f64> = rounds.values().map(|(xy, xx)| xy / xx).collect();
    Ok(SensitivityFigures {
        slope: slopes.iter().sum::<f64>() / slopes.len() as f64,
        interval: stats::interval(&slopes, measured.alpha, SEED).into(),
        slopes,
    })
}

impl Body for Sensitivity {
    const KIND: Kind = Kind::Sensitivity;

    fn faults(&self, _about: &About) -> Vec<Fault> {
        let m = &self.measured;
        let mut faults = Vec::new();
        if m.samples.iter().any(|s| s.with_ns == 0 || s.without_ns == 0 || !s.percent.is_finite() || s.percent <= 0.0) {
            faults.push(Fault::new("samples", "times and delays above 0", "0"));
        }
        let delays = |round: u32| {
            let mut delays: Vec<u64> =
                m.samples.iter().filter(|s| s.round == round).map(|s| s.percent.to_bits()).collect();
            delays.sort_unstable();
            delays
        };
        let rounds = m.samples.iter().map(|s| s.round + 1).max().unwrap_or(0);
        if let Some(round) = (1..rounds).find(|&r| delays(r) != delays(0)) {
            faults.push(Fault::new("samples", "the delays of round 0 in every round", format!("others in {round}")));
        }
        if !(m.alpha > 0.0 && m.alpha < 1.0) {
            faults.push(Fault::new("alpha", "a level between 0 and 1", m.alpha.to_string()));
        }
        check::follows("derived", figures(m), &self.derived, &mut faults);
        faults
    }

    fn faults_in(document: &Document<Self>, shelf: &Shelf) -> Vec<Fault> {
        let m = &document.body.measured;
        let replay = match shelf.document::<crate::replay::Replay>("replay", &m.replay) {
            Ok(replay) => replay.body.measured,
            Err(fault) => return vec![fault],
        };
        if replay.groups.iter().any(|g| g.name == m.group) {
            return Vec::new();
        }
        let names: Vec<&str> = replay.groups.iter().map(|g| g.name.as_str()).collect();
        vec![Fault::new("group", format!("one of {names:?}, as the replay has them"), format!("`{}`", m.group))]
    }
}
