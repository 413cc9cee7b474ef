//! What a laboratory asks of a backend beyond steps: who works, times of calls, calls as executables of their own, delays.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tare_core::{Fault, Reading};
use tare_ops::{Batch, Executable, OpError, StepOutput};

use super::{CpuBackend, NEVER, longest, unknown};
use crate::dispatch::{Dispatch, Launch};
use crate::planted::Dose;

impl CpuBackend {
    /// The processor of each worker, or why they are not pinned.
    pub fn placement(&self) -> &Reading<Vec<usize>> {
        self.workers.placement()
    }

    /// Workers that run now, the calling thread included: those of the last region, without those that sat out.
    pub fn active(&self) -> usize {
        self.workers.active()
    }

    /// Holds the workers as they are, or lets them come and go again: see [`crate::pool::Pool::hold`].
    pub fn hold(&mut self, held: bool) -> bool {
        self.workers.hold(held)
    }

    /// Runs a step as [`tare_ops::Backend::run`] does, and writes the nanoseconds of each call of the plan to `ns`.
    ///
    /// The workers meet before every stage, so that the times do not overlap: the step is a little slower than an
    /// untraced one, in which independent calls run into each other.
    ///
    /// # Errors
    /// As [`tare_ops::Backend::run`].
    pub fn run_traced(
        &mut self,
        exe: Executable,
        batch: &Batch,
        out: &mut StepOutput,
        ns: &mut Vec<u64>,
    ) -> Result<(), OpError> {
        let stages = self.program(exe)?.stages.len();
        if self.step.times.len() <= stages {
            self.step.times.resize_with(stages + 1, AtomicU64::default);
        }
        self.step.times.iter().for_each(|t| t.store(NEVER, Relaxed));
        self.run_step(exe, batch, out, true)?;
        let program = self.program(exe)?;
        ns.clear();
        ns.resize(program.kernels.len(), 0);
        for (i, stage) in program.stages.iter().enumerate() {
            let at = |i: usize| self.step.times[i].load(Relaxed);
            ns[stage.call] += at(i + 1) - at(i);
        }
        Ok(())
    }

    /// The calls `calls` of `whole` as an executable of their own: its stages in its order, on its buffers, so that they
    /// work on what a step of the whole has left there. Calls are counted as in the plan of the whole.
    ///
    /// # Errors
    /// When `whole` is no executable of this backend or has no such call.
    pub fn part(&mut self, whole: Executable, calls: &[usize]) -> Result<Executable, Fault> {
        let part = self.program(whole)?.part(calls)?;
        Ok(self.keep(part))
    }

    /// As [`CpuBackend::part`], for a part that is run again and again by itself: a gated unit that writes over its input
    /// writes to memory of the part's own, so that the numbers it works on are the same in every run.
    ///
    /// # Errors
    /// As [`CpuBackend::part`], or when memory runs out.
    pub fn part_alone(&mut self, whole: Executable, calls: &[usize]) -> Result<Executable, OpError> {
        let part = self.program(whole)?.part(calls)?.alone()?;
        Ok(self.keep(part))
    }

    /// The calls of `exe` that run together, by their indices in the plan, in order: one by one as a rule.
    ///
    /// # Errors
    /// When `exe` is no executable of this backend.
    pub fn carried(&self, exe: Executable) -> Result<Vec<Range<usize>>, Fault> {
        Ok(self.program(exe)?.carried.iter().map(|(calls, _)| calls.clone()).collect())
    }

    /// Plants a delay in an executable: after each of `calls` every worker spins for `dose`. What is computed stays the
    /// same. A program in which nothing was planted has no stage for it.
    ///
    /// # Errors
    /// When `exe` is no executable of this backend or has no such call.
    pub fn plant(&mut self, exe: Executable, calls: &[usize], dose: Dose) -> Result<(), Fault> {
        let program = self.programs.get_mut(&exe.0).ok_or_else(|| unknown("executable", exe.0))?;
        program.plant(calls, dose, self.workers.workers())
    }

    /// Nanoseconds that worker 0 has spent in the delays planted in `exe`, over all its runs.
    ///
    /// # Errors
    /// When `exe` is no executable of this backend.
    pub fn spun_ns(&self, exe: Executable) -> Result<u64, Fault> {
        Ok(self.program(exe)?.spun_ns.load(Relaxed))
    }

    /// Runs a step as [`CpuBackend::run_traced`] does, and lists every stage that ran, in order.
    ///
    /// # Errors
    /// As [`tare_ops::Backend::run`].
    pub fn dispatches(&mut self, exe: Executable, batch: &Batch) -> Result<Vec<Dispatch>, OpError> {
        let (mut out, mut ns) = (StepOutput::default(), Vec::new());
        self.run_traced(exe, batch, &mut out, &mut ns)?;
        let launch = Launch {
            rows: &batch.rows,
            selected: batch.selected(),
            context: longest(batch),
            workers: self.workers.active(),
        };
        let program = self.program(exe)?;
        let stages = program.stages.iter().zip(&self.step.times);
        let ran = stages.filter(|(_, began)| began.load(Relaxed) != NEVER);
        Ok(ran.map(|(stage, _)| Dispatch::of(program, stage, &launch)).collect())
    }
}
