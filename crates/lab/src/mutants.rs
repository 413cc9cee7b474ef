//! The mutation gate as a study: every planted fault must be caught on the path that is timed.

use serde::Serialize;
use tare_engine::EngineError;
use tare_evidence::gate::Judgement;
use tare_formats::{Part, Role};

use crate::LabError;
use crate::clock;
use crate::gate::{Gate, Run};
use crate::mutation::{Mutant, Mutation, Planted};
use crate::reference::ReferenceStore;
use crate::rig::Rig;
use crate::thresholds::Thresholds;
use crate::work::ClockedRequest;

/// What became of one fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Its name; `none` is the control without a fault, which must pass.
    pub mutation: &'static str,
    /// Whether the fault changed anything that ran.
    pub planted: bool,
    /// Whether the gate failed.
    pub caught: bool,
    /// The checks that went over their limits, or [`ENGINE`].
    pub by: Vec<String>,
}

impl Verdict {
    /// Whether the gate did its work: the control passed, or a fault that was planted was caught.
    pub fn holds(&self) -> bool {
        if self.mutation == CONTROL { !self.caught } else { self.planted && self.caught }
    }
}

/// Name of the run without a fault.
pub const CONTROL: &str = "none";

/// What caught a fault that the engine itself refused to go on with.
pub const ENGINE: &str = "engine";

/// Runs `request` once without a fault and once with each, and judges each run as a timed one is judged.
///
/// `each` is called as soon as a verdict is known; false ends the study.
///
/// # Errors
/// When an engine cannot be made or fails for another reason than the planted fault, or `each` said no.
pub fn run(
    rig: &Rig<'_>,
    request: &ClockedRequest,
    store: &ReferenceStore,
    each: &mut dyn FnMut(&Verdict) -> bool,
) -> Result<Vec<Verdict>, LabError> {
    let mut verdicts = Vec::new();
    for mutation in std::iter::once(None).chain(Mutation::ALL.map(Some)) {
        let verdict = one(rig, request, store, mutation)?;
        let go_on = each(&verdict);
        verdicts.push(verdict);
        if !go_on {
            return Err(LabError::Interrupted);
        }
    }
    Ok(verdicts)
}

fn one(
    rig: &Rig<'_>,
    request: &ClockedRequest,
    store: &ReferenceStore,
    mutation: Option<Mutation>,
) -> Result<Verdict, LabError> {
    let (mut engine, planted) = match mutation {
        None => (rig.engine()?, None),
        Some(m) => {
            let last = rig.model.config().layers - 1;
            let spoiled = rig.model.weight(Role::Layer { layer: last, part: Part::Down })?.name().to_string();
            let backend = rig.backend()?;
            let (mutant, planted) = Mutant::new(backend, m, request.input().len() as u32, &spoiled);
            (rig.engine_on(Box::new(mutant))?, Some(planted))
        }
    };
    let name = mutation.map_or(CONTROL, Mutation::name);
    let was_planted = || planted.as_ref().is_none_or(Planted::get);
    let timed = match clock::clock(&mut engine, request) {
        Ok(timed) => timed,
        // In builds with debug assertions, slots that were never written hold no numbers: a fault that reads one ends
        // the run before there is a time. Elsewhere they hold zeros, and the gate sees the difference.
        Err(LabError::Engine(EngineError::Backend(_))) if mutation.is_some() && was_planted() => {
            return Ok(Verdict { mutation: name, planted: true, caught: true, by: vec![ENGINE.to_string()] });
        }
        Err(e) => return Err(e),
    };
    let thresholds = Thresholds::built_in()?;
    let gate = Gate { rig, requests: std::slice::from_ref(request), thresholds: &thresholds, store };
    let run = Run { label: "run", rows: &timed.tokens };
    let judgement = gate.judge(&mut engine, &[run])?.judge()?;
    let by = match &judgement {
        Judgement::Passed(_) => Vec::new(),
        Judgement::Failed(f) => {
            let mut names: Vec<String> = f.report().misses.iter().map(|m| m.check.clone()).collect();
            names.dedup();
            names
        }
    };
    Ok(Verdict { mutation: name, planted: was_planted(), caught: matches!(judgement, Judgement::Failed(_)), by })
}
