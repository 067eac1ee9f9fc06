//! Sources of scripts: a terminal ([`crate::editor`]), a pipe or a file.

use crate::commands::leaves;
use std::io::BufRead;
use tessera_engine::error::Error;

/// One read from an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// A command, a complete script, or the rest at the end of the input.
    Text(String),
    /// Ctrl-C: the typed text is discarded.
    Cleared,
    /// The end of the input.
    End,
}

/// A source of scripts.
pub trait Input {
    /// The next command or script.
    fn read(&mut self) -> Result<Read, Error>;
}

/// True if the input is complete: an empty line, a command, a whole script.
pub fn is_whole(text: &str, complete: fn(&str) -> bool) -> bool {
    let text = text.trim();
    text.is_empty() || text.starts_with(['\\', '.']) || leaves(text) || complete(text)
}

/// A pipe or a file: no prompt, no history.
pub struct Piped<R> {
    lines: R,
    what: String,
    complete: fn(&str) -> bool,
    /// Number of lines read.
    line: usize,
    /// The line, from 1, on which the last text began.
    first: usize,
}

impl<R: BufRead> Piped<R> {
    /// Reads `lines`; `what` names the source in errors.
    pub fn new(lines: R, what: impl Into<String>, complete: fn(&str) -> bool) -> Self {
        Piped { lines, what: what.into(), complete, line: 0, first: 0 }
    }

    /// The line, from 1, on which the last text began.
    pub fn first_line(&self) -> usize {
        self.first
    }
}

impl<R: BufRead> Input for Piped<R> {
    fn read(&mut self) -> Result<Read, Error> {
        let mut text = String::new();
        self.first = self.line + 1;
        loop {
            let n = self
                .lines
                .read_line(&mut text)
                .map_err(|e| Error::io("read", self.what.clone(), e))?;
            if n == 0 {
                return Ok(if text.trim().is_empty() { Read::End } else { Read::Text(text) });
            }
            self.line += 1;
            if self.line == 1 && text.starts_with('\u{feff}') {
                text.remove(0);
            }
            if is_whole(&text, self.complete) {
                return Ok(Read::Text(text));
            }
        }
    }
}
