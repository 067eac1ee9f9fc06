//! Candidates for the word at the cursor.
//!
//! [`crate::context`] reports what may stand at the cursor, [`Source`] which names exist; this module combines both:
//! variables, then dimensions and coordinates, then named arguments, functions and keywords.

mod files;
mod signature;

pub use files::files;
pub use signature::{Parameter, parameters};

use crate::commands::{self, Argument};
use crate::context::{Call, Context, Relation, What, context};
use crate::knowledge::{Column, Function, Knowledge};
use crate::words;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The names to complete with.
pub trait Source {
    /// All functions.
    fn functions(&self) -> Arc<Vec<Function>>;
    /// Names of tensors, views and tables.
    fn relations(&self) -> Vec<String>;
    /// Names of settings.
    fn settings(&self) -> Vec<String>;
    /// The columns in the answer of `DESCRIBE source`.
    fn columns(&self, source: &str) -> Vec<Column>;
    /// Paths that begin with `start`.
    fn files(&self, start: &str) -> Vec<String>;
}

impl Source for Knowledge {
    fn functions(&self) -> Arc<Vec<Function>> {
        self.functions_soon()
    }
    fn relations(&self) -> Vec<String> {
        self.relations()
    }
    fn settings(&self) -> Vec<String> {
        self.settings()
    }
    fn columns(&self, source: &str) -> Vec<Column> {
        self.columns(source)
    }
    fn files(&self, start: &str) -> Vec<String> {
        files(start)
    }
}

/// A candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The text in the list of candidates.
    pub display: String,
    /// The text that replaces the word.
    pub text: String,
}

/// The first byte of the replaced text, and the candidates for a cursor at byte `at`.
pub fn complete(text: &str, at: usize, source: &dyn Source) -> (usize, Vec<Candidate>) {
    if let Some(found) = command(text, at, source) {
        return found;
    }
    let c = context(text, at);
    let mut list = List::new(&c.word);
    match &c.what {
        What::Nothing => {}
        What::Words(words) => list.words(words),
        What::Clause => list.words(words::CLAUSES),
        What::Relation => list.relations(source),
        What::Setting => source.settings().iter().for_each(|s| list.add(s, s)),
        What::File => list.files(source, text[at..].starts_with('\'')),
        What::TextArgument(call, relations) => {
            list.texts(call, relations, source, text[at..].starts_with('\''));
        }
        What::Operand { relations, call, of } => {
            list.operand(&c, relations, call.as_ref(), of.as_deref(), source);
        }
    }
    (c.start, list.found)
}

/// Candidates for a command and its argument; `None` if the text is SQL.
fn command(text: &str, at: usize, source: &dyn Source) -> Option<(usize, Vec<Candidate>)> {
    let lead = text.len() - text.trim_start().len();
    let line = &text[lead..];
    if !line.starts_with(['.', '\\']) || at < lead {
        return None;
    }
    let typed = &text[lead..at];
    let Some((name, rest)) = typed.split_once(char::is_whitespace) else {
        let mut list = List::new(typed);
        if typed.starts_with('.') {
            for row in commands::COMMANDS {
                list.add(&format!(".{}", row.name), &format!(".{} ", row.name));
            }
        }
        list.found.iter_mut().for_each(|c| c.display.truncate(c.display.trim_end().len()));
        return Some((lead, list.found));
    };
    let row = commands::find(name)?;
    let argument = rest.trim_start();
    let start = at - argument.len();
    let mut list = List::new(argument);
    match row.argument {
        Argument::None | Argument::Number => {}
        Argument::Words(words) => words.iter().for_each(|w| list.add(w, w)),
        Argument::Command => {
            commands::COMMANDS.iter().for_each(|c| list.add(c.name, c.name));
        }
        Argument::File => source.files(argument).iter().for_each(|f| list.push(f, f)),
        Argument::Function => {
            source.functions().iter().for_each(|f| list.add(&f.name, &f.name));
        }
        Argument::Relation | Argument::Query => {
            let query = argument.split_whitespace().count() > 1
                || !text[at..].trim().is_empty()
                || argument.contains(['(', '\''])
                || argument.to_ascii_uppercase().starts_with("SELECT");
            if argument.starts_with('\'') && !argument[1..].contains('\'') {
                let mut list = List::new(&argument[1..]);
                list.files(source, false);
                return Some((start + 1, list.found));
            }
            if row.argument == Argument::Query && query {
                // The text before FROM is the list of a SELECT.
                let head = "SELECT ";
                let bare = !argument.to_ascii_uppercase().starts_with("SELECT");
                let shift = if bare { head.len() } else { 0 };
                let sql = format!("{}{argument}{}", if bare { head } else { "" }, &text[at..]);
                let (from, found) = complete(&sql, argument.len() + shift, source);
                return Some((start + from.saturating_sub(shift), found));
            }
            list.relations(source);
            if row.argument == Argument::Query {
                source.functions().iter().for_each(|f| list.function(f));
            }
        }
    }
    Some((start, list.found))
}

/// Unique candidates that begin with the word.
struct List<'a> {
    word: &'a str,
    found: Vec<Candidate>,
    seen: BTreeSet<String>,
}

impl<'a> List<'a> {
    fn new(word: &'a str) -> Self {
        List { word, found: Vec::new(), seen: BTreeSet::new() }
    }

    fn push(&mut self, display: &str, text: &str) {
        if self.seen.insert(text.to_string()) {
            self.found.push(Candidate { display: display.into(), text: text.into() });
        }
    }

    /// Adds `text` if `name` begins with the word, in any case.
    fn add(&mut self, name: &str, text: &str) {
        let begins =
            name.get(..self.word.len()).is_some_and(|start| start.eq_ignore_ascii_case(self.word));
        if begins {
            self.push(name, text);
        }
    }

    /// Adds keywords, in the case that the word is typed in.
    fn words(&mut self, words: &[&str]) {
        let lower = self.word.chars().any(char::is_lowercase);
        for w in words {
            let w = if lower { w.to_ascii_lowercase() } else { (*w).to_string() };
            self.add(&w, &format!("{w} "));
        }
    }

    fn function(&mut self, f: &Function) {
        let bare = f.signature.ends_with("()");
        self.add(&f.name, &format!("{}({}", f.name, if bare { ")" } else { "" }));
    }

    /// Adds a name, in double quotes if it needs them.
    fn name(&mut self, name: &str) {
        if is_plain(name) {
            return self.add(name, name);
        }
        let quoted = format!("\"{}\"", name.replace('"', "\"\""));
        if self.word.starts_with('"') {
            self.add(&quoted, &quoted)
        } else {
            self.add(name, &quoted)
        }
    }

    fn relations(&mut self, source: &dyn Source) {
        source.relations().iter().for_each(|r| self.name(r));
        if self.word.is_empty() {
            self.push("'file or URL'", "'");
        }
    }

    fn files(&mut self, source: &dyn Source, quoted: bool) {
        for f in source.files(self.word) {
            // A closing quote ends the text, except after a plain directory.
            let end = if f.ends_with('/') || quoted { "" } else { "'" };
            self.push(&f, &format!("{f}{end}"));
        }
    }

    fn texts(&mut self, call: &Call, relations: &[Relation], source: &dyn Source, quoted: bool) {
        let functions = source.functions();
        let function = functions.iter().find(|f| f.name == call.function);
        let parameters = function.map(|f| parameters(&f.signature)).unwrap_or_default();
        let name = call
            .named
            .clone()
            .or_else(|| Some(parameters.get(call.position)?.name.clone()))
            .unwrap_or_default();
        let end = if quoted { "" } else { "'" };
        match name.as_str() {
            "axis" | "dim" | "dims" | "axes" => {
                let mut dims = BTreeSet::new();
                for r in relations {
                    for column in source.columns(&r.source) {
                        dims.extend(column.dims.into_iter().map(|(d, _)| d));
                    }
                }
                dims.iter().for_each(|d| self.add(d, &format!("{d}{end}")));
            }
            "dtype" => words::DTYPES.iter().for_each(|d| self.add(d, &format!("{d}{end}"))),
            _ => {
                let told = function.map(|f| signature::told(f, &name)).unwrap_or_default();
                told.iter().for_each(|w| self.add(w, &format!("{w}{end}")));
            }
        }
    }

    fn operand(
        &mut self,
        c: &Context,
        relations: &[Relation],
        call: Option<&Call>,
        of: Option<&str>,
        source: &dyn Source,
    ) {
        let mut columns = Vec::new();
        for r in relations {
            let named = |alias: &String| of.is_some_and(|of| alias.eq_ignore_ascii_case(of));
            if of.is_none() || r.alias.as_ref().is_some_and(named) {
                columns.extend(source.columns(&r.source));
            }
        }
        // An expression cannot use names of these kinds.
        columns.retain(|c| !["unreadable", "group"].contains(&c.kind.as_str()));
        let is_label = |c: &Column| c.kind == "coordinate";
        columns.iter().filter(|c| !is_label(c)).for_each(|c| self.name(&c.name));
        columns.iter().filter(|c| is_label(c)).for_each(|c| self.name(&c.name));
        if of.is_some() {
            return;
        }
        let functions = source.functions();
        if let Some(call) = call {
            self.arguments(call, &columns, &functions);
        }
        relations
            .iter()
            .filter_map(|r| r.alias.as_ref())
            .filter(|_| relations.len() > 1)
            .for_each(|alias| self.add(alias, &format!("{alias}.")));
        // Without a typed letter the list of all functions is too long: offer names and arguments.
        if !c.word.is_empty() || columns.is_empty() {
            functions.iter().for_each(|f| self.function(f));
            self.words(words::OPERANDS);
        }
    }

    /// Adds named arguments of the function, or values of one; dimensions of a subscript.
    fn arguments(&mut self, call: &Call, columns: &[Column], functions: &[Function]) {
        if call.function.is_empty() {
            let dims: BTreeSet<&str> =
                columns.iter().flat_map(|c| c.dims.iter().map(|(d, _)| d.as_str())).collect();
            dims.iter().for_each(|d| self.add(d, &format!("{d} => ")));
            return;
        }
        let Some(f) = functions.iter().find(|f| f.name == call.function) else { return };
        let parameters = parameters(&f.signature);
        if let Some(named) = &call.named {
            let default =
                parameters.iter().find(|p| p.name == *named).and_then(|p| p.default.clone());
            if matches!(default.as_deref(), Some("true" | "false")) {
                self.add("true", "true");
                self.add("false", "false");
            }
        } else if call.fresh && call.position > 0 {
            for p in parameters.iter().filter(|p| p.default.is_some()) {
                if !call.given.contains(&p.name) {
                    self.add(&format!("{} =>", p.name), &format!("{} => ", p.name));
                }
            }
        }
    }
}

/// True for a name that needs no quotes.
fn is_plain(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_lowercase() || c == '_')
        && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '.'))
        && !words::is_keyword(name)
}

#[cfg(test)]
mod tests;
