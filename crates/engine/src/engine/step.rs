//! One step: the scheduler's decision applied to storage, run, and turned into events.

use super::Engine;
use crate::error::EngineError;
use crate::forward::{Forward, RunForward};
use crate::request::{Event, FinishReason, RequestId, Retained, StepReport};
use crate::runner::Parts;
use crate::scheduler::{Chunk, Decision};
use crate::sequence::Sequence;
use tare_ops::RowOutput;

impl Engine {
    /// One forward: admits, runs at most `max_rows` rows, draws tokens.
    ///
    /// # Errors
    /// When the backend fails. Every sequence then stands where it stood, nothing was reported, and the next step
    /// tries again.
    pub fn step(&mut self) -> Result<StepReport, EngineError> {
        self.step_by(&mut |backend, Forward { exe, batch, out, .. }| backend.run(exe, batch, out))
    }

    /// As [`Engine::step`], with the forward run by `run`: for the laboratory, which looks at what a forward leaves. `run`
    /// runs it once, as it is, on the backend that it is handed.
    ///
    /// # Errors
    /// As [`Engine::step`], or when `run` fails.
    pub fn step_by(&mut self, run: &mut RunForward<'_>) -> Result<StepReport, EngineError> {
        self.free_doomed()?;
        let decision = self.scheduler.plan();
        self.apply(&decision)?;
        let mut report = StepReport::default();
        if !decision.chunks.is_empty() {
            self.forward(&decision, &mut report, run)?;
        }
        report.events.splice(0..0, self.pending.drain(..));
        Ok(report)
    }

    /// Frees what was cancelled or released since the last step.
    pub(super) fn free_doomed(&mut self) -> Result<(), EngineError> {
        while let Some(id) = self.doomed.pop() {
            self.storage.close(&mut *self.backend, id)?;
        }
        Ok(())
    }

    /// Frees and moves storage as the scheduler decided.
    fn apply(&mut self, decision: &Decision) -> Result<(), EngineError> {
        self.counters.evictions += decision.evicted.len() as u64;
        self.counters.preemptions += decision.preempted.len() as u64;
        for id in &decision.evicted {
            self.kept.remove(id);
            self.storage.close(&mut *self.backend, *id)?;
        }
        for id in &decision.preempted {
            self.set_cached_tokens(*id, 0);
            self.storage.close(&mut *self.backend, *id)?;
        }
        for adoption in &decision.adopted {
            self.kept.remove(&adoption.from);
            self.storage.rename(adoption.from, adoption.to)?;
            self.storage.rewind(adoption.to, adoption.tokens)?;
            self.set_cached_tokens(adoption.to, adoption.tokens);
        }
        Ok(())
    }

    fn set_cached_tokens(&mut self, id: RequestId, tokens: usize) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.set_cached_tokens(tokens);
        }
    }

    fn forward(
        &mut self,
        decision: &Decision,
        report: &mut StepReport,
        run: &mut RunForward<'_>,
    ) -> Result<(), EngineError> {
        let mut parts =
            Parts { backend: &mut *self.backend, storage: &mut *self.storage, sequences: &mut self.sequences };
        let out = self.runner.run(decision, &mut parts, run)?;
        report.device_ns = out.device_ns;
        let mut rows = &mut out.rows[..];
        self.scheduler.advance(decision);
        self.counters.steps += 1;
        self.counters.layer_rows += decision.rows() as u64;
        self.counters.head_rows += decision.selected() as u64;
        let mut settled = Vec::new();
        for chunk in &decision.chunks {
            let computed = if chunk.decode { &mut report.decode_rows } else { &mut report.prefill_rows };
            *computed += chunk.positions.len();
            let (own, rest) = rows.split_at_mut(chunk.selected.len());
            rows = rest;
            if let Some(sequence) = self.sequences.get_mut(&chunk.id) {
                read_rows(chunk, own, sequence, &mut report.events);
                if chunk.last {
                    settled.push((chunk.id, sequence.finished(self.context)));
                }
            }
        }
        settled.into_iter().try_for_each(|(id, reason)| self.settle(id, reason, report))
    }

    /// What follows from a token, or from a prompt that is not continued: the sequence goes on or is over.
    fn settle(
        &mut self,
        request: RequestId,
        reason: Option<FinishReason>,
        report: &mut StepReport,
    ) -> Result<(), EngineError> {
        let Some(reason) = reason else {
            if self.scheduler.emitted(request) {
                self.storage.close(&mut *self.backend, request)?;
            }
            return Ok(());
        };
        let Some(sequence) = self.sequences.remove(&request) else { return Ok(()) };
        let keeps = self.scheduler.finish(request, sequence.retains());
        if keeps {
            let stored = self.storage.tokens(request)?;
            self.kept.insert(request, sequence.tokens()[..stored].to_vec());
        } else {
            self.storage.close(&mut *self.backend, request)?;
        }
        let (usage, retained) = (sequence.usage(), keeps.then_some(Retained { request }));
        report.events.push(Event::Finished { request, reason, usage, retained });
        Ok(())
    }
}

/// Events of a chunk's selected rows: the prompt logits first, then the token drawn.
fn read_rows(chunk: &Chunk, rows: &mut [RowOutput], sequence: &mut Sequence, events: &mut Vec<Event>) {
    let mut logits = Vec::new();
    let mut token = None;
    for (position, row) in chunk.selected.clone().zip(rows) {
        if chunk.last && position + 1 == chunk.positions.end && sequence.draws() {
            token = Some(sequence.accept(row));
        }
        if sequence.reports(position) {
            logits.push(std::mem::take(&mut row.logits));
        }
    }
    if !logits.is_empty() {
        events.push(Event::PromptLogits { request: sequence.id(), first_position: chunk.selected.start, logits });
    }
    events.extend(token);
}
