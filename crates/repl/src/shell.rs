//! The loop of the shell: reads, runs, prints.

mod answer;
mod info;

use crate::commands::{self, Command, switch};
use crate::input::{Input, Piped, Read};
use crate::interrupt::Interrupt;
use crate::knowledge::Knowledge;
use crate::screen::Screen;
use crate::settings::{Settings, unquoted};
use crate::style::code;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;
use std::sync::Arc;
use tessera_engine::Engine;
use tessera_engine::error::Error;
use tokio::runtime::Runtime;

/// Upper bound on nested files: deeper nesting is taken for a cycle.
const READ_DEPTH_MAX: usize = 16;

/// The dependencies of the shell.
pub struct Parts<'a> {
    /// The engine that runs statements.
    pub engine: Arc<dyn Engine>,
    /// The runtime of the engine.
    pub runtime: &'a Runtime,
    /// The handler of Ctrl-C.
    pub interrupt: &'a Interrupt,
    /// The cache for completion; the shell invalidates it.
    pub knowledge: Arc<Knowledge>,
    /// The terminal.
    pub screen: Screen,
    /// Returns true if a text is a whole script.
    pub complete: fn(&str) -> bool,
    /// Output of answers.
    pub out: &'a mut dyn Write,
    /// Output of errors.
    pub err: &'a mut dyn Write,
}

/// The shell.
pub struct Shell<'a> {
    parts: Parts<'a>,
    settings: Settings,
    depth: usize,
    failed: bool,
    /// The SQL of the last command.
    asked: String,
}

/// The outcome of one input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Done,
    Failed,
    Quit,
}

impl<'a> Shell<'a> {
    /// A shell with default settings.
    pub fn new(parts: Parts<'a>) -> Self {
        Shell {
            parts,
            settings: Settings::default(),
            depth: 0,
            failed: false,
            asked: String::new(),
        }
    }

    /// Reads and runs until the input ends; true if any statement or command failed.
    ///
    /// # Errors
    /// The input or output fails.
    pub fn run(&mut self, input: &mut dyn Input) -> Result<bool, Error> {
        loop {
            match input.read()? {
                Read::End => break,
                Read::Cleared => {}
                Read::Text(text) => {
                    if self.step(&text)? == Step::Quit {
                        break;
                    }
                }
            }
        }
        Ok(self.failed)
    }

    /// True if any statement or command has failed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Prints the greeting.
    ///
    /// # Errors
    /// The output fails.
    pub fn greet(&mut self) -> Result<(), Error> {
        let style = self.parts.screen.style;
        let name = style.paint("1", &format!("Tessera {}", env!("CARGO_PKG_VERSION")));
        self.print(&format!("{name}: SQL for tensors. .help helps, .quit leaves.\n"))
    }

    /// Runs the statements and commands of a file, up to the first that fails. True if one of them was `.quit`.
    ///
    /// # Errors
    /// The output fails.
    pub fn read_file(&mut self, path: &Path) -> Result<bool, Error> {
        self.read(path).map(|step| step == Step::Quit)
    }

    fn read(&mut self, path: &Path) -> Result<Step, Error> {
        let name = format!("`{}`", path.display());
        if self.depth >= READ_DEPTH_MAX {
            let reason = format!("{name} is read by a file that it reads");
            return Ok(self.report(&Error::Usage { reason, hint: None }, ""));
        }
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) => return Ok(self.report(&Error::io("read", name, e), "")),
        };
        let mut input = Piped::new(BufReader::new(file), name.clone(), self.parts.complete);
        self.depth += 1;
        let end = loop {
            match input.read() {
                Ok(Read::End) => break Ok(Step::Done),
                Ok(Read::Cleared) => {}
                Ok(Read::Text(text)) => match self.step(&text) {
                    Ok(Step::Done) => {}
                    Ok(Step::Failed) => {
                        let line = input.first_line();
                        self.say(&format!("stopped in {name}, line {line}\n"));
                        break Ok(Step::Failed);
                    }
                    other => break other,
                },
                // An unreadable file (a directory, bytes that are not text) is reported; the shell continues.
                Err(e) => break Ok(self.report(&e, "")),
            }
        };
        self.depth -= 1;
        end
    }

    fn step(&mut self, text: &str) -> Result<Step, Error> {
        match Command::parse(text) {
            None if text.trim().is_empty() => Ok(Step::Done),
            None => self.sql(text),
            Some(Err(e)) => Ok(self.report(&e, "")),
            Some(Ok(command)) => match self.command(command) {
                // An output error ends the shell, any other error ends the command.
                Err(e) if e.is_broken_pipe() => Err(e),
                Err(e) => {
                    // The SQL of a command is shown if its error has a position in it.
                    let asked = std::mem::take(&mut self.asked);
                    Ok(self.report(&e, &asked))
                }
                Ok(step) => Ok(step),
            },
        }
    }

    fn command(&mut self, command: Command) -> Result<Step, Error> {
        let s = &mut self.settings;
        match command {
            Command::Quit => return Ok(Step::Quit),
            Command::Help(about) => {
                let text = commands::help(&about)?;
                self.show(&text)?;
            }
            Command::Show => {
                let text = s.list();
                self.print(&text)?;
            }
            Command::Mode(name) if name.is_empty() => {
                let text = format!("mode is {}\n", s.mode.name());
                self.print(&text)?;
            }
            Command::Mode(name) => s.set_mode(&name)?,
            Command::MaxRows(n) if n.is_empty() => {
                let text = format!("maxrows is {}\n", s.max_rows);
                self.print(&text)?;
            }
            Command::MaxRows(n) => s.set_max_rows(&n)?,
            Command::Timer(to) => self.set_switch("timer", &to, |s| &mut s.timer)?,
            Command::Progress(to) => self.set_switch("progress", &to, |s| &mut s.progress)?,
            Command::Pager(to) => self.set_switch("pager", &to, |s| &mut s.pager)?,
            Command::Output(file) => s.set_output(&file)?,
            Command::Once(file) => s.set_once(&file)?,
            Command::Read(file) => return self.read(Path::new(unquoted(&file))),
            Command::Tables(pattern) => return self.tables(&pattern),
            Command::Describe(what) => {
                return self.sql(&format!("DESCRIBE {}", commands::describable(&what)));
            }
            Command::Functions(pattern) => self.functions(&pattern)?,
            Command::Shape(what) => self.shape(&what)?,
            Command::Chunks(what) => self.chunks(&what)?,
            Command::Plot(what) => self.plot(&what)?,
        }
        Ok(Step::Done)
    }

    fn set_switch(
        &mut self,
        what: &'static str,
        to: &str,
        of: fn(&mut Settings) -> &mut bool,
    ) -> Result<(), Error> {
        let setting = of(&mut self.settings);
        *setting = switch(what, to, *setting)?;
        let on = *setting;
        self.print(&format!("{what} is {}\n", if on { "on" } else { "off" }))
    }

    fn print(&mut self, text: &str) -> Result<(), Error> {
        let out = &mut self.parts.out;
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|e| Error::io("write", "the output", e))
    }

    fn report(&mut self, e: &Error, sql: &str) -> Step {
        self.failed = true;
        let style = self.parts.screen.style;
        let text = e.render(sql);
        let mut shown = String::new();
        for line in text.split_inclusive('\n') {
            let colour = match line.trim_start() {
                l if l.starts_with("error[") => match line.split_once(": ") {
                    Some((head, rest)) => {
                        shown.push_str(&format!("{}: {rest}", style.paint(code::ERROR, head)));
                        continue;
                    }
                    None => code::ERROR,
                },
                l if l.starts_with('^') => code::ERROR,
                l if l.starts_with("hint: ") => code::FUNCTION,
                _ => "",
            };
            let bare = line.trim_end_matches('\n');
            let painted = if colour.is_empty() { bare.into() } else { style.paint(colour, bare) };
            shown.push_str(&painted);
            shown.push('\n');
        }
        self.say(&shown);
        Step::Failed
    }

    fn say(&mut self, text: &str) {
        // If stderr fails, only the exit status reports the failure.
        let err = &mut self.parts.err;
        let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
    }
}

#[cfg(test)]
mod tests;
