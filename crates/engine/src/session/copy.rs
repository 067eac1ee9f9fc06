//! COPY: writes a result as a store, a file or an object.
//!
//! Zarr takes the chunks of the running plan. The other formats are streams: the result is computed (large results go
//! to the scratch directory), then written window by window. In both cases the target appears only when it is complete.

use crate::Handle;
use crate::answer::{Answer, Reply};
use crate::error::{Error, Position};
use crate::format::{Format, Options as FormatOptions, Writer};
use crate::session::ddl::{ZarrWrite, amount};
use crate::session::{Failure, Session};
use crate::statement::Intent;
use std::io::{self, Write};
use std::sync::PoisonError;
use tessera_frontend::error::nearest;
use tessera_frontend::statement::{Copy, Setting};
use tessera_planner::region::RANK_MAX;
use tessera_storage::sink::{Codec, Layout, ObjectWriter, SinkError, Target, Written};
use tessera_storage::source::Options as StorageOptions;

/// Options of every format, and those of Zarr.
const COMMON: [&str; 1] = ["overwrite"];
const ZARR: [&str; 5] = ["zarr_format", "codec", "chunks", "shards", "append"];

/// A format that COPY writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyFormat {
    Zarr,
    Stream(Format),
}

struct CopyOptions {
    overwrite: bool,
    /// The dimension along which an existing store is appended to.
    append: Option<String>,
    layout: Layout,
    storage: StorageOptions,
}

impl Session {
    /// `COPY (query) TO 'url' STORED AS format`.
    pub(super) async fn copy(&self, copy: &Copy, statement: &Handle) -> Result<Reply, Error> {
        let kind = kind(copy)?;
        let mut options = CopyOptions::parse(&copy.options, kind)?;
        let url = &copy.url.text;
        if let Some(dim) = &options.append {
            return self.append(&copy.query, url, dim, &options.storage, statement).await;
        }
        let target =
            Target::parse(url, &options.storage, &self.host.stores).map_err(Error::stage)?;
        // A target that already exists is refused before anything is computed.
        let stream = kind != CopyFormat::Zarr;
        let checked = target.check(stream, options.overwrite).await;
        let publishes = Intent::Publish { target: target.display().to_string() };
        let is_noted = statement.entry().step(|s| s.intent.as_ref() == Some(&publishes));
        match checked {
            // The target was free when the statement ran before.
            Err(SinkError::Exists { .. }) if is_noted => {
                match target.check(stream, true).await {
                    // The earlier run completed the target.
                    Ok(()) => {
                        let done = format!("copied to {}", target.display());
                        return Ok(Answer::Done(done).into());
                    }
                    // Objects below a prefix, but no store: the server was killed while it wrote them.
                    Err(SinkError::Foreign { .. }) => options.overwrite = true,
                    Err(e) => return Err(Error::stage(e)),
                }
            }
            other => other.map_err(Error::stage)?,
        }
        let (written, mut reply) = match kind {
            CopyFormat::Zarr => {
                let CopyOptions { overwrite, layout, .. } = options;
                let write =
                    ZarrWrite { target: &target, layout, name: None, overwrite, warehouse: false };
                self.write_zarr(&copy.query, write, statement).await?
            }
            CopyFormat::Stream(format) => {
                let reply = match format {
                    Format::Npy | Format::Npz => self.query_tensors(&copy.query, statement).await?,
                    _ => self.query(&copy.query, statement).await?,
                };
                let (surface, stats) = (reply.surface, reply.stats);
                let out = self.stream(reply, format, &target, options.overwrite, statement).await?;
                (out, Reply { answer: Answer::Done(String::new()), surface, stats })
            }
        };
        reply.answer =
            Answer::Done(format!("copied to {} ({})", target.display(), amount(&written)));
        Ok(reply)
    }

    /// Writes a result in a format that is a stream.
    async fn stream(
        &self,
        reply: Reply,
        format: Format,
        target: &Target,
        overwrite: bool,
        statement: &Handle,
    ) -> Result<Written, Error> {
        let out = ObjectWriter::create(target, overwrite, &self.sink_host(statement))
            .map_err(Error::stage)?;
        let failure = out.failure();
        let extension = target.display().rsplit('.').next().unwrap_or_default();
        let options = FormatOptions {
            arrow_file: !matches!(extension, "arrows" | "ipc"),
            ..FormatOptions::default()
        };
        let out = Cancellable { out, statement: statement.clone() };
        // Writers block as they read the result, and notice a cancel at their next write.
        let written = tokio::task::spawn_blocking(move || {
            let mut writer = Writer::new(format, options, out)?;
            writer.push(reply)?;
            writer.finish()
        });
        let ended = |e: tokio::task::JoinError| Error::Internal { what: e.to_string() };
        let written = match written.await.map_err(ended)? {
            Ok(Cancellable { out, statement }) => {
                self.publishes(target, &statement).await?;
                let finish = move || out.finish(&|| statement.is_cancelled()).map_err(Error::stage);
                tokio::task::spawn_blocking(finish).await.map_err(ended)?
            }
            Err(e) => Err(e),
        };
        written.map_err(|e| {
            if statement.is_cancelled() {
                return Error::Cancelled;
            }
            let told = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
            told.map_or(e, Error::stage)
        })
    }
}

/// A stream that fails once the statement is cancelled.
struct Cancellable {
    out: ObjectWriter,
    statement: Handle,
}

impl Write for Cancellable {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.statement.is_cancelled() {
            return Err(io::Error::other("the statement was cancelled"));
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// True if the format holds tensors only.
pub(super) fn takes_tensors(copy: &Copy) -> bool {
    let tensors =
        [CopyFormat::Zarr, CopyFormat::Stream(Format::Npy), CopyFormat::Stream(Format::Npz)];
    kind(copy).is_ok_and(|kind| tensors.contains(&kind))
}

/// True if the format is Zarr, whose chunks are written as the plan computes them.
pub(super) fn is_zarr(copy: &Copy) -> bool {
    kind(copy).is_ok_and(|kind| kind == CopyFormat::Zarr)
}

fn kind(copy: &Copy) -> Result<CopyFormat, Error> {
    const FORMATS: [&str; 7] = ["zarr", "npy", "npz", "parquet", "csv", "ndjson", "arrow"];
    let name = copy.format.value.to_ascii_lowercase();
    match name.as_str() {
        "zarr" => Ok(CopyFormat::Zarr),
        known if FORMATS.contains(&known) => Format::parse(known).map(CopyFormat::Stream),
        _ => Err(Error::stage(Failure::Option {
            name: "STORED AS".into(),
            reason: format!("`{}` cannot be written", copy.format.value),
            hint: match nearest(&name, &FORMATS) {
                Some(near) => format!("did you mean {}?", near.to_uppercase()),
                None => format!("formats are {}", FORMATS.join(", ").to_uppercase()),
            },
            position: Position::of_span(copy.format.span),
        })),
    }
}

impl CopyOptions {
    fn parse(settings: &[Setting], kind: CopyFormat) -> Result<Self, Error> {
        let mut out = CopyOptions {
            overwrite: false,
            append: None,
            layout: Layout::default(),
            storage: StorageOptions::default(),
        };
        let known: Vec<&str> = match kind {
            CopyFormat::Zarr => COMMON.iter().chain(&ZARR).copied().collect(),
            CopyFormat::Stream(_) => COMMON.to_vec(),
        };
        let mut storage = Vec::new();
        for setting in settings {
            let key = setting.key.text.to_ascii_lowercase();
            let value = setting.value.text.as_str();
            let key_place = place(&setting.key);
            let value_place = place(&setting.value);
            let bad = |reason: String, hint: &str| {
                Err(Error::stage(Failure::Option {
                    name: key.clone(),
                    reason,
                    hint: hint.into(),
                    position: value_place,
                }))
            };
            if StorageOptions::is_of_store(&key) {
                storage.push((setting.key.text.as_str(), value));
                continue;
            }
            if !known.contains(&key.as_str()) {
                let of_zarr = ZARR.contains(&key.as_str());
                let hint = match nearest(&key, &known) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None if of_zarr => "it is an option of STORED AS ZARR".into(),
                    None => format!("options are {}, aws.…, gcs.… and azure.…", known.join(", ")),
                };
                return Err(Error::stage(Failure::Option {
                    name: setting.key.text.clone(),
                    reason: "unknown option".into(),
                    hint,
                    position: key_place,
                }));
            }
            match key.as_str() {
                "overwrite" => match value.to_ascii_lowercase().as_str() {
                    "true" | "1" | "yes" | "on" => out.overwrite = true,
                    "false" | "0" | "no" | "off" => out.overwrite = false,
                    _ => {
                        return bad(
                            format!("`{value}` is neither true nor false"),
                            "write true or false",
                        );
                    }
                },
                "append" => out.append = Some(value.to_string()),
                "zarr_format" => match value {
                    "2" => out.layout.format = 2,
                    "3" => out.layout.format = 3,
                    _ => return bad(format!("there is no Zarr format `{value}`"), "write 2 or 3"),
                },
                "codec" => out.layout.codec = Codec::parse(value).map_err(Error::stage)?,
                _ => match lengths(value) {
                    Some(list) if key == "chunks" => out.layout.chunks = Some(list),
                    Some(list) => out.layout.shards = Some(list),
                    None => {
                        return bad(
                            format!("`{value}` is not a list of lengths"),
                            "write one for each dimension: '[365, 90, 90]'",
                        );
                    }
                },
            }
        }
        out.storage = StorageOptions::parse(storage).map_err(Error::stage)?;
        Ok(out)
    }
}

fn place(literal: &tessera_frontend::statement::Literal) -> Option<Position> {
    Position::of_span(literal.span)
}

/// `[365, 90, 90]`, with or without its brackets.
fn lengths(text: &str) -> Option<Vec<u64>> {
    let text = text.trim();
    let inner = match text.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None => text,
    };
    if inner.trim().is_empty() {
        return Some(Vec::new());
    }
    let list: Vec<u64> = inner.split(',').map(|n| n.trim().parse().ok()).collect::<Option<_>>()?;
    (list.len() <= RANK_MAX).then_some(list)
}
