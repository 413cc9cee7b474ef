//! A step taken apart: what each launch leaves, and launches that are recorded and timed by themselves.

use tare_core::Fault;
use tare_ops::{Batch, Executable, Launched, OpError, StepOutput};

use super::{CudaBackend, unknown};
use crate::carried::Carried;
use crate::device::{Device, Edge, GraphId, Launch};
use crate::program::Program;

impl<D: Device> CudaBackend<D> {
    /// The launches of a step of `exe` in order, and which of them carry which calls of its plan: every launch carries some,
    /// every call is carried once.
    ///
    /// # Errors
    /// When there is no such executable.
    pub fn launches(&self, exe: Executable) -> Result<(&[Launch], &[Carried]), OpError> {
        let program = self.program(exe)?;
        Ok((&program.launches, &program.carried))
    }

    /// Records some launches of `exe`, by their places in the step, as one that is replayed by itself, each with the delay
    /// that was planted behind it. They read and write what the step does.
    ///
    /// # Errors
    /// When there is no such executable or launch, or the device refuses.
    pub fn part(&mut self, exe: Executable, places: &[usize]) -> Result<GraphId, OpError> {
        let program = self.program(exe)?;
        if places.iter().any(|at| *at >= program.launches.len()) {
            let expected = format!("places among {} launches", program.launches.len());
            return Err(Fault::new("part of a step", expected, format!("{places:?}")).into());
        }
        let launches = program.chain(places.iter().copied());
        self.device.record(&launches)
    }

    /// Frees what [`CudaBackend::part`] recorded.
    pub fn forget_part(&mut self, part: GraphId) {
        self.device.forget(part);
    }

    /// Runs a part of `exe` on the rows of `batch` and gives its nanoseconds by the device's own clock.
    ///
    /// # Errors
    /// When the batch does not suit the executable, or the device fails or has no clock.
    pub fn time_part(&mut self, exe: Executable, part: GraphId, batch: &Batch) -> Result<u64, OpError> {
        self.prepare(exe, batch)?;
        self.timed(|device| device.replay(part))
    }

    /// Nanoseconds of `work` by the device's own clock.
    pub(super) fn timed(&mut self, work: impl FnOnce(&mut D) -> Result<(), OpError>) -> Result<u64, OpError> {
        self.device.tick(Edge::Begin)?;
        work(&mut self.device)?;
        self.device.tick(Edge::End)?;
        self.device.finish()?;
        let ns = self.device.ticked_ns()?;
        Ok(ns.ok_or_else(|| Fault::new("device", "a clock of its own", "none"))?)
    }

    /// Runs a step launch by launch: see [`tare_ops::Backend::run_apart`].
    pub(super) fn step_apart(
        &mut self,
        exe: Executable,
        batch: &Batch,
        rows: &[usize],
        out: &mut StepOutput,
        launched: &mut Vec<Launched>,
    ) -> Result<(), OpError> {
        self.prepare(exe, batch)?;
        self.launch_apart(exe, batch, rows, launched)?;
        let answers = self.program(exe)?.answers;
        out.device_ns = None;
        self.collect(exe, batch, answers, out)
    }

    /// Runs the launches of a step that has been prepared, and reads what each leaves of the rows `rows`.
    fn launch_apart(
        &mut self,
        exe: Executable,
        batch: &Batch,
        rows: &[usize],
        launched: &mut Vec<Launched>,
    ) -> Result<(), OpError> {
        let (programs, device) = (&self.programs, &mut self.device);
        let program = programs.get(&exe.0).ok_or_else(|| unknown("executable", exe.0))?;
        let left = || program.carried.iter().flat_map(|c| &c.left);
        left().try_for_each(|place| place.spoil(device, batch, rows))?;
        for carried in &program.carried {
            program.launches[carried.launches.clone()].iter().try_for_each(|launch| device.launch(launch))?;
            let left = carried.left.iter().map(|place| place.read(device, batch, rows)).collect::<Result<_, _>>()?;
            launched.push(Launched { calls: carried.calls.clone(), left });
        }
        Ok(())
    }

    pub(super) fn program(&self, exe: Executable) -> Result<&Program, Fault> {
        self.programs.get(&exe.0).ok_or_else(|| unknown("executable", exe.0))
    }
}
