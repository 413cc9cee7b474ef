//! One step, call by call: what each gives on what the calls before it left, and how far from it the device is.

use std::collections::BTreeSet;

use tare_ops::exact::{self, Bounds};
use tare_ops::reference::kv::Half;
use tare_ops::reference::linear::round_bf16;
use tare_ops::reference::rope::{angles, rotate};
use tare_ops::reference::sample::sample_row;
use tare_ops::reference::{embedding, head_norm, rms_norm, select, swiglu};
use tare_ops::{BufId, ForwardPlan, Launched, Left, Op, Order, RowOutput, RowSpace, Wants};

use super::exactly::{Exactly, Product};
use super::taken::TakenStep;
use super::{Findings, Places};
use crate::LabError;
use crate::gate::Finding;
use tare_core::DType;

/// A step on the way.
pub(super) struct Walk<'a, 'r> {
    plan: &'a ForwardPlan,
    step: &'a TakenStep,
    /// The tokens of its sequences.
    places: Places<'a>,
    exactly: &'a mut Exactly<'r>,
    findings: &'a mut Findings,
    /// What each buffer holds of the rows that are looked at: the device's numbers where a launch left them, else what the
    /// calls give.
    held: Vec<Option<Vec<Bounds>>>,
}

impl<'a, 'r> Walk<'a, 'r> {
    /// At the beginning of the step of `places`, which ran `plan`.
    pub(super) fn new(
        plan: &'a ForwardPlan,
        places: Places<'a>,
        exactly: &'a mut Exactly<'r>,
        findings: &'a mut Findings,
    ) -> Self {
        Self { plan, step: places.step, places, exactly, findings, held: vec![None; plan.buffers.len()] }
    }

    /// Goes through all launches. One that does not carry the calls of the plan, or leaves other buffers than they write,
    /// is a finding, and the last that is looked at.
    ///
    /// # Errors
    /// When the judge lacks a weight, or a limit for what it sees.
    pub(super) fn all(mut self) -> Result<(), LabError> {
        let mut next = 0;
        for launch in &self.step.launched {
            if launch.calls.start != next || launch.calls.is_empty() || launch.calls.end > self.plan.calls.len() {
                break;
            }
            next = launch.calls.end;
            for call in launch.calls.clone() {
                self.call(call)?;
            }
            if !launch.left.iter().all(|left| self.compare(launch, left)) {
                return Ok(());
            }
        }
        let (carried, all) = (format!("calls 0 to {next} in order"), format!("calls 0 to {}", self.plan.calls.len()));
        self.findings.hold(next == self.plan.calls.len(), format!("{}, launches", self.step.at), all, carried);
        self.untouched();
        Ok(())
    }

    /// Rows of the step that a buffer of `space` has, among those that are looked at.
    fn rows(&self, space: RowSpace) -> Vec<usize> {
        let wants = |t: &usize| space == RowSpace::All || self.step.batch.rows[*t].wants != Wants::Nothing;
        self.step.rows.iter().copied().filter(wants).collect()
    }

    fn name(&self, call: usize) -> String {
        let c = &self.plan.calls[call];
        let layer = c.layer.map_or_else(String::new, |layer| format!(" of layer {layer}"));
        format!("{}, call {call} ({}{layer})", self.step.at, c.kernel)
    }

    /// What a buffer holds.
    fn held(&self, call: usize, id: BufId) -> Result<&[Bounds], LabError> {
        let unknown = || LabError::Judge(format!("{} reads a buffer that no call wrote", self.name(call)));
        self.held[id.0 as usize].as_deref().ok_or_else(unknown)
    }

    /// What a buffer holds, where it is known.
    fn known(&self, call: usize, id: BufId) -> Result<Vec<Vec<f32>>, LabError> {
        let open = || LabError::Judge(format!("{} reads numbers that its launch keeps to itself", self.name(call)));
        self.held(call, id)?.iter().map(Bounds::numbers).collect::<Option<_>>().ok_or_else(open)
    }

    /// What a call gives on what the launches before it left.
    ///
    /// # Errors
    /// As [`Walk::all`], or when the call gives no rows: it stores them, or draws from them.
    pub(super) fn alone(mut self, call: usize) -> Result<Vec<Bounds>, LabError> {
        let before = self.step.launched.iter().filter(|launch| launch.calls.end <= call);
        for left in before.flat_map(|launch| &launch.left) {
            let rows = left.values.chunks_exact(self.plan.buffer(left.buffer).width);
            self.held[left.buffer.0 as usize] = Some(rows.map(Bounds::exactly).collect());
        }
        self.given(call)
    }

    /// Computes a call on what the buffers hold.
    fn call(&mut self, call: usize) -> Result<(), LabError> {
        let op = &self.plan.calls[call].op;
        match op {
            Op::KvAppend { layer, k, v } => {
                self.stored(call, *layer as usize, Half::Key, *k)?;
                return self.stored(call, *layer as usize, Half::Value, *v);
            }
            Op::Sample { logits } => return self.sampled(call, *logits),
            _ => {}
        }
        let rows = self.given(call)?;
        if let Some(out) = op.writes() {
            self.held[out.0 as usize] = Some(rows);
        }
        Ok(())
    }

    /// The rows that a call writes, by what the buffers hold.
    fn given(&mut self, call: usize) -> Result<Vec<Bounds>, LabError> {
        match &self.plan.calls[call].op {
            Op::Linear { x, weight, bias, accumulate, out, .. } => {
                let bias = bias.map(|b| self.exactly.vector(self.plan, b)).transpose()?;
                let weight = self.exactly.weight(self.plan, *weight)?;
                let before = if *accumulate { Some(self.held(call, *out)?) } else { None };
                let product = Product { weight: &weight, bias: bias.as_deref(), x: self.held(call, *x)?, before };
                self.exactly.product(&self.plan.calls[call], product)
            }
            Op::Attention { q, .. } => {
                let rows = self.step.rows.iter().map(|t| self.step.batch.rows[*t]);
                let rows: Vec<_> = rows.zip(self.known(call, *q)?).collect();
                let e = self.plan.kv.head_size;
                self.exactly.attention(&self.plan.calls[call], e, &rows, &self.step.after)
            }
            Op::SwiGlu { gate, up, .. } => self.gated(call, *gate, *up),
            Op::HeadNorm { x, weight, eps, .. } if self.is_open(call, *x)? => {
                let weight = self.exactly.vector(self.plan, *weight)?;
                Ok(self.held(call, *x)?.iter().map(|x| exact::head_norm(x, &weight, *eps)).collect())
            }
            Op::Rope { x, .. } if self.is_open(call, *x)? => self.rotated(call, *x),
            Op::KvAppend { .. } | Op::Sample { .. } => {
                Err(LabError::Judge(format!("{} writes no rows that could be compared", self.name(call))))
            }
            other => self.row_by_row(call, other),
        }
    }

    /// Operators without sums over more than a row, as the reference computes them.
    fn row_by_row(&mut self, call: usize, op: &Op) -> Result<Vec<Bounds>, LabError> {
        let batch = &self.step.batch;
        let mut rows: Vec<Vec<f32>> = match op {
            Op::Embedding { table, out } => {
                let table = self.exactly.weight(self.plan, *table)?;
                let mut rows = vec![vec![0.0; self.plan.buffer(*out).width]; self.step.rows.len()];
                for (t, row) in self.step.rows.iter().zip(&mut rows) {
                    // A token that no sequence has there is a finding already.
                    let token = self.places.token(&batch.rows[*t]).unwrap_or_default();
                    embedding::embedding(&table, token, row);
                }
                rows
            }
            Op::RmsNorm { x, .. } | Op::HeadNorm { x, .. } | Op::Rope { x, .. } => self.known(call, *x)?,
            Op::SelectRows { x, .. } => {
                let all = self.known(call, *x)?;
                let selected: BTreeSet<usize> = select::selected(&batch.rows).collect();
                let of = self.step.rows.iter().zip(all);
                of.filter(|(t, _)| selected.contains(t)).map(|(_, row)| row).collect()
            }
            _ => Vec::new(),
        };
        match op {
            Op::RmsNorm { weight, eps, .. } => {
                let weight = self.exactly.vector(self.plan, *weight)?;
                for row in &mut rows {
                    let x = row.clone();
                    rms_norm::rms_norm(&x, &weight, *eps, row);
                }
            }
            Op::HeadNorm { weight, eps, .. } => {
                let weight = self.exactly.vector(self.plan, *weight)?;
                rows.iter_mut().for_each(|row| head_norm::head_norm(row, &weight, *eps));
            }
            Op::Rope { .. } => {
                let table = &self.plan.rope;
                let (mut cos, mut sin) = (vec![0.0; table.inv_freq.len()], vec![0.0; table.inv_freq.len()]);
                for (t, row) in self.step.rows.iter().zip(&mut rows) {
                    angles(table, batch.rows[*t].position, &mut cos, &mut sin);
                    rotate(row, table.style, &cos, &sin);
                }
            }
            _ => {}
        }
        let (order, _) = self.exactly.promise(&self.plan.calls[call])?;
        match (order, op) {
            (Order::Reference, _) => Ok(rows.iter().map(|row| Bounds::exactly(row)).collect()),
            (Order::Free, Op::RmsNorm { .. }) => Ok(rows.iter().map(|row| Bounds::around(row)).collect()),
            _ => Err(LabError::Judge(format!("{} has an order of its own and no limit", self.name(call)))),
        }
    }

    /// Whether a launch keeps some of the numbers of a buffer to itself.
    fn is_open(&self, call: usize, id: BufId) -> Result<bool, LabError> {
        Ok(self.held(call, id)?.iter().any(|row| row.numbers().is_none()))
    }

    fn rotated(&self, call: usize, x: BufId) -> Result<Vec<Bounds>, LabError> {
        let (table, rows) = (&self.plan.rope, &self.step.batch.rows);
        let (mut cos, mut sin) = (vec![0.0; table.inv_freq.len()], vec![0.0; table.inv_freq.len()]);
        let each = |(t, x): (&usize, &Bounds)| {
            angles(table, rows[*t].position, &mut cos, &mut sin);
            exact::rotated(x, table.style, &cos, &sin)
        };
        Ok(self.step.rows.iter().zip(self.held(call, x)?).map(each).collect())
    }

    fn gated(&self, call: usize, gate: BufId, up: BufId) -> Result<Vec<Bounds>, LabError> {
        let (gates, ups) = (self.held(call, gate)?, self.held(call, up)?);
        let (order, _) = self.exactly.promise(&self.plan.calls[call])?;
        let each = |(gate, up): (&Bounds, &Bounds)| match (order, gate.numbers(), up.numbers()) {
            (Order::Reference, Some(mut gate), Some(up)) => {
                swiglu::swiglu(&mut gate, &up);
                Bounds::exactly(&gate)
            }
            _ => exact::swiglu(gate, up),
        };
        Ok(gates.iter().zip(ups).map(each).collect())
    }

    /// What rows left in the cache, in their own slots.
    fn stored(&mut self, call: usize, layer: usize, half: Half, from: BufId) -> Result<(), LabError> {
        let rows = self.held(call, from)?.to_vec();
        for (t, expected) in self.step.rows.iter().zip(rows) {
            let row = &self.step.batch.rows[*t];
            let found = self.step.after[row.table as usize].numbers(layer, half, row.slot as usize);
            let expected = match (self.plan.kv.dtype, expected.numbers()) {
                (DType::BF16, Some(known)) => {
                    Bounds::exactly(&known.iter().map(|x| round_bf16(*x)).collect::<Vec<f32>>())
                }
                (DType::BF16, None) => expected.to_bf16(),
                _ => expected,
            };
            let at = format!("{}, {half:?} of row {t}", self.name(call));
            self.row(at, &expected, &found);
        }
        Ok(())
    }

    /// Tokens drawn from the logits that the device has.
    fn sampled(&mut self, call: usize, logits: BufId) -> Result<(), LabError> {
        let (order, _) = self.exactly.promise(&self.plan.calls[call])?;
        let rows = self.rows(RowSpace::Selected);
        let places = self.step.batch.places(RowSpace::Selected, &self.step.rows);
        for ((t, place), logits) in rows.into_iter().zip(places).zip(self.known(call, logits)?) {
            let Some(found) = self.step.answers.get(place) else { continue };
            let mut want = RowOutput { row: t as u32, ..RowOutput::default() };
            let sampler = match self.step.batch.rows[t].wants {
                Wants::Token(n) | Wants::TokenAndLogits(n) => self.step.batch.samplers.get(n as usize),
                Wants::Nothing | Wants::Logits => None,
            };
            let at = format!("{}, row {t}", self.name(call));
            if let Err(fault) = sample_row(&logits, sampler, &mut want) {
                self.findings.hold(false, at, "logits that a token can be drawn from", fault.to_string());
                continue;
            }
            let said = |o: &RowOutput| format!("row {}, id {} with logit {}", o.row, o.token, o.logit);
            let same = (found.row, found.token, found.logit.to_bits()) == (want.row, want.token, want.logit.to_bits());
            self.findings.hold(same, at.clone(), said(&want), said(found));
            let bounds = log_probability(order, &logits, &want, found.logprob);
            self.row(format!("{at}, log-probability"), &bounds, &[found.logprob]);
        }
        Ok(())
    }

    /// Holds what a launch left against what its calls give; from here on it is what the buffer holds. False when that
    /// makes no sense.
    fn compare(&mut self, launch: &Launched, left: &Left) -> bool {
        let writer = launch.calls.clone().rev().find(|i| self.plan.calls[*i].op.writes() == Some(left.buffer));
        let buffer = left.buffer.0 as usize;
        let width = self.plan.buffers.get(buffer).map_or(1, |b| b.width);
        let expected = writer.and_then(|_| self.held[buffer].take()).unwrap_or_default();
        let Some(call) = writer.filter(|_| left.values.len() == expected.len() * width) else {
            let at = format!("{}, launch of calls {:?}", self.step.at, launch.calls);
            let written = format!("{} rows of a buffer that its calls write", expected.len());
            let found = format!("{} numbers of buffer {buffer}, {width} a row", left.values.len());
            self.findings.hold(false, at, written, found);
            return false;
        };
        let rows = self.rows(self.plan.buffers[buffer].rows);
        let mut known = Vec::with_capacity(expected.len());
        for ((t, expected), found) in rows.into_iter().zip(expected).zip(left.values.chunks_exact(width)) {
            let expected = if left.bf16 { expected.to_bf16() } else { expected };
            self.row(format!("{}, row {t}", self.name(call)), &expected, found);
            known.push(Bounds::exactly(found));
        }
        self.held[buffer] = Some(known);
        true
    }

    /// Adds a row, by the number that is furthest from where it should be.
    fn row(&mut self, at: String, expected: &Bounds, found: &[f32]) {
        let (mut worst, mut error) = (0, 0.0);
        for (i, x) in found.iter().enumerate() {
            let off = expected.off(i, *x);
            if off.is_nan() || off > error {
                (worst, error) = (i, off);
            }
            if off.is_nan() {
                break;
            }
        }
        self.findings.compared += found.len() as u64;
        let shown = |x: Option<&f64>| x.copied().unwrap_or(f64::NAN);
        self.findings.all.push(Finding {
            at: format!("{at}, feature {worst}"),
            error,
            expected: format!("{:e} within {:e}", shown(expected.value.get(worst)), shown(expected.limit.get(worst))),
            found: found.get(worst).map_or_else(|| "nothing".into(), |x| format!("{x:e}")),
        });
    }

    /// Tokens that no row of the step stores are what they were before it.
    fn untouched(&mut self) {
        for (n, (before, after)) in self.step.before.iter().zip(&self.step.after).enumerate() {
            let rows = self.step.batch.rows.iter().filter(|r| r.table as usize == n);
            let own: BTreeSet<usize> = rows.map(|r| r.slot as usize).collect();
            let mut others = (0..after.tokens()).filter(|token| !own.contains(token));
            let changed = others.find(|token| !before.same(after, *token));
            let found = changed.map_or_else(|| "as they were".into(), |token| format!("token {token} changed"));
            let at = format!("{}, cached tokens of other steps", self.step.at);
            self.findings.hold(changed.is_none(), at, "as they were", found);
        }
    }
}

/// Where the log-probability of the token of `want`, drawn from `logits`, must lie. Kernels in any order leave rows of which
/// more is asked than the likeliest token to the reference, whose sum of a peaked row is further from the exact one than any
/// of theirs may be: what has its bits has its order.
fn log_probability(order: Order, logits: &[f32], want: &RowOutput, found: f32) -> Bounds {
    match order {
        Order::Free if found.to_bits() != want.logprob.to_bits() => exact::log_probabilities(logits, &[want.logit]),
        _ => Bounds::exactly(&[want.logprob]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One token of probability 0.91 before 49,151 of which the reference's lane loses a part, as SmolLM2 has them.
    #[test]
    fn a_log_probability_in_any_order_is_held_against_the_exact_one() {
        let mut logits = vec![-13.1f32; 49_152];
        logits[0] = 0.0;
        let mut want = RowOutput::default();
        sample_row(&logits, None, &mut want).unwrap();
        let exactly = -(1.0 + 49_151.0 * f64::from(-13.1f32).exp()).ln();
        assert!((exactly.exp() - 0.91).abs() < 0.01);
        let off = |order, found: f32| log_probability(order, &logits, &want, found).off(0, found);
        assert!((f64::from(want.logprob) - exactly).abs() > 1e-5, "the reference loses a part: {}", want.logprob);
        for right in [exactly as f32, want.logprob] {
            assert!(off(Order::Free, right) <= 1.0, "{right} is {} of the limit off", off(Order::Free, right));
        }
        assert_eq!(off(Order::Reference, want.logprob), 0.0);
        assert_eq!(off(Order::Reference, exactly as f32), f64::INFINITY, "an order that is promised is kept");
        for wrong in [exactly - 2e-5, exactly + 2e-5, f64::NAN] {
            assert!(off(Order::Free, wrong as f32).partial_cmp(&1.0).is_none_or(|o| o.is_gt()), "{wrong}");
        }
    }
}
