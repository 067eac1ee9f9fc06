//! Reads, runs, prints.

use crate::commands::{Command, HELP, describe_sql};
use crate::input::{Input, Read};
use crate::interrupt::Interrupt;
use arrow::array::{Array, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use std::io::Write;
use std::time::Instant;
use tessera_server::answer::{Answer, Reply};
use tessera_server::cli::until_cancelled;
use tessera_server::config::format_bytes;
use tessera_server::engine::Engine;
use tessera_server::error::Error;
use tessera_server::format::{self, Format, Writer};
use tokio::runtime::Runtime;

/// How the shell looks.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Characters of a line.
    pub width: usize,
    /// True if a person sits there.
    pub greet: bool,
}

/// The shell.
pub struct Shell<'a> {
    engine: &'a dyn Engine,
    runtime: &'a Runtime,
    interrupt: &'a Interrupt,
    options: Options,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    timing: bool,
    failed: bool,
}

impl<'a> Shell<'a> {
    /// A shell that prints answers to `out` and errors to `err`.
    pub fn new(
        engine: &'a dyn Engine,
        runtime: &'a Runtime,
        interrupt: &'a Interrupt,
        options: Options,
        out: &'a mut dyn Write,
        err: &'a mut dyn Write,
    ) -> Self {
        Shell { engine, runtime, interrupt, options, out, err, timing: false, failed: false }
    }

    /// Reads and runs until the input ends; true if anything failed.
    ///
    /// # Errors
    /// An input or output that is gone.
    pub fn run(&mut self, input: &mut dyn Input) -> Result<bool, Error> {
        if self.options.greet {
            let version = env!("CARGO_PKG_VERSION");
            self.print(&format!("Tessera {version}: SQL for tensors. \\? helps, \\q leaves.\n"))?;
        }
        loop {
            match input.read()? {
                Read::End => break,
                Read::Cleared => {}
                Read::Text(text) => {
                    if !self.step(&text)? {
                        break;
                    }
                }
            }
        }
        Ok(self.failed)
    }

    /// Runs one input; false if it was the last.
    fn step(&mut self, text: &str) -> Result<bool, Error> {
        match Command::parse(text) {
            None if text.trim().is_empty() => {}
            None => self.sql(text, |_| Ok(()))?,
            Some(Command::Quit) => return Ok(false),
            Some(Command::Help) => self.print(HELP)?,
            Some(Command::List) => self.sql("SHOW TENSORS", |_| Ok(()))?,
            Some(Command::Describe(name)) => self.sql(&describe_sql(&name), |_| Ok(()))?,
            Some(Command::Functions) => self.sql("SHOW FUNCTIONS", |_| Ok(()))?,
            Some(Command::Function(name)) => {
                self.sql("SHOW FUNCTIONS", |reply| only_function(reply, &name))?;
            }
            Some(Command::Timing) => {
                self.timing = !self.timing;
                self.print(if self.timing { "timing is on\n" } else { "timing is off\n" })?;
            }
            Some(Command::Unknown(text)) => self.report(
                &Error::Usage {
                    reason: format!("there is no command `{text}`"),
                    hint: Some("`\\?` lists them".into()),
                },
                "",
            ),
        }
        Ok(true)
    }

    /// Runs a script and prints each answer as it comes, after `change`.
    fn sql(
        &mut self,
        sql: &str,
        change: impl Fn(&mut Reply) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let running = self.interrupt.start();
        let options = format::Options { width: self.options.width, ..Default::default() };
        let mut replies = self.engine.run(sql, running.token.clone());
        let mut start = Instant::now();
        loop {
            let reply = self.runtime.block_on(until_cancelled(&mut replies, &running.token));
            let Some(reply) = reply else { return Ok(()) };
            let took = start.elapsed().as_secs_f64();
            let mut text = Vec::new();
            let written = reply.and_then(|mut reply| {
                change(&mut reply)?;
                let stats = reply.stats;
                let mut writer = Writer::new(Format::Table, options, &mut text)?;
                writer.push(reply)?;
                writer.finish()?;
                Ok(stats)
            });
            match written {
                Err(e) => {
                    self.report(&e, sql);
                    return Ok(());
                }
                Ok(stats) => {
                    if self.timing {
                        let read = format_bytes(stats.bytes_read);
                        let line = format!(
                            "time: {took:.3} s (planning {:.3} s, {read} read)\n",
                            stats.plan_s
                        );
                        text.extend_from_slice(line.as_bytes());
                    }
                    self.print_bytes(&text)?;
                }
            }
            start = Instant::now();
        }
    }

    fn print(&mut self, text: &str) -> Result<(), Error> {
        self.print_bytes(text.as_bytes())
    }

    fn print_bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out
            .write_all(bytes)
            .and_then(|()| self.out.flush())
            .map_err(|e| Error::io("write", "the output", e))
    }

    fn report(&mut self, e: &Error, sql: &str) {
        self.failed = true;
        // Without stderr there is nobody to tell; the exit status still does.
        let _ = self.err.write_all(e.render(sql).as_bytes()).and_then(|()| self.err.flush());
    }
}

/// Keeps the rows of `SHOW FUNCTIONS` whose first column is `name`.
fn only_function(reply: &mut Reply, name: &str) -> Result<(), Error> {
    let Answer::Rows { batches, .. } = &mut reply.answer else { return Ok(()) };
    let refused = |source| Error::Rows { source };
    let mut kept = Vec::new();
    for batch in batches.iter().filter(|b| b.num_columns() > 0) {
        let names = batch.column(0);
        let format = FormatOptions::new();
        let texts = ArrayFormatter::try_new(names, &format).map_err(refused)?;
        let same: BooleanArray = (0..names.len())
            .map(|i| Some(texts.value(i).to_string().eq_ignore_ascii_case(name)))
            .collect();
        let rows = filter_record_batch(batch, &same).map_err(refused)?;
        if rows.num_rows() > 0 {
            kept.push(rows);
        }
    }
    if kept.iter().map(RecordBatch::num_rows).sum::<usize>() == 0 {
        return Err(Error::Usage {
            reason: format!("there is no function `{name}`"),
            hint: Some("`\\h` lists them".into()),
        });
    }
    *batches = kept;
    Ok(())
}

#[cfg(test)]
mod tests;
