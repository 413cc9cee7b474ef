//! The backend: weights, pools and programs of one host, and the calls that the engine makes.

mod apart;
mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use tare_core::{Fault, PageUse, Reading, Weight};
use tare_ops::{
    Backend, BackendInfo, Batch, Benched, Executable, ForwardPlan, IsaSet, KvId, KvShape, KvSpan, Launched, OpError,
    RowOutput, StepOutput, TokenSource, Variant, Wants, WeightId,
};

use crate::isa;
use crate::kernels::attention::scratch::Scratch;
use crate::kernels::kv_append::TableView;
use crate::kernels::sample::Outputs;
use crate::kv::KvPool;
use crate::layouts::Fresh;
use crate::matrix::{Held, Kept};
use crate::memory::{self, Memory};
use crate::pool::{Pool, Witness};
use crate::program::room::Arenas;
use crate::program::{Linker, Program, Task};
use crate::registry::Registry;
use crate::step::{Step, Workspace};

/// How a backend uses the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuConfig {
    /// Workers, the calling thread included.
    pub threads: usize,
    /// Levels that kernels may use: [`isa::detect`], or fewer. Levels that the host lacks are dropped.
    pub isa: IsaSet,
    /// Whether each worker is bound to a processor.
    pub pin: bool,
    /// Whether every worker is in every region, also one whose processor another process keeps busy: see [`Pool::kept`].
    pub keep_workers: bool,
}

/// Runs plans on the processors of this host.
///
/// [`Backend::run`] returns when the step is done; its only allocations are those of [`StepOutput`], of filtered
/// sampling, and of attention scores when a context without a cache outgrows all before.
#[derive(Debug)]
pub struct CpuBackend {
    registry: Registry,
    isa: IsaSet,
    workers: Pool,
    weights: Vec<Held>,
    /// Where the windows of weights begin that [`CpuBackend::settle`] has moved and that are still read.
    settled: BTreeSet<usize>,
    pools: BTreeMap<u32, KvPool>,
    programs: BTreeMap<u32, Program>,
    /// The last handle given for a pool or a program; handles are never used twice.
    handles: u32,
    workspaces: Vec<Workspace>,
    scratch: Scratch,
    step: StepState,
}

/// The time of a stage that has not begun.
const NEVER: u64 = u64::MAX;

/// Working memory of a step, kept from one to the next.
#[derive(Debug, Default)]
struct StepState {
    tokens: Vec<u32>,
    selected: Vec<u32>,
    tables: Vec<TableView>,
    /// Tokens that the last step gave.
    previous: Vec<u32>,
    failed: Mutex<Option<Fault>>,
    times: Vec<AtomicU64>,
}

impl CpuBackend {
    /// Starts the workers.
    ///
    /// # Errors
    /// When the host refuses a thread or memory.
    pub fn new(config: CpuConfig) -> Result<Self, OpError> {
        Self::with_kernels(Registry::new(), config, None)
    }

    /// The same with workers that are watched through the eyes of `witness`, unless all are kept in: see [`Pool::watched`].
    ///
    /// # Errors
    /// As [`CpuBackend::new`].
    pub fn watched(config: CpuConfig, witness: Box<dyn Witness>) -> Result<Self, OpError> {
        Self::with_kernels(Registry::new(), config, Some(witness))
    }

    /// The same with the kernels of `registry`.
    ///
    /// # Errors
    /// As [`CpuBackend::new`].
    pub fn with_registry(registry: Registry, config: CpuConfig) -> Result<Self, OpError> {
        Self::with_kernels(registry, config, None)
    }

    fn with_kernels(registry: Registry, config: CpuConfig, witness: Option<Box<dyn Witness>>) -> Result<Self, OpError> {
        let host = isa::detect();
        let (threads, pin) = (config.threads, config.pin);
        let workers = match witness {
            _ if config.keep_workers => Pool::kept(threads, pin),
            None => Pool::new(threads, pin),
            Some(witness) => Pool::watched(threads, pin, witness),
        };
        let workers = workers.map_err(|e| device("worker threads", e.to_string()))?;
        let workspaces = (0..workers.workers()).map(|_| Workspace::new()).collect::<Result<_, _>>()?;
        let scratch = Scratch::new(workers.workers())?;
        Ok(Self {
            registry,
            isa: IsaSet::new(config.isa.levels().iter().copied().filter(|l| host.has(*l))),
            workers,
            weights: Vec::new(),
            settled: BTreeSet::new(),
            pools: BTreeMap::new(),
            programs: BTreeMap::new(),
            handles: 0,
            workspaces,
            scratch,
            step: StepState::default(),
        })
    }

    fn keep(&mut self, program: Program) -> Executable {
        let id = self.handle();
        self.programs.insert(id, program);
        Executable(id)
    }

    /// Moves weights that `program`, which is new, or an older one reads onto huge pages, every worker its share, where the
    /// host lets us; bytes that are in no layout that somebody reads stay where they are. Those in mapped files are there
    /// already or stay as they are.
    fn settle(&mut self, program: &Program) -> Result<(), OpError> {
        let read = self.programs.values().chain([program]).flat_map(|p| p.kept.iter().flat_map(Kept::ranges));
        let mut windows = memory::windows(distinct(read));
        self.settled.retain(|start| windows.binary_search_by_key(start, |w| w.start).is_ok());
        windows.retain(|window| self.settled.insert(window.start));
        let moved = self.workers.run(|region| windows[region.share(windows.len(), 1)].iter().for_each(memory::gather));
        moved.map_err(|panic| device("worker", panic.to_string()))
    }

    fn program(&self, exe: Executable) -> Result<&Program, Fault> {
        self.programs.get(&exe.0).ok_or_else(|| unknown("executable", exe.0))
    }

    fn pool(&self, kv: KvId) -> Result<&KvPool, Fault> {
        self.pools.get(&kv.0).ok_or_else(|| unknown("kv pool", kv.0))
    }

    fn handle(&mut self) -> u32 {
        self.handles += 1;
        self.handles
    }

    /// Checks the batch and makes the step's working memory describe it.
    fn prepare(&mut self, exe: Executable, batch: &Batch) -> Result<(), OpError> {
        let (pools, step) = (&self.pools, &mut self.step);
        let program = self.programs.get_mut(&exe.0).ok_or_else(|| unknown("executable", exe.0))?;
        program.check.check(batch, |kv| pools.get(&kv.0).map(KvPool::info), step.previous.len())?;
        if program.attends {
            self.scratch.grow(longest(batch))?;
        }
        step.tables.clear();
        for table in &batch.tables {
            // A plan without a cache may name pools that are not there; nothing looks at its tables.
            let Some(pool) = pools.get(&table.kv.0) else { break };
            step.tables.push(TableView::new(pool.view(), &table.pages));
        }
        step.tokens.clear();
        step.tokens.extend(batch.rows.iter().map(|row| match row.token {
            TokenSource::Id(id) => id,
            TokenSource::Previous(n) => step.previous[n as usize],
        }));
        step.selected.clear();
        let wanted = batch.rows.iter().enumerate().filter(|(_, r)| r.wants != Wants::Nothing);
        step.selected.extend(wanted.map(|(t, _)| t as u32));
        for stage in &mut program.stages {
            if let Task::Attention(_, _, next) = &mut stage.task {
                *next.0.get_mut() = 0;
            }
        }
        Ok(())
    }

    fn run_step(&mut self, exe: Executable, batch: &Batch, out: &mut StepOutput, traced: bool) -> Result<(), OpError> {
        self.prepare(exe, batch)?;
        let state = &self.step;
        let program = self.programs.get(&exe.0).ok_or_else(|| unknown("executable", exe.0))?;
        out.rows.resize_with(state.selected.len(), RowOutput::default);
        let step = Step {
            program,
            batch,
            tokens: &state.tokens,
            selected: &state.selected,
            tables: &state.tables,
            workspaces: &self.workspaces,
            scratch: &self.scratch,
            outputs: Outputs(out.rows.as_mut_ptr()),
            failed: &state.failed,
            times: traced.then(|| (Instant::now(), &state.times[..])),
        };
        let ran = self.workers.run(|region| step.walk(region));
        let failed = state.failed.lock().unwrap_or_else(|e| e.into_inner()).take();
        let result = match (ran, failed) {
            (Err(panic), _) => Err(device("worker", panic.to_string())),
            (Ok(()), Some(fault)) => Err(fault.into()),
            (Ok(()), None) => Ok(()),
        };
        if result.is_err() {
            out.rows.clear();
        }
        self.step.previous.clear();
        self.step.previous.extend(out.rows.iter().map(|r| r.token));
        result
    }
}

/// Each range once: parts of a program share the buffers of the whole, and a weight may be held twice.
fn distinct(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = ranges.filter(|r| !r.is_empty()).collect();
    ranges.sort_unstable_by_key(|r| (r.start, r.end));
    ranges.dedup();
    ranges
}

/// The longest context of a batch.
fn longest(batch: &Batch) -> usize {
    batch.rows.iter().map(|r| r.context as usize).max().unwrap_or(0)
}

fn unknown(what: &str, id: u32) -> Fault {
    Fault::new(what, "a handle of this backend", id.to_string())
}

fn device(kernel: &str, message: String) -> OpError {
    OpError::Device { kernel: kernel.to_string(), message }
}

impl Backend for CpuBackend {
    fn describe(&self) -> BackendInfo {
        BackendInfo {
            name: "cpu".to_string(),
            device: isa::processor(),
            threads: self.workers.workers(),
            isa: self.isa.clone(),
        }
    }

    fn variants(&self) -> &[Variant] {
        self.registry.variants()
    }

    fn pack(&mut self, weight: &Weight) -> Result<WeightId, OpError> {
        let id = u32::try_from(self.weights.len()).map_err(|_| Fault::new("weights", "fewer than 2^32", "more"))?;
        self.weights.push(Held::new(WeightId(id), weight));
        Ok(WeightId(id))
    }

    fn alloc_kv(&mut self, shape: KvShape, pages: usize, page_tokens: usize) -> Result<KvId, OpError> {
        let pool = KvPool::new(shape, pages, page_tokens)?;
        // Now, so that no step has to: no row sees more than a pool holds. Memory is taken where it is used.
        self.scratch.grow(pages * page_tokens)?;
        let id = self.handle();
        self.pools.insert(id, pool);
        Ok(KvId(id))
    }

    fn free_kv(&mut self, kv: KvId) -> Result<(), OpError> {
        self.pools.remove(&kv.0).map(|_| ()).ok_or_else(|| unknown("kv pool", kv.0).into())
    }

    fn copy_kv(&mut self, from: KvSpan, to: KvSpan) -> Result<(), OpError> {
        let (source, target) = (self.pool(from.kv)?, self.pool(to.kv)?);
        if (source.info().shape, from.tokens) != (target.info().shape, to.tokens) {
            let say = |pool: &KvPool, tokens| format!("{tokens} tokens of {:?}", pool.info().shape);
            return Err(Fault::new("copy of kv", say(source, from.tokens), say(target, to.tokens)).into());
        }
        source.check(from.page, from.start, from.tokens)?;
        target.check(to.page, to.start, to.tokens)?;
        let (at, onto) = ((from.page, from.start), (to.page, to.start));
        if from.kv == to.kv {
            self.pools.get_mut(&to.kv.0).into_iter().for_each(|p| p.copy_within(at, onto, from.tokens));
        } else if let Some(mut pool) = self.pools.remove(&to.kv.0) {
            if let Some(source) = self.pools.get(&from.kv.0) {
                pool.copy_from(onto, source, at, from.tokens);
            }
            self.pools.insert(to.kv.0, pool);
        }
        Ok(())
    }

    fn read_kv(&mut self, span: KvSpan) -> Result<Vec<u8>, OpError> {
        Ok(self.pool(span.kv)?.read(span.page, span.start, span.tokens)?)
    }

    fn write_kv(&mut self, span: KvSpan, bytes: &[u8]) -> Result<(), OpError> {
        let pool = self.pools.get_mut(&span.kv.0).ok_or_else(|| unknown("kv pool", span.kv.0))?;
        Ok(pool.write(span.page, span.start, span.tokens, bytes)?)
    }

    fn device_bytes(&self) -> Reading<u64> {
        Reading::unavailable("this backend has no memory of its own")
    }

    fn rest(&mut self) {
        self.workers.rest();
    }

    fn benched(&self) -> Reading<Benched> {
        self.workers.benched()
    }

    fn pages(&self) -> Reading<BTreeMap<String, PageUse>> {
        let shared = self.programs.values().flat_map(|p| p.arenas.memory());
        let buffers = shared.chain(self.programs.values().flat_map(|p| p.own.iter().map(|memory| &**memory)));
        let buffers = buffers.chain(self.workspaces.iter().map(Workspace::memory)).chain(self.scratch.memory());
        // What was let go may be kept by a program that was compiled before.
        let kept = self.programs.values().flat_map(|p| p.kept.iter().flat_map(Kept::ranges));
        let all: [(&str, Vec<Range<usize>>); 3] = [
            ("weights", distinct(self.weights.iter().flat_map(Held::ranges).chain(kept))),
            ("kv", distinct(self.pools.values().map(|pool| pool.memory().range()))),
            ("buffers", distinct(buffers.map(Memory::range))),
        ];
        let mut pages = BTreeMap::new();
        for (what, ranges) in all {
            match tare_probe::page_use(&ranges) {
                Reading::Available(found) => _ = pages.insert(what.to_string(), found),
                Reading::Unavailable { why } => return Reading::unavailable(why),
            }
        }
        Reading::Available(pages)
    }

    fn compile(&mut self, plan: &ForwardPlan) -> Result<Executable, OpError> {
        let (registry, isa, weights) = (&self.registry, &self.isa, &self.weights[..]);
        // Programs never run at once: the next one works where those before it did, if it fits there.
        let arenas = self.programs.values().map(|p| &p.arenas).reduce(Arenas::larger);
        let layouts = Linker { registry, isa, weights, fresh: &Fresh::new(), arenas }.layouts(plan)?;
        let fresh = layouts.reserve(weights)?;
        let program = Linker { registry, isa, weights, fresh: &fresh, arenas }.compile(plan)?;
        for stage in &program.stages {
            if let Task::Attention(_, call, _) = &stage.task {
                self.scratch.fit(call)?;
            }
        }
        let before = self.workers.set_aside(true);
        let filled = layouts.settle(fresh, &mut self.weights, &mut self.workers).and_then(|()| self.settle(&program));
        self.workers.set_aside(before);
        filled?;
        self.step.tokens.reserve(plan.bucket.rows);
        self.step.tables.reserve(plan.bucket.rows);
        self.step.selected.reserve(plan.bucket.selected);
        self.step.previous.reserve(plan.bucket.selected);
        Ok(self.keep(program))
    }

    fn release(&mut self, exe: Executable) {
        self.programs.remove(&exe.0);
    }

    fn run(&mut self, exe: Executable, batch: &Batch, out: &mut StepOutput) -> Result<(), OpError> {
        self.run_step(exe, batch, out, false)
    }

    fn run_apart(
        &mut self,
        exe: Executable,
        batch: &Batch,
        rows: &[usize],
        out: &mut StepOutput,
        launched: &mut Vec<Launched>,
    ) -> Result<(), OpError> {
        self.step_apart(exe, batch, rows, out, launched)
    }
}
