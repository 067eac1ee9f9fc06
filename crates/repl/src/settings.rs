//! Settings of the shell, changed by `.mode` and similar commands.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use tessera_engine::error::Error;
use tessera_engine::format::Format;

/// Default limit of shown rows.
const ROWS_SHOWN: usize = 40;

/// Settings of the shell.
pub struct Settings {
    /// Format of answers.
    pub mode: Format,
    /// Upper bound on the shown rows of a table.
    pub max_rows: usize,
    /// True if the time of each statement is printed.
    pub timer: bool,
    /// True if long answers are paged.
    pub pager: bool,
    /// True if long statements have a progress bar.
    pub progress: bool,
    /// The file that answers go to, instead of the screen.
    pub output: Option<(PathBuf, BufWriter<File>)>,
    /// The file for the next answer.
    pub once: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            mode: Format::Table,
            max_rows: ROWS_SHOWN,
            timer: false,
            pager: true,
            progress: true,
            output: None,
            once: None,
        }
    }
}

impl Settings {
    /// `.mode FORMAT`
    ///
    /// # Errors
    /// `usage`: the format is unknown, or not for a screen.
    pub fn set_mode(&mut self, name: &str) -> Result<(), Error> {
        let format = Format::parse(name)?;
        if !format.is_text() {
            return Err(Error::Usage {
                reason: format!("{} is not for a screen", format.name()),
                hint: Some(format!("`.once FILE.{}` writes the next answer so", format.name())),
            });
        }
        self.mode = format;
        Ok(())
    }

    /// `.maxrows N`
    ///
    /// # Errors
    /// `usage`: not a number from 1 on.
    pub fn set_max_rows(&mut self, text: &str) -> Result<(), Error> {
        match text.parse::<usize>() {
            Ok(n) if n >= 1 => {
                self.max_rows = n;
                Ok(())
            }
            _ => Err(Error::Usage {
                reason: format!("`.maxrows` takes a number from 1 on, not `{text}`"),
                hint: None,
            }),
        }
    }

    /// `.output FILE`: creates the file, or replaces it.
    ///
    /// # Errors
    /// `io`: the file cannot be created.
    pub fn set_output(&mut self, name: &str) -> Result<(), Error> {
        self.output = None;
        if !name.is_empty() {
            let path = PathBuf::from(unquoted(name));
            let file = File::create(&path)
                .map_err(|e| Error::io("write", format!("`{}`", path.display()), e))?;
            self.output = Some((path, BufWriter::new(file)));
        }
        Ok(())
    }

    /// `.once FILE`: the next answer goes to the file, in the format of its extension; without one in that of `.mode`.
    ///
    /// # Errors
    /// `usage`: an unknown extension, or that of a store, which is not a file.
    pub fn set_once(&mut self, name: &str) -> Result<(), Error> {
        let path = PathBuf::from(unquoted(name));
        if path.extension().is_some() {
            Format::from_path(&path)?;
        }
        self.once = Some(path);
        Ok(())
    }

    /// One line for each setting.
    pub fn list(&self) -> String {
        let switch = |on: bool| if on { "on" } else { "off" };
        let file = |p: Option<&PathBuf>| {
            p.map_or_else(|| "the screen".to_string(), |p| p.display().to_string())
        };
        format!(
            "mode      {}\nmaxrows   {}\ntimer     {}\npager     {}\nprogress  {}\noutput    {}\n",
            self.mode.name(),
            self.max_rows,
            switch(self.timer),
            switch(self.pager),
            switch(self.progress),
            file(self.once.as_ref().or(self.output.as_ref().map(|o| &o.0))),
        )
    }
}

/// A path without the quotes around it.
pub fn unquoted(text: &str) -> &str {
    text.strip_prefix('\'').and_then(|t| t.strip_suffix('\'')).unwrap_or(text)
}
