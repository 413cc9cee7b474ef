//! One real step of the engine, held still: it can be run again and taken apart.
//!
//! The engine runs a request up to the step; the executable, the rows and the cache are those that it used. Running the
//! step again writes the same keys and values to the same slots and gives the same answer, which is checked.

use serde::{Deserialize, Serialize};
use std::fmt;
use tare_core::Fault;
use tare_cpu::CpuBackend;
use tare_engine::{Engine, Event, Request};
use tare_model::planner::Target;
use tare_model::{PackedModel, resolve};
use tare_ops::{Backend, Batch, Executable, ForwardPlan, RowOutput, StepOutput};

use crate::LabError;
use crate::floor::StepRows;
use crate::rig::Rig;
use crate::sequences::run_and_retain;
use crate::shared::Shared;
use crate::tap::{Seen, Tap};
use crate::work::ClockedRequest;

/// The two kinds of steps of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The step that ends in the first token.
    Prefill,
    /// The step after it.
    Decode,
}

impl Phase {
    /// `prefill` or `decode`.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A step, and everything it needs to run again.
#[derive(Debug)]
pub struct Specimen<B = CpuBackend> {
    /// What the engine ran.
    pub exe: Executable,
    /// What it was compiled from.
    pub plan: ForwardPlan,
    /// Its rows.
    pub batch: Batch,
    /// What it gave.
    answer: Vec<RowOutput>,
    tap: Tap<B>,
    /// Owns the cache that the rows' tables point to.
    _engine: Engine,
}

/// Tokens that the request may still draw after the step, so that the engine keeps its cache.
const TO_COME: usize = 2;

impl Specimen<CpuBackend> {
    /// Runs `request` on an engine of `rig`, on the processor, up to the step of `phase`.
    ///
    /// # Errors
    /// As [`Specimen::of`], or when `rig` runs elsewhere.
    pub fn take(rig: &Rig<'_>, request: &ClockedRequest, phase: Phase) -> Result<Self, LabError> {
        Self::of(rig.tap()?, rig, request, phase)
    }
}

impl<B: Shared + 'static> Specimen<B> {
    /// Runs `request` on an engine of `rig` that has the backend of `tap`, up to the step of `phase`: its prefix and prompt
    /// really go through.
    ///
    /// # Errors
    /// When the engine refuses or fails, or ends before the step.
    pub fn of(tap: Tap<B>, rig: &Rig<'_>, request: &ClockedRequest, phase: Phase) -> Result<Self, LabError> {
        let mut engine = rig.engine_on(Box::new(tap.clone()))?;
        let resume = match request.prefix.is_empty() {
            true => None,
            false => run_and_retain(&mut engine, request.prefix.clone(), 0)?,
        };
        engine.submit(Request { resume, ..Request::greedy(request.input(), TO_COME + 1) })?;
        let wanted = match phase {
            Phase::Prefill => 1,
            Phase::Decode => 2,
        };
        let mut drawn = 0;
        while engine.has_work() {
            tap.watch()?;
            let report = engine.step()?;
            drawn += report.events.iter().filter(|e| matches!(e, Event::Token { .. })).count();
            match tap.seen() {
                Some(Seen { exe, plan, batch, answer }) if drawn == wanted => {
                    return Ok(Self { exe, plan, batch, answer, tap, _engine: engine });
                }
                _ => {}
            }
        }
        Err(LabError::Request(format!("ended before its {phase} step")))
    }

    /// The backend of the engine.
    pub fn tap(&self) -> &Tap<B> {
        &self.tap
    }

    /// The rows, as costs are counted for them.
    pub fn rows(&self) -> StepRows {
        let first_slot = self.batch.rows.first().map_or(0, |r| r.slot as usize);
        StepRows { all: self.batch.rows.len(), selected: self.batch.selected(), first_slot }
    }

    /// Bytes of all weights of the plan.
    pub fn weight_bytes(&self) -> u64 {
        self.plan.weights.iter().map(|w| w.bytes as u64).sum()
    }

    /// Runs `exe` once on the rows of the step.
    ///
    /// # Errors
    /// When the backend fails.
    pub fn run(&self, exe: Executable, out: &mut StepOutput) -> Result<(), LabError> {
        Ok(self.tap.with(|backend| backend.run(exe, &self.batch, out))?)
    }

    /// Runs `exe` as the whole step and compares its answer with the engine's, bit for bit.
    ///
    /// # Errors
    /// When it differs: what was taken apart is then not what the engine runs.
    pub fn confirm(&self, exe: Executable) -> Result<(), LabError> {
        let mut out = StepOutput::default();
        self.run(exe, &mut out)?;
        if out.rows == self.answer {
            return Ok(());
        }
        let say = |rows: &[RowOutput]| rows.iter().map(|r| format!("{} ({})", r.token, r.logit)).collect::<Vec<_>>();
        let at = "the step that was run again";
        Err(Fault::new(at, say(&self.answer).join(", "), say(&out.rows).join(", ")).into())
    }

    /// The step on weights of its own: the same plan on a copy of every weight, on the same cache.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn copy(&self, rig: &Rig<'_>) -> Result<Executable, LabError> {
        let mut tap = self.tap.copying();
        let packed = PackedModel::pack(rig.model, &mut tap)?;
        let target = Target { class: rig.class, bucket: self.plan.bucket, context: rig.context };
        Ok(tap.compile(&resolve(&rig.plan, &packed, &tap, target)?.plan)?)
    }
}
