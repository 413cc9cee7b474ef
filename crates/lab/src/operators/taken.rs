//! Steps of the timed request, taken apart.

use std::collections::BTreeSet;

use tare_engine::{Engine, EngineError, Forward, StepReport};
use tare_ops::{Backend, Batch, KvShape, Launched, OpError, RowOutput};

use super::cached::Cached;
use crate::LabError;
use crate::runner::Token;
use crate::sequences::Sequences;
use crate::work::{ClockedRequest, mix};

/// Rows of a step that are looked at, at most, unless it has more sequences.
const MOST_ROWS: usize = 8;
/// Rows that kernels in tiles take together, at most or a multiple of it.
const TILE_ROWS: usize = 128;

/// A request that ran with steps taken apart.
#[derive(Debug)]
pub(super) struct Taken {
    /// In order.
    pub(super) steps: Vec<TakenStep>,
    /// Tokens that were drawn, `[steps][sequences]`.
    pub(super) drawn: Vec<Token>,
    /// What the backend said when the last step failed.
    pub(super) failed: Option<OpError>,
}

/// A step that ran launch by launch.
#[derive(Debug)]
pub(crate) struct TakenStep {
    /// Which, for people.
    pub(super) at: String,
    /// Which sequence each table of the batch is of.
    pub(super) sequences: Vec<usize>,
    /// Which of the engine's plans ran.
    pub(super) plan: usize,
    /// What the backend was handed.
    pub(crate) batch: Batch,
    /// The rows that were looked at.
    pub(super) rows: Vec<usize>,
    /// What its launches left of them.
    pub(super) launched: Vec<Launched>,
    /// What it gave.
    pub(crate) answers: Vec<RowOutput>,
    /// The cache of each table before it and after it.
    pub(super) before: Vec<Cached>,
    pub(super) after: Vec<Cached>,
}

/// Runs `requests` as they are timed. The first step of each executable is taken apart, the last of the first prompt, and the
/// last of all, which sees most.
///
/// # Errors
/// When the engine refuses the request, or fails but for its backend.
pub(super) fn take(engine: &mut Engine, requests: &[ClockedRequest]) -> Result<Taken, LabError> {
    let mut taken = Taken { steps: Vec::new(), drawn: Vec::new(), failed: None };
    let mut sequences = Sequences::begin(engine, requests, false)?;
    match run(engine, &mut sequences, requests, &mut taken) {
        Err(LabError::Engine(EngineError::Backend(failed))) => taken.failed = Some(failed),
        other => other?,
    }
    sequences.cancel(engine);
    while engine.has_work() {
        engine.step()?;
    }
    Ok(taken)
}

fn run(
    engine: &mut Engine,
    sequences: &mut Sequences,
    requests: &[ClockedRequest],
    taken: &mut Taken,
) -> Result<(), LabError> {
    let Taken { steps, drawn, .. } = taken;
    let mut seen = BTreeSet::new();
    let (prompt, outputs) = requests.first().map_or((0, 0), |r| (r.input().len(), r.output_tokens));
    let whole = prompt + outputs - 1;
    let Some(shape) = engine.resolved().first().map(|r| r.plan.kv) else {
        return Err(LabError::Judge("the engine has no plan".into()));
    };
    let mut step = |engine: &mut Engine, running: &[usize]| -> Result<StepReport, LabError> {
        Ok(engine.step_by(&mut |backend, forward| {
            let end = forward.batch.rows.last().map_or(0, |r| r.slot as usize + 1);
            // Prompts of several sequences run the same way: one of them is looked into.
            let first = running.first() == Some(&0);
            if seen.insert(forward.plan) || (first && (end == prompt || end == whole)) {
                return take_apart(backend, forward, (shape, running), steps);
            }
            backend.run(forward.exe, forward.batch, forward.out)
        })?)
    };
    sequences.submit(engine)?;
    sequences.prefill(engine, &mut step, drawn)?;
    for _ in 1..outputs {
        sequences.draw(engine, &mut step, drawn)?;
    }
    Ok(())
}

/// Runs one step, and adds it also when it fails. All of a few rows are looked at.
///
/// # Errors
/// When the backend fails, or does not take steps apart.
pub(crate) fn take_apart(
    backend: &mut dyn Backend,
    forward: Forward<'_>,
    (shape, running): (KvShape, &[usize]),
    steps: &mut Vec<TakenStep>,
) -> Result<(), OpError> {
    let Forward { plan, exe, batch, page_tokens, out } = forward;
    let cached = |backend: &mut dyn Backend| {
        let each = batch.tables.iter().zip(page_tokens).enumerate().map(|(n, (table, page_tokens))| {
            let rows = batch.rows.iter().filter(|r| r.table as usize == n);
            let tokens = rows.map(|r| r.context.max(r.slot + 1)).max().unwrap_or(0);
            Cached::read(backend, table, (shape, *page_tokens), tokens as usize)
        });
        each.collect::<Result<Vec<_>, _>>()
    };
    let rows = looked_at(batch, page_tokens.first().copied().unwrap_or(1));
    let (before, mut launched) = (cached(backend)?, Vec::new());
    let ran = backend.run_apart(exe, batch, &rows, out, &mut launched);
    let after = cached(backend)?;
    let slot = |row: Option<&tare_ops::Row>| row.map_or(0, |r| r.slot);
    let at = format!("step of tokens {} to {}", slot(batch.rows.first()), slot(batch.rows.last()));
    let (sequences, batch, answers) = (running.to_vec(), batch.clone(), out.rows.clone());
    steps.push(TakenStep { at, sequences, plan, batch, rows, launched, answers, before, after });
    ran
}

/// Rows to look at: all of a few; of more one of each sequence, the first and the last, those at the edge of a page and of a
/// tile, and some others, the same ones whenever a step has so many rows.
fn looked_at(batch: &Batch, page_tokens: usize) -> Vec<usize> {
    let n = batch.rows.len();
    let edge = (1..n).rev().find(|t| (batch.rows[*t].slot as usize).is_multiple_of(page_tokens.max(1))).unwrap_or(0);
    let named = [0, n.saturating_sub(1), edge, edge.saturating_sub(1), TILE_ROWS - 1, TILE_ROWS];
    let drawn = (0..).map(|i| (mix(n as u64, i) % n.max(1) as u64) as usize);
    let sequences: BTreeSet<u32> = batch.rows.iter().map(|r| r.table).collect();
    let last_of = |table: &u32| batch.rows.iter().rposition(|r| r.table == *table);
    let mut rows: BTreeSet<usize> = sequences.iter().filter_map(last_of).collect();
    for t in named.into_iter().filter(|t| *t < n).chain(drawn) {
        if rows.len() >= MOST_ROWS.min(n) {
            break;
        }
        rows.insert(t);
    }
    rows.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_ops::{Row, TokenSource, Wants};

    #[test]
    fn ends_and_edges_are_looked_at() {
        let row = |t| Row {
            token: TokenSource::Id(0),
            position: t,
            table: 0,
            slot: t,
            context: t + 1,
            wants: Wants::Nothing,
        };
        let of =
            |from: u32, n: u32| looked_at(&Batch { rows: (from..from + n).map(row).collect(), ..Batch::default() }, 32);
        assert_eq!(of(7, 1), [0]);
        assert_eq!(of(0, 8), (0..8).collect::<Vec<_>>());
        assert!(of(0, 0).is_empty());
        let rows = of(10, 300);
        assert_eq!(rows.len(), MOST_ROWS);
        for t in [0, 299, 277, 278, 127, 128] {
            assert!(rows.contains(&t), "{t}: {rows:?}");
        }
        assert_eq!(rows, of(10, 300));
        // Every one of more sequences than that has a row.
        let together = Batch { rows: (0..16).map(|table| Row { table, ..row(40) }).collect(), ..Batch::default() };
        assert_eq!(looked_at(&together, 32), (0..16).collect::<Vec<_>>());
    }
}
