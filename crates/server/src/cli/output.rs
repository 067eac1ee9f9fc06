//! Output of answers: stdout, or a file that appears only when it is complete.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::NamedTempFile;
use tessera_engine::answer::scratch::Scratch;
use tessera_engine::answer::{Answer, Reply};
use tessera_engine::error::Error;
use tessera_engine::format::{Format, Options, Writer};

/// The destination and the format of answers.
#[derive(Debug)]
pub struct Target {
    pub(super) format: Format,
    file: Option<PathBuf>,
}

impl Target {
    /// Uses the format of `--format`, else of the file's name, else a table.
    pub fn new(format: Option<&str>, file: Option<&Path>) -> Result<Self, Error> {
        let format = match (format, file) {
            (Some(name), _) => Format::parse(name)?,
            (None, Some(path)) => Format::from_path(path)?,
            (None, None) => Format::Table,
        };
        // Fails early if the format cannot be written.
        Writer::new(format, Options::default(), io::sink())?;
        if file.is_none() && !format.is_text() && io::stdout().is_terminal() {
            return Err(Error::Usage {
                reason: format!("{} is not for a terminal", format.name()),
                hint: Some("add `-o FILE`, or pipe it into a program".into()),
            });
        }
        Ok(Target { format, file: file.map(Path::to_path_buf) })
    }

    /// Opens the destination. `scratch` is for formats that cannot write sequentially.
    pub fn open(&self, scratch: Option<Arc<Scratch>>) -> Result<Output, Error> {
        let options = Options {
            width: terminal_width(),
            fit: self.file.is_none() && io::stdout().is_terminal(),
            arrow_file: self
                .file
                .as_deref()
                .is_some_and(|f| f.extension().is_some_and(|e| e != "arrows" && e != "ipc")),
            scratch,
            ..Options::default()
        };
        let sink = match &self.file {
            None => Sink::Stdout(io::stdout().lock()),
            Some(path) => Sink::open(path)?,
        };
        let writer = Writer::new(self.format, options, BufWriter::with_capacity(1 << 18, sink))?;
        Ok(Output { writer, file: self.file.clone(), done: Vec::new() })
    }
}

/// An open target.
pub struct Output {
    writer: Writer<BufWriter<Sink>>,
    file: Option<PathBuf>,
    /// Messages of statements without a result, printed if there is no result at all.
    done: Vec<String>,
}

impl Output {
    /// Writes the next answer.
    ///
    /// # Errors
    /// The format cannot hold the answer, or the output cannot be written.
    pub fn push(&mut self, reply: Reply) -> Result<(), Error> {
        if let Answer::Done(text) = &reply.answer {
            self.done.push(text.clone());
        }
        self.writer.push(reply)
    }

    /// Writes the pending result; the file gets its name only now. Without a result, the messages of the statements go
    /// to stderr, and no file is made.
    pub fn finish(self) -> Result<(), Error> {
        if self.writer.is_empty() {
            let mut text = self.done.join("\n");
            if let Some(path) = &self.file {
                text += &format!("\nno result: {} is not written", quoted(path));
            }
            // A failure of stderr cannot be reported.
            let _ = writeln!(io::stderr().lock(), "{text}");
            return Ok(());
        }
        let buffer = self.writer.finish()?;
        let sink =
            buffer.into_inner().map_err(|e| Error::io("write", "the output", e.into_error()))?;
        match (sink, self.file) {
            (Sink::New(file), Some(path)) => file
                .persist(&path)
                .map(|_| ())
                .map_err(|e| Error::io("write", quoted(&path), e.error)),
            _ => Ok(()),
        }
    }
}

/// The stream below the buffer.
enum Sink {
    Stdout(io::StdoutLock<'static>),
    /// A regular file, under a temporary name until it is complete.
    New(NamedTempFile),
    /// A device or a pipe.
    Device(std::fs::File),
}

impl Sink {
    fn open(path: &Path) -> Result<Self, Error> {
        let failed = |e| Error::io("write", quoted(path), e);
        if path.is_dir() {
            return Err(failed(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        if path.exists() && !path.is_file() {
            return std::fs::OpenOptions::new()
                .write(true)
                .open(path)
                .map(Sink::Device)
                .map_err(failed);
        }
        let parent = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".tessera-").suffix(".part");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        builder.tempfile_in(parent).map(Sink::New).map_err(failed)
    }
}

impl Write for Sink {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Stdout(s) => s.write(buf),
            Sink::New(f) => f.write(buf),
            Sink::Device(f) => f.write(buf),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::Stdout(s) => s.flush(),
            Sink::New(f) => f.flush(),
            Sink::Device(f) => f.flush(),
        }
    }
}

pub(super) fn quoted(path: &Path) -> String {
    format!("`{}`", path.display())
}

/// Width of stderr in characters.
pub fn stderr_width() -> usize {
    terminal_size::terminal_size_of(io::stderr())
        .map_or(Options::default().width, |(w, _)| usize::from(w.0).max(20))
}

/// Width in characters: the terminal's if stdout is one, else NumPy's 75.
pub fn terminal_width() -> usize {
    if !io::stdout().is_terminal() {
        return Options::default().width;
    }
    terminal_size::terminal_size()
        .map_or(Options::default().width, |(w, _)| usize::from(w.0).max(20))
}
