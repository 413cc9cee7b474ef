//! One step: a single parallel region in which every worker walks the stages of a program.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use tare_core::Fault;
use tare_ops::{Batch, RowSpace};

use crate::kernels::SCRATCH;
use crate::kernels::attention::{Cache, scratch::Scratch};
use crate::kernels::kv_append::TableView;
use crate::kernels::sample::Outputs;
use crate::kv::out_of_memory;
use crate::memory::Memory;
use crate::pool::Region;
use crate::program::{Program, Stage, Task};
use tare_ops::OpError;

/// What a worker needs for itself.
#[derive(Debug)]
pub struct Workspace {
    linear: Memory,
}

impl Workspace {
    /// Room for the linears.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new() -> Result<Self, OpError> {
        // Only what a kernel touches is there.
        let bytes = SCRATCH * size_of::<f32>();
        let linear = Memory::zeroed(bytes).ok_or_else(|| out_of_memory("a worker's scratch", bytes))?;
        Ok(Self { linear })
    }

    /// Its bytes.
    pub fn memory(&self) -> &Memory {
        &self.linear
    }
}

/// A step about to run: everything its workers share.
#[derive(Debug)]
pub struct Step<'a> {
    /// What runs.
    pub program: &'a Program,
    /// Its rows.
    pub batch: &'a Batch,
    /// The token of each row.
    pub tokens: &'a [u32],
    /// Rows that want something.
    pub selected: &'a [u32],
    /// The batch's tables.
    pub tables: &'a [TableView],
    /// One for each worker.
    pub workspaces: &'a [Workspace],
    /// Room for the longest context of the batch.
    pub scratch: &'a Scratch,
    /// One entry for each selected row.
    pub outputs: Outputs,
    /// The first error of a worker.
    pub failed: &'a Mutex<Option<Fault>>,
    /// Nanoseconds from the start to the beginning of each stage and the end, when they are wanted.
    pub times: Option<(Instant, &'a [AtomicU64])>,
}

impl Step<'_> {
    /// One worker's walk.
    pub fn walk(&self, region: Region) {
        for (i, stage) in self.program.stages.iter().enumerate() {
            if stage.barrier || self.times.is_some() {
                region.barrier();
            }
            self.stamp(i, region);
            // SAFETY: compile made the stage for these buffers and weights, `BatchCheck` has passed the batch, and
            // the barriers separate it from every stage whose data it touches.
            unsafe { self.stage(stage, region) };
        }
        if self.times.is_some() {
            region.barrier();
            self.stamp(self.program.stages.len(), region);
        }
    }

    fn stamp(&self, i: usize, region: Region) {
        if let Some((start, times)) = self.times
            && region.worker == 0
        {
            times[i].store(start.elapsed().as_nanos() as u64, Relaxed);
        }
    }

    /// Rows of this step in a buffer.
    fn rows(&self, space: RowSpace) -> usize {
        match space {
            RowSpace::All => self.tokens.len(),
            RowSpace::Selected => self.selected.len(),
        }
    }

    /// # Safety
    /// The batch has been checked and every stage that this one depends on is done.
    unsafe fn stage(&self, stage: &Stage, region: Region) {
        let all = self.tokens.len();
        let workspace = &self.workspaces[region.worker];
        // SAFETY: the caller's promise is that of every kernel.
        unsafe {
            match &stage.task {
                Task::Angles(angles) => angles.fill(&self.program.rope, &self.batch.rows, region),
                Task::Round(round, space) => round.run(self.rows(*space), region),
                Task::Quantize(f, call, space) => f(call, self.rows(*space), region),
                Task::IntoTiles(f, call, space) => f(call, self.rows(*space), region),
                Task::Embedding(f, call) => f(call, self.tokens, region),
                Task::Gather(f, call) => f(call, self.tokens, region),
                Task::Norm(f, call, space) => f(call, self.rows(*space), region),
                Task::Rope(f, call) => f(call, all, region),
                Task::Linear(f, call, space) => f(call, self.rows(*space), region, workspace.linear.as_ptr()),
                Task::LinearInt(f, call, space) => f(call, self.rows(*space), region),
                Task::LinearLossless(f, call, space) => f(call, self.rows(*space), region, workspace.linear.as_ptr()),
                Task::LinearTiles(f, call, space) => f(call, self.rows(*space), region, workspace.linear.as_ptr()),
                Task::GatedTiles(f, call, space) => f(call, self.rows(*space), region, workspace.linear.as_ptr()),
                Task::Heads(f, call) => f(call, &self.batch.rows, self.tables, region),
                Task::HeadsTiles(f, call) => {
                    f(call, &self.batch.rows, self.tables, region, workspace.linear.as_ptr());
                }
                Task::KvAppend(call) => call.run(&self.batch.rows, self.tables, region),
                Task::Attention(f, call, next) => {
                    let (rows, tables) = (&self.batch.rows[..], self.tables);
                    f(call, Cache { rows, tables, next: &next.0, scratch: self.scratch }, region);
                }
                Task::SwiGlu(f, call, space) => f(call, self.rows(*space), region),
                Task::SelectRows(call) => call.run(self.selected, region),
                Task::Sample(f, call) => {
                    if let Err(fault) = f(call, self.batch, self.selected, self.outputs, region) {
                        let fault = fault.within(&self.program.kernels[stage.call]);
                        self.failed.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(fault);
                    }
                }
                Task::Mark(spin) => spin.mark(region),
                Task::Spin(spin) => spin.wait(region),
            }
        }
    }
}
