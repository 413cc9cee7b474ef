//! The backend: weights, pools and programs on one device, and the calls that the engine makes.

mod apart;
mod delays;

use std::collections::BTreeMap;

use tare_core::{Fault, PageUse, Reading, Weight};
use tare_ops::plan::KvShape;
use tare_ops::reference::sample::sample_row;
use tare_ops::{
    Backend, BackendInfo, Batch, Benched, Executable, ForwardPlan, KvId, KvSpan, Launched, OpError, OpName, PoolInfo,
    RowOutput, Sampler, StepOutput, Variant, Wants, WeightId,
};

use crate::args::SampleResult;
use crate::device::{Address, Device, Edge, Launch};
use crate::kv::{Pool, pool_bytes};
use crate::program::{Answers, Linker, Program};
use crate::registry;
use crate::step::{Shared, StepBlock};
use crate::units::Unit;
use crate::weights::Held;

use delays::Pacer;

/// Scores of a row and head come in multiples of this.
const SCORES: usize = 256;

/// Runs plans on a CUDA device, or on whatever else is a [`Device`].
///
/// A step copies what changes, replays a graph and copies the answers back. Its only allocations are those of
/// [`StepOutput`], of sampling on the host, and of scores and block tables when a context outgrows all before.
#[derive(Debug)]
pub struct CudaBackend<D: Device> {
    device: D,
    /// Whether launches may carry several calls.
    fused: bool,
    variants: Vec<Variant>,
    weights: Vec<Held>,
    pools: BTreeMap<u32, Pool>,
    programs: BTreeMap<u32, Program>,
    /// The last handle given for a pool or a program; handles are never used twice.
    handles: u32,
    scores: Room,
    pages: Room,
    spans: Room,
    block: StepBlock,
    /// Block tables as they were uploaded last.
    uploaded: Vec<u32>,
    results: Vec<SampleResult>,
    /// Tokens that the last step gave.
    previous: Vec<u32>,
    /// For delays, once any was asked for.
    pacer: Option<Pacer>,
}

/// Memory that grows when more is asked for than ever before.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    at: Address,
    bytes: usize,
}

impl Room {
    /// Whether it was made anew.
    fn grow(&mut self, device: &mut impl Device, what: &str, bytes: usize) -> Result<bool, OpError> {
        if bytes <= self.bytes {
            return Ok(false);
        }
        let bytes = bytes.checked_next_power_of_two().unwrap_or(bytes);
        let at = device.alloc(what, bytes)?;
        if self.bytes > 0 {
            device.free(self.at);
        }
        *self = Self { at, bytes };
        Ok(true)
    }
}

impl<D: Device> CudaBackend<D> {
    /// A backend that holds nothing yet and lets a launch carry several calls where it can.
    pub fn new(device: D) -> Self {
        Self::with(device, true)
    }

    /// A backend that makes a launch of its own for each call: the same answers, more slowly.
    pub fn unfused(device: D) -> Self {
        Self::with(device, false)
    }

    fn with(device: D, fused: bool) -> Self {
        Self {
            fused,
            device,
            variants: registry::variants(),
            weights: Vec::new(),
            pools: BTreeMap::new(),
            programs: BTreeMap::new(),
            handles: 0,
            scores: Room::default(),
            pages: Room::default(),
            spans: Room::default(),
            block: StepBlock::default(),
            uploaded: Vec::new(),
            results: Vec::new(),
            previous: Vec::new(),
            pacer: None,
        }
    }

    fn handle(&mut self) -> u32 {
        self.handles += 1;
        self.handles
    }

    fn pool(&self, kv: KvId) -> Result<Pool, Fault> {
        self.pools.get(&kv.0).copied().ok_or_else(|| unknown("kv pool", kv.0))
    }

    /// Moves a span between a pool and the span buffer.
    fn move_span(&mut self, kernel: &str, span: KvSpan) -> Result<(), OpError> {
        let pool = self.pool(span.kv)?;
        pool.check(span)?;
        let bytes = pool.span_bytes(span.tokens);
        if bytes == 0 {
            return Ok(());
        }
        self.spans.grow(&mut self.device, "a span of the cache", bytes)?;
        let args = pool.span(span, self.spans.at);
        let id = self.device.kernel(&Unit::of(OpName::KvAppend, None), kernel)?;
        let grid = (2 * pool.info.shape.layers as u32, 1);
        let args = bytemuck::bytes_of(&args).to_vec();
        let launch = Launch { kernel: id, key: kernel.to_string(), grid, threads: 128, shared: 0, early: false, args };
        self.device.launch(&launch)
    }

    /// Checks the batch, makes room and writes the step's block to the device.
    fn prepare(&mut self, exe: Executable, batch: &Batch) -> Result<(), OpError> {
        let pools = &self.pools;
        let program = self.programs.get_mut(&exe.0).ok_or_else(|| unknown("executable", exe.0))?;
        let info = |kv: KvId| pools.get(&kv.0).map(|p: &Pool| -> PoolInfo { p.info });
        program.check.check(batch, info, self.previous.len())?;
        let context = batch.rows.iter().map(|r| r.context as usize).max().unwrap_or(0);
        let score_stride = if program.heads > 0 { context.next_multiple_of(SCORES) } else { 0 };
        let scores = batch.rows.len() * program.heads * score_stride * size_of::<f32>();
        self.scores.grow(&mut self.device, "scores of attention", scores)?;
        self.block.list_pages(batch);
        let listed = size_of_val(&self.block.pages[..]);
        let moved = self.pages.grow(&mut self.device, "block tables", listed)?;
        if moved || self.uploaded != self.block.pages {
            if listed > 0 {
                self.device.upload(self.pages.at, bytemuck::cast_slice(&self.block.pages))?;
            }
            self.uploaded.clone_from(&self.block.pages);
        }
        let shared = Shared { pages: self.pages.at, scores: self.scores.at, score_stride };
        let changing = (batch, &program.rope, &self.previous[..]);
        let pool = |kv: KvId| pools.get(&kv.0).copied();
        self.block.write(&program.layout, program.step, changing, pool, shared);
        self.device.upload(program.step, &self.block.bytes)
    }

    /// Runs the step: launch by launch the first time, which is when a device loads its kernels; recorded the second;
    /// replayed from then on.
    fn replay(&mut self, exe: Executable) -> Result<Option<Answers>, OpError> {
        let program = self.programs.get_mut(&exe.0).ok_or_else(|| unknown("executable", exe.0))?;
        if !program.ran {
            program.launches.iter().try_for_each(|launch| self.device.launch(launch))?;
            program.ran = true;
            return Ok(program.answers);
        }
        let graph = match program.graph {
            Some(graph) => graph,
            None => {
                let all = program.chain(0..program.launches.len());
                *program.graph.insert(self.device.record(&all)?)
            }
        };
        self.device.replay(graph)?;
        Ok(program.answers)
    }

    fn run_step(&mut self, exe: Executable, batch: &Batch, out: &mut StepOutput) -> Result<(), OpError> {
        self.prepare(exe, batch)?;
        self.device.tick(Edge::Begin)?;
        let answers = self.replay(exe)?;
        self.device.tick(Edge::End)?;
        self.collect(exe, batch, answers, out)?;
        out.device_ns = self.device.ticked_ns()?;
        self.time_stretched(exe)
    }

    /// Keeps the tokens of a step for the next one; a step that failed gave none.
    fn done(&mut self, result: Result<(), OpError>, out: &mut StepOutput) -> Result<(), OpError> {
        if result.is_err() {
            out.rows.clear();
            out.device_ns = None;
        }
        self.previous.clear();
        self.previous.extend(out.rows.iter().map(|r| r.token));
        result
    }

    /// Waits for the step and takes its answers.
    fn collect(
        &mut self,
        exe: Executable,
        batch: &Batch,
        answers: Option<Answers>,
        out: &mut StepOutput,
    ) -> Result<(), OpError> {
        let selected = self.block.selected.len();
        self.results.clear();
        self.results.resize(selected.max(1), SampleResult::default());
        match answers {
            Some(answers) if selected > 0 => {
                self.device.download(answers.results, bytemuck::cast_slice_mut(&mut self.results[..selected]))?;
            }
            // A step without answers is waited for all the same.
            _ => {
                let program = self.programs.get(&exe.0).ok_or_else(|| unknown("executable", exe.0))?;
                self.device.download(program.step, bytemuck::bytes_of_mut(&mut self.results[0]))?;
            }
        }
        out.rows.resize_with(selected, RowOutput::default);
        if let Some(answers) = answers {
            for i in 0..selected {
                self.answer(batch, &answers, i, &mut out.rows[i])?;
            }
        }
        Ok(())
    }

    /// Fills the answer of selected row `i`: from what the device made of its logits where that is enough, else from
    /// the logits themselves.
    fn answer(&mut self, batch: &Batch, at: &Answers, i: usize, out: &mut RowOutput) -> Result<(), OpError> {
        let (result, row) = (self.results[i], self.block.selected[i]);
        let wants = batch.rows[row as usize].wants;
        let sampler = match wants {
            Wants::Token(n) | Wants::TokenAndLogits(n) => Some(&batch.samplers[n as usize]),
            Wants::Nothing | Wants::Logits => None,
        };
        let greedy = is_greedy(sampler) && result.odd == 0;
        let wanted = matches!(wants, Wants::Logits | Wants::TokenAndLogits(_));
        out.row = row;
        out.logits.clear();
        if wanted || !greedy {
            out.logits.resize(at.vocab, 0.0);
            let from = at.logits.plus(i * at.stride * size_of::<f32>());
            self.device.download(from, bytemuck::cast_slice_mut(&mut out.logits))?;
        }
        if greedy {
            out.token = result.token;
            out.logit = result.logit;
            out.logprob = (0.0 - f64::from(result.sum).ln()) as f32;
            out.top.clear();
            return Ok(());
        }
        let logits = std::mem::take(&mut out.logits);
        sample_row(&logits, sampler, out).map_err(|f| f.within(format!("row {row}")))?;
        out.logits = logits;
        if !wanted {
            out.logits.clear();
        }
        Ok(())
    }
}

/// Whether the token is the largest logit and nothing else is asked for.
fn is_greedy(sampler: Option<&Sampler>) -> bool {
    sampler.is_none_or(|s| s.params.is_plain_greedy() && s.allowed.is_none() && s.params.top_logprobs == 0)
}

fn unknown(what: &str, id: u32) -> Fault {
    Fault::new(what, "a handle of this backend", id.to_string())
}

impl<D: Device> Backend for CudaBackend<D> {
    fn describe(&self) -> BackendInfo {
        BackendInfo { name: "cuda".to_string(), device: self.device.describe(), threads: 1, isa: self.device.isa() }
    }

    fn variants(&self) -> &[Variant] {
        &self.variants
    }

    fn device_bytes(&self) -> Reading<u64> {
        Reading::Available(self.device.memory().most)
    }

    fn rest(&mut self) {}

    fn benched(&self) -> Reading<Benched> {
        Reading::unavailable("the backend runs on no threads of its own")
    }

    fn pages(&self) -> Reading<BTreeMap<String, PageUse>> {
        Reading::unavailable("what the backend holds is on the device, not in pages of the host")
    }

    fn pack(&mut self, weight: &Weight) -> Result<WeightId, OpError> {
        let id = u32::try_from(self.weights.len()).map_err(|_| Fault::new("weights", "fewer than 2^32", "more"))?;
        if weight.rows() > u32::MAX as usize || weight.cols() > (u32::MAX / 2) as usize {
            let found = format!("[{}, {}]", weight.rows(), weight.cols());
            return Err(Fault::new(weight.name(), "rows and columns below 2^31", found).into());
        }
        self.weights.push(Held::upload(weight, &mut self.device)?);
        Ok(WeightId(id))
    }

    fn alloc_kv(&mut self, shape: KvShape, pages: usize, page_tokens: usize) -> Result<KvId, OpError> {
        let bytes = pool_bytes(shape, pages, page_tokens)?;
        let base = self.device.alloc("a KV pool", bytes)?;
        // NaN of either element type: who reads what was never written is found out.
        self.device.fill(base, bytes, 0xff).inspect_err(|_| self.device.free(base))?;
        let id = self.handle();
        self.pools.insert(id, Pool { info: PoolInfo { shape, pages, page_tokens }, base });
        Ok(KvId(id))
    }

    fn free_kv(&mut self, kv: KvId) -> Result<(), OpError> {
        let pool = self.pools.remove(&kv.0).ok_or_else(|| unknown("kv pool", kv.0))?;
        self.device.free(pool.base);
        Ok(())
    }

    fn copy_kv(&mut self, from: KvSpan, to: KvSpan) -> Result<(), OpError> {
        let (source, target) = (self.pool(from.kv)?, self.pool(to.kv)?);
        if (source.info.shape, from.tokens) != (target.info.shape, to.tokens) {
            let say = |pool: &Pool, tokens| format!("{tokens} tokens of {:?}", pool.info.shape);
            return Err(Fault::new("copy of kv", say(&source, from.tokens), say(&target, to.tokens)).into());
        }
        source.check(from)?;
        target.check(to)?;
        // Through the span buffer, so that spans of one page may overlap.
        self.move_span("kv_read", from)?;
        self.move_span("kv_write", to)
    }

    fn read_kv(&mut self, span: KvSpan) -> Result<Vec<u8>, OpError> {
        self.move_span("kv_read", span)?;
        let mut bytes = vec![0; self.pool(span.kv)?.span_bytes(span.tokens)];
        if !bytes.is_empty() {
            self.device.download(self.spans.at, &mut bytes)?;
        }
        Ok(bytes)
    }

    fn write_kv(&mut self, span: KvSpan, bytes: &[u8]) -> Result<(), OpError> {
        let pool = self.pool(span.kv)?;
        pool.check(span)?;
        let want = pool.span_bytes(span.tokens);
        if bytes.len() != want {
            let expected = format!("{want} for {} tokens", span.tokens);
            return Err(Fault::new("kv bytes", expected, bytes.len().to_string()).into());
        }
        if want > 0 {
            self.spans.grow(&mut self.device, "a span of the cache", want)?;
            self.device.upload(self.spans.at, bytes)?;
        }
        self.move_span("kv_write", span)
    }

    fn compile(&mut self, plan: &ForwardPlan) -> Result<Executable, OpError> {
        let linker = Linker { variants: &self.variants, weights: &self.weights, fused: self.fused };
        let program = linker.compile(plan, &mut self.device)?;
        self.previous.reserve(plan.bucket.selected);
        self.results.reserve(plan.bucket.selected);
        let id = self.handle();
        self.programs.insert(id, program);
        Ok(Executable(id))
    }

    fn release(&mut self, exe: Executable) {
        if let Some(program) = self.programs.remove(&exe.0) {
            if let Some(graph) = program.graph {
                self.device.forget(graph);
            }
            if let Some(memory) = program.memory {
                self.device.free(memory);
            }
        }
    }

    fn run(&mut self, exe: Executable, batch: &Batch, out: &mut StepOutput) -> Result<(), OpError> {
        let result = self.run_step(exe, batch, out);
        self.done(result, out)
    }

    fn run_apart(
        &mut self,
        exe: Executable,
        batch: &Batch,
        rows: &[usize],
        out: &mut StepOutput,
        launched: &mut Vec<Launched>,
    ) -> Result<(), OpError> {
        let result = self.step_apart(exe, batch, rows, out, launched);
        self.done(result, out)
    }
}
