//! The rows of one step, and what comes back.

use crate::backend::KvId;
use crate::sampling::Sampler;

/// Where a row's token comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// A token id that the host knows.
    Id(u32),
    /// The token sampled for selected row `n` of the step before, which may still be on the device.
    Previous(u32),
}

/// What a row wants back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Nothing: a prompt row whose logits nobody reads. It skips the head.
    Nothing,
    /// A token drawn by sampler `n` of the batch.
    Token(u32),
    /// All V logits.
    Logits,
    /// Both.
    TokenAndLogits(u32),
}

/// One token travelling through the model. Prompt chunks and decode rows are the same thing.
///
/// In an ordinary step `position == slot` and `context == slot + 1`. They are separate because a wrong mask, a stale
/// slot and a wrong angle are different faults, and the mutation gate plants each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The token.
    pub token: TokenSource,
    /// Rotary position.
    pub position: u32,
    /// Block table: index into [`Batch::tables`].
    pub table: u32,
    /// Token index in the sequence at which this row's key and value are stored.
    pub slot: u32,
    /// Cached tokens that this row may attend to, counted from the start of the sequence.
    pub context: u32,
    /// What comes back.
    pub wants: Wants,
}

/// The pages of one sequence, shared by all layers: token `i` lies in page `pages[i / page_tokens]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The pool that the pages belong to.
    pub kv: KvId,
    /// Page numbers in that pool.
    pub pages: Vec<u32>,
}

/// The rows of one step.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// At most [`crate::Bucket::rows`].
    pub rows: Vec<Row>,
    /// One for each sequence in the step.
    pub tables: Vec<Table>,
    /// One for each row that draws a token.
    pub samplers: Vec<Sampler>,
}

impl Batch {
    /// Rows that want something.
    pub fn selected(&self) -> usize {
        self.rows.iter().filter(|r| r.wants != Wants::Nothing).count()
    }
}

/// What one selected row gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowOutput {
    /// Index of the row in [`Batch::rows`].
    pub row: u32,
    /// The token drawn, or the most likely one when only logits were wanted.
    pub token: u32,
    /// The F32 logit of `token` before penalties, bias and temperature.
    pub logit: f32,
    /// Natural-log probability of `token` under the unmodified logits.
    pub logprob: f32,
    /// The most likely tokens with their log-probabilities, best first; as many as the sampler asked for.
    pub top: Vec<(u32, f32)>,
    /// All V logits, when wanted; empty otherwise.
    pub logits: Vec<f32>,
}

/// What a step gave: one entry for each selected row, in row order. Reused from step to step.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// In row order.
    pub rows: Vec<RowOutput>,
    /// Nanoseconds of the step by the device's own clock, from its first kernel to its last; none where nothing has one.
    pub device_ns: Option<u64>,
}
