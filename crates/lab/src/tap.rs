//! A backend that the laboratory shares with the engine: it sees what a step was handed and can run it again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tare_core::{Blob, Fault, Weight, WeightData, weight::Affine};
use tare_cpu::CpuBackend;
use tare_ops::{Backend, Batch, Executable, ForwardPlan, KvId, OpError, RowOutput, StepOutput, Variant, WeightId};

use crate::delay::Delay;
use crate::shared::Shared;

/// Two handles of one backend: the engine owns one, the laboratory keeps the other.
#[derive(Debug)]
pub struct Tap<B = CpuBackend> {
    shared: Arc<Mutex<Tapped<B>>>,
    variants: Arc<[Variant]>,
    /// Whether weights get memory of their own when they are packed.
    copies: bool,
}

#[derive(Debug)]
struct Tapped<B> {
    backend: B,
    delay: Option<Delay>,
    plans: BTreeMap<u32, ForwardPlan>,
    watching: bool,
    seen: Option<Seen>,
    /// Pools that the engine gave back in the step that is watched: its rows still point to them.
    given_back: Vec<KvId>,
}

/// What a step was handed, and what it gave.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What ran.
    pub exe: Executable,
    /// What `exe` was compiled from.
    pub plan: ForwardPlan,
    /// Its rows.
    pub batch: Batch,
    /// What came back.
    pub answer: Vec<RowOutput>,
}

impl<B> Clone for Tap<B> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), variants: Arc::clone(&self.variants), copies: self.copies }
    }
}

impl<B: Shared> Tap<B> {
    /// Shares `backend`; every plan compiled through it gets `delay`.
    pub fn new(backend: B, delay: Option<Delay>) -> Self {
        let variants = backend.variants().to_vec().into();
        let (plans, given_back) = (BTreeMap::new(), Vec::new());
        let tapped = Tapped { backend, delay, plans, watching: false, seen: None, given_back };
        Self { shared: Arc::new(Mutex::new(tapped)), variants, copies: false }
    }

    /// A handle that gives every weight packed through it memory of its own, where the others share that of the model.
    pub fn copying(&self) -> Self {
        Self { copies: true, ..self.clone() }
    }

    /// From now on the last step is kept until [`Tap::seen`] takes it, and so is the cache that it worked on, until the
    /// next watch: a plan that keeps nothing gives it back at the end of the step.
    ///
    /// # Errors
    /// When what the last watch kept cannot be freed.
    pub fn watch(&self) -> Result<(), OpError> {
        let mut tapped = self.lock();
        tapped.watching = true;
        let given_back = std::mem::take(&mut tapped.given_back);
        given_back.into_iter().try_for_each(|kv| tapped.backend.free_kv(kv))
    }

    /// The last step since [`Tap::watch`], if there was one; ends the watch.
    pub fn seen(&self) -> Option<Seen> {
        let mut tapped = self.lock();
        tapped.watching = false;
        tapped.seen.take()
    }

    /// Does something with the backend itself.
    pub fn with<T>(&self, work: impl FnOnce(&mut B) -> T) -> T {
        work(&mut self.lock().backend)
    }

    fn lock(&self) -> MutexGuard<'_, Tapped<B>> {
        self.shared.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// `w` in memory of its own.
fn copy_of(w: &Weight) -> Result<Weight, Fault> {
    let copy = |b: &Blob| Blob::from_vec(b.to_vec());
    match (w.data(), w.format()) {
        (WeightData::Affine(a), tare_core::Format::Affine { bits, group }) => {
            let data = Affine {
                words: copy(&a.words),
                scales: copy(&a.scales),
                biases: copy(&a.biases),
                scale_dtype: a.scale_dtype,
            };
            Weight::affine(w.name(), bits, group, (w.rows(), w.cols()), data)
        }
        (WeightData::Blocks(b), format) => Weight::blocks(w.name(), format, w.rows(), w.cols(), copy(b)),
        (WeightData::Affine(_), format) => Err(Fault::new(w.name(), "an affine format", format.to_string())),
    }
}

impl<B: Shared> Backend for Tap<B> {
    tare_ops::hand_on!(
        this => this.lock().backend;
        describe, device_bytes, alloc_kv, copy_kv, read_kv, write_kv, rest, benched, pages, run_apart
    );

    fn variants(&self) -> &[Variant] {
        &self.variants
    }
    fn pack(&mut self, weight: &Weight) -> Result<WeightId, OpError> {
        if self.copies {
            return self.lock().backend.pack(&copy_of(weight)?);
        }
        self.lock().backend.pack(weight)
    }
    fn free_kv(&mut self, kv: KvId) -> Result<(), OpError> {
        let mut tapped = self.lock();
        if tapped.watching {
            tapped.given_back.push(kv);
            return Ok(());
        }
        tapped.backend.free_kv(kv)
    }
    fn compile(&mut self, plan: &ForwardPlan) -> Result<Executable, OpError> {
        let mut tapped = self.lock();
        let exe = tapped.backend.compile(plan)?;
        if let Some(delay) = tapped.delay
            && let Err(e) = tapped.backend.plant(delay, exe, plan)
        {
            tapped.backend.release(exe);
            return Err(e);
        }
        tapped.plans.insert(exe.0, plan.clone());
        Ok(exe)
    }
    fn release(&mut self, exe: Executable) {
        let mut tapped = self.lock();
        tapped.plans.remove(&exe.0);
        tapped.backend.release(exe);
    }
    fn run(&mut self, exe: Executable, batch: &Batch, out: &mut StepOutput) -> Result<(), OpError> {
        let mut tapped = self.lock();
        tapped.backend.run(exe, batch, out)?;
        if tapped.watching
            && let Some(plan) = tapped.plans.get(&exe.0).cloned()
        {
            tapped.seen = Some(Seen { exe, plan, batch: batch.clone(), answer: out.rows.clone() });
        }
        Ok(())
    }
}
