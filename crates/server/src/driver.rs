//! The thread that owns the engine and steps it while there is work.
//!
//! Handlers post [`Job`]s and read [`Update`]s. Updates never block the engine: a request's updates are bounded by its
//! context. A handler that is gone has dropped its end of the channel; the thread looks for such requests before every
//! step and cancels them, so that a request without a reader costs at most the step that was running.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tare_engine::{Benched, Engine, EngineError, Event, FinishReason, Refused, Request, RequestId, StepReport, Usage};
use tokio::sync::mpsc::{Receiver, UnboundedSender};

/// A failed step is tried again, since it left everything as it was; when it fails again, what runs is ended.
const TRIES: usize = 2;
/// Failed steps without a single computed row between them after which the engine is given up.
const FAILURES: usize = 3 * TRIES;

/// A request and where its updates go.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) updates: UnboundedSender<Update>,
}

/// What is posted to the thread.
pub(crate) enum Message {
    /// Run this.
    Job(Box<Job>),
    /// End everything that runs and then the thread.
    Stop,
}

/// What a handler hears about its request.
#[derive(Debug)]
pub(crate) enum Update {
    /// The engine has taken it.
    Accepted,
    /// The engine has not.
    Refused(Refused),
    /// A token was drawn.
    Token(Drawn),
    /// It is over.
    Finished { reason: FinishReason, usage: Usage },
    /// It ended because the engine failed.
    Failed(String),
    /// It ended because the server does.
    Stopped,
}

/// A token as the engine reports it.
#[derive(Debug)]
pub(crate) struct Drawn {
    pub(crate) token: u32,
    pub(crate) logprob: f32,
    /// The most likely tokens, best first.
    pub(crate) top: Vec<(u32, f32)>,
}

/// How the engine is, readable from any thread. The thread writes after every step; numbers stand alone, so that no
/// order among them is needed.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    alive: AtomicBool,
    requests: AtomicUsize,
    live_pages: AtomicUsize,
    steps: AtomicU64,
    benched: Mutex<Option<Benched>>,
}

impl Gauges {
    /// Whether the thread is there to take jobs.
    pub(crate) fn alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Requests that the engine has and that have a reader.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// KV pages that requests hold.
    pub(crate) fn live_pages(&self) -> usize {
        self.live_pages.load(Ordering::Relaxed)
    }

    /// Forward steps so far.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// How often threads sat out so far; `None` where none ever does, and before the first step.
    pub(crate) fn benched(&self) -> Option<Benched> {
        *self.benched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that the thread is gone, however it went.
struct Alive(Arc<Gauges>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::Release);
        if std::thread::panicking() {
            tracing::error!("the engine's thread panicked; no request can be answered any more");
        }
    }
}

/// Starts the thread.
///
/// # Errors
/// When the system gives no thread.
pub(crate) fn start(
    engine: Engine,
    mailbox: Receiver<Message>,
    gauges: Arc<Gauges>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    gauges.alive.store(true, Ordering::Release);
    let alive = Alive(Arc::clone(&gauges));
    let driver = Driver { engine, mailbox, gauges, running: BTreeMap::new(), failures: 0 };
    std::thread::Builder::new().name("tare-engine".to_owned()).spawn(move || {
        let _alive = alive;
        driver.run();
    })
}

struct Driver {
    engine: Engine,
    mailbox: Receiver<Message>,
    gauges: Arc<Gauges>,
    running: BTreeMap<RequestId, UnboundedSender<Update>>,
    failures: usize,
}

impl Driver {
    fn run(mut self) {
        while self.receive() {
            self.cancel_abandoned();
            match self.engine.step() {
                Ok(report) => self.deliver(report),
                Err(e) if !self.survives(&e) => break,
                Err(_) => {}
            }
            self.publish();
        }
        self.end_all(|| Update::Stopped);
        self.publish();
    }

    /// Takes what was posted; waits when there is nothing else to do. False when it is time to end.
    fn receive(&mut self) -> bool {
        while !self.engine.has_work() {
            match self.mailbox.blocking_recv() {
                Some(Message::Job(job)) => self.submit(*job),
                Some(Message::Stop) | None => return false,
            }
        }
        loop {
            match self.mailbox.try_recv() {
                Ok(Message::Job(job)) => self.submit(*job),
                Ok(Message::Stop) => return false,
                // Nothing there, or nobody left to post: what runs is worked off either way.
                Err(_) => return true,
            }
        }
    }

    /// What follows from a failed step. False when there is no hope left.
    fn survives(&mut self, error: &EngineError) -> bool {
        self.failures += 1;
        tracing::error!(%error, failures = self.failures, "a step failed");
        if self.failures.is_multiple_of(TRIES) {
            self.end_all(|| Update::Failed(format!("the engine failed: {error}")));
        }
        self.failures < FAILURES
    }

    fn submit(&mut self, job: Job) {
        match self.engine.submit(job.request) {
            Ok(id) => {
                if job.updates.send(Update::Accepted).is_ok() {
                    self.running.insert(id, job.updates);
                } else {
                    self.engine.cancel(id);
                }
            }
            // Whoever asked may be gone: then nobody needs to know.
            Err(refused) => drop(job.updates.send(Update::Refused(refused))),
        }
    }

    fn cancel_abandoned(&mut self) {
        let engine = &mut self.engine;
        self.running.retain(|id, updates| {
            if updates.is_closed() {
                engine.cancel(*id);
            }
            !updates.is_closed()
        });
    }

    fn deliver(&mut self, report: StepReport) {
        if report.prefill_rows + report.decode_rows > 0 {
            self.failures = 0;
        }
        for event in report.events {
            let (id, update) = match event {
                Event::Token { request, token, logprob, top, .. } => {
                    (request, Update::Token(Drawn { token, logprob, top }))
                }
                Event::Finished { request, reason, usage, .. } => (request, Update::Finished { reason, usage }),
                Event::PromptLogits { .. } => continue,
            };
            let over = matches!(update, Update::Finished { .. });
            // A failed send is a reader that left during the step.
            let sent = self.running.get(&id).is_some_and(|updates| updates.send(update).is_ok());
            if over {
                self.running.remove(&id);
            } else if !sent {
                self.engine.cancel(id);
            }
        }
    }

    fn end_all(&mut self, last: impl Fn() -> Update) {
        for (id, updates) in std::mem::take(&mut self.running) {
            self.engine.cancel(id);
            // A reader that is gone needs no reason.
            drop(updates.send(last()));
        }
    }

    fn publish(&self) {
        let counters = self.engine.counters();
        self.gauges.requests.store(self.running.len(), Ordering::Relaxed);
        self.gauges.live_pages.store(counters.pool.live, Ordering::Relaxed);
        self.gauges.steps.store(counters.steps, Ordering::Relaxed);
        let benched = self.engine.benched().available().copied();
        *self.gauges.benched.lock().unwrap_or_else(PoisonError::into_inner) = benched;
    }
}
