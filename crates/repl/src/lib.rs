//! The interactive shell.
//!
//! The life of a statement: [`input::Input`] reads lines until they are complete, [`shell::Shell`] tells a command (`\d`)
//! from SQL, the engine runs the SQL, a [`tessera_server::format::Writer`] prints each answer. Ctrl-C at the prompt clears
//! the line; while a query runs it cancels the query ([`interrupt::Interrupt`]).
//!
//! Invariants: the shell knows an engine only through its trait; no failure of a query, of the history or of a command
//! ends it, only the end of its input or of its output.

pub mod commands;
pub mod input;
pub mod interrupt;
pub mod shell;

use input::{Input, Piped, Terminal};
use interrupt::Interrupt;
use shell::{Options, Shell};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use tessera_server::cli::terminal_width;
use tessera_server::engine::Engine;
use tessera_server::error::Error;
use tokio::runtime::Runtime;

/// Runs the shell on stdin and stdout until its input ends; the exit status.
///
/// `complete` tells whether a text is a whole script, so that Enter runs it. With a terminal the status is 0; without
/// one it is 1 if any statement failed.
///
/// # Errors
/// A terminal that cannot be used, an output that cannot be written.
pub fn run(
    engine: Arc<dyn Engine>,
    runtime: &Runtime,
    complete: fn(&str) -> bool,
) -> Result<u8, Error> {
    let terminal = std::io::stdin().is_terminal();
    let interrupt = Interrupt::new(runtime, !terminal);
    let options = Options { width: terminal_width(), greet: terminal };
    let mut out = std::io::stdout();
    let mut err = std::io::stderr();
    let mut shell = Shell::new(&*engine, runtime, &interrupt, options, &mut out, &mut err);
    let mut input: Box<dyn Input> = if terminal {
        Box::new(Terminal::new(complete, history_file())?)
    } else {
        Box::new(Piped::new(std::io::stdin().lock(), complete))
    };
    let result = shell.run(&mut *input);
    match result {
        Err(e) if e.is_broken_pipe() => Ok(0),
        Err(e) => Err(e),
        Ok(failed) => Ok(u8::from(failed && !terminal)),
    }
}

/// `$XDG_STATE_HOME/tessera/history`, or below `~/.local/state`; `None` without a home.
fn history_file() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local").join("state")))?;
    Some(state.join("tessera").join("history"))
}
