//! Running statements and writing their answers.

use super::{Shell, Step};
use crate::interrupt::Running;
use crate::screen::Paged;
use std::io::Write;
use std::path::Path;
use std::time::Instant;
use tessera_engine::Replies;
use tessera_engine::answer::{Answer, Reply};
use tessera_engine::error::Error;
use tessera_engine::format::{Options, Writer};
use tessera_engine::readable_bytes;
use tessera_server::cli::{Bar, Target, followed, stderr_width};

impl Shell<'_> {
    /// Runs a script and writes each answer as it comes.
    pub(super) fn sql(&mut self, sql: &str) -> Result<Step, Error> {
        self.each(sql, &mut |shell, reply| shell.write(reply))
    }

    /// Runs a script and calls `then` with each answer. A failure of the script is reported; a failure of the output
    /// ends the shell.
    fn each(
        &mut self,
        sql: &str,
        then: &mut dyn FnMut(&mut Self, Reply) -> Result<(), Error>,
    ) -> Result<Step, Error> {
        let (engine, interrupt) = (self.parts.engine.clone(), self.parts.interrupt);
        let running = interrupt.start();
        let mut replies = engine.run(sql, running.statement.clone());
        let mut start = Instant::now();
        let step = loop {
            let Some(reply) = self.next(&mut replies, &running) else { break Step::Done };
            let took = start.elapsed().as_secs_f64();
            let written = reply.and_then(|reply| {
                let stats = reply.stats;
                then(self, reply)?;
                Ok(stats)
            });
            match written {
                Err(e) if e.is_broken_pipe() => return Err(e),
                Err(e) => break self.report(&e, sql),
                Ok(stats) if self.settings.timer => {
                    let read = readable_bytes(stats.bytes_read);
                    let plan_s = stats.plan_s;
                    self.print(&format!(
                        "time: {took:.3} s (planning {plan_s:.3} s, {read} read)\n"
                    ))?;
                }
                Ok(_) => {}
            }
            start = Instant::now();
        };
        self.parts.knowledge.changed_by(sql);
        Ok(step)
    }

    /// Waits for the next answer, with a progress bar.
    fn next(
        &mut self,
        replies: &mut Replies<'_>,
        running: &Running<'_>,
    ) -> Option<Result<Reply, Error>> {
        let screen = self.parts.screen;
        let shown = self.settings.progress && screen.bar;
        let out: Option<&mut dyn Write> = if shown { Some(&mut *self.parts.err) } else { None };
        let mut bar = Bar::new(out, stderr_width, screen.style.unicode);
        let interrupt = self.parts.interrupt;
        let mut answered = 1;
        let mut notice = || {
            let presses = interrupt.presses();
            let again = presses > answered;
            answered = answered.max(presses);
            again.then(|| waiting(running))
        };
        let next = followed(replies, &running.statement, &mut bar, &mut notice);
        self.parts.runtime.block_on(next)
    }

    /// The answer of a single statement that a command runs.
    pub(super) fn ask(&mut self, sql: &str) -> Result<Reply, Error> {
        self.asked = sql.into();
        let (engine, interrupt) = (self.parts.engine.clone(), self.parts.interrupt);
        let running = interrupt.start();
        let mut replies = engine.run(sql, running.statement.clone());
        self.next(&mut replies, &running)
            .unwrap_or_else(|| Err(Error::Internal { what: format!("`{sql}` has no answer") }))
    }

    /// Writes an answer to the current output.
    pub(super) fn write(&mut self, reply: Reply) -> Result<(), Error> {
        let is_result = !matches!(reply.answer, Answer::Done(_));
        if is_result && let Some(path) = self.settings.once.take() {
            return self.write_once(&path, reply);
        }
        let screen = self.parts.screen;
        let max_rows = self.settings.max_rows;
        let mode = self.settings.mode;
        if let Some((path, file)) = &mut self.settings.output {
            let options = Options { max_rows, ..Options::default() };
            let mut writer = Writer::new(mode, options, &mut *file)?;
            writer.push(reply)?;
            writer.finish()?;
            return file
                .flush()
                .map_err(|e| Error::io("write", format!("`{}`", path.display()), e));
        }
        let (width, lines) = (screen.size)();
        let options = Options { width, max_rows, fit: screen.terminal, ..Options::default() };
        let paged = (screen.terminal && self.settings.pager).then_some(lines);
        let mut out = Paged::new(&mut *self.parts.out, paged, self.parts.interrupt);
        let mut writer = Writer::new(mode, options, &mut out)?;
        writer.push(reply)?;
        writer.finish()?;
        out.finish().map_err(|e| Error::io("write", "the output", e))
    }

    /// Writes the shell's own text, in the pager if it is long.
    pub(super) fn show(&mut self, text: &str) -> Result<(), Error> {
        let screen = self.parts.screen;
        let lines = (screen.terminal && self.settings.pager).then(|| (screen.size)().1);
        let mut out = Paged::new(&mut *self.parts.out, lines, self.parts.interrupt);
        out.write_all(text.as_bytes())
            .and_then(|()| out.finish())
            .map_err(|e| Error::io("write", "the output", e))
    }

    /// Writes the whole answer to a file of its own, which appears when it is complete.
    fn write_once(&mut self, path: &Path, reply: Reply) -> Result<(), Error> {
        // A name without an extension uses the format of `.mode`.
        let mode = path.extension().is_none().then(|| self.settings.mode.name());
        let target = Target::new(mode, Some(path))?;
        let mut output = target.open(self.parts.engine.scratch())?;
        output.push(reply)?;
        output.finish()?;
        self.print(&format!("wrote {}\n", path.display()))
    }
}

/// The message for a second Ctrl-C.
fn waiting(running: &Running<'_>) -> String {
    match running.statement.progress().running() {
        0 => "still cancelling: waiting for storage or planning to come back".into(),
        n => format!(
            "still cancelling: {n} operand{} that run{} must come to their end",
            if n == 1 { "" } else { "s" },
            if n == 1 { "s" } else { "" }
        ),
    }
}
