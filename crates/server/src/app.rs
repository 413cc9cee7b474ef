//! What all handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tare_engine::Request;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use crate::config::ServedModel;
use crate::driver::{Gauges, Job, Message, Update};
use crate::problem::Problem;

/// The server's state.
#[derive(Debug)]
pub(crate) struct App {
    /// What is served.
    pub(crate) model: Arc<ServedModel>,
    /// How the engine is.
    pub(crate) gauges: Arc<Gauges>,
    /// When the server started, seconds since 1970.
    pub(crate) started: i64,
    mailbox: Sender<Message>,
    draining: AtomicBool,
    in_flight: watch::Sender<usize>,
    names: AtomicU64,
}

impl App {
    /// The state around a mailbox that the engine's thread reads.
    pub(crate) fn new(model: ServedModel, mailbox: Sender<Message>) -> Self {
        Self {
            model: Arc::new(model),
            gauges: Arc::default(),
            started: now(),
            mailbox,
            draining: AtomicBool::new(false),
            in_flight: watch::Sender::new(0),
            names: AtomicU64::new(0),
        }
    }

    /// A name for a request, unique also across restarts within what clocks can tell.
    pub(crate) fn name(&self) -> String {
        format!("{:x}-{}", self.started, self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// Lets a request in, for as long as the ticket lives.
    ///
    /// # Errors
    /// When the server is on its way out or the engine is gone.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Ticket, Problem> {
        // Counted first, so that a drain that begins now sees it.
        self.in_flight.send_modify(|n| *n += 1);
        let ticket = Ticket(Arc::clone(self));
        if self.is_draining() {
            return Err(Problem::stopping());
        }
        if self.gauges.alive() { Ok(ticket) } else { Err(Problem::engine_gone()) }
    }

    /// Whether new requests are refused.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Refuses new requests from now on and waits until those that run are over.
    pub(crate) async fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        let mut in_flight = self.in_flight.subscribe();
        // The sender lives in `self`, so that waiting cannot fail.
        let _zero = in_flight.wait_for(|n| *n == 0).await;
    }

    /// Ends what still runs, and the engine's thread.
    pub(crate) async fn stop(&self) {
        // A mailbox without a reader means that the thread is gone already.
        let _gone = self.mailbox.send(Message::Stop).await;
    }

    /// Gives the engine a request and waits until it has taken it; `prompt` is the parameter that the prompt came from.
    ///
    /// # Errors
    /// When the engine refuses it, too many wait, or the engine is gone.
    pub(crate) async fn submit(&self, request: Request, prompt: &str) -> Result<UnboundedReceiver<Update>, Problem> {
        let (sender, mut updates) = unbounded_channel();
        let job = Message::Job(Box::new(Job { request, updates: sender }));
        match self.mailbox.try_send(job) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                let waiting = self.mailbox.max_capacity();
                return Err(Problem::queue_full(format!("{waiting} requests wait for the engine: try again later")));
            }
            Err(TrySendError::Closed(_)) => return Err(Problem::engine_gone()),
        }
        match updates.recv().await {
            Some(Update::Refused(refused)) => Err(Problem::refused(&refused, prompt)),
            Some(_) => Ok(updates),
            None if self.is_draining() => Err(Problem::stopping()),
            None => Err(Problem::engine_gone()),
        }
    }
}

/// Counts a request as in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<App>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.in_flight.send_modify(|n| *n -= 1);
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}
