//! The life of a server: listen, serve, drain.

use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tare_engine::Engine;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use crate::app::App;
use crate::config::{ServedModel, ServerConfig};
use crate::driver;
use crate::routes::router;

/// How long running requests may go on after the shutdown began.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);
/// How long the last bytes may take to reach clients after that.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// Why a server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another port or stop the program that has it")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The engine's thread could not be started, or the listener failed while serving.
    #[error("serving failed: {0}")]
    Serve(#[from] std::io::Error),
}

/// A server that listens and has not begun to answer.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    model: ServedModel,
    engine: Engine,
    drain_limit: Duration,
}

impl Server {
    /// Listens on the address. Connections wait until [`Server::run`].
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub async fn bind(config: ServerConfig, model: ServedModel, engine: Engine) -> Result<Server, ServerError> {
        let failed = |source| ServerError::Listen { address: config.address, source };
        let listener = TcpListener::bind(config.address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Server { listener, address, model, engine, drain_limit: DRAIN_LIMIT })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same server with another limit on how long running requests may go on after `shutdown`; 30 s by default.
    #[must_use]
    pub fn with_drain_limit(self, limit: Duration) -> Self {
        Self { drain_limit: limit, ..self }
    }

    /// Serves until `shutdown` ends, then drains: new requests get 503, running ones go on for the drain limit and are
    /// cancelled after it.
    ///
    /// # Errors
    /// When the engine's thread cannot be started or the listener fails.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), ServerError> {
        let (mailbox, messages) = mpsc::channel(self.engine.capacity());
        let app = Arc::new(App::new(self.model, mailbox));
        let thread = driver::start(self.engine, messages, Arc::clone(&app.gauges))?;

        let (close, closed) = oneshot::channel::<()>();
        let serve = axum::serve(self.listener, router(Arc::clone(&app)));
        let serve = serve.with_graceful_shutdown(async {
            // Either way it is time to close: the sender is used or gone.
            let _either_way = closed.await;
        });
        let mut serving = tokio::spawn(serve.into_future());
        let early = tokio::select! {
            ended = &mut serving => Some(ended),
            () = shutdown => None,
        };
        if early.is_none() {
            tracing::info!("shutting down: running requests may end, new ones are refused");
            if tokio::time::timeout(self.drain_limit, app.drain()).await.is_err() {
                tracing::warn!(limit_s = self.drain_limit.as_secs(), "cancelling requests that still run");
            }
        }
        app.stop().await;
        drop(close);
        let ended = match early {
            Some(ended) => Some(ended),
            None => tokio::time::timeout(FLUSH_LIMIT, &mut serving).await.ok(),
        };
        serving.abort();
        // The thread was told to stop and ends after its step; a panic in it is in the log.
        let _joined = tokio::task::spawn_blocking(move || thread.join()).await;
        match ended {
            Some(Ok(result)) => Ok(result?),
            Some(Err(panicked)) => Err(ServerError::Serve(std::io::Error::other(panicked))),
            None => Ok(()),
        }
    }
}
