//! The reference as a backend: one thread, no speed, every promise of the trait kept.

use std::collections::BTreeMap;

use tare_core::{Fault, PageUse, Reading, Weight};

use super::kv::{KvPool, check_span};
use super::step::Step;
use super::variants;
use crate::apart::Launched;
use crate::backend::{Backend, BackendInfo, Benched, Executable, KvId, KvSpan, OpError};
use crate::batch::{Batch, StepOutput};
use crate::check::{BatchCheck, PoolInfo};
use crate::isa::IsaSet;
use crate::op::WeightId;
use crate::plan::{ForwardPlan, KvShape, RowSpace};
use crate::variant::Variant;

/// Runs any plan with the scalar functions of [`reference`](crate::reference).
#[derive(Debug)]
pub struct ReferenceBackend {
    variants: Vec<Variant>,
    weights: Vec<Weight>,
    pools: BTreeMap<u32, KvPool>,
    executables: BTreeMap<u32, Compiled>,
    /// The last handle given for a pool or an executable; handles are never used twice.
    handles: u32,
    /// Tokens that the last step gave.
    previous: Vec<u32>,
}

#[derive(Debug)]
struct Compiled {
    plan: ForwardPlan,
    check: BatchCheck,
    buffers: Vec<Vec<f32>>,
}

impl Default for ReferenceBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl ReferenceBackend {
    /// A backend that holds nothing yet.
    pub fn new() -> Self {
        Self {
            variants: variants::all(),
            weights: Vec::new(),
            pools: BTreeMap::new(),
            executables: BTreeMap::new(),
            handles: 0,
            previous: Vec::new(),
        }
    }

    fn handle(&mut self) -> u32 {
        self.handles += 1;
        self.handles
    }

    fn pool(&self, kv: KvId) -> Result<&KvPool, Fault> {
        self.pools.get(&kv.0).ok_or_else(|| unknown("kv pool", kv.0))
    }

    fn pool_mut(&mut self, kv: KvId) -> Result<&mut KvPool, Fault> {
        self.pools.get_mut(&kv.0).ok_or_else(|| unknown("kv pool", kv.0))
    }

    /// The weights of a plan must be those that were packed.
    fn check_weights(&self, plan: &ForwardPlan) -> Result<(), Fault> {
        for info in &plan.weights {
            let at = || format!("plan {}: weight {}", plan.name, info.name);
            let Some(w) = self.weights.get(info.id.0 as usize) else {
                return Err(unknown("weight", info.id.0).within(at()));
            };
            let (expected, found) = ((w.format(), w.rows(), w.cols()), (info.format, info.rows, info.cols));
            if expected != found {
                let say = |(format, rows, cols)| format!("{format} [{rows}, {cols}]");
                return Err(Fault::new(at(), say(expected), say(found)));
            }
        }
        Ok(())
    }

    /// Runs a step, and tells `done` after each of its calls.
    fn walk(
        &mut self,
        exe: Executable,
        batch: &Batch,
        out: &mut StepOutput,
        done: &mut dyn FnMut(usize, &Step<'_>),
    ) -> Result<(), OpError> {
        let Some(compiled) = self.executables.get_mut(&exe.0) else {
            return Err(unknown("executable", exe.0).into());
        };
        let pools = &mut self.pools;
        let describe = |kv: KvId| {
            let pool = pools.get(&kv.0)?;
            Some(PoolInfo { shape: pool.shape(), pages: pool.pages(), page_tokens: pool.page_tokens() })
        };
        compiled.check.check(batch, describe, self.previous.len())?;
        let mut step = Step {
            plan: &compiled.plan,
            weights: &self.weights,
            pools,
            batch,
            previous: &self.previous,
            buffers: &mut compiled.buffers,
        };
        out.rows.clear();
        step.run(out, &mut |i, step| done(i, step))?;
        self.previous.clear();
        self.previous.extend(out.rows.iter().map(|r| r.token));
        Ok(())
    }
}

fn unknown(what: &str, id: u32) -> Fault {
    Fault::new(what, "a handle of this backend", id.to_string())
}

impl Backend for ReferenceBackend {
    fn describe(&self) -> BackendInfo {
        BackendInfo {
            name: "reference".into(),
            device: "one thread of the processor".into(),
            threads: 1,
            isa: IsaSet::new([]),
        }
    }

    fn variants(&self) -> &[Variant] {
        &self.variants
    }

    fn device_bytes(&self) -> Reading<u64> {
        Reading::unavailable("the reference computes in the memory of the host")
    }

    fn rest(&mut self) {}

    fn benched(&self) -> Reading<Benched> {
        Reading::unavailable("the reference runs on the calling thread alone")
    }

    fn pages(&self) -> Reading<BTreeMap<String, PageUse>> {
        Reading::unavailable("the reference does not say how its memory lies")
    }

    fn pack(&mut self, weight: &Weight) -> Result<WeightId, OpError> {
        let id = u32::try_from(self.weights.len()).map_err(|_| Fault::new("weights", "fewer than 2^32", "more"))?;
        self.weights.push(weight.clone());
        Ok(WeightId(id))
    }

    fn alloc_kv(&mut self, shape: KvShape, pages: usize, page_tokens: usize) -> Result<KvId, OpError> {
        let pool = KvPool::new(shape, pages, page_tokens)?;
        let id = self.handle();
        self.pools.insert(id, pool);
        Ok(KvId(id))
    }

    fn free_kv(&mut self, kv: KvId) -> Result<(), OpError> {
        self.pools.remove(&kv.0).map(|_| ()).ok_or_else(|| unknown("kv pool", kv.0).into())
    }

    fn copy_kv(&mut self, from: KvSpan, to: KvSpan) -> Result<(), OpError> {
        let (source, target) = (self.pool(from.kv)?, self.pool(to.kv)?);
        if (source.shape(), from.tokens) != (target.shape(), to.tokens) {
            let say = |shape: KvShape, tokens| format!("{tokens} tokens of {shape:?}");
            let (expected, found) = (say(source.shape(), from.tokens), say(target.shape(), to.tokens));
            return Err(Fault::new("copy of kv", expected, found).into());
        }
        check_span(target.pages(), target.page_tokens(), to.page, to.start, to.tokens)?;
        let bytes = self.read_kv(from)?;
        self.write_kv(to, &bytes)
    }

    fn read_kv(&mut self, span: KvSpan) -> Result<Vec<u8>, OpError> {
        Ok(self.pool(span.kv)?.read(span.page, span.start, span.tokens)?)
    }

    fn write_kv(&mut self, span: KvSpan, bytes: &[u8]) -> Result<(), OpError> {
        Ok(self.pool_mut(span.kv)?.write(span.page, span.start, span.tokens, bytes)?)
    }

    fn compile(&mut self, plan: &ForwardPlan) -> Result<Executable, OpError> {
        plan.validate()?;
        self.check_weights(plan)?;
        for call in &plan.calls {
            let known = self.variants.iter().find(|v| v.key == call.kernel);
            let reads = call.op.matrix().and_then(|w| plan.weight(w)).map(|w| w.format);
            if known.is_none_or(|v| v.op != call.op.name() || (v.format.is_some() && v.format != reads)) {
                let format = reads.map_or_else(String::new, |f| format!(" for {f}"));
                let expected = format!("a kernel of this backend that computes {}{format}", call.op.name());
                return Err(Fault::new(format!("plan {}", plan.name), expected, call.kernel.clone()).into());
            }
        }
        let rows = |space| match space {
            RowSpace::All => plan.bucket.rows,
            RowSpace::Selected => plan.bucket.selected,
        };
        let buffers = plan.buffers.iter().map(|b| vec![0.0; rows(b.rows) * b.width]).collect();
        let compiled = Compiled { plan: plan.clone(), check: BatchCheck::new(plan), buffers };
        let id = self.handle();
        self.executables.insert(id, compiled);
        Ok(Executable(id))
    }

    fn release(&mut self, exe: Executable) {
        self.executables.remove(&exe.0);
    }

    fn run(&mut self, exe: Executable, batch: &Batch, out: &mut StepOutput) -> Result<(), OpError> {
        self.walk(exe, batch, out, &mut |_, _| {})
    }

    fn run_apart(
        &mut self,
        exe: Executable,
        batch: &Batch,
        rows: &[usize],
        out: &mut StepOutput,
        launched: &mut Vec<Launched>,
    ) -> Result<(), OpError> {
        self.walk(exe, batch, out, &mut |i, step| launched.push(step.left(i, rows)))
    }
}
