//! One file or object, written sequentially, for stream formats.
//!
//! A local file has a temporary name until it is complete. An object is uploaded in parts, and appears when the
//! upload is completed; an object of a single part is one request.

use super::destination::Destination;
use super::target::{Publish, Target, Written, missing_parent, staging};
use super::{Host, Reserved, SinkError};
use crate::fail;
use crate::lock;
use bytes::Bytes;
use object_store::{MultipartUpload, ObjectStoreExt, PutMode, PutOptions};
use std::fs;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Bounds on the bytes of a part, which depends on the memory: object stores take at most [`PARTS_MAX`] parts, each
/// of at least 5 MiB except the last.
const PART_BYTES_LEAST: usize = 5 << 20;
const PART_BYTES_MOST: usize = 16 << 20;

/// A part has at most one part in this many of the memory limit, unless it has the minimum size.
const SHARE: usize = 4;

const PARTS_MAX: u64 = 10_000;

/// Parts being uploaded, in addition to the one being filled.
const FLIGHT_MAX: usize = 2;

/// The first failure of a writer, for callers that only see its [`io::Error`].
pub type Failure = Arc<Mutex<Option<SinkError>>>;

/// Writes one file or object; dropped before [`ObjectWriter::finish`], it leaves nothing. Its methods block: they are
/// for threads that may.
pub struct ObjectWriter {
    kind: Output,
    display: String,
    bytes: u64,
    failure: Failure,
}

enum Output {
    Local { file: BufWriter<fs::File>, publish: Publish, done: bool },
    Object(Box<Upload>),
}

struct Upload {
    destination: Destination,
    io: Handle,
    overwrite: bool,
    buffer: Vec<u8>,
    /// Bytes of each part but the last.
    part_bytes: usize,
    parts: u64,
    upload: Option<Box<dyn MultipartUpload>>,
    flight: JoinSet<Result<(), SinkError>>,
    /// Memory of the buffer and of the parts being uploaded.
    _memory: Reserved,
}

impl std::fmt::Debug for ObjectWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectWriter").field("to", &self.display).finish_non_exhaustive()
    }
}

impl ObjectWriter {
    /// Creates a writer to `target`, which has passed [`Target::check`].
    ///
    /// # Errors
    /// A directory that does not exist or denies access, too little memory for the parts.
    pub fn create(target: &Target, overwrite: bool, host: &Host) -> Result<Self, SinkError> {
        let display = target.display().to_string();
        let kind = match &target.destination {
            Destination::Local { root, .. } => {
                let temporary = staging(root, &display)?;
                let promise = host.store.promise(&temporary, root);
                let file = fs::OpenOptions::new().write(true).create_new(true).open(&temporary);
                let file = file.map_err(|e| missing_parent(root, &display, &e))?;
                Output::Local {
                    file: BufWriter::with_capacity(1 << 18, file),
                    publish: Publish::Rename {
                        staging: temporary,
                        to: root.clone(),
                        replace: overwrite,
                        _promise: promise,
                    },
                    done: false,
                }
            }
            destination @ Destination::Object { .. } => {
                let limit = host.quota.limit() as usize;
                let part_bytes =
                    (limit / SHARE / (FLIGHT_MAX + 1)).clamp(PART_BYTES_LEAST, PART_BYTES_MOST);
                let needed = (part_bytes * (FLIGHT_MAX + 1)) as u64;
                let memory =
                    host.quota.clone().try_reserve(needed).ok_or_else(|| SinkError::Memory {
                        chunk_bytes: part_bytes as u64,
                        needed_bytes: needed,
                        free_bytes: host.quota.limit().saturating_sub(host.quota.used()),
                        limit_bytes: host.quota.limit(),
                    })?;
                Output::Object(Box::new(Upload {
                    destination: destination.clone(),
                    io: host.io.clone(),
                    overwrite,
                    buffer: Vec::new(),
                    part_bytes,
                    parts: 0,
                    upload: None,
                    flight: JoinSet::new(),
                    _memory: memory,
                }))
            }
        };
        Ok(ObjectWriter { kind, display, bytes: 0, failure: Failure::default() })
    }

    /// The shared slot of the first failure.
    pub fn failure(&self) -> Failure {
        self.failure.clone()
    }

    /// Completes the object and gives it its name, unless `cancelled` returns true once all bytes are stored: that
    /// may take long, and a cancelled output must not appear.
    ///
    /// # Errors
    /// Errors of the storage, [`SinkError::Cancelled`]; after an error no object is left.
    pub fn finish(mut self, cancelled: &dyn Fn() -> bool) -> Result<Written, SinkError> {
        let written = Written { objects: 1, bytes: self.bytes, manifest: None };
        let failed = |e: io::Error| SinkError::io(self.display.as_str(), &e).after(self.bytes);
        fail::point("file.finish").map_err(failed)?;
        match &mut self.kind {
            Output::Local { file, publish, done } => {
                file.flush().and_then(|()| file.get_ref().sync_all()).map_err(failed)?;
                if cancelled() {
                    return Err(SinkError::Cancelled);
                }
                publish.publish(&self.display, false)?;
                *done = true;
            }
            Output::Object(upload) => upload.finish(cancelled).map_err(|e| e.after(self.bytes))?,
        }
        Ok(written)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        let failed = |e: io::Error| SinkError::io(self.display.as_str(), &e).after(self.bytes);
        fail::point("file.write").map_err(failed)?;
        match &mut self.kind {
            Output::Local { file, .. } => file.write_all(bytes).map_err(failed)?,
            Output::Object(upload) => upload.put(bytes).map_err(|e| e.after(self.bytes))?,
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

impl Write for ObjectWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.put(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(e) => {
                lock(&self.failure).get_or_insert(e.clone());
                Err(io::Error::other(e))
            }
        }
    }

    /// Buffered bytes are written at the end: parts have a fixed size.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        match &mut self.kind {
            Output::Local { publish: Publish::Rename { staging, .. }, done: false, .. } => {
                if let Err(e) = fs::remove_file(staging) {
                    tracing::warn!(target = %self.display, error = %e, "an unfinished file could not be removed");
                }
            }
            Output::Object(upload) => upload.abandon(),
            Output::Local { .. } => {}
        }
    }
}

impl Upload {
    fn put(&mut self, mut bytes: &[u8]) -> Result<(), SinkError> {
        while !bytes.is_empty() {
            // A full buffer is only sent when more bytes follow, so that the last part is never empty.
            if self.buffer.len() == self.part_bytes {
                self.part()?;
            }
            let n = bytes.len().min(self.part_bytes - self.buffer.len());
            self.buffer.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Uploads the buffer as a part.
    fn part(&mut self) -> Result<(), SinkError> {
        if self.parts == PARTS_MAX {
            return Err(SinkError::Storage {
                what: self.destination.show(""),
                reason: format!(
                    "an object has at most {PARTS_MAX} parts of {} bytes",
                    self.part_bytes
                ),
            });
        }
        let io = self.io.clone();
        if self.upload.is_none() {
            let Destination::Object { client, .. } = &self.destination else { return Ok(()) };
            let key = self.destination.key("")?;
            let begun = io.block_on(self.destination.within("", client.put_multipart(&key)))?;
            self.upload = Some(begun);
        }
        while self.flight.len() >= FLIGHT_MAX {
            io.block_on(self.landed())?;
        }
        let Some(upload) = &mut self.upload else { return Ok(()) };
        let bytes = std::mem::replace(&mut self.buffer, Vec::with_capacity(self.part_bytes));
        let sent = upload.put_part(Bytes::from(bytes).into());
        let destination = self.destination.clone();
        self.flight.spawn_on(async move { destination.within("", sent).await }, &io);
        self.parts += 1;
        Ok(())
    }

    /// Waits until one upload of a part ends.
    async fn landed(&mut self) -> Result<(), SinkError> {
        match self.flight.join_next().await {
            None => Ok(()),
            Some(Ok(sent)) => sent,
            Some(Err(e)) => {
                Err(SinkError::Internal { what: self.destination.show(""), reason: e.to_string() })
            }
        }
    }

    fn finish(&mut self, cancelled: &dyn Fn() -> bool) -> Result<(), SinkError> {
        let io = self.io.clone();
        if self.upload.is_none() {
            if cancelled() {
                return Err(SinkError::Cancelled);
            }
            let Destination::Object { client, .. } = &self.destination else { return Ok(()) };
            let key = self.destination.key("")?;
            let bytes = Bytes::from(std::mem::take(&mut self.buffer));
            let mode = if self.overwrite { PutMode::Overwrite } else { PutMode::Create };
            let put = client.put_opts(&key, bytes.into(), PutOptions::from(mode));
            let request = async {
                match put.await {
                    Err(
                        object_store::Error::AlreadyExists { .. }
                        | object_store::Error::Precondition { .. },
                    ) => Ok(false),
                    other => other.map(|_| true),
                }
            };
            return match io.block_on(self.destination.within("", request))? {
                true => Ok(()),
                false => Err(SinkError::Exists { what: self.destination.show("") }),
            };
        }
        self.part()?;
        while !self.flight.is_empty() {
            io.block_on(self.landed())?;
        }
        if cancelled() {
            return Err(SinkError::Cancelled);
        }
        if let Some(mut upload) = self.upload.take() {
            let completed = io.block_on(self.destination.within("", upload.complete()));
            if let Err(e) = completed {
                self.upload = Some(upload);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Aborts an upload and removes its parts.
    fn abandon(&mut self) {
        let Some(mut upload) = self.upload.take() else { return };
        let mut flight = std::mem::take(&mut self.flight);
        let destination = self.destination.clone();
        self.io.spawn(async move {
            flight.shutdown().await;
            if let Err(e) = destination.within("", upload.abort()).await {
                tracing::warn!(error = %e, "an unfinished upload could not be removed");
            }
        });
    }
}
