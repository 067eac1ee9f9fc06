//! COPY: writes a result as a store, a file or an object.
//!
//! Zarr takes the chunks of the running plan. The other formats are streams: the result is computed (large results go
//! to the scratch directory), then written window by window. In both cases the target appears only when it is complete.

use crate::Handle;
use crate::answer::{Answer, Reply};
use crate::error::{Error, Position};
use crate::format::{Crs, CsvOptions, Format, Narrow, Options as FormatOptions, Writer};
use crate::session::ddl::{ZarrWrite, amount};
use crate::session::{Failure, Session};
use crate::statement::Intent;
use std::io::{self, Write};
use std::path::Path;
use std::sync::PoisonError;
use tessera_frontend::error::nearest;
use tessera_frontend::statement::{Copy, Literal, Setting};
use tessera_planner::region::RANK_MAX;
use tessera_storage::sink::{Codec, Layout, ObjectWriter, SinkError, Target, Written};
use tessera_storage::source::Options as StorageOptions;

/// Options of every format, and those of some.
const COMMON: [&str; 1] = ["overwrite"];
const OPTIONS: [(CopyFormat, &[&str]); 5] = [
    (CopyFormat::Zarr, &["zarr_format", "codec", "chunks", "shards", "append"]),
    (CopyFormat::Stream(Format::Tiff), &["crs"]),
    (CopyFormat::Stream(Format::Safetensors), &["dtype"]),
    (CopyFormat::Stream(Format::Csv), &["header", "delimiter", "null"]),
    (CopyFormat::Stream(Format::Parquet), &["compression", "row_group_size"]),
];
/// Names of options in other databases, and ours.
const ALIASES: [(&str, &str); 3] =
    [("delim", "delimiter"), ("sep", "delimiter"), ("nullstr", "null")];
/// The formats that COPY writes.
const FORMATS: [&str; 10] =
    ["zarr", "npy", "npz", "netcdf", "tiff", "safetensors", "parquet", "csv", "ndjson", "arrow"];
/// The beginning of options that are texts in safetensors.
const METADATA: &str = "metadata.";

/// A format that COPY writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyFormat {
    Zarr,
    Stream(Format),
}

impl CopyFormat {
    /// The name in `STORED AS`.
    fn name(self) -> String {
        match self {
            CopyFormat::Zarr => "ZARR".into(),
            CopyFormat::Stream(format) => format.name().to_uppercase(),
        }
    }
}

struct CopyOptions {
    overwrite: bool,
    /// The dimension along which an existing store is appended to.
    append: Option<String>,
    layout: Layout,
    format: FormatOptions,
    storage: StorageOptions,
}

impl Session {
    /// `COPY (query) TO 'url'`.
    pub(super) async fn copy(&self, copy: &Copy, statement: &Handle) -> Result<Reply, Error> {
        let kind = kind(copy)?;
        let mut options = CopyOptions::parse(&copy.options, kind)?;
        let url = &copy.url.text;
        if let Some(dim) = &options.append {
            check_append(copy)?;
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
                let write = ZarrWrite {
                    target: &target,
                    layout,
                    name: None,
                    beside: &[],
                    overwrite,
                    warehouse: false,
                };
                self.write_zarr(&copy.query, write, statement).await?
            }
            CopyFormat::Stream(format) => {
                let reply = match format.holds_tensors() {
                    true => self.query_tensors(&copy.query, statement).await?,
                    false => self.query(&copy.query, statement).await?,
                };
                let (surface, stats) = (reply.surface, reply.stats);
                let out = self.stream(reply, format, &target, options, statement).await?;
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
        options: CopyOptions,
        statement: &Handle,
    ) -> Result<Written, Error> {
        check_texts(&reply.answer, format)?;
        let out = ObjectWriter::create(target, options.overwrite, &self.sink_host(statement))
            .map_err(Error::stage)?;
        let failure = out.failure();
        let extension = target.display().rsplit('.').next().unwrap_or_default();
        let working = reply.answer.tensors().map_or(0, |t| format.working_bytes(&t));
        let memory = self.quota(statement).account().reserve(working).map_err(Error::stage)?;
        let options = FormatOptions {
            arrow_file: !matches!(extension, "arrows" | "ipc"),
            scratch: Some(self.host.scratch().clone()),
            ..options.format
        };
        let out = Cancellable { out, statement: statement.clone() };
        // Writers block as they read the result, and notice a cancel at their next write.
        let written = tokio::task::spawn_blocking(move || {
            let _memory = memory;
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

/// Refuses texts of a dataset in formats of numbers alone.
fn check_texts(answer: &Answer, format: Format) -> Result<(), Error> {
    let tensors = answer.tensors().unwrap_or_default();
    let text = tensors.first().and_then(|tensor| tensor.head().dataset.texts.first());
    match text.filter(|_| format != Format::NetCdf) {
        None => Ok(()),
        Some(text) => Err(Error::Format {
            format: format.name(),
            reason: format!("it cannot store texts, and `{}` consists of texts", text.coord.name),
            hint: Some(format!(
                "`* EXCLUDE ({})` leaves it out; NETCDF and ZARR store texts",
                text.coord.name
            )),
        }),
    }
}

/// A stream that fails once the statement is cancelled.
struct Cancellable {
    out: ObjectWriter,
    statement: Handle,
}

impl Cancellable {
    fn check(&self) -> io::Result<()> {
        match self.statement.is_cancelled() {
            true => Err(io::Error::other("the statement was cancelled")),
            false => Ok(()),
        }
    }
}

impl Write for Cancellable {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.out.write(bytes)
    }

    /// Writers that read the whole result before they write call `flush` in between, so that they can be cancelled.
    fn flush(&mut self) -> io::Result<()> {
        self.check()?;
        self.out.flush()
    }
}

/// Checks that an append has no options of a new store: the store has its own.
fn check_append(copy: &Copy) -> Result<(), Error> {
    let is_of_new = |s: &&Setting| {
        let key = s.key.text.to_ascii_lowercase();
        key != "append" && !key.contains('.')
    };
    match copy.options.iter().find(is_of_new) {
        None => Ok(()),
        Some(setting) => Err(Error::stage(Failure::Option {
            name: setting.key.text.clone(),
            reason: "an append uses the layout of the existing store".into(),
            hint: "leave it out".into(),
            position: place(&setting.key),
        })),
    }
}

/// True if the format holds tensors only.
pub(super) fn takes_tensors(copy: &Copy) -> bool {
    kind(copy).is_ok_and(|kind| match kind {
        CopyFormat::Zarr => true,
        CopyFormat::Stream(format) => format.holds_tensors(),
    })
}

/// True if the format is Zarr, whose chunks are written as the plan computes them.
pub(super) fn is_zarr(copy: &Copy) -> bool {
    kind(copy).is_ok_and(|kind| kind == CopyFormat::Zarr)
}

fn kind(copy: &Copy) -> Result<CopyFormat, Error> {
    let Some(format) = &copy.format else { return kind_by_ending(&copy.url) };
    let name = format.value.to_ascii_lowercase();
    match name.as_str() {
        "zarr" => Ok(CopyFormat::Zarr),
        known if FORMATS.contains(&known) => Format::parse(known).map(CopyFormat::Stream),
        _ => Err(Error::stage(Failure::Option {
            name: "STORED AS".into(),
            reason: format!("`{}` cannot be written", format.value),
            hint: match nearest(&name, &FORMATS) {
                Some(near) => format!("did you mean {}?", near.to_uppercase()),
                None => formats(),
            },
            position: Position::of_span(format.span),
        })),
    }
}

/// The format by the ending of the target, as in `tessera query -o`.
fn kind_by_ending(url: &Literal) -> Result<CopyFormat, Error> {
    let path = Path::new(&url.text);
    let is_store = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("zarr"));
    // A store in an archive is refused later, with a hint, where the target is checked.
    if is_store || url.text.to_ascii_lowercase().ends_with(".zarr.zip") {
        return Ok(CopyFormat::Zarr);
    }
    match Format::from_path(path) {
        Ok(format) if FORMATS.contains(&format.name()) => Ok(CopyFormat::Stream(format)),
        _ => Err(Error::stage(Failure::Option {
            name: "STORED AS".into(),
            reason: format!("cannot infer an output format from the name `{}`", url.text),
            hint: format!("add STORED AS; {}", formats()),
            position: place(url),
        })),
    }
}

fn formats() -> String {
    format!("formats are {}", FORMATS.join(", ").to_uppercase())
}

impl CopyOptions {
    fn parse(settings: &[Setting], kind: CopyFormat) -> Result<Self, Error> {
        let mut out = CopyOptions {
            overwrite: false,
            append: None,
            layout: Layout::default(),
            format: FormatOptions::default(),
            storage: StorageOptions::default(),
        };
        let mut storage = Vec::new();
        for setting in settings {
            let key = setting.key.text.to_ascii_lowercase();
            let value = setting.value.text.as_str();
            if StorageOptions::is_of_store(&key) {
                storage.push((setting.key.text.as_str(), value));
                continue;
            }
            let is_metadata = kind == CopyFormat::Stream(Format::Safetensors);
            if let Some(name) = setting.key.text.strip_prefix(METADATA).filter(|_| is_metadata) {
                out.format.metadata.insert(name.into(), value.into());
                continue;
            }
            let ours = ALIASES.iter().find(|(other, _)| *other == key).map(|(_, ours)| *ours);
            let key = ours.unwrap_or(&key);
            check_key(&setting.key, key, kind)?;
            out.set(key, value, &setting.value)?;
        }
        if let Err(reason) = out.format.csv.check_null() {
            return Err(Error::stage(Failure::Option {
                name: "null".into(),
                reason: format!("`{}` cannot stand for NULL: {reason}", out.format.csv.null),
                hint: "choose another text, or another delimiter".into(),
                position: None,
            }));
        }
        out.storage = StorageOptions::parse(storage).map_err(Error::stage)?;
        Ok(out)
    }

    /// Sets an option that the format has.
    fn set(&mut self, key: &str, value: &str, literal: &Literal) -> Result<(), Error> {
        let bad = |reason: String, hint: &str| {
            Err(Error::stage(Failure::Option {
                name: key.into(),
                reason,
                hint: hint.into(),
                position: place(literal),
            }))
        };
        match key {
            "overwrite" | "header" => {
                let Some(is_set) = truth(value) else {
                    let reason = format!("`{value}` is neither true nor false");
                    return bad(reason, "write true or false");
                };
                match key {
                    "header" => self.format.csv.header = is_set,
                    _ => self.overwrite = is_set,
                }
            }
            "delimiter" => match CsvOptions::delimiter(value) {
                Some(delimiter) => self.format.csv.delimiter = delimiter,
                None => {
                    return bad(
                        format!("`{value}` cannot separate fields"),
                        "write one character that no number has: ',', ';', '|' or '\\t'",
                    );
                }
            },
            "null" => self.format.csv.null = value.to_string(),
            "compression" => match self.format.parquet.compressed(value) {
                Some(options) => self.format.parquet = options,
                None => {
                    return bad(
                        format!("unknown compression `{value}`"),
                        "write 'snappy', 'zstd', 'zstd:1' to 'zstd:22', 'lz4' or 'none'",
                    );
                }
            },
            "row_group_size" => {
                let rows = value.parse::<usize>().ok();
                match rows.and_then(|rows| self.format.parquet.grouped(rows)) {
                    Some(options) => self.format.parquet = options,
                    None => {
                        return bad(format!("`{value}` is not a row count"), "write 1 or more");
                    }
                }
            }
            "append" => self.append = Some(value.to_string()),
            "zarr_format" => match value {
                "2" => self.layout.format = 2,
                "3" => self.layout.format = 3,
                _ => return bad(format!("unknown Zarr format `{value}`"), "write 2 or 3"),
            },
            "codec" => self.layout.codec = Codec::parse(value).map_err(Error::stage)?,
            "crs" => match Crs::parse(value) {
                Some(crs) => self.format.crs = Some(crs),
                None => {
                    return bad(
                        format!("`{value}` has no EPSG code"),
                        "write 'EPSG:4326', or 'none'",
                    );
                }
            },
            "dtype" => match Narrow::parse(value) {
                Some(narrow) => self.format.narrow = Some(narrow),
                None => {
                    return bad(
                        format!("floats cannot be rounded to `{value}`"),
                        "write 'f16' or 'bf16', or cast in the query",
                    );
                }
            },
            _ => match lengths(value) {
                Some(list) if key == "chunks" => self.layout.chunks = Some(list),
                Some(list) => self.layout.shards = Some(list),
                None => {
                    return bad(
                        format!("`{value}` is not a list of lengths"),
                        "write one for each dimension: '[365, 90, 90]'",
                    );
                }
            },
        }
        Ok(())
    }
}

fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Refuses an option that the format does not have.
fn check_key(literal: &Literal, key: &str, kind: CopyFormat) -> Result<(), Error> {
    let own = OPTIONS.iter().filter(|(of, _)| *of == kind).flat_map(|(_, keys)| keys.iter());
    let known: Vec<&str> = COMMON.iter().chain(own).copied().collect();
    if known.contains(&key) {
        return Ok(());
    }
    let of_other = OPTIONS.iter().find(|(_, keys)| keys.contains(&key));
    let hint = match (nearest(key, &known), of_other) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, Some((format, _))) => format!("it is an option of STORED AS {}", format.name()),
        (None, None) => format!("options are {}, aws.…, gcs.… and azure.…", known.join(", ")),
    };
    Err(Error::stage(Failure::Option {
        name: literal.text.clone(),
        reason: "unknown option".into(),
        hint,
        position: place(literal),
    }))
}

fn place(literal: &Literal) -> Option<Position> {
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
