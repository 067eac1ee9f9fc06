//! The interactive shell.
//!
//! The life of a statement: an [`input::Input`] reads lines until they are complete; [`editor`] is the input for a
//! terminal, with completion, colours and a history. [`shell::Shell`] distinguishes commands (`.plot`) from SQL. The
//! engine runs the SQL while a bar on stderr shows the progress. A [`tessera_engine::format::Writer`] prints each
//! answer, through a pager if it is longer than the [`screen`]. Ctrl-C at the prompt clears the line; while a query
//! runs it cancels the query ([`interrupt::Interrupt`]).
//!
//! Completion has three parts: [`context`] reports what may stand at the cursor, [`knowledge`] which names exist,
//! [`complete`] combines both.
//!
//! Invariants: the shell uses an engine only through its trait, and only with SQL, so that a remote server works as
//! well. No failure of a query, of the history or of a command ends the shell, only the end of its input or of its
//! output. No key waits for a slow store.

pub mod commands;
pub mod complete;
pub mod context;
pub mod editor;
pub mod highlight;
pub mod hint;
pub mod input;
pub mod interrupt;
pub mod knowledge;
pub mod lex;
pub mod plot;
pub mod rows;
pub mod screen;
pub mod settings;
pub mod shell;
pub mod style;
pub mod words;

use editor::Terminal;
use input::{Input, Piped};
use interrupt::Interrupt;
use knowledge::Knowledge;
use screen::Screen;
use shell::{Parts, Shell};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use style::Style;
use tessera_engine::Engine;
use tessera_engine::error::Error;
use tessera_server::cli::terminal_width;
use tokio::runtime::Runtime;

/// Runs the shell on stdin and stdout until its input ends. Returns the exit status.
///
/// `complete` returns true if a text is a whole script, so that Enter runs it. With a terminal the status is 0; without
/// one it is 1 if any statement failed.
///
/// # Errors
/// The terminal cannot be used, or the output cannot be written.
pub fn run(
    engine: Arc<dyn Engine>,
    runtime: &Runtime,
    complete: fn(&str) -> bool,
) -> Result<u8, Error> {
    let terminal = std::io::stdin().is_terminal();
    let interrupt = Interrupt::new(runtime, !terminal);
    let knowledge = Arc::new(Knowledge::new(engine.clone(), runtime.handle().clone()));
    let shown = std::io::stdout().is_terminal();
    let style = Style::detect(shown, |name| std::env::var_os(name));
    let screen =
        Screen { terminal: shown, bar: std::io::stderr().is_terminal(), size: screen_size, style };
    let mut out = std::io::stdout();
    let mut err = std::io::stderr();
    let mut shell = Shell::new(Parts {
        engine,
        runtime,
        interrupt: &interrupt,
        knowledge: knowledge.clone(),
        screen,
        complete,
        out: &mut out,
        err: &mut err,
    });
    let result = talk(
        &mut shell,
        terminal,
        || {
            knowledge.prefetch();
            Terminal::new(complete, knowledge.clone(), style, history_file())
        },
        complete,
    );
    match result {
        // A closed output is not a failure, and does not hide earlier ones.
        Err(e) if e.is_broken_pipe() => Ok(u8::from(shell.has_failed() && !terminal)),
        Err(e) => Err(e),
        Ok(failed) => Ok(u8::from(failed && !terminal)),
    }
}

fn talk(
    shell: &mut Shell<'_>,
    terminal: bool,
    open: impl FnOnce() -> Result<Terminal, Error>,
    complete: fn(&str) -> bool,
) -> Result<bool, Error> {
    let mut input: Box<dyn Input> = if terminal {
        Box::new(open()?)
    } else {
        Box::new(Piped::new(std::io::stdin().lock(), "stdin", complete))
    };
    if terminal {
        shell.greet()?;
    }
    if let Some(file) = start_file(terminal)
        && shell.read_file(&file)?
    {
        return Ok(false);
    }
    shell.run(&mut *input)
}

/// Current width in characters, and height in lines.
fn screen_size() -> (usize, usize) {
    let lines = terminal_size::terminal_size().map_or(usize::MAX, |(_, h)| usize::from(h.0).max(4));
    (terminal_width(), lines)
}

/// `$TESSERA_RC`, for any input; else `~/.tesserarc` for a terminal, if it exists.
fn start_file(terminal: bool) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("TESSERA_RC") {
        return (!named.is_empty()).then(|| named.into());
    }
    let own = absolute("HOME")?.join(".tesserarc");
    (terminal && own.is_file()).then_some(own)
}

/// `$XDG_STATE_HOME/tessera/history`, or below `~/.local/state`; `None` without a home.
fn history_file() -> Option<PathBuf> {
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local").join("state")))?;
    Some(state.join("tessera").join("history"))
}

fn absolute(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute())
}
