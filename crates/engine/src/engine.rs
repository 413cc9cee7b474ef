//! The engine: requests in, events out, one forward a step.

mod kept;
mod step;

use std::collections::{BTreeMap, BTreeSet};
use tare_core::{Fault, PageUse, Reading};
use tare_model::{Model, Resolved};
use tare_ops::{Backend, BackendInfo, Benched, KvShape, Variant};

use crate::cache::{self, Storage, StorageShape};
use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::error::{EngineError, Refused};
use crate::program::{self, Program};
use crate::request::{Event, FinishReason, PromptLogits, Request, RequestId, Retained};
use crate::runner::Runner;
use crate::scheduler::{Arrival, Scheduler, Space, StepLimits};
use crate::sequence::Sequence;

/// Runs many requests on one backend.
///
/// It owns the backend, the weights packed on it and all KV. It never waits: [`Engine::step`] runs one forward and
/// returns, and whoever owns the engine steps it while [`Engine::has_work`].
pub struct Engine {
    backend: Box<dyn Backend>,
    storage: Box<dyn Storage>,
    runner: Runner,
    scheduler: Scheduler,
    sequences: BTreeMap<RequestId, Sequence>,
    /// Tokens whose KV is kept.
    kept: BTreeMap<RequestId, Vec<u32>>,
    /// Events that the next step reports first.
    pending: Vec<Event>,
    /// Sequences whose storage the next step frees first.
    doomed: Vec<RequestId>,
    resolved: Vec<Resolved>,
    kv: KvShape,
    vocabulary: usize,
    context: usize,
    max_sequences: usize,
    max_queue: usize,
    space: Space,
    counters: Counters,
    next_id: u64,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("backend", &self.backend.describe())
            .field("scheduler", &self.scheduler)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Packs `model` on `backend`, resolves and compiles the plan for every bucket, and makes the KV storage.
    ///
    /// # Errors
    /// When a limit cannot be kept, the plan does not suit the model or the backend, or memory runs out.
    pub fn new(model: &Model, mut backend: Box<dyn Backend>, config: EngineConfig) -> Result<Self, EngineError> {
        config.check()?;
        let program = Program::new(model, &mut *backend, &config)?;
        Self::with_program(program, backend, &config)
    }

    fn with_program(
        program: Program,
        mut backend: Box<dyn Backend>,
        config: &EngineConfig,
    ) -> Result<Self, EngineError> {
        let (kind, (page_tokens, pages)) = (config.plan.cache, program::pages(config));
        let storage = cache::storage(&mut *backend, StorageShape { kind, page_tokens, pages, token: program.kv })?;
        let space = Space { kind, page_tokens, pages };
        let selected = program.executables.iter().map(|(b, _)| b.selected).max().unwrap_or(0);
        let limits = StepLimits { rows: config.max_rows, selected, sequences: config.max_sequences };
        Ok(Self {
            backend,
            storage,
            runner: Runner::new(program.executables),
            scheduler: Scheduler::new(limits, space),
            sequences: BTreeMap::new(),
            kept: BTreeMap::new(),
            pending: Vec::new(),
            doomed: Vec::new(),
            resolved: program.resolved,
            kv: program.kv,
            vocabulary: program.vocabulary,
            context: config.context,
            max_sequences: config.max_sequences,
            max_queue: config.max_queue,
            space,
            counters: Counters::default(),
            next_id: 0,
        })
    }

    /// Takes a request. It waits until [`Engine::step`] admits it.
    ///
    /// # Errors
    /// When it could never run or too many wait: see [`Refused`]. Nothing has changed then.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, Refused> {
        self.check(&request)?;
        let id = RequestId(self.next_id);
        let prompt = request.prompt.len();
        let resume = request.resume.map(|r| (r.request, self.reusable(r, &request)));
        let arrival = Arrival {
            id,
            prompt,
            limit: prompt.saturating_add(request.max_tokens).min(self.context),
            reads_all: request.prompt_logits == PromptLogits::All,
            resume: resume.filter(|(_, tokens)| *tokens > 0),
        };
        self.scheduler.submit(arrival).map_err(|unfit| Refused::NeverFits {
            needed_tokens: unfit.needed * self.space.page_tokens,
            capacity_tokens: self.space.pages * self.space.page_tokens,
        })?;
        self.next_id += 1;
        // A handle is spent by resuming it, even where its tokens are of no use.
        if let Some((kept, 0)) = resume {
            self.release_retained(Retained { request: kept });
        }
        self.sequences.insert(id, Sequence::new(id, request, self.vocabulary));
        Ok(id)
    }

    /// Tokens of a kept sequence that a prompt starts with. At least one token is computed, to have its logits.
    fn reusable(&self, kept: Retained, request: &Request) -> usize {
        if request.prompt_logits == PromptLogits::All {
            return 0;
        }
        let kept = self.kept.get(&kept.request).map_or(&[][..], |tokens| tokens);
        let common = kept.iter().zip(&request.prompt).take_while(|(a, b)| a == b).count();
        common.min(request.prompt.len() - 1)
    }

    fn check(&self, r: &Request) -> Result<(), Refused> {
        if r.prompt.is_empty() {
            return Err(Refused::PromptEmpty);
        }
        let (prompt_tokens, output_tokens) = (r.prompt.len(), r.max_tokens.min(1));
        if prompt_tokens + output_tokens > self.context {
            return Err(Refused::ContextExceeded { prompt_tokens, output_tokens, context_tokens: self.context });
        }
        self.check_vocabulary("prompt", r.prompt.iter())?;
        self.check_vocabulary("stop_tokens", r.stop_tokens.iter())?;
        self.check_vocabulary("logit_bias", r.sampling.logit_bias.iter().map(|(token, _)| token))?;
        r.sampling.check(self.vocabulary).and_then(|()| self.check_choice(r)).map_err(Refused::Sampling)?;
        let waiting = self.scheduler.waiting();
        // Those that the next step begins wait for nobody: only what does not fit beside them is a queue.
        let starting = self.max_sequences.saturating_sub(self.scheduler.running());
        if waiting >= self.max_queue + starting { Err(Refused::QueueFull { waiting }) } else { Ok(()) }
    }

    /// Whether a token is left to draw besides those that the bias rules out and stop tokens that are held back.
    fn check_choice(&self, r: &Request) -> Result<(), Fault> {
        let ruled_out = r.sampling.logit_bias.iter().filter(|(_, bias)| *bias == f32::NEG_INFINITY);
        let held_back = r.stop_tokens.iter().filter(|_| r.min_tokens > 0);
        let out: BTreeSet<&u32> = ruled_out.map(|(token, _)| token).chain(held_back).collect();
        if out.len() < self.vocabulary {
            return Ok(());
        }
        let expected = format!("one of the {} tokens to be allowed", self.vocabulary);
        Err(Fault::new("logit_bias and stop_tokens", expected, "none").remedy("rule out fewer tokens"))
    }

    fn check_vocabulary<'a>(&self, list: &str, mut tokens: impl Iterator<Item = &'a u32>) -> Result<(), Refused> {
        let mut at = 0;
        let outside = tokens.find(|t| {
            at += 1;
            **t as usize >= self.vocabulary
        });
        outside.map_or(Ok(()), |token| {
            let place = format!("{list}[{}]", at - 1);
            Err(Refused::OutOfVocabulary { place, token: *token, vocabulary: self.vocabulary })
        })
    }

    /// Ends a request. The next step frees its KV before anything else and reports it as cancelled. An id that is
    /// unknown or finished is ignored, since a cancel may cross the last event on its way.
    pub fn cancel(&mut self, request: RequestId) {
        if self.scheduler.cancel(request)
            && let Some(sequence) = self.sequences.remove(&request)
        {
            let (reason, usage) = (FinishReason::Cancelled, sequence.usage());
            self.pending.push(Event::Finished { request, reason, usage, retained: None });
            self.doomed.push(request);
        }
    }

    /// Whether a step has anything to do, to free or to report.
    pub fn has_work(&self) -> bool {
        self.scheduler.waiting() + self.scheduler.running() + self.pending.len() + self.doomed.len() > 0
    }

    /// What was done so far, and how full the pool is now.
    pub fn counters(&self) -> Counters {
        Counters { copies: self.storage.copies(), pool: self.storage.pool(), ..self.counters }
    }

    /// The plans it runs, from the smallest bucket to the largest.
    pub fn resolved(&self) -> &[Resolved] {
        &self.resolved
    }

    /// Returns once no thread of the backend keeps a processor busy: for whoever shares the host with another engine and
    /// will not step this one for a while.
    pub fn rest(&mut self) {
        self.backend.rest();
    }

    /// The kernels of its backend.
    pub fn variants(&self) -> &[Variant] {
        self.backend.variants()
    }

    /// The most bytes of a memory of its own that the backend has taken at once.
    pub fn device_bytes(&self) -> Reading<u64> {
        self.backend.device_bytes()
    }

    /// How often threads of the backend sat out so far, because other processes kept their processors busy.
    pub fn benched(&self) -> Reading<Benched> {
        self.backend.benched()
    }

    /// How the backend's memory lies in the pages of the host: for reports, not between steps.
    pub fn pages(&self) -> Reading<BTreeMap<String, PageUse>> {
        self.backend.pages()
    }

    /// What it runs on.
    pub fn info(&self) -> BackendInfo {
        self.backend.describe()
    }

    /// Requests that it takes at most: those that run and those that wait.
    pub fn capacity(&self) -> usize {
        self.max_sequences + self.max_queue
    }

    /// Tokens that a sequence may have, prompt and output together.
    pub fn context(&self) -> usize {
        self.context
    }
}
