//! Delays behind launches: how the laboratory asks what a group of calls is worth, and plants what a study must find.
//!
//! A delay is a launch of its own (`delay.cu`) that counts cycles. It does not begin before what is in front of it has
//! ended, and holds up what comes after it, whether that is launched early or not: it delays the whole chain.
//! The price is that the launches on its two sides do not overlap. A delay of no time costs as much, so that what delays do is
//! told by setting it beside such.

use std::collections::BTreeMap;

use bytemuck::{Pod, Zeroable};
use tare_core::Fault;
use tare_ops::{Executable, OpError};

use super::{CudaBackend, unknown};
use crate::device::{Address, Device, GraphId, KernelId, Launch};
use crate::program::{Program, Stretch};
use crate::units::Unit;

/// Cycles of the delay by which their rate is measured: some milliseconds.
const LONG_CYCLES: u64 = 1 << 22;
/// Delays of no time in a row by which the cost of one is measured, beside the one at their beginning.
const ROW: usize = 16;
/// Long delays before the first that counts: clocks rise to what they are under work.
const WARM_UPS: usize = 4;
/// Runs that count.
const RUNS: usize = 3;

/// What delays are made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacer {
    kernel: KernelId,
    /// Where the cycles of all delays are counted.
    count: Address,
    /// By the device's own clock.
    cycles_per_ns: f64,
    /// What a delay of no time costs a chain of launches.
    empty_ns: f64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Args {
    count: u64,
    cycles: u64,
}

impl Pacer {
    fn cycles(&self, cycles: u64) -> Launch {
        let args = bytemuck::bytes_of(&Args { count: self.count.0, cycles }).to_vec();
        Launch { kernel: self.kernel, key: "delay".into(), grid: (1, 1), threads: 32, shared: 0, early: false, args }
    }

    /// A delay of `ns` nanoseconds.
    fn delay(&self, ns: f64) -> Launch {
        self.cycles((ns * self.cycles_per_ns) as u64)
    }
}

impl<D: Device> CudaBackend<D> {
    /// An executable on the memory of `exe` that waits for `ns` nanoseconds behind the last launch of each that carries any of
    /// `calls`; it must be released before `exe`.
    ///
    /// # Errors
    /// When there is no such executable or call, or the device refuses or has no clock.
    pub fn delayed(&mut self, exe: Executable, calls: &[usize], ns: u64) -> Result<Executable, OpError> {
        let places = self.places(exe, calls)?;
        let delay = self.pacer()?.delay(ns as f64);
        let mut twin = Program { stretch: None, graph: None, memory: None, ..self.program(exe)?.clone() };
        for at in places.iter().filter_map(|places| places.last()) {
            twin.delays.entry(*at).or_default().push(delay.clone());
        }
        let id = self.handle();
        self.programs.insert(id, twin);
        Ok(Executable(id))
    }

    /// How often a step of [`CudaBackend::delayed`] waits.
    ///
    /// # Errors
    /// When there is no such executable or call.
    pub fn waits(&self, exe: Executable, calls: &[usize]) -> Result<usize, OpError> {
        Ok(self.places(exe, calls)?.len())
    }

    /// Makes every launch of `exe` that carries any of `calls` longer by `percent` of its own time, which is measured after the
    /// first step; the first step has no delay. A launch that carries other calls too is delayed as a whole.
    ///
    /// # Errors
    /// When there is no such executable or call, or it has run already.
    pub fn stretch(&mut self, exe: Executable, calls: &[usize], percent: f64) -> Result<(), OpError> {
        let places = self.places(exe, calls)?.concat();
        let program = self.programs.get_mut(&exe.0).ok_or_else(|| unknown("executable", exe.0))?;
        if program.ran {
            return Err(Fault::new("delay", "an executable that has not run", "one that has").into());
        }
        program.stretch = Some(Stretch { places, percent });
        Ok(())
    }

    /// Nanoseconds that all delays of this backend have taken since one was planted last.
    ///
    /// # Errors
    /// When the device fails.
    pub fn spun_ns(&mut self) -> Result<u64, OpError> {
        let Some(pacer) = self.pacer else { return Ok(0) };
        let mut cycles = 0u64;
        self.device.download(pacer.count, bytemuck::bytes_of_mut(&mut cycles))?;
        Ok((cycles as f64 / pacer.cycles_per_ns) as u64)
    }

    /// A recording of one delay of no time, and the nanoseconds of it that are the delay's own: the rest is what the replay of
    /// any part takes before and after its launches.
    ///
    /// # Errors
    /// When the device refuses or has no clock.
    pub fn empty_part(&mut self) -> Result<(GraphId, f64), OpError> {
        let pacer = self.pacer()?;
        Ok((self.device.record(&[pacer.delay(0.0)])?, pacer.empty_ns))
    }

    /// Times the launches that are to take longer, once all have run, and puts delays behind them. What a delay costs beside
    /// its time is taken off it; where a share is shorter than that, it is owed and joins the next one.
    pub(super) fn time_stretched(&mut self, exe: Executable) -> Result<(), OpError> {
        let Some(Stretch { places, percent }) = self.program(exe)?.stretch.clone() else { return Ok(()) };
        let pacer = self.pacer()?;
        let empty_ns = self.launch_ns(&pacer.delay(0.0))?;
        let launches = self.program(exe)?.launches.clone();
        let (mut delays, mut owed_ns) = (BTreeMap::new(), 0.0);
        // The step runs once more: its numbers are the same again.
        for (at, launch) in launches.iter().enumerate() {
            if !places.contains(&at) {
                self.device.launch(launch)?;
                continue;
            }
            let own_ns = self.launch_ns(launch)?.saturating_sub(empty_ns);
            owed_ns += own_ns as f64 * percent / 100.0;
            if owed_ns > 0.0 && owed_ns >= 2.0 * pacer.empty_ns {
                delays.insert(at, vec![pacer.delay(owed_ns - pacer.empty_ns)]);
                owed_ns = 0.0;
            }
        }
        self.device.finish()?;
        let program = self.programs.get_mut(&exe.0).ok_or_else(|| unknown("executable", exe.0))?;
        (program.delays, program.stretch) = (delays, None);
        Ok(())
    }

    fn launch_ns(&mut self, launch: &Launch) -> Result<u64, OpError> {
        self.timed(|device| device.launch(launch))
    }

    /// Places of the launches that carry any of `calls`.
    fn places(&self, exe: Executable, calls: &[usize]) -> Result<Vec<Vec<usize>>, OpError> {
        let program = self.program(exe)?;
        let most = program.carried.last().map_or(0, |c| c.calls.end);
        if let Some(call) = calls.iter().find(|call| **call >= most) {
            return Err(Fault::new("calls that are delayed", format!("below {most}"), call.to_string()).into());
        }
        Ok(program.places(calls))
    }

    /// What delays are made with, their rate measured anew.
    fn pacer(&mut self) -> Result<Pacer, OpError> {
        let mut pacer = match self.pacer {
            Some(Pacer { kernel, count, .. }) => Pacer { kernel, count, cycles_per_ns: 1.0, empty_ns: 0.0 },
            None => {
                let kernel = self.device.kernel(&Unit::delay(), "delay")?;
                let count = self.device.alloc("the count of delays", size_of::<u64>())?;
                // Kept before it is measured: who asks again after a failure needs no other memory.
                *self.pacer.insert(Pacer { kernel, count, cycles_per_ns: 1.0, empty_ns: 0.0 })
            }
        };
        self.device.fill(pacer.count, size_of::<u64>(), 0)?;
        let long_ns = self.usual_ns(&[pacer.cycles(LONG_CYCLES)], WARM_UPS)?;
        let one_ns = self.usual_ns(&[pacer.cycles(0)], 1)?;
        let row_ns = self.usual_ns(&vec![pacer.cycles(0); 1 + ROW], 1)?;
        // What was counted while measuring is no delay of a step.
        self.device.fill(pacer.count, size_of::<u64>(), 0)?;
        pacer.cycles_per_ns = LONG_CYCLES as f64 / long_ns.saturating_sub(one_ns).max(1) as f64;
        pacer.empty_ns = row_ns.saturating_sub(one_ns) as f64 / ROW as f64;
        self.pacer = Some(pacer);
        Ok(pacer)
    }

    /// Median nanoseconds of some launches, recorded and replayed, after so many replays that do not count.
    fn usual_ns(&mut self, launches: &[Launch], warm_ups: usize) -> Result<u64, OpError> {
        let graph = self.device.record(launches)?;
        let mut once = || self.timed(|device| device.replay(graph));
        let times: Result<Vec<u64>, OpError> = (0..warm_ups + RUNS).map(|_| once()).collect();
        self.device.forget(graph);
        let mut counted = times?.split_off(warm_ups);
        counted.sort_unstable();
        Ok(counted[RUNS / 2])
    }
}
