//! Parts of a program, and delays planted in it: how the laboratory takes a step apart and asks what a group of calls
//! is worth.
//!
//! Both make a new list of stages from the one that compile made. A kernel knows nothing of either, and a program that
//! was left alone has no stage for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tare_core::Fault;
use tare_ops::OpError;

use crate::kv::out_of_memory;
use crate::memory::Memory;
use crate::pool::Region;
use crate::program::{Program, Stage, Task};
use crate::rows::Rows;

/// How long a planted delay lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dose {
    /// So many nanoseconds after each call.
    Nanoseconds(u64),
    /// So many percent of the time that a worker spent in each stage of a call.
    Percent(f64),
}

/// A delay of every worker, as a slower kernel would delay every one of them.
#[derive(Clone, Debug)]
pub struct Spin {
    dose: Dose,
    origin: Instant,
    /// For each worker, nanoseconds from `origin` to the beginning of the stage that is stretched.
    began_ns: Arc<[AtomicU64]>,
    /// Nanoseconds that worker 0 really spun, over all runs.
    spun_ns: Arc<AtomicU64>,
}

impl Spin {
    fn new(dose: Dose, workers: usize, spun_ns: &Arc<AtomicU64>) -> Self {
        let began_ns = (0..workers).map(|_| AtomicU64::new(0)).collect();
        Self { dose, origin: Instant::now(), began_ns, spun_ns: Arc::clone(spun_ns) }
    }

    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Notes the time of this worker.
    pub fn mark(&self, region: Region) {
        self.began_ns[region.worker].store(self.now_ns(), Relaxed);
    }

    /// Keeps this worker busy for the dose.
    pub fn wait(&self, region: Region) {
        let start = Instant::now();
        let dose = match self.dose {
            Dose::Nanoseconds(ns) => Duration::from_nanos(ns),
            Dose::Percent(p) => {
                let spent = self.now_ns().saturating_sub(self.began_ns[region.worker].load(Relaxed));
                Duration::from_nanos((spent as f64 * p / 100.0) as u64)
            }
        };
        let mut spun = start.elapsed();
        while spun < dose {
            std::hint::spin_loop();
            spun = start.elapsed();
        }
        if region.worker == 0 {
            self.spun_ns.fetch_add(spun.as_nanos() as u64, Relaxed);
        }
    }
}

impl Program {
    /// The stages of `calls` alone, in order, on the buffers of this program: of calls that run together, if the last is among
    /// them.
    ///
    /// The workers meet before a stage when they meet there, or at a stage left out since the one before it, in the
    /// whole: whatever separates two stages there separates them here.
    pub(crate) fn part(&self, calls: &[usize]) -> Result<Self, Fault> {
        let taken = self.chosen(calls)?;
        let mut stages = Vec::new();
        let mut met = false;
        for stage in &self.stages {
            met |= stage.barrier;
            if taken[stage.call] {
                stages.push(Stage { barrier: met, ..stage.clone() });
                met = false;
            }
        }
        let mut part = self.clone();
        part.stages = stages;
        part.spun_ns = Arc::default();
        Ok(part)
    }

    /// Lets a part run again and again by itself: a gated unit that writes over its gate, which in the whole is made anew
    /// before each, would otherwise shrink the same numbers from run to run until they are denormal. It writes to memory
    /// of the part's own.
    pub(crate) fn alone(mut self) -> Result<Self, OpError> {
        fn in_place(stage: &mut Stage) -> Option<(&mut Rows, &mut bool)> {
            match &mut stage.task {
                Task::SwiGlu(_, call, _) if call.out.row(0) == call.gate.row(0) => {
                    Some((&mut call.out, &mut stage.barrier))
                }
                _ => None,
            }
        }
        let units: Vec<_> = self.stages.iter_mut().filter_map(in_place).collect();
        // One after the other they write to the same memory: that of the widest.
        let Some(stride) = units.iter().map(|(out, _)| out.stride).max() else { return Ok(self) };
        let bytes = self.bucket.rows.saturating_mul(stride).saturating_mul(size_of::<f32>());
        let memory = Memory::zeroed(bytes).ok_or_else(|| out_of_memory("a buffer of a part", bytes))?;
        for (n, (out, barrier)) in units.into_iter().enumerate() {
            *out = Rows::new(&memory, out.width);
            *barrier |= n > 0;
        }
        self.own.push(Arc::new(memory));
        Ok(self)
    }

    /// Puts a spin of `dose` behind `calls`: behind each of their stages when it is a share of the time spent in it,
    /// behind the last of each call when it is a time.
    pub(crate) fn plant(&mut self, calls: &[usize], dose: Dose, workers: usize) -> Result<(), Fault> {
        let mut chosen = self.chosen(calls)?;
        // What carries one of them stands for it.
        for (together, _) in &self.carried {
            chosen[together.end - 1] |= together.clone().any(|call| chosen[call]);
        }
        let stages = std::mem::take(&mut self.stages);
        let mut rest = stages.into_iter().peekable();
        while let Some(mut stage) = rest.next() {
            let call = stage.call;
            let behind = |task| Stage { task, call, barrier: false };
            let last = rest.peek().is_none_or(|next| next.call != call);
            match dose {
                Dose::Percent(_) if chosen[call] => {
                    let spin = Spin::new(dose, workers, &self.spun_ns);
                    // The clock starts when the workers have met, so that no wait for others is stretched.
                    let barrier = std::mem::take(&mut stage.barrier);
                    self.stages.push(Stage { task: Task::Mark(spin.clone()), call, barrier });
                    self.stages.extend([stage, behind(Task::Spin(spin))]);
                }
                Dose::Nanoseconds(_) if chosen[call] && last => {
                    self.stages.extend([stage, behind(Task::Spin(Spin::new(dose, workers, &self.spun_ns)))]);
                }
                _ => self.stages.push(stage),
            }
        }
        Ok(())
    }

    /// Which of the plan's calls are among `calls`.
    fn chosen(&self, calls: &[usize]) -> Result<Vec<bool>, Fault> {
        let mut chosen = vec![false; self.kernels.len()];
        for &call in calls {
            let entry = chosen.get_mut(call).ok_or_else(|| {
                Fault::new("calls of a part", format!("below {}", self.kernels.len()), call.to_string())
            })?;
            *entry = true;
        }
        Ok(chosen)
    }
}
