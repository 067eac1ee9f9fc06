//! The line editor: rustyline with completion, colours, hints and a history.

mod arrows;

use crate::complete::complete;
use crate::highlight::highlight;
use crate::hint::signature;
use crate::input::{Input, Read, is_whole};
use crate::knowledge::Knowledge;
use crate::style::{Style, code};
use rustyline::completion::{Completer, Pair};
use rustyline::config::{CompletionType, Configurer};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::{Hint, Hinter, HistoryHinter};
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Editor, Helper};
use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tessera_engine::error::Error;
use unicode_width::UnicodeWidthStr;

const PROMPT: &str = "tessera> ";
/// Upper bound on statements in the history, in memory and in its file.
const HISTORY_MAX: usize = 10_000;
/// Longer statements, in bytes, are not stored: the history is read at every start.
const ENTRY_MAX: usize = 1 << 16;
/// Longer texts, in bytes, are not coloured: that would be slower than typing.
const COLOURED_MAX: usize = 1 << 16;
/// More candidates than this are listed only on request.
const LIST_MAX: usize = 100;

/// A terminal with a line editor.
pub struct Terminal {
    editor: Editor<Assistant, FileHistory>,
    history: Option<PathBuf>,
    prompt: (String, String),
}

/// The callbacks of rustyline while the user types.
struct Assistant {
    complete: fn(&str) -> bool,
    knowledge: Arc<Knowledge>,
    style: Style,
    history: HistoryHinter,
}

/// The dimmed suggestion behind the cursor.
struct Suggestion {
    text: String,
    /// True for a line of the history: the right arrow accepts it.
    insert: bool,
}

impl Hint for Suggestion {
    fn display(&self) -> &str {
        &self.text
    }

    fn completion(&self) -> Option<&str> {
        self.insert.then_some(self.text.as_str())
    }
}

impl Helper for Assistant {}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (start, found) = complete(line, at, &*self.knowledge);
        let pairs = found.into_iter().map(|c| Pair { display: c.display, replacement: c.text });
        Ok((start, pairs.collect()))
    }
}

impl Hinter for Assistant {
    type Hint = Suggestion;

    fn hint(&self, line: &str, at: usize, context: &Context<'_>) -> Option<Suggestion> {
        if at < line.len() || line.len() > COLOURED_MAX {
            return None;
        }
        let last = line.rsplit('\n').next().unwrap_or(line);
        let used = last.width() + if last.len() == line.len() { PROMPT.len() } else { 0 };
        let width = tessera_server::cli::terminal_width();
        let room = width.saturating_sub(used % width.max(1) + 1);
        if !line.starts_with(['.', '\\'])
            && let Some(text) = signature(line, &self.knowledge.functions(), room)
        {
            return Some(Suggestion { text, insert: false });
        }
        let text = self.history.hint(line, at, context)?;
        // A hint is one line.
        let fits = text.width() < room && !text.contains('\n');
        fits.then_some(Suggestion { text, insert: true })
    }
}

impl Highlighter for Assistant {
    fn highlight<'l>(&self, line: &'l str, at: usize) -> Cow<'l, str> {
        if line.len() > COLOURED_MAX {
            return line.into();
        }
        let functions = self.knowledge.functions();
        let known = |name: &str| functions.iter().any(|f| f.name.eq_ignore_ascii_case(name));
        highlight(line, Some(at), self.style, &known).into()
    }

    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        self.style.paint(code::DIM, hint).into()
    }

    fn highlight_char(&self, line: &str, _: usize, kind: CmdKind) -> bool {
        // Any key may end a keyword or close a text; moving the cursor past brackets marks others.
        line.len() <= COLOURED_MAX
            && (kind != CmdKind::MoveCursor || line.contains(['(', '[', '{']))
    }
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_whole(context.input(), self.complete) {
            ValidationResult::Valid(None)
        } else {
            ValidationResult::Incomplete
        })
    }
}

impl Terminal {
    /// Opens the terminal. An unreadable history is ignored.
    pub fn new(
        complete: fn(&str) -> bool,
        knowledge: Arc<Knowledge>,
        style: Style,
        history: Option<PathBuf>,
    ) -> Result<Self, Error> {
        let mut editor = Editor::new().map_err(|e| failed("use", "the terminal", e))?;
        editor.set_max_history_size(HISTORY_MAX).map_err(|e| failed("keep", "a history", e))?;
        editor.set_history_ignore_dups(true).map_err(|e| failed("keep", "a history", e))?;
        editor.set_history_ignore_space(true);
        editor.set_completion_type(CompletionType::List);
        editor.set_completion_show_all_if_ambiguous(true);
        editor.set_completion_prompt_limit(LIST_MAX);
        arrows::bind(&mut editor);
        if style.colours == crate::style::Colours::None {
            editor.set_color_mode(rustyline::ColorMode::Disabled);
        }
        editor.set_helper(Some(Assistant {
            complete,
            knowledge,
            style,
            history: HistoryHinter {},
        }));
        if let Some(path) = &history {
            // At the first start the file does not exist.
            let _ = editor.load_history(path);
        }
        let prompt = (PROMPT.to_string(), style.paint(code::PROMPT, PROMPT.trim_end()) + " ");
        Ok(Terminal { editor, history, prompt })
    }

    /// Adds to the history and its file; a write error is reported once.
    fn remember(&mut self, text: &str) {
        if text.len() > ENTRY_MAX {
            return;
        }
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
        match self.editor.readline(&self.prompt) {
            Ok(text) => {
                if !text.trim().is_empty() {
                    self.remember(text.trim_end());
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
