//! The `tessera` binary: the command line of `tessera_server`, the shell of `tessera_repl`, and a session of
//! `tessera_engine`.

use clap::Parser;
use std::process::ExitCode;
use std::sync::Arc;
use tessera_engine::Engine;
use tessera_engine::config::Config;
use tessera_engine::error::Error;
use tessera_engine::session::Session;
use tessera_server::cli::{self, Cli, Parts};

fn main() -> ExitCode {
    let parts = Parts {
        open: &open_engine,
        shell: &|engine, runtime| tessera_repl::run(engine, runtime, tessera_engine::is_complete),
    };
    cli::run(&Cli::parse(), &parts).into()
}

/// Opens the engine of this process. Called inside the runtime.
fn open_engine(config: &Config) -> Result<Arc<dyn Engine>, Error> {
    let session = Session::open(config.clone(), tokio::runtime::Handle::current())?;
    Ok(Arc::new(session))
}
