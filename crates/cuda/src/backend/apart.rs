//! A step launch by launch, as it is recorded otherwise, and what each launch leaves.

use tare_ops::{Batch, Executable, Launched, OpError, StepOutput};

use super::{CudaBackend, unknown};
use crate::device::Device;

impl<D: Device> CudaBackend<D> {
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
        let answers = self.programs.get(&exe.0).and_then(|program| program.answers);
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
}
