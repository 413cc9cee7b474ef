//! What a campaign needs of the world, as traits: the order of things, what is kept and what is lost are tested without
//! processes and without time.

use serde::{Deserialize, Serialize};
use tare_core::{Fault, Reading};
use tare_evidence::Utc;
use tare_evidence::floor::{Ceiling, Resource};
use tare_probe::Quietness;

use crate::arm::process::Lost;
use crate::arm::protocol::Judged;
use crate::clock::Baton;
use crate::facts::ArmFacts;

/// The world of a campaign.
pub trait Bench {
    /// A fresh process of the arm, loaded.
    ///
    /// # Errors
    /// When it cannot be started or loaded, or the campaign was told to stop.
    fn start(&mut self, arm: usize) -> Result<Box<dyn LiveArm>, Lost>;

    /// What else runs on the host now.
    fn quietness(&mut self) -> Quietness;

    /// Samples of the ceilings that bound an arm of these facts.
    fn ceilings(&mut self, facts: &ArmFacts) -> Vec<CeilingPass>;

    /// What is no longer as it was when the campaign began: a binary or a model file.
    fn changed(&mut self) -> Option<String>;

    /// The time of day.
    ///
    /// # Errors
    /// When the host's clock is out of range.
    fn now(&mut self) -> Result<Utc, Fault>;
}

/// A live arm process. Dropping it ends the process.
pub trait LiveArm {
    /// What it said about itself when it was loaded.
    fn facts(&self) -> &ArmFacts;

    /// An untimed request that draws `tokens`.
    ///
    /// # Errors
    /// When the process is lost, refuses, or the campaign was told to stop; so for all that follow.
    fn warm_up(&mut self, tokens: usize) -> Result<(), Lost>;

    /// The timed request's prompt and first token.
    ///
    /// # Errors
    /// As [`LiveArm::warm_up`].
    fn prefill(&mut self) -> Result<(), Lost>;

    /// More of its tokens.
    ///
    /// # Errors
    /// As [`LiveArm::warm_up`].
    fn decode(&mut self, tokens: usize, baton: Baton) -> Result<(), Lost>;

    /// Its end.
    ///
    /// # Errors
    /// As [`LiveArm::warm_up`].
    fn finish(&mut self) -> Result<(), Lost>;

    /// No thread of it keeps a processor busy after this.
    ///
    /// # Errors
    /// As [`LiveArm::warm_up`].
    fn rest(&mut self) -> Result<(), Lost>;

    /// The gate, and what it lets out.
    ///
    /// # Errors
    /// As [`LiveArm::warm_up`].
    fn judge(&mut self, full: bool) -> Result<Judged, Lost>;
}

/// One ceiling, sampled inside a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CeilingPass {
    /// Its name, to which demands refer.
    pub name: String,
    /// What is counted.
    pub resource: Resource,
    /// Threads that took part.
    pub threads: u32,
    /// Bytes that were walked over.
    pub working_set_bytes: u64,
    /// Kind of memory pages under them.
    pub pages: String,
    /// Amount and nanoseconds of every sample, or why there is none.
    pub samples: Reading<Vec<(u64, u64)>>,
}

impl From<Ceiling> for CeilingPass {
    fn from(c: Ceiling) -> Self {
        let samples = c.samples.map(|all| all.into_iter().map(|s| (s.amount, s.ns)).collect());
        Self {
            name: c.name,
            resource: c.resource,
            threads: c.threads,
            working_set_bytes: c.working_set_bytes,
            pages: c.pages,
            samples,
        }
    }
}
