//! Operator by operator: what each launch of the timed path leaves, against what its calls give exactly.
//!
//! A class in any order differs from its reference by the noise of every rounding in every layer, and a small fault in one
//! launch is lost in it. So the timed request runs once more with some of its steps taken apart: the same executables,
//! launch by launch, each followed by a look at the rows it left and at the cache. The judge has the plan, the rows and
//! weights of its own, and computes each call on the device's own inputs: a fault is held against the rounding of the one
//! launch in which it was made. That the steps taken apart are the timed ones follows from their answers, which must be
//! the same to the bit.

mod cached;
mod exactly;
mod taken;
mod walk;

use tare_engine::Engine;
use tare_ops::exact::Bounds;
use tare_ops::reference::select::selected;
use tare_ops::{ForwardPlan, Row, TokenSource, Variant};

use crate::LabError;
use crate::gate::{Finding, Run};
use crate::rig::Rig;
use crate::work::ClockedRequest;
use exactly::Exactly;
use taken::{Taken, take};
use walk::Walk;

pub(crate) use taken::{TakenStep, take_apart};

/// What was found: an error is a share of the limit of the value that is furthest from its own.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Values that were compared.
    pub(crate) compared: u64,
    /// One for each row that a call left, and for each fact that must hold.
    pub(crate) all: Vec<Finding>,
}

impl Findings {
    /// Adds a fact that holds or not.
    fn hold(&mut self, holds: bool, at: String, expected: impl Into<String>, found: impl Into<String>) {
        let error = if holds { 0.0 } else { f64::INFINITY };
        self.compared += 1;
        self.all.push(Finding { at, error, expected: expected.into(), found: found.into() });
    }
}

/// Runs `requests` on `engine` with steps taken apart, and judges them; `run` is what their timed run emitted.
///
/// # Errors
/// When the engine fails, or the judge lacks a weight or a limit. A step that fails when it is taken apart is a finding,
/// and so is a backend that does not take steps apart.
pub(crate) fn judge(
    rig: &Rig<'_>,
    requests: &[ClockedRequest],
    engine: &mut Engine,
    run: &Run<'_>,
) -> Result<Findings, LabError> {
    let mut findings = Findings::default();
    let taken = take(engine, requests)?;
    let whole = |(n, request): (usize, &ClockedRequest)| [request.input(), run.ids(n).to_vec()].concat();
    let sequences: Vec<Vec<u32>> = requests.iter().enumerate().map(whole).collect();
    let mut exactly = Exactly::new(rig, engine.variants());
    for step in &taken.steps {
        let places = Places { step, sequences: &sequences };
        same_rows(places, &mut findings);
        let plan = &engine.resolved()[step.plan].plan;
        Walk::new(plan, places, &mut exactly, &mut findings).all()?;
    }
    if let Some(e) = &taken.failed {
        let steps = taken.drawn.len() / requests.len().max(1);
        let at = format!("the step after {steps} tokens of the run taken apart");
        findings.hold(false, at, "the answers of the timed one", e.to_string());
    }
    same_answers(run, &taken, &mut findings);
    Ok(findings)
}

/// What call `call` of `plan` gives, row by row, on what the launches before it left in `step` and in its cache: known where
/// its kernel, one of `variants`, keeps the reference's order, else within the limits of that kernel. `sequences` have the
/// tokens of each table by their slots.
///
/// # Errors
/// When the model of the rig lacks a weight, `variants` lack the kernel, or the call has no limit.
pub(crate) fn alone(
    (rig, variants): (&Rig<'_>, &[Variant]),
    (plan, call): (&ForwardPlan, usize),
    step: &TakenStep,
    sequences: &[Vec<u32>],
) -> Result<Vec<Bounds>, LabError> {
    let (mut exactly, mut findings) = (Exactly::new(rig, variants), Findings::default());
    Walk::new(plan, Places { step, sequences }, &mut exactly, &mut findings).alone(call)
}

/// A step and the sequences whose rows it has.
#[derive(Clone, Copy)]
struct Places<'a> {
    step: &'a taken::TakenStep,
    /// Input and tokens of each sequence.
    sequences: &'a [Vec<u32>],
}

impl Places<'_> {
    /// The token that belongs into a row, by its table and its slot.
    fn token(&self, row: &Row) -> Option<u32> {
        let sequence = self.step.sequences.get(row.table as usize).and_then(|n| self.sequences.get(*n))?;
        sequence.get(row.slot as usize).copied()
    }
}

/// The run with steps taken apart drew the timed tokens, with their logits to the bit.
fn same_answers(run: &Run<'_>, taken: &Taken, findings: &mut Findings) {
    let sequences = run.rows.len().max(1);
    let of = |n| taken.drawn.iter().skip(n).step_by(sequences).collect::<Vec<_>>();
    for n in 0..sequences {
        let (ids, logits, apart) = (run.ids(n), run.logits(n), of(n));
        let which = if sequences > 1 { format!(" of sequence {n}") } else { String::new() };
        for i in 0..ids.len().max(apart.len()) {
            let timed = ids.get(i).zip(logits.get(i)).map(|(id, logit)| (*id, *logit));
            let apart = apart.get(i).map(|t| (t.id, t.logit.unwrap_or(f32::NAN)));
            let same = match (timed, apart) {
                (Some(a), Some(b)) => (a.0, a.1.to_bits()) == (b.0, b.1.to_bits()),
                (a, b) => a.is_none() && b.is_none(),
            };
            let shown =
                |x: Option<(u32, f32)>| x.map_or("none".into(), |(id, logit)| format!("id {id} with logit {logit}"));
            findings.hold(same, format!("token {i}{which} of the run taken apart"), shown(timed), shown(apart));
        }
    }
}

/// Every row of the step is the token of its place, turned to it, stored in it, and sees what is before it.
fn same_rows(places: Places<'_>, findings: &mut Findings) {
    let step = places.step;
    for (t, row) in step.batch.rows.iter().enumerate() {
        let token = places.token(row).map(TokenSource::Id);
        let holds = Some(row.token) == token && row.position == row.slot && row.context == row.slot + 1;
        let expected = format!("{token:?} at position {} that sees {} tokens", row.slot, row.slot + 1);
        let found = format!("{:?} at position {} that sees {}", row.token, row.position, row.context);
        findings.hold(holds, format!("{}, row {t}", step.at), expected, found);
    }
    let (asked, given) = (selected(&step.batch.rows).count(), step.answers.len());
    findings.hold(asked == given, format!("{}, answers", step.at), asked.to_string(), given.to_string());
}
