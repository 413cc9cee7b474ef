//! `tare serve`: the engine behind the OpenAI API.

use anyhow::{Context, Result};
use std::io::IsTerminal;
use std::net::SocketAddr;
use tare_core::Fault;
use tare_server::{ServedModel, ServerConfig};

use crate::args::ServeArgs;
use crate::interrupt::INTERRUPTED;
use crate::settings::Settings;
use crate::setup::{How, chat_template, open_model, tokenizer};

/// Runs the command until Ctrl-C or SIGTERM, then lets running requests end.
pub(crate) fn run(args: &ServeArgs, settings: &Settings) -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_max_level(tracing::Level::INFO)
        .init();
    if args.max_sequences == 0 || args.max_queue == 0 {
        return Err(Fault::new("--max-sequences, --max-queue", "at least 1 of each", "0").into());
    }
    let model = open_model(&args.model.model, settings)?;
    let tokenizer = tokenizer(&model)?;
    // Without a template only completions are served; the server says so to those who ask for chat.
    let template = if model.chat_template().is_some() { Some(chat_template(&model, &tokenizer)?) } else { None };
    let how = How::of(&args.model.how, &model, None, settings)?;
    let engine = how.engine_for(&model, args.max_sequences, args.max_queue)?;
    let served = ServedModel {
        name: args.served_name.clone().unwrap_or_else(|| args.model.model.clone()),
        tokenizer,
        template,
        eos: model.config().eos.clone(),
        context: how.context,
        vocabulary: model.config().vocab,
    };
    let address = SocketAddr::new(args.host, args.port);
    let config = ServerConfig { address };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = tare_server::Server::bind(config, served, engine)
            .await
            .with_context(|| format!("cannot listen on {address}"))?;
        println!("serving {} on http://{}/v1", args.model.model, server.address());
        server.run(shutdown()).await?;
        Ok(())
    })
}

/// Ends when the process is asked to stop. Asked once more, the process ends at once.
async fn shutdown() {
    asked_to_stop().await;
    eprintln!("running requests may end, for at most 30 s; once more to stop now");
    tokio::spawn(async {
        asked_to_stop().await;
        std::process::exit(i32::from(INTERRUPTED));
    });
}

/// Ends at the next Ctrl-C or SIGTERM.
async fn asked_to_stop() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    // Without a handler for SIGTERM, Ctrl-C alone stops the server in good order.
    let _either_way = interrupt.await;
}
