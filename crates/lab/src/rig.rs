//! How an engine is set up for a measurement, and how its twin that judges it is.

use tare_core::Fault;
use tare_cpu::{CpuBackend, CpuConfig};
use tare_cuda::{CudaBackend, Driver};
use tare_engine::{Engine, EngineConfig};
use tare_model::{Model, PlanSpec};
use tare_ops::{Backend, Class, Isa};
use tare_probe::allocator;

use crate::delay::Delay;
use crate::tap::Tap;
use crate::{LabError, On};

/// Rows that the judge computes in one forward.
const JUDGE_ROWS: usize = 256;

/// Kernels of any bucket of `engine` that are only fallbacks, and why nothing better runs. Users are told.
pub fn slow_paths(engine: &Engine) -> Vec<String> {
    let all = engine.resolved().iter().flat_map(|r| r.fallbacks());
    let mut told: Vec<String> = all.map(|(c, why)| format!("{} runs {}, a fallback: {why}", c.op, c.chosen)).collect();
    told.sort_unstable();
    told.dedup();
    told
}

/// A model, a host and a plan: enough to build the engine under test, and engines like it.
#[derive(Clone, Debug)]
pub struct Rig<'m> {
    /// The model.
    pub model: &'m Model,
    /// Where the engine under test runs.
    pub on: On,
    /// Threads, instruction sets, pinning of the processors: of the judge in any case.
    pub cpu: CpuConfig,
    /// The plan under test.
    pub plan: PlanSpec,
    /// The class under test.
    pub class: Class,
    /// Sequences that run together.
    pub sequences: usize,
    /// Tokens that a sequence may have.
    pub context: usize,
    /// The longest prefill chunk, in rows.
    pub max_rows: usize,
    /// A delay planted into one group of the plan under test; none as a rule.
    pub delay: Option<Delay>,
}

impl Rig<'_> {
    /// The engine under test.
    ///
    /// # Errors
    /// When the backend, the plan or the limits refuse.
    pub fn engine(&self) -> Result<Engine, LabError> {
        self.engine_on(self.backend()?)
    }

    /// The engine under test on a backend that may be wrapped.
    ///
    /// # Errors
    /// As [`Rig::engine`].
    pub fn engine_on(&self, backend: Box<dyn Backend>) -> Result<Engine, LabError> {
        let config = self.config((self.plan.clone(), self.class), self.max_rows, self.sequences);
        let engine = Engine::new(self.model, backend, config)?;
        allocator::trim();
        Ok(engine)
    }

    /// A backend as the engine under test has it.
    ///
    /// # Errors
    /// When the host cannot give it.
    pub fn backend(&self) -> Result<Box<dyn Backend>, LabError> {
        match (self.delay, &self.on) {
            (Some(_), On::Cpu) => Ok(Box::new(self.tap()?)),
            (Some(_), On::Cuda(config)) => {
                Ok(Box::new(Tap::new(CudaBackend::new(Driver::open(config.clone())?), self.delay)))
            }
            (None, on) => Ok(on.backend(&self.cpu)?),
        }
    }

    /// A backend on the processor as the engine under test has it, which the laboratory shares with that engine.
    ///
    /// # Errors
    /// When the engine under test runs elsewhere, or the host cannot give it.
    pub fn tap(&self) -> Result<Tap, LabError> {
        if self.on != On::Cpu {
            return Err(
                Fault::new("backend", "the processor, whose steps are stages of workers", self.on.name()).into()
            );
        }
        Ok(Tap::new(CpuBackend::new(self.cpu.clone())?, self.delay))
    }

    /// An engine that scores whole sequences in one pass, in `class`: whole panels of rows, on other kernels than those
    /// under test. What runs on the processor is judged by kernels of another vector width, where the host has two: both
    /// give the same bits when both are right. What a device runs is judged by the widest. A class in any order is judged in
    /// the reference's.
    ///
    /// # Errors
    /// As [`Rig::engine`].
    pub fn judge(&self, class: Class) -> Result<Engine, LabError> {
        let plan = PlanSpec::find("paged")?;
        let narrower = self.on == On::Cpu && self.cpu.isa.has(Isa::Avx512);
        let isa = if narrower { self.cpu.isa.up_to(Isa::Avx2) } else { self.cpu.isa.clone() };
        let backend = CpuBackend::new(CpuConfig { isa, ..self.cpu.clone() })?;
        Ok(Engine::new(self.model, Box::new(backend), self.config((plan, class.in_order()), JUDGE_ROWS, 1))?)
    }

    fn config(&self, (plan, class): (PlanSpec, Class), max_rows: usize, sequences: usize) -> EngineConfig {
        // A sequence that goes on from what is kept is admitted beside others where each of them can grow by a page.
        let growth = if sequences > 1 { (sequences + 1) * plan.page_tokens.unwrap_or(1) } else { 0 };
        EngineConfig {
            kv_tokens: EngineConfig::kv_tokens_for(&plan, self.context, sequences) + growth,
            plan,
            class,
            context: self.context,
            max_rows,
            max_sequences: sequences,
            max_queue: 1,
        }
    }
}
