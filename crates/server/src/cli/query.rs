//! `tessera query`.

use super::interrupt::ctrl_c;
use super::output::{Target, quoted, stderr_width};
use super::progress::{Bar, followed};
use super::{Remote, fail};
use clap::Args;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tessera_engine::answer::Reply;
use tessera_engine::error::Error;
use tessera_engine::readable_bytes;
use tessera_engine::{Engine, Handle};

#[derive(Debug, Args)]
pub(super) struct QueryArgs {
    #[command(flatten)]
    script: ScriptArgs,
    /// table, json, ndjson, csv, arrow, parquet, npy, npz, netcdf, tiff or safetensors [default: from the output file's
    /// name, else table]
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,
    /// File (or Zarr store) to write instead of stdout; it appears once it is complete
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Value of the parameter `$NAME` (`$1` and `?` by number), as JSON or plain text; may be repeated
    #[arg(long = "param", value_name = "NAME=VALUE")]
    params: Vec<String>,
    /// Print the time of each statement to stderr
    #[arg(long)]
    timing: bool,
    #[command(flatten)]
    pub(super) remote: Remote,
}

#[derive(Debug, Args)]
pub(super) struct ScriptArgs {
    /// SQL statements separated by `;`, or `-` to read them from stdin
    #[arg(value_name = "SQL", required_unless_present = "file")]
    sql: Option<String>,
    /// File of SQL statements to run
    #[arg(short, long, value_name = "FILE", conflicts_with = "sql")]
    file: Option<PathBuf>,
}

impl ScriptArgs {
    pub(super) fn read(&self) -> Result<String, Error> {
        match (&self.sql, &self.file) {
            (Some(s), _) if s != "-" => Ok(s.clone()),
            (None, Some(path)) if path.as_os_str() != "-" => read_script(path),
            _ => {
                let mut bytes = Vec::new();
                std::io::stdin()
                    .read_to_end(&mut bytes)
                    .map_err(|e| Error::io("read", "stdin", e))?;
                text(bytes, "stdin")
            }
        }
    }
}

pub(super) fn read_script(path: &Path) -> Result<String, Error> {
    let bytes = std::fs::read(path).map_err(|e| Error::Usage {
        reason: format!("cannot read {}: {e}", quoted(path)),
        hint: None,
    })?;
    text(bytes, &quoted(path))
}

fn text(bytes: Vec<u8>, what: &str) -> Result<String, Error> {
    String::from_utf8(bytes)
        .map(|t| t.strip_prefix('\u{feff}').map(Into::into).unwrap_or(t))
        .map_err(|e| Error::Usage {
            reason: format!("{what} is not UTF-8 text (byte {})", e.utf8_error().valid_up_to()),
            hint: None,
        })
}

/// A script whose only query is written to a Zarr store. It replaces an existing store, as files are replaced.
fn copied(script: &str, path: &Path) -> Result<String, Error> {
    let parsed = tessera_frontend::parse(script).map_err(Error::stage)?;
    let is_query = |p: &&tessera_frontend::Parsed| {
        matches!(p.statement, tessera_frontend::Statement::Query(_))
    };
    let mut queries = parsed.iter().filter(is_query);
    let (Some(query), None) = (queries.next(), queries.next()) else {
        return Err(Error::Usage {
            reason: "a Zarr store holds the result of one query".into(),
            hint: Some("write the others with COPY (…) TO 'url' STORED AS ZARR".into()),
        });
    };
    let (before, after) = (&script[..query.bytes.start], &script[query.bytes.end..]);
    let to = path.display().to_string().replace('\'', "''");
    Ok(format!(
        "{before}COPY ({}\n) TO '{to}' STORED AS ZARR OPTIONS (overwrite true){after}",
        query.text
    ))
}

/// A valid command line.
pub(super) struct Query {
    sql: String,
    target: Target,
    timing: bool,
}

impl QueryArgs {
    /// Checks the command line; `remote` is true if a server runs it.
    pub(super) fn check(&self, remote: bool) -> Result<Query, Error> {
        if let (None, Some(path)) = (&self.format, &self.output)
            && path.extension().is_some_and(|e| e.eq_ignore_ascii_case("zarr"))
        {
            if remote {
                return Err(Error::Usage {
                    reason: "a server writes stores where it runs, not here".into(),
                    hint: Some("write COPY (…) TO 's3://…' STORED AS ZARR".into()),
                });
            }
            // A store is not a stream: the engine itself writes it, chunk by chunk.
            let sql = copied(&self.read()?, path)?;
            let target = Target::new(None, None)?;
            return Ok(Query { sql, target, timing: self.timing });
        }
        let target = Target::new(self.format.as_deref(), self.output.as_deref())?;
        Ok(Query { sql: self.read()?, target, timing: self.timing })
    }

    /// The script with its parameters bound.
    fn read(&self) -> Result<String, Error> {
        tessera_engine::parameters::bind_given(&self.script.read()?, &self.params)
    }
}

impl Query {
    /// Runs the query and returns the exit status.
    pub(super) async fn run(&self, engine: &dyn Engine) -> u8 {
        match self.answers(engine, ctrl_c()).await {
            Ok(()) => 0,
            Err(e) => fail(&e, &self.sql),
        }
    }

    async fn answers(&self, engine: &dyn Engine, cancel: Handle) -> Result<(), Error> {
        let mut output = self.target.open(engine.scratch())?;
        let mut replies = engine.run(&self.sql, cancel.clone());
        let mut start = Instant::now();
        let mut stderr = std::io::stderr();
        loop {
            let terminal = stderr.is_terminal();
            let out: Option<&mut dyn Write> = if terminal { Some(&mut stderr) } else { None };
            let mut bar = Bar::new(out, stderr_width, true);
            let next = followed(&mut replies, &cancel, &mut bar, &mut || None).await;
            drop(bar);
            let Some(reply) = next else { break };
            let reply = reply?;
            let timing = self.timing.then(|| timing(&reply, start));
            output.push(reply)?;
            if let Some(line) = timing {
                // A failure of stderr cannot be reported.
                let _ = writeln!(std::io::stderr().lock(), "{line}");
            }
            start = Instant::now();
        }
        output.finish()
    }
}

/// `time: 0.123 s (planning 0.004 s, 12MiB read)`
fn timing(reply: &Reply, start: Instant) -> String {
    format!(
        "time: {:.3} s (planning {:.3} s, {} read)",
        start.elapsed().as_secs_f64(),
        reply.stats.plan_s,
        readable_bytes(reply.stats.bytes_read)
    )
}
