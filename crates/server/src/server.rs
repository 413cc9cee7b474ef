//! The life of a server: listen, serve, drain.

use std::future::Future;
use std::net::SocketAddr;
use tare_engine::Engine;
use tokio::net::TcpListener;

use crate::config::{ServedModel, ServerConfig};

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
    /// The listener failed while serving.
    #[error("serving failed: {0}")]
    Serve(#[from] std::io::Error),
}

/// A server that listens and has not begun to answer.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    config: ServerConfig,
    model: ServedModel,
    engine: Engine,
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
        Ok(Server { listener, address, config, model, engine })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` ends.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), ServerError> {
        shutdown.await;
        drop((self.listener, self.config, self.model, self.engine));
        Ok(())
    }
}
