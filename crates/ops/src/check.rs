//! Whether a batch may be run: what every backend refuses before it changes anything.

use tare_core::Fault;

use crate::backend::KvId;
use crate::batch::{Batch, Row, TokenSource, Wants};
use crate::op::Op;
use crate::plan::{Bucket, ForwardPlan, KvShape};
use crate::reference::sample;

/// A pool as a batch sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolInfo {
    /// Shape of a token.
    pub shape: KvShape,
    /// Pages.
    pub pages: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
}

/// What a batch must keep to run on one plan: made once when the plan is compiled, asked at every step.
#[derive(Clone, Debug)]
pub struct BatchCheck {
    bucket: Bucket,
    kv: KvShape,
    /// Tokens that every embedding of the plan has.
    vocab: usize,
    /// Width of the logits; none when the plan samples nothing.
    logits: Option<usize>,
    reads_kv: bool,
    /// Where the rows store: working memory, kept so that a step allocates nothing.
    cells: Vec<(KvId, u32, usize)>,
}

impl BatchCheck {
    /// The limits of a plan that has been validated.
    pub fn new(plan: &ForwardPlan) -> Self {
        let embeddings = plan.calls.iter().filter_map(|c| match &c.op {
            Op::Embedding { table, .. } => plan.weight(*table).map(|w| w.rows),
            _ => None,
        });
        let logits = plan.calls.iter().find_map(|c| match &c.op {
            Op::Sample { logits } => Some(plan.buffer(*logits).width),
            _ => None,
        });
        Self {
            bucket: plan.bucket,
            kv: plan.kv,
            vocab: embeddings.min().unwrap_or(usize::MAX),
            logits,
            reads_kv: plan.calls.iter().any(|c| matches!(c.op, Op::KvAppend { .. } | Op::Attention { .. })),
            cells: Vec::with_capacity(plan.bucket.rows),
        }
    }

    /// Checks every row against the bucket, the vocabulary, its table and its sampler. `pool` describes the backend's
    /// pools; `previous` is the number of tokens that the step before gave.
    ///
    /// # Errors
    /// The first row, table or sampler that may not be run.
    pub fn check(
        &mut self,
        batch: &Batch,
        pool: impl Fn(KvId) -> Option<PoolInfo>,
        previous: usize,
    ) -> Result<(), Fault> {
        let (rows, selected) = (batch.rows.len(), batch.selected());
        if !(1..=self.bucket.rows).contains(&rows) {
            return Err(Fault::new(
                "batch rows",
                format!("1 to {}, the plan's bucket", self.bucket.rows),
                rows.to_string(),
            )
            .remedy("split the batch or compile a plan with a larger bucket"));
        }
        if selected > self.bucket.selected {
            let expected = format!("at most {}, the plan's bucket", self.bucket.selected);
            return Err(Fault::new("rows that want something", expected, selected.to_string())
                .remedy("split the batch or compile a plan with a larger bucket"));
        }
        for (t, row) in batch.rows.iter().enumerate() {
            self.check_token(row, previous).and_then(|()| self.check_wants(row, batch)).map_err(|f| f.within(at(t)))?;
        }
        if self.reads_kv { self.check_cache(batch, pool) } else { Ok(()) }
    }

    fn check_token(&self, row: &Row, previous: usize) -> Result<(), Fault> {
        match row.token {
            TokenSource::Id(id) if id as usize >= self.vocab => {
                Err(Fault::new("token", format!("below {}, the vocabulary", self.vocab), id.to_string()))
            }
            TokenSource::Previous(n) if n as usize >= previous => Err(Fault::new(
                "token",
                format!("one of the {previous} rows selected in the step before"),
                format!("selected row {n}"),
            )),
            _ => Ok(()),
        }
    }

    fn check_wants(&self, row: &Row, batch: &Batch) -> Result<(), Fault> {
        if row.wants == Wants::Nothing {
            return Ok(());
        }
        let Some(vocab) = self.logits else {
            return Err(Fault::new("wants", "nothing: the plan has no sample operator", format!("{:?}", row.wants)));
        };
        let (Wants::Token(n) | Wants::TokenAndLogits(n)) = row.wants else { return Ok(()) };
        let Some(sampler) = batch.samplers.get(n as usize) else {
            return Err(Fault::new("sampler", format!("one of {}", batch.samplers.len()), n.to_string()));
        };
        sample::check_sampler(sampler, vocab)
    }

    fn check_cache(&mut self, batch: &Batch, pool: impl Fn(KvId) -> Option<PoolInfo>) -> Result<(), Fault> {
        for (n, table) in batch.tables.iter().enumerate() {
            let Some(p) = pool(table.kv) else {
                return Err(Fault::new(format!("table {n}"), "a pool of this backend", format!("{:?}", table.kv)));
            };
            if p.shape != self.kv {
                let (expected, found) = (format!("a pool of {:?}", self.kv), format!("{:?}", p.shape));
                return Err(Fault::new(format!("table {n}"), expected, found));
            }
            if let Some(page) = table.pages.iter().find(|page| **page as usize >= p.pages) {
                return Err(Fault::new(format!("table {n}"), format!("pages below {}", p.pages), page.to_string()));
            }
        }
        self.cells.clear();
        for (t, row) in batch.rows.iter().enumerate() {
            let Some(table) = batch.tables.get(row.table as usize) else {
                let expected = format!("one of {}", batch.tables.len());
                return Err(Fault::new(format!("{}: table", at(t)), expected, row.table.to_string()));
            };
            let page_tokens = pool(table.kv).map_or(0, |p| p.page_tokens);
            let room = table.pages.len() * page_tokens;
            if row.slot as usize >= room || !(1..=room).contains(&(row.context as usize)) {
                let expected = format!("slot below {room} and context 1 to {room}, the room of its table");
                let found = format!("slot {}, context {}", row.slot, row.context);
                return Err(Fault::new(at(t), expected, found).remedy("give the sequence another page"));
            }
            let slot = row.slot as usize;
            self.cells.push((table.kv, table.pages[slot / page_tokens], slot % page_tokens));
        }
        self.cells.sort_unstable_by_key(|c| (c.0.0, c.1, c.2));
        match self.cells.windows(2).find(|w| w[0] == w[1]) {
            None => Ok(()),
            Some(w) => Err(Fault::new(
                "slots",
                "a place of its own for each row",
                format!("two rows that store at token {} of page {}", w[0].2, w[0].1),
            )),
        }
    }
}

fn at(row: usize) -> String {
    format!("row {row}")
}
