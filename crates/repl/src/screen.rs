//! The terminal: its size, its style, and a pager for long output.

use crate::interrupt::{Interrupt, InterruptHold};
use crate::style::Style;
use std::io::{self, Write};
use std::process::{Child, Command, Stdio};

/// The output of the shell.
#[derive(Debug, Clone, Copy)]
pub struct Screen {
    /// True if stdout is a terminal.
    pub terminal: bool,
    /// True if stderr is a terminal, where the progress bar is drawn.
    pub bar: bool,
    /// Width in characters, and height in lines.
    pub size: fn() -> (usize, usize),
    /// The capabilities of the terminal.
    pub style: Style,
}

impl Screen {
    /// A pipe: NumPy's 75 characters, no colours.
    pub const PIPE: Screen =
        Screen { terminal: false, bar: false, size: || (75, usize::MAX), style: Style::PLAIN };

    /// Width in characters.
    pub fn width(&self) -> usize {
        (self.size)().0
    }
}

/// `$PAGER`, or `less` with options: cut lines, show colours, quit if the text fits.
fn pager_command() -> String {
    std::env::var("PAGER")
        .ok()
        .filter(|p| !p.trim().is_empty())
        .unwrap_or_else(|| "less -SFRX".into())
}

/// A stream that goes to the screen if it fits, and to a pager as soon as it does not.
pub struct Paged<'a> {
    out: &'a mut dyn Write,
    /// Lines of the screen; `None` disables the pager.
    lines: Option<usize>,
    held: Vec<u8>,
    seen: usize,
    pager: Option<Child>,
    /// Ctrl-C belongs to the pager while it runs.
    quiet: Option<InterruptHold<'a>>,
    interrupt: &'a Interrupt,
}

impl<'a> Paged<'a> {
    /// Writes to `out`; `lines` of the screen, or `None` for no pager.
    pub fn new(out: &'a mut dyn Write, lines: Option<usize>, interrupt: &'a Interrupt) -> Self {
        Paged { out, lines, held: Vec::new(), seen: 0, pager: None, quiet: None, interrupt }
    }

    /// Shows the buffered text, and waits until the user leaves the pager.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        match self.pager.take() {
            Some(mut pager) => {
                drop(pager.stdin.take());
                pager.wait().map(|_| ())
            }
            None => {
                self.out.write_all(&self.held)?;
                self.out.flush()
            }
        }
    }

    /// Starts the pager with the buffered text; if it cannot start, the screen gets the text.
    fn overflow(&mut self) -> io::Result<()> {
        self.quiet = Some(self.interrupt.hold());
        let started =
            Command::new("sh").arg("-c").arg(pager_command()).stdin(Stdio::piped()).spawn();
        self.lines = None;
        let held = std::mem::take(&mut self.held);
        if let Ok(child) = started {
            self.pager = Some(child);
        } else {
            self.quiet = None;
        }
        self.pass(&held)
    }

    /// A closed pager is not an error; the rest of the text is dropped.
    fn pass(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.pager.as_mut().map(|p| p.stdin.as_mut()) {
            Some(Some(stdin)) => match stdin.write_all(bytes) {
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                    if let Some(pager) = &mut self.pager {
                        pager.stdin = None;
                    }
                    Ok(())
                }
                other => other,
            },
            Some(None) => Ok(()),
            None => self.out.write_all(bytes),
        }
    }
}

impl Write for Paged<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.lines {
            None => self.pass(bytes)?,
            Some(lines) => {
                self.held.extend_from_slice(bytes);
                self.seen += bytes.iter().filter(|b| **b == b'\n').count();
                // The prompt needs a line.
                if self.seen >= lines {
                    self.overflow()?;
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match &self.pager {
            None if self.lines.is_none() => self.out.flush(),
            _ => Ok(()),
        }
    }
}

impl Drop for Paged<'_> {
    fn drop(&mut self) {
        if let Some(mut pager) = self.pager.take() {
            drop(pager.stdin.take());
            // An earlier error ends the answer, not the pager that shows its beginning.
            let _ = pager.wait();
        }
    }
}
