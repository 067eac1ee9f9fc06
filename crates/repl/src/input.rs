//! Where scripts come from: a terminal with editing and history, or a pipe.

use rustyline::completion::Completer;
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Editor, Helper};
use std::io::{self, BufRead};
use std::path::PathBuf;
use tessera_server::error::Error;

const PROMPT: &str = "tessera> ";
/// Statements that the history remembers.
const HISTORY_MAX: usize = 10_000;

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// A command, or a complete script, or what was left at the end of the input.
    Text(String),
    /// Ctrl-C: what was typed is forgotten.
    Cleared,
    /// The end.
    End,
}

/// A source of scripts.
pub trait Input {
    /// The next command or script.
    fn read(&mut self) -> Result<Read, Error>;
}

/// True if there is nothing more to wait for: an empty line, a command, a whole script.
fn is_whole(text: &str, complete: fn(&str) -> bool) -> bool {
    let text = text.trim();
    text.is_empty() || text.starts_with('\\') || complete(text)
}

/// A terminal.
pub struct Terminal {
    editor: Editor<Whole, FileHistory>,
    history: Option<PathBuf>,
}

/// Tells rustyline whether Enter ends the input or starts another line.
struct Whole {
    complete: fn(&str) -> bool,
}

impl Helper for Whole {}
impl Highlighter for Whole {}
impl Completer for Whole {
    type Candidate = String;
}
impl Hinter for Whole {
    type Hint = String;
}

impl Validator for Whole {
    fn validate(&self, ctx: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_whole(ctx.input(), self.complete) {
            ValidationResult::Valid(None)
        } else {
            ValidationResult::Incomplete
        })
    }
}

impl Terminal {
    /// Takes the terminal. A history that cannot be read is as good as none.
    pub fn new(complete: fn(&str) -> bool, history: Option<PathBuf>) -> Result<Self, Error> {
        let mut editor = Editor::new().map_err(|e| failed("use", "the terminal", e))?;
        editor.set_max_history_size(HISTORY_MAX).map_err(|e| failed("keep", "a history", e))?;
        editor.set_history_ignore_space(true);
        editor.set_helper(Some(Whole { complete }));
        if let Some(path) = &history {
            // The first time there is no file.
            let _ = editor.load_history(path);
        }
        Ok(Terminal { editor, history })
    }

    /// Adds to the history and its file; that the file cannot be written is told once.
    fn remember(&mut self, text: &str) {
        let known = self.editor.add_history_entry(text);
        let Some(path) = &self.history else { return };
        if !matches!(known, Ok(true)) {
            return;
        }
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let saved = made.map_err(ReadlineError::Io).and_then(|()| self.editor.append_history(path));
        if let Err(e) = saved {
            tracing::warn!("the history `{}` cannot be written: {e}", path.display());
            self.history = None;
        }
    }
}

impl Input for Terminal {
    fn read(&mut self) -> Result<Read, Error> {
        match self.editor.readline(PROMPT) {
            Ok(text) => {
                if !text.trim().is_empty() {
                    self.remember(&text);
                }
                Ok(Read::Text(text))
            }
            Err(ReadlineError::Interrupted) => Ok(Read::Cleared),
            Err(ReadlineError::Eof) => Ok(Read::End),
            Err(e) => Err(failed("read", "the terminal", e)),
        }
    }
}

fn failed(action: &'static str, what: &str, e: ReadlineError) -> Error {
    let source = match e {
        ReadlineError::Io(e) => e,
        other => io::Error::other(other.to_string()),
    };
    Error::io(action, what, source)
}

/// A pipe or a file: no prompt, no history.
pub struct Piped<R> {
    lines: R,
    complete: fn(&str) -> bool,
}

impl<R: BufRead> Piped<R> {
    /// Reads `lines`.
    pub fn new(lines: R, complete: fn(&str) -> bool) -> Self {
        Piped { lines, complete }
    }
}

impl<R: BufRead> Input for Piped<R> {
    fn read(&mut self) -> Result<Read, Error> {
        let mut text = String::new();
        loop {
            let n = self.lines.read_line(&mut text).map_err(|e| Error::io("read", "stdin", e))?;
            if n == 0 {
                return Ok(if text.trim().is_empty() { Read::End } else { Read::Text(text) });
            }
            if is_whole(&text, self.complete) {
                return Ok(Read::Text(text));
            }
        }
    }
}
