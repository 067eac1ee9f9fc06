//! `PUT /v1/tensors/{name}`: an upload becomes a tensor of the warehouse.
//!
//! 1. The body is written to a file as it arrives, piece by piece, so an upload may be larger than memory. A slow or
//!    disconnected client ends it; the file has no other holder and is removed with the request.
//! 2. [`checks`] finds errors that a statement over the file would not report in the client's terms, or not at all.
//! 3. `CREATE OR REPLACE TENSOR` reads the file: it checks that it is complete, writes chunks and then the catalog's
//!    entry. So either the new tensor is complete and durable, or the old one stays.

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
use tessera_engine::answer::scratch::Scratch;
use tessera_engine::error::Error;
use tessera_exec::store::Space;
use tokio::io::AsyncWriteExt;

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
}

impl UploadFormat {
    /// The format by `Content-Type`; `None` leaves it to the first bytes.
    fn of(headers: &HeaderMap) -> Result<Option<Self>, Error> {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(None) };
        let kind = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
        match kind {
            "application/x-npy" => Ok(Some(UploadFormat::Npy)),
            "application/vnd.apache.arrow.stream" => Ok(Some(UploadFormat::Arrow)),
            // Defaults of clients that do not set a type.
            "" | "application/octet-stream" | "application/x-www-form-urlencoded" => Ok(None),
            other => Err(refuse(format!(
                "an upload is application/x-npy or application/vnd.apache.arrow.stream, not `{other}`"
            ))),
        }
    }

    fn begins(self) -> &'static [u8] {
        match self {
            UploadFormat::Npy => NPY,
            UploadFormat::Arrow => ARROW,
        }
    }

    /// The format by the first bytes.
    fn sniff(start: &[u8]) -> Option<Self> {
        [UploadFormat::Npy, UploadFormat::Arrow].into_iter().find(|k| start.starts_with(k.begins()))
    }
}

fn refuse(reason: String) -> Error {
    Error::Request { reason }
}

/// `PUT /v1/tensors/{name}`
pub(super) async fn put(
    State(shared): State<Arc<Shared>>,
    Name(name): Name,
    parameters: Parameters,
    request: Request,
) -> Result<Response, Failure> {
    parameters.only(&["dims"])?;
    let quoted = tensors::quoted(&name)?;
    let headers = request.headers().clone();
    let kind = UploadFormat::of(&headers)?;
    let (session, engine) = sessions::of(&shared, &headers)?;
    shared.is_staying()?;
    super::body::check_encoding(&headers)?;
    let _place = shared
        .uploads
        .clone()
        .try_acquire_owned()
        .map_err(|_| Error::TooManyStreams { limit: UPLOADS_MAX })?;
    let host = shared.backend.host().ok_or_else(|| Error::Internal {
        what: "an upload to an engine that keeps nothing here".into(),
    })?;
    let scratch = host.scratch().clone();
    let directory = scratch.directory("upload-")?;
    let mut body = request.into_body().into_data_stream();
    let received = receive(&shared, &mut body, kind, directory.path(), &scratch).await;
    let (kind, _space) = match received {
        Ok(received) => received,
        Err(e) => {
            drain(&mut body).await;
            return Err(e.into());
        }
    };
    let path = directory.path().join(file_name(kind));
    let _lent = host.lend(&path);
    let file = path.display().to_string();
    let quoted_file = file.replace('\'', "''");
    let blocked = |e| Error::Internal { what: format!("reading an upload ended: {e}") };
    let select = match (kind, parameters.text("dims")) {
        (UploadFormat::Npy, None) => {
            tokio::task::spawn_blocking(move || checks::npy(&path)).await.map_err(blocked)??;
            format!("SELECT data AS {quoted} FROM '{quoted_file}'")
        }
        (UploadFormat::Npy, Some(_)) => {
            return Err(refuse("`dims` is for Arrow; .npy has no columns".into()).into());
        }
        (UploadFormat::Arrow, dims) => {
            let dims = checks::names(dims.unwrap_or_default())?;
            let items = tokio::task::spawn_blocking(move || checks::arrow(&path, &dims))
                .await
                .map_err(blocked)??;
            format!("SELECT {} FROM '{quoted_file}'", items.join(", "))
        }
    };
    let sql = format!("CREATE OR REPLACE TENSOR {quoted} AS {select}");
    let entry = shared.statements.submit(engine, sql, session, None)?;
    let kept = super::statements::Asked { shared: shared.clone(), entry: entry.clone() };
    while !entry.wait(Duration::from_secs(60)).await {}
    let outcome = entry.outcome();
    drop(kept);
    match outcome.as_deref() {
        Some(Outcome::Failed(e)) => Err(Failure::of_upload(e, &file, "the upload")),
        _ => Ok(json(
            StatusCode::CREATED,
            &json!({"ok": format!("created tensor {name}"), "name": name}),
        )),
    }
}

fn file_name(kind: UploadFormat) -> &'static str {
    match kind {
        UploadFormat::Npy => "data.npy",
        UploadFormat::Arrow => "data.arrow",
    }
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
        if start.len() < NPY.len() {
            continue;
        }
        let found = UploadFormat::sniff(&start).filter(|k| kind.is_none_or(|said| said == *k));
        let found = found.ok_or_else(|| {
            let kind = kind.map_or("an .npy file or an Arrow stream", |k| match k {
                UploadFormat::Npy => "an .npy file",
                UploadFormat::Arrow => "an Arrow stream",
            });
            refuse(format!("the body does not begin as {kind}"))
        })?;
        let file =
            tokio::fs::File::create(directory.join(file_name(found))).await.map_err(failed)?;
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
