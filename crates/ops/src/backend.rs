//! What a device must offer to run plans.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tare_core::{Fault, PageUse, Reading, Weight};

use crate::apart::Launched;
use crate::batch::{Batch, StepOutput};
use crate::isa::IsaSet;
use crate::op::WeightId;
use crate::plan::{ForwardPlan, KvShape};
use crate::variant::Variant;

/// A pool of KV pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvId(pub u32);

/// A plan made ready to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Executable(pub u32);

/// Consecutive tokens inside one page, in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpan {
    /// The pool.
    pub kv: KvId,
    /// Page of that pool.
    pub page: u32,
    /// First token inside the page.
    pub start: usize,
    /// How many.
    pub tokens: usize,
}

/// What a backend is, for doctor and records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendInfo {
    /// `cpu`, `cuda`, `reference`.
    pub name: String,
    /// The processor or card.
    pub device: String,
    /// Worker threads; 1 where that means nothing.
    pub threads: usize,
    /// Levels that kernels may use.
    pub isa: IsaSet,
}

/// How often threads of a backend sat out, because they had waited for their processors, which others used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Benched {
    /// What the backend ran so far: a step is one, and some of what is done to load a model.
    pub regions: u64,
    /// How many of them ran on fewer threads than there are.
    pub short: u64,
    /// How many threads sat out at once at most.
    pub most: usize,
}

/// Why a backend could not do something.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// The plan, batch or weight is not what the backend needs.
    #[error(transparent)]
    Input(#[from] Fault),
    /// Not enough memory for a pool, a weight or a buffer.
    #[error("{what} needs {bytes} bytes, which the {device} does not have")]
    OutOfMemory {
        /// What was being allocated.
        what: String,
        /// How much.
        bytes: usize,
        /// Whose memory.
        device: String,
    },
    /// The device reported an error.
    #[error("{kernel}: {message}")]
    Device {
        /// The kernel's key, or the call that failed.
        kernel: String,
        /// The device's own words.
        message: String,
    },
}

/// A device that holds weights and KV pages and runs plans.
///
/// Handles belong to the backend that gave them. A backend validates what it is handed and refuses before it changes
/// anything: a failed call leaves pools, weights and executables as they were.
///
/// No method has a body here: a backend that has nothing to do says so itself, and what wraps a backend cannot forget to hand
/// a call on.
pub trait Backend: Send {
    /// What it is.
    fn describe(&self) -> BackendInfo;

    /// Its kernels, the preferred ones first.
    fn variants(&self) -> &[Variant];

    /// The most bytes of a memory of its own that it has taken at once.
    fn device_bytes(&self) -> Reading<u64>;

    /// Takes a weight. The layout is the one that the variants of its format read.
    ///
    /// # Errors
    /// When the format is not supported or memory runs out.
    fn pack(&mut self, weight: &Weight) -> Result<WeightId, OpError>;

    /// Makes a pool of `pages` pages of `page_tokens` tokens.
    ///
    /// # Errors
    /// When memory runs out.
    fn alloc_kv(&mut self, shape: KvShape, pages: usize, page_tokens: usize) -> Result<KvId, OpError>;

    /// Gives a pool back.
    ///
    /// # Errors
    /// When there is no such pool.
    fn free_kv(&mut self, kv: KvId) -> Result<(), OpError>;

    /// Copies tokens of all layers from one place to another of the same shape.
    ///
    /// # Errors
    /// When a span lies outside its page or the shapes differ.
    fn copy_kv(&mut self, from: KvSpan, to: KvSpan) -> Result<(), OpError>;

    /// The bytes of a span: layer by layer, the keys [tokens, K, E] and then the values, in the pool's element type.
    ///
    /// # Errors
    /// When the span lies outside its page.
    fn read_kv(&mut self, span: KvSpan) -> Result<Vec<u8>, OpError>;

    /// Stores what [`Backend::read_kv`] gave.
    ///
    /// # Errors
    /// When the span lies outside its page or the number of bytes is not that of the span.
    fn write_kv(&mut self, span: KvSpan, bytes: &[u8]) -> Result<(), OpError>;

    /// Returns once no thread of the backend keeps a processor busy; the next call wakes them. Another engine beside
    /// this one then has the processors for itself. A backend without threads of its own has nothing to do.
    fn rest(&mut self);

    /// How often threads of its own sat out so far, or why none ever does.
    fn benched(&self) -> Reading<Benched>;

    /// How its memory lies in the pages of the host, by what it is for (`weights`, `kv`, `buffers`). The system is asked:
    /// for reports, not for steps.
    fn pages(&self) -> Reading<BTreeMap<String, PageUse>>;

    /// Makes a plan ready: resolves kernels, allocates step buffers. The token loop allocates nothing after this.
    ///
    /// # Errors
    /// When the plan does not validate or names a kernel that this backend does not have.
    fn compile(&mut self, plan: &ForwardPlan) -> Result<Executable, OpError>;

    /// Frees an executable.
    fn release(&mut self, exe: Executable);

    /// Runs one step and waits for it.
    ///
    /// # Errors
    /// When the batch does not fit the plan's bucket, a table is too short for a row, a token is outside the
    /// vocabulary, or the device fails. [`crate::BatchCheck`] has the whole list and is asked first. What only the
    /// computation can find (logits that are no numbers) is found after the rows' own slots have been written.
    fn run(&mut self, exe: Executable, batch: &Batch, out: &mut StepOutput) -> Result<(), OpError>;

    /// Runs one step as [`Backend::run`] does, but launch by launch, and adds to `launched` what each left of the rows
    /// `rows` of the batch, also of a step that fails later. Kernels, buffers and weights are those of `exe`, and so are
    /// the answers. What the launches leave is full of NaN before the first of them, in these rows: a row that is not
    /// written is found out.
    ///
    /// # Errors
    /// As [`Backend::run`], or when the backend does not run steps in this way.
    fn run_apart(
        &mut self,
        exe: Executable,
        batch: &Batch,
        rows: &[usize],
        out: &mut StepOutput,
        launched: &mut Vec<Launched>,
    ) -> Result<(), OpError>;
}

/// What is behind a pointer is as good as what is not: wrappers take either.
impl<B: Backend + ?Sized> Backend for Box<B> {
    crate::hand_on!(
        this => **this;
        describe, variants, device_bytes, pack, alloc_kv, free_kv, copy_kv, read_kv, write_kv, rest, benched, pages,
        compile, release, run, run_apart
    );
}
