//! What a campaign needs of the world, as traits: the order of things, what is kept and what is lost are tested without
//! processes and without time.

use serde::{Deserialize, Serialize};
use tare_core::{Fault, Reading};
use tare_evidence::Utc;
use tare_probe::Quietness;

use crate::arm::process::Lost;
use crate::arm::protocol::Judged;
use crate::clock::Baton;
use crate::facts::ArmFacts;
use crate::floor::CeilingKind;

/// The world of a campaign.
pub trait Bench {
    /// A fresh process of the arm, loaded.
    ///
    /// # Errors
    /// When it cannot be started or loaded, or the campaign was told to stop.
    fn start(&mut self, arm: usize) -> Result<Box<dyn LiveArm>, Lost>;

    /// What else runs on the host now.
    fn quietness(&mut self) -> Quietness;

    /// A turn of the arm that measures this ceiling, on the threads of an arm of these facts.
    fn ceiling(&mut self, kind: CeilingKind, facts: &ArmFacts) -> CeilingPass;

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

/// A turn of a ceiling arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CeilingTurn {
    /// Label of the arm.
    pub arm: String,
    /// Its number in the round, from 0.
    pub turn: u32,
    /// What it measured.
    pub pass: CeilingPass,
}

/// Samples of one ceiling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CeilingPass {
    /// What it is.
    pub kind: CeilingKind,
    /// Threads that took part.
    pub threads: u32,
    /// Bytes that were walked over.
    pub working_set_bytes: u64,
    /// Kind of memory pages under them.
    pub pages: String,
    /// Amount and nanoseconds of every sample, or why there is none.
    pub samples: Reading<Vec<(u64, u64)>>,
}
