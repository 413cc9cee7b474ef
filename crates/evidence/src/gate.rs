//! The verdict on correctness that comes before any time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tare_core::Fault;

/// What the gate looked at and what it found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateReport {
    /// Version of the thresholds file.
    pub thresholds_version: String,
    /// Every check that ran.
    pub checks: Vec<Check>,
    /// Every single finding against the arm.
    pub misses: Vec<Miss>,
}

/// One check: the largest error seen against the largest allowed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Its name in the thresholds file.
    pub name: String,
    /// How many values were compared.
    pub compared: u64,
    /// The largest error among them, in the unit of `limit`.
    pub max_error: f64,
    /// The largest error that passes.
    pub limit: f64,
}

/// One finding against the arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Miss {
    /// Name of the check.
    pub check: String,
    /// Where: round, row, position, layer, as far as they are known.
    pub at: String,
    /// What would have passed.
    pub expected: String,
    /// What was there.
    pub found: String,
}

/// A gate that found nothing against the arm. Only [`GateReport::judge`] makes one, and only it unlocks timings.
#[derive(Clone, Debug, PartialEq)]
pub struct PassedGate(GateReport);

/// A gate with at least one miss.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedGate(GateReport);

/// The verdict of a gate.
#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    /// Timings may be kept.
    Passed(PassedGate),
    /// Timings must not be kept.
    Failed(FailedGate),
}

impl GateReport {
    /// The verdict: passed when there is no miss and no check went over its limit. A check over its limit that has no
    /// miss of its own is given one.
    ///
    /// # Errors
    /// When nothing was checked, or an error or a limit is not a finite number: such a report proves nothing.
    pub fn judge(mut self) -> Result<Judgement, Fault> {
        if self.checks.is_empty() {
            return Err(Fault::new("gate.checks", "at least one check", "none"));
        }
        for check in &self.checks {
            if check.compared == 0 || !check.max_error.is_finite() || !check.limit.is_finite() {
                let found = format!("compared {}, error {}, limit {}", check.compared, check.max_error, check.limit);
                return Err(Fault::new(
                    format!("gate.checks: {}", check.name),
                    "finite numbers over some values",
                    found,
                )
                .remedy("an output that is not a number is a miss: record the largest finite error beside it"));
            }
            if check.max_error > check.limit && !self.misses.iter().any(|m| m.check == check.name) {
                self.misses.push(Miss {
                    check: check.name.clone(),
                    at: "largest error".into(),
                    expected: format!("at most {}", check.limit),
                    found: check.max_error.to_string(),
                });
            }
        }
        let failed = !self.misses.is_empty();
        Ok(if failed { Judgement::Failed(FailedGate(self)) } else { Judgement::Passed(PassedGate(self)) })
    }
}

impl PassedGate {
    /// What was checked.
    pub fn report(&self) -> &GateReport {
        &self.0
    }
}

impl FailedGate {
    /// What was checked, with at least one miss.
    pub fn report(&self) -> &GateReport {
        &self.0
    }
}

/// The written form of a gate.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GateShape {
    /// Whether `misses` is empty.
    pub(crate) passed: bool,
    /// Version of the thresholds file.
    thresholds_version: String,
    /// Every check that ran.
    checks: Vec<Check>,
    /// Every single finding against the arm.
    misses: Vec<Miss>,
}

impl From<&GateReport> for GateShape {
    fn from(r: &GateReport) -> Self {
        let GateReport { thresholds_version, checks, misses } = r.clone();
        Self { passed: misses.is_empty(), thresholds_version, checks, misses }
    }
}

impl TryFrom<GateShape> for Judgement {
    type Error = Fault;
    fn try_from(shape: GateShape) -> Result<Self, Fault> {
        let GateShape { passed, thresholds_version, checks, misses } = shape;
        let written = misses.len();
        let judgement = GateReport { thresholds_version, checks, misses }.judge()?;
        let (judged, misses) = match &judgement {
            Judgement::Passed(g) => (true, g.0.misses.len()),
            Judgement::Failed(g) => (false, g.0.misses.len()),
        };
        if misses != written {
            return Err(Fault::new(
                "gate.misses",
                "a miss for every check over its limit",
                format!("{written} misses"),
            ));
        }
        if judged != passed {
            return Err(Fault::new(
                "gate.passed",
                format!("{judged}, as its checks and misses say"),
                passed.to_string(),
            ));
        }
        Ok(judgement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(max_error: f64) -> GateReport {
        let check = Check { name: "logits".into(), compared: 9, max_error, limit: 0.3 };
        GateReport { thresholds_version: "1".into(), checks: vec![check], misses: vec![] }
    }

    #[test]
    fn an_error_over_the_limit_is_a_miss() {
        assert!(matches!(report(0.3).judge().unwrap(), Judgement::Passed(_)));
        let Judgement::Failed(gate) = report(0.31).judge().unwrap() else { panic!("0.31 is over 0.3") };
        assert_eq!(gate.report().misses[0].check, "logits");
    }

    #[test]
    fn a_gate_that_compared_nothing_proves_nothing() {
        assert!(GateReport { checks: vec![], ..report(0.0) }.judge().is_err());
        assert!(report(f64::NAN).judge().is_err());
        let mut none = report(0.0);
        none.checks[0].compared = 0;
        assert!(none.judge().is_err());
    }
}
