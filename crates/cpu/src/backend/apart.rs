//! A step call by call: each as a part of its executable, and what it leaves.

use half::bf16;
use tare_ops::{Batch, Executable, Launched, Left, OpError, StepOutput};

use super::CpuBackend;
use crate::program::Written;

impl CpuBackend {
    /// Runs a step call by call: see [`tare_ops::Backend::run_apart`].
    pub(super) fn step_apart(
        &mut self,
        exe: Executable,
        batch: &Batch,
        rows: &[usize],
        out: &mut StepOutput,
        launched: &mut Vec<Launched>,
    ) -> Result<(), OpError> {
        self.prepare(exe, batch)?;
        let carried = self.program(exe)?.carried.clone();
        // SAFETY: the batch has been checked against the executable that owns the buffers, and no worker runs.
        carried.iter().flat_map(|(_, left)| left).for_each(|w| unsafe { w.spoil(batch, rows) });
        // Every part is told which tokens the step before gave.
        let previous = self.step.previous.clone();
        for (calls, written) in carried {
            let part = self.part(exe, &calls.clone().collect::<Vec<_>>())?;
            self.step.previous.clone_from(&previous);
            let ran = self.run_step(part, batch, out, false);
            self.programs.remove(&part.0);
            ran?;
            // SAFETY: as above.
            let left = written.iter().map(|w| unsafe { w.read(batch, rows) }).collect();
            launched.push(Launched { calls, left });
        }
        Ok(())
    }
}

impl Written {
    /// Fills the rows `rows` of the step with NaN; what pads them stays as it is.
    ///
    /// # Safety
    /// The rows are rows of `batch`, which fits the executable whose buffer this is, and nobody else uses that.
    unsafe fn spoil(&self, batch: &Batch, rows: &[usize]) {
        for t in batch.places(self.space, rows) {
            // SAFETY: the caller's promise: the buffer has the row, and nobody else uses it.
            unsafe {
                match &self.tiled {
                    Some(tiled) => (0..self.rows.width).for_each(|k| tiled.element(t, k).write(bf16::NAN.to_bits())),
                    None => std::slice::from_raw_parts_mut(self.rows.row(t), self.rows.width).fill(f32::NAN),
                }
            }
        }
    }

    /// The rows `rows` of the step.
    ///
    /// # Safety
    /// As [`Written::spoil`].
    unsafe fn read(&self, batch: &Batch, rows: &[usize]) -> Left {
        let mut values = Vec::new();
        for t in batch.places(self.space, rows) {
            // SAFETY: as in `spoil`.
            unsafe {
                match &self.tiled {
                    Some(tiled) => values
                        .extend((0..self.rows.width).map(|k| bf16::from_bits(tiled.element(t, k).read()).to_f32())),
                    None => values.extend_from_slice(std::slice::from_raw_parts(self.rows.row(t), self.rows.width)),
                }
            }
        }
        Left { buffer: self.buffer, bf16: self.tiled.is_some(), values }
    }
}
