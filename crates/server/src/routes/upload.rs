//! `PUT /v1/tensors/{name}`: an upload becomes a tensor of the warehouse, or a temp relation of a session.
//!
//! 1. The body is written to a file as it arrives, piece by piece, so an upload may be larger than memory. A slow or
//!    disconnected client ends it; the file has no other holder and is removed with the request.
//! 2. [`checks`] finds errors that a statement over the file would not report in the client's terms, or not at all.
//! 3. `CREATE OR REPLACE TENSOR` reads the file: it checks that it is complete, writes chunks and then the catalog's
//!    entry. So either the new tensor is complete and durable, or the old one stays.
//!
//! With `temp=true`, `CREATE OR REPLACE TEMP TENSOR` reads the file, or [`Engine::keep`] does without a statement: arrays
//! in the engine's own form, and rows.

mod checks;

use super::registry::Outcome;
use super::reply::{Failure, json};
use super::{Name, Parameters, Shared, sessions, tensors};
use axum::body::BodyDataStream;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use futures::StreamExt;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tessera_engine::Engine;
use tessera_engine::answer::scratch::Scratch;
use tessera_engine::error::Error;
use tessera_engine::format::native;
use tessera_engine::session::{Host, TableFile, Upload};
use tessera_exec::store::Space;
use tokio::io::AsyncWriteExt;
use tokio::sync::OwnedSemaphorePermit;

/// Upper bound on concurrent uploads.
pub(super) const UPLOADS_MAX: usize = 8;
/// A client that sends nothing for this time counts as disconnected.
const STALL: Duration = Duration::from_secs(30);
/// Limits for draining a refused upload: bytes and time.
const DRAIN_BYTES: usize = 64 << 20;
const DRAIN: Duration = Duration::from_secs(2);
/// Bytes buffered before they are written to the file.
const BUFFER: usize = 1 << 20;
/// Magic bytes of NumPy files.
const NPY: &[u8] = b"\x93NUMPY";
/// Magic bytes of an Arrow stream.
const ARROW: &[u8] = &[0xff; 4];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UploadFormat {
    Npy,
    Arrow,
    /// The engine's own form.
    Native,
}

impl UploadFormat {
    const ALL: [UploadFormat; 3] = [UploadFormat::Npy, UploadFormat::Arrow, UploadFormat::Native];

    /// The format by `Content-Type`; `None` leaves it to the first bytes.
    fn of(headers: &HeaderMap) -> Result<Option<Self>, Error> {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(None) };
        let kind = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
        match kind {
            "application/x-npy" => Ok(Some(UploadFormat::Npy)),
            "application/vnd.apache.arrow.stream" => Ok(Some(UploadFormat::Arrow)),
            native::CONTENT_TYPE => Ok(Some(UploadFormat::Native)),
            // Defaults of clients that do not set a type.
            "" | "application/octet-stream" | "application/x-www-form-urlencoded" => Ok(None),
            other => Err(refuse(format!(
                "an upload is application/x-npy, application/vnd.apache.arrow.stream or {}, not `{other}`",
                native::CONTENT_TYPE
            ))),
        }
    }

    fn begins(self) -> &'static [u8] {
        match self {
            UploadFormat::Npy => NPY,
            UploadFormat::Arrow => ARROW,
            UploadFormat::Native => native::MAGIC,
        }
    }

    fn file_name(self) -> &'static str {
        match self {
            UploadFormat::Npy => "data.npy",
            UploadFormat::Arrow => "data.arrow",
            UploadFormat::Native => "data.tessera",
        }
    }

    /// The name of the kind, in messages.
    fn shown(self) -> &'static str {
        match self {
            UploadFormat::Npy => "an .npy file",
            UploadFormat::Arrow => "an Arrow stream",
            UploadFormat::Native => "an answer of Tessera",
        }
    }

    /// The format by the first bytes.
    fn sniff(start: &[u8]) -> Option<Self> {
        UploadFormat::ALL.into_iter().find(|k| start.starts_with(k.begins()))
    }
}

fn refuse(reason: String) -> Error {
    Error::Request { reason }
}

/// An upload, before its body is read.
struct Asked {
    shared: Arc<Shared>,
    /// The name of the tensor, and as an SQL identifier.
    name: String,
    quoted: String,
    kind: Option<UploadFormat>,
    /// The dimensions of an Arrow stream.
    dims: Option<String>,
    is_temp: bool,
    session: Option<String>,
    engine: Arc<dyn Engine>,
    host: Arc<Host>,
}

/// `PUT /v1/tensors/{name}`
pub(super) async fn put(
    State(shared): State<Arc<Shared>>,
    Name(name): Name,
    parameters: Parameters,
    request: Request,
) -> Result<Response, Failure> {
    let headers = request.headers().clone();
    let mut body = request.into_body().into_data_stream();
    let done = async {
        let (asked, _place) = ask(shared, name, &parameters, &headers)?;
        let scratch = asked.host.scratch().clone();
        let directory = scratch.directory("upload-")?;
        let (shared, kind) = (&asked.shared, asked.kind);
        let received = receive(shared, &mut body, kind, directory.path(), &scratch).await?;
        asked.keep(received, directory).await
    };
    let done = done.await;
    if done.is_err() {
        // In the background: a client that still sends sees the error now.
        tokio::spawn(async move { drain(&mut body).await });
    }
    done
}

/// Checks the head of a request.
fn ask(
    shared: Arc<Shared>,
    name: String,
    parameters: &Parameters,
    headers: &HeaderMap,
) -> Result<(Asked, OwnedSemaphorePermit), Error> {
    parameters.only(&["dims", "temp"])?;
    let is_temp = match parameters.text("temp") {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => {
            return Err(refuse(format!("`temp` is `true` or `false`, not `{other}`")));
        }
    };
    let quoted = tensors::quoted(&name)?;
    let kind = UploadFormat::of(headers)?;
    let (session, engine) = sessions::of(&shared, headers)?;
    if is_temp && session.is_none() {
        let reason = "`temp=true` needs a session: make one with `POST /v1/sessions` and name it in the header \
                      `Tessera-Session`";
        return Err(refuse(reason.into()));
    }
    shared.is_staying()?;
    super::body::check_encoding(headers)?;
    let host = shared.backend.host().cloned().ok_or_else(|| Error::Internal {
        what: "an upload to an engine that keeps nothing here".into(),
    })?;
    let length = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    let limit = host.scratch().limit();
    if length.and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n > limit) {
        return Err(Error::RequestTooLarge { limit_bytes: limit as usize });
    }
    let place = shared
        .uploads
        .clone()
        .try_acquire_owned()
        .map_err(|_| Error::TooManyStreams { limit: UPLOADS_MAX })?;
    let dims = parameters.text("dims").map(String::from);
    Ok((Asked { shared, name, quoted, kind, dims, is_temp, session, engine, host }, place))
}

impl Asked {
    /// Makes a tensor, a temp tensor or a temp table of a received file.
    async fn keep(
        self,
        (kind, space): (UploadFormat, Space),
        directory: TempDir,
    ) -> Result<Response, Failure> {
        let path = directory.path().join(kind.file_name());
        let lent = self.host.lend(&path);
        let file = path.display().to_string();
        let quoted_file = file.replace('\'', "''");
        let quoted = &self.quoted;
        let select = match (kind, self.dims.clone()) {
            (UploadFormat::Npy, None) => {
                checked(move || checks::npy(&path)).await?;
                format!("SELECT data AS {quoted} FROM '{quoted_file}'")
            }
            (UploadFormat::Native, None) if self.is_temp => {
                let scratch = self.host.scratch().clone();
                let open = std::fs::File::open(&path);
                let open = open.map_err(|e| scratch.failed("open an upload in", e))?;
                let file = scratch.written_before(open, space)?;
                return self.as_temp(Upload::Arrays(file)).await;
            }
            (UploadFormat::Arrow, None) if self.is_temp => {
                let at = path.clone();
                checked(move || checks::rows(&at)).await?;
                let table = TableFile::new(path, directory, lent, space)?;
                return self.as_temp(Upload::Rows(table)).await;
            }
            (UploadFormat::Native, None) => {
                let reason = format!(
                    "an upload as {} is for `temp=true`; a tensor of the warehouse is uploaded as .npy or Arrow",
                    native::CONTENT_TYPE
                );
                return Err(refuse(reason).into());
            }
            (UploadFormat::Npy | UploadFormat::Native, Some(_)) => {
                return Err(
                    refuse("`dims` is for Arrow; other uploads have no columns".into()).into()
                );
            }
            (UploadFormat::Arrow, dims) => {
                let dims = checks::names(&dims.unwrap_or_default())?;
                let items = checked(move || checks::arrow(&path, &dims)).await?;
                format!("SELECT {} FROM '{quoted_file}'", items.join(", "))
            }
        };
        let temp = if self.is_temp { "TEMP " } else { "" };
        let sql = format!("CREATE OR REPLACE {temp}TENSOR {quoted} AS {select}");
        let Asked { shared, engine, session, .. } = &self;
        let handle = shared.handle();
        if self.is_temp {
            // A later server cannot make the temp tensor again.
            handle.entry().reads_uploads();
        }
        let submitted =
            shared.statements.submit(engine.clone(), sql, session.clone(), None, handle)?;
        match super::statements::end_of(shared, submitted).await.as_deref() {
            Some(Outcome::Failed(e)) => Err(Failure::of_upload(e, &file, "the upload")),
            _ if self.is_temp => Ok(self.created("temp tensor")),
            _ => Ok(self.created("tensor")),
        }
    }

    async fn as_temp(&self, upload: Upload) -> Result<Response, Failure> {
        let kind = self.engine.keep(&self.name, upload).await?;
        Ok(self.created(kind))
    }

    fn created(&self, kind: &str) -> Response {
        let name = &self.name;
        json(StatusCode::CREATED, &json!({"ok": format!("created {kind} {name}"), "name": name}))
    }
}

/// Runs a check of a file on a thread that may block.
async fn checked<T: Send + 'static>(
    check: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let blocked = |e| Error::Internal { what: format!("reading an upload ended: {e}") };
    tokio::task::spawn_blocking(check).await.map_err(blocked)?
}

/// Drains the body for a moment: a client whose connection is closed while it sends would not see the error.
async fn drain(body: &mut BodyDataStream) {
    let rest = async {
        let mut bytes = 0;
        while let Some(Ok(piece)) = body.next().await {
            bytes += piece.len();
            if bytes > DRAIN_BYTES {
                return;
            }
        }
    };
    // A slower client may miss the error.
    let _ = tokio::time::timeout(DRAIN, rest).await;
}

/// Writes the body to a file of `directory`.
async fn receive(
    shared: &Shared,
    body: &mut BodyDataStream,
    kind: Option<UploadFormat>,
    directory: &Path,
    scratch: &Scratch,
) -> Result<(UploadFormat, Space), Error> {
    let limit = scratch.limit();
    let mut space = scratch.space()?;
    let failed = |e| scratch.failed("write an upload to", e);
    let mut open: Option<(UploadFormat, tokio::io::BufWriter<tokio::fs::File>)> = None;
    let mut start = Vec::new();
    let mut total = 0u64;
    loop {
        let piece = tokio::time::timeout(STALL, body.next())
            .await
            .map_err(|_| refuse(format!("nothing came for {} s", STALL.as_secs())))?;
        let Some(piece) = piece else { break };
        let piece = piece.map_err(|e| refuse(format!("the upload broke off: {e}")))?;
        shared.metrics.received(piece.len());
        total += piece.len() as u64;
        if total > limit {
            return Err(Error::RequestTooLarge { limit_bytes: limit as usize });
        }
        space.grow(piece.len() as u64).map_err(|e| scratch.full(e))?;
        if let Some((_, file)) = &mut open {
            file.write_all(&piece).await.map_err(failed)?;
            continue;
        }
        start.extend_from_slice(&piece);
        if start.len() < native::MAGIC.len() {
            continue;
        }
        let found = UploadFormat::sniff(&start).filter(|k| kind.is_none_or(|said| said == *k));
        let found = found.ok_or_else(|| {
            let kind = kind.map_or("an .npy file or an Arrow stream", UploadFormat::shown);
            refuse(format!("the body does not begin as {kind}"))
        })?;
        let path = directory.join(found.file_name());
        let file = tokio::fs::File::create(path).await.map_err(failed)?;
        let mut file = tokio::io::BufWriter::with_capacity(BUFFER, file);
        file.write_all(&start).await.map_err(failed)?;
        open = Some((found, file));
    }
    let Some((found, mut file)) = open else {
        return Err(refuse(format!("the body has only {total} bytes")));
    };
    file.flush().await.map_err(failed)?;
    Ok((found, space))
}
