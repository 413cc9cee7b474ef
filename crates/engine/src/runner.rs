//! From a decision to a forward: rows, tables and samplers in, answers by row out.

use std::collections::BTreeMap;
use tare_ops::{Backend, Batch, Bucket, Executable, KvId, Row, StepOutput, Table, TokenSource, Wants};

use crate::cache::{Append, Storage};
use crate::error::EngineError;
use crate::forward::{Forward, RunForward};
use crate::request::RequestId;
use crate::scheduler::{Chunk, Decision};
use crate::sequence::Sequence;

/// Owns what is used again from step to step.
pub(crate) struct Runner {
    executables: Vec<(Bucket, Executable)>,
    batch: Batch,
    /// Tables of earlier steps, so that their page lists need not be allocated again.
    spare: Vec<Table>,
    appends: Vec<Append>,
    /// Tokens of a page of each table of the batch.
    page_tokens: Vec<usize>,
    out: StepOutput,
}

/// What a step works on.
pub(crate) struct Parts<'a> {
    pub(crate) backend: &'a mut dyn Backend,
    pub(crate) storage: &'a mut dyn Storage,
    pub(crate) sequences: &'a mut BTreeMap<RequestId, Sequence>,
}

impl Runner {
    /// `executables` from the smallest bucket to the largest.
    pub(crate) fn new(executables: Vec<(Bucket, Executable)>) -> Self {
        let (batch, out) = (Batch::default(), StepOutput::default());
        Self { executables, batch, spare: Vec::new(), appends: Vec::new(), page_tokens: Vec::new(), out }
    }

    /// Runs the chunks of a decision by `run`: one answer for each selected row, in batch order, and what the device's
    /// own clock says of it.
    ///
    /// # Errors
    /// When storage or the backend refuses. The tokens stored are those of before.
    pub(crate) fn run(
        &mut self,
        decision: &Decision,
        parts: &mut Parts<'_>,
        run: &mut RunForward<'_>,
    ) -> Result<&mut StepOutput, EngineError> {
        self.make_room(decision, parts)?;
        let done = self.forward(decision, parts, run);
        if let Err(e) = done {
            for chunk in &decision.chunks {
                parts.storage.rewind(chunk.id, chunk.positions.start)?;
            }
            return Err(e);
        }
        Ok(&mut self.out)
    }

    fn make_room(&mut self, decision: &Decision, parts: &mut Parts<'_>) -> Result<(), EngineError> {
        for chunk in &decision.chunks {
            if let Some(bound) = chunk.open {
                parts.storage.open(parts.backend, chunk.id, bound)?;
            }
        }
        self.appends.clear();
        let appends = decision.chunks.iter().map(|c| Append { sequence: c.id, rows: c.positions.len() });
        self.appends.extend(appends);
        Ok(parts.storage.append(parts.backend, &self.appends)?)
    }

    fn forward(
        &mut self,
        decision: &Decision,
        parts: &mut Parts<'_>,
        run: &mut RunForward<'_>,
    ) -> Result<(), EngineError> {
        self.batch.rows.clear();
        self.batch.samplers.clear();
        self.page_tokens.clear();
        self.spare.append(&mut self.batch.tables);
        for chunk in &decision.chunks {
            let mut table = self.spare.pop().unwrap_or(Table { kv: KvId(0), pages: Vec::new() });
            parts.storage.table(chunk.id, &mut table)?;
            self.batch.tables.push(table);
            self.page_tokens.push(parts.storage.page_tokens(chunk.id)?);
            if let Some(sequence) = parts.sequences.get_mut(&chunk.id) {
                self.push_rows(chunk, sequence);
            }
        }
        let (plan, exe) = self.executable(self.batch.rows.len(), decision.selected())?;
        let (batch, page_tokens, out) = (&self.batch, &self.page_tokens[..], &mut self.out);
        run(&mut *parts.backend, Forward { plan, exe, batch, page_tokens, out })?;
        let (expected, found) = (decision.selected(), self.out.rows.len());
        if expected == found { Ok(()) } else { Err(EngineError::Answers { expected, found }) }
    }

    fn push_rows(&mut self, chunk: &Chunk, sequence: &mut Sequence) {
        let table = self.batch.tables.len() as u32 - 1;
        for position in chunk.positions.clone() {
            let draws = chunk.last && position + 1 == chunk.positions.end && sequence.draws();
            let logits = sequence.reports(position) || (draws && sequence.wants_token_logits());
            let sampler = self.batch.samplers.len() as u32;
            if draws {
                self.batch.samplers.push(sequence.sampler());
            }
            self.batch.rows.push(Row {
                token: TokenSource::Id(sequence.tokens()[position]),
                position: position as u32,
                table,
                slot: position as u32,
                context: position as u32 + 1,
                wants: match (chunk.selected.contains(&position), draws, logits) {
                    (false, _, _) => Wants::Nothing,
                    (true, true, true) => Wants::TokenAndLogits(sampler),
                    (true, true, false) => Wants::Token(sampler),
                    (true, false, _) => Wants::Logits,
                },
            });
        }
    }

    /// The smallest bucket that takes so many rows: its place among the plans, and what runs.
    fn executable(&self, rows: usize, selected: usize) -> Result<(usize, Executable), EngineError> {
        let fits = |b: &Bucket| b.rows >= rows && b.selected >= selected;
        let found = self.executables.iter().enumerate().find(|(_, (b, _))| fits(b));
        found.map(|(plan, (_, exe))| (plan, *exe)).ok_or(EngineError::NoBucket { rows, selected })
    }
}
