//! What the laboratory asks of a backend that it shares with the engine: delays in a step, wherever it runs.

use tare_core::Fault;
use tare_cpu::{CpuBackend, Dose};
use tare_cuda::{CudaBackend, device::Device};
use tare_ops::{Backend, Executable, ForwardPlan, OpError};

use crate::delay::Delay;
use crate::groups::{Group, groups_as_run};
use crate::replay::launches;

/// A backend that can be shared, and whose steps can be delayed.
pub trait Shared: Backend {
    /// Plants `delay` in `exe`, which was compiled from `plan`.
    ///
    /// # Errors
    /// When it cannot be planted.
    fn plant(&mut self, delay: Delay, exe: Executable, plan: &ForwardPlan) -> Result<(), OpError>;

    /// The calls of a part of a step of `exe`, by the name that its replay gives the part; none when the step has no such
    /// call.
    ///
    /// # Errors
    /// When no step has a part of that name, or a call of `plan` is in none.
    fn calls_of(&self, exe: Executable, plan: &ForwardPlan, part: &str) -> Result<Vec<usize>, OpError>;

    /// How often a step of [`Shared::delayed`] waits.
    ///
    /// # Errors
    /// When there is no such executable or call.
    fn waits(&self, exe: Executable, calls: &[usize]) -> Result<usize, OpError>;

    /// An executable on the buffers of `exe` that waits for `ns` nanoseconds behind each of `calls`; on a device behind each
    /// launch that carries any. It must be released before `exe`.
    ///
    /// # Errors
    /// When there is no such executable or call, or the backend fails.
    fn delayed(&mut self, exe: Executable, plan: &ForwardPlan, calls: &[usize], ns: u64)
    -> Result<Executable, OpError>;

    /// Nanoseconds really spent in delays: it grows by what each run of `exe` spends.
    ///
    /// # Errors
    /// When there is no such executable, or the backend fails.
    fn spun_ns(&mut self, exe: Executable) -> Result<u64, OpError>;

    /// Holds the threads that compute as they are, so that steps whose times are compared have the same ones, or lets them
    /// come and go again. What held before; a backend whose threads never change holds nothing.
    fn hold(&mut self, held: bool) -> bool;
}

impl Shared for CpuBackend {
    fn plant(&mut self, delay: Delay, exe: Executable, plan: &ForwardPlan) -> Result<(), OpError> {
        let calls = delay.calls(plan, &self.carried(exe)?)?;
        Ok(CpuBackend::plant(self, exe, &calls, Dose::Percent(delay.percent))?)
    }

    fn calls_of(&self, exe: Executable, plan: &ForwardPlan, part: &str) -> Result<Vec<usize>, OpError> {
        let group: Group = part.parse()?;
        let found = groups_as_run(plan, &self.carried(exe)?)?.into_iter().find(|(g, _)| *g == group);
        Ok(found.map(|(_, calls)| calls).unwrap_or_default())
    }

    fn waits(&self, exe: Executable, calls: &[usize]) -> Result<usize, OpError> {
        let carried = self.carried(exe)?;
        Ok(carried.iter().filter(|together| calls.iter().any(|call| together.contains(call))).count())
    }

    fn delayed(
        &mut self,
        exe: Executable,
        plan: &ForwardPlan,
        calls: &[usize],
        ns: u64,
    ) -> Result<Executable, OpError> {
        let all: Vec<usize> = (0..plan.calls.len()).collect();
        let twin = self.part(exe, &all)?;
        CpuBackend::plant(self, twin, calls, Dose::Nanoseconds(ns)).inspect_err(|_| self.release(twin))?;
        Ok(twin)
    }

    fn spun_ns(&mut self, exe: Executable) -> Result<u64, OpError> {
        Ok(CpuBackend::spun_ns(self, exe)?)
    }

    fn hold(&mut self, held: bool) -> bool {
        CpuBackend::hold(self, held)
    }
}

impl<D: Device> Shared for CudaBackend<D> {
    fn plant(&mut self, delay: Delay, exe: Executable, plan: &ForwardPlan) -> Result<(), OpError> {
        self.stretch(exe, &delay.calls(plan, &[])?, delay.percent)
    }

    fn calls_of(&self, exe: Executable, plan: &ForwardPlan, part: &str) -> Result<Vec<usize>, OpError> {
        let sorted = launches::sort(plan, self.launches(exe)?)?;
        let names: Vec<&str> = sorted.iter().map(|s| s.name.as_str()).collect();
        let unknown = || Fault::new("part of a step", format!("one of {}", names.join(", ")), format!("`{part}`"));
        Ok(sorted.iter().find(|s| s.name == part).ok_or_else(unknown)?.calls.clone())
    }

    fn waits(&self, exe: Executable, calls: &[usize]) -> Result<usize, OpError> {
        CudaBackend::waits(self, exe, calls)
    }

    fn delayed(&mut self, exe: Executable, _: &ForwardPlan, calls: &[usize], ns: u64) -> Result<Executable, OpError> {
        CudaBackend::delayed(self, exe, calls, ns)
    }

    fn spun_ns(&mut self, _: Executable) -> Result<u64, OpError> {
        CudaBackend::spun_ns(self)
    }

    fn hold(&mut self, _: bool) -> bool {
        false
    }
}
