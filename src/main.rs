//! The `tessera` binary: the command line of `tessera_server`, the shell of `tessera_repl`, and the engine between them.

use clap::Parser;
use std::process::ExitCode;
use std::sync::Arc;
use tessera_server::cli::{self, Cli, Parts};
use tessera_server::config::Config;
use tessera_server::engine::Engine;
use tessera_server::error::Error;

fn main() -> ExitCode {
    let parts = Parts {
        open: &open_engine,
        shell: &|engine, runtime| tessera_repl::run(engine, runtime, is_complete),
    };
    cli::run(&Cli::parse(), &parts).into()
}

/// Opens the engine of this process. Called inside the runtime.
fn open_engine(_config: &Config) -> Result<Arc<dyn Engine>, Error> {
    Err(Error::Unsupported { construct: "running queries".into(), hint: None })
}

/// True if `sql` is a whole script, so that Enter runs it.
fn is_complete(sql: &str) -> bool {
    sql.trim_end().ends_with(';')
}
