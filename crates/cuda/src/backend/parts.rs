//! A step in parts: launches of an executable that are recorded and timed by themselves.

use std::ops::Range;

use tare_core::Fault;
use tare_ops::{Batch, Executable, OpError};

use super::{CudaBackend, unknown};
use crate::device::{Device, Edge, GraphId};

/// One launch of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedLaunch {
    /// Indices of the calls of the plan that it carries, or that it carries a part of.
    pub calls: Range<usize>,
    /// Keys of their kernels.
    pub key: String,
}

impl<D: Device> CudaBackend<D> {
    /// The launches of a step of `exe`, in order.
    ///
    /// # Errors
    /// When there is no such executable.
    pub fn carried(&self, exe: Executable) -> Result<Vec<CarriedLaunch>, OpError> {
        let program = self.programs.get(&exe.0).ok_or_else(|| unknown("executable", exe.0))?;
        let of = |c: &crate::carried::Carried| {
            let keys = program.launches[c.launches.clone()].iter().map(|launch| launch.key.clone());
            keys.map(|key| CarriedLaunch { calls: c.calls.clone(), key }).collect::<Vec<_>>()
        };
        Ok(program.carried.iter().flat_map(of).collect())
    }

    /// Records some launches of `exe`, by their places in [`CudaBackend::carried`], as one that is replayed by itself. They
    /// read and write what the step does.
    ///
    /// # Errors
    /// When there is no such executable or launch, or the device refuses.
    pub fn part(&mut self, exe: Executable, places: &[usize]) -> Result<GraphId, OpError> {
        let program = self.programs.get(&exe.0).ok_or_else(|| unknown("executable", exe.0))?;
        let launches: Option<Vec<_>> = places.iter().map(|&at| program.launches.get(at).cloned()).collect();
        let launches = launches.ok_or_else(|| {
            let expected = format!("places among {} launches", program.launches.len());
            Fault::new("part of a step", expected, format!("{places:?}"))
        })?;
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
        self.device.tick(Edge::Begin)?;
        self.device.replay(part)?;
        self.device.tick(Edge::End)?;
        self.device.finish()?;
        let ns = self.device.ticked_ns()?;
        Ok(ns.ok_or_else(|| Fault::new("device", "a clock of its own", "none"))?)
    }
}
