//! Documents of which several processes may have a say, their versions, and locks: who looks before it writes holds one
//! meanwhile ([`Folder::hold`]).

use super::{Folder, Mode, put_local};
use crate::fail;
use crate::sink::SinkError;
use crate::sink::place::Place;
use crate::source::SourceError;
use crate::source::store::METADATA_BYTES_MAX;
use bytes::Bytes;
use object_store::{Error, ObjectStoreExt, PutMode, PutOptions};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::time::{Duration, Instant};
use tessera_planner::error::Class;

/// Requests of an update whose answers say nothing.
const TRIES_MAX: u32 = 8;
/// What is waited between two of them.
const TRY_EVERY: Duration = Duration::from_millis(100);
/// The longest that a lock is waited for, and how often it is tried. Who holds one writes a document.
const HOLD_MAX: Duration = Duration::from_secs(10);
const HOLD_EVERY: Duration = Duration::from_millis(2);

/// Which of a document's versions. A directory does not tell them apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(Option<String>);

/// A lock, until it drops or the process ends.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "it is held")] File);

/// False for what is known not to have been done.
fn may_be_done(e: &SinkError) -> bool {
    let refused = matches!(e, SinkError::Source(SourceError::Refused { .. }));
    e.class() == Class::Retry || refused
}

impl Folder {
    /// A document and its version, or `None` if it does not exist.
    ///
    /// # Errors
    /// Whatever storage says.
    pub async fn get_version(&self, key: &str) -> Result<Option<(Bytes, Version)>, SinkError> {
        let Place::Object { client, .. } = &self.place else {
            return Ok(self.get(key).await?.map(|bytes| (bytes, Version(None))));
        };
        let path = self.place.key(key)?;
        let request = async {
            let got = client.get(&path).await?;
            let (bytes, version) = (got.meta.size, Version(got.meta.e_tag.clone()));
            match bytes > METADATA_BYTES_MAX {
                true => Ok(Err(bytes)),
                false => Ok(Ok((got.bytes().await?, version))),
            }
        };
        match self.place.within(key, request).await {
            Ok(Ok(found)) => Ok(Some(found)),
            Ok(Err(bytes)) => Err(SinkError::Source(SourceError::ObjectTooLarge {
                what: self.place.show(key),
                bytes,
                limit: METADATA_BYTES_MAX,
            })),
            Err(SinkError::Source(SourceError::NotFound { .. })) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// As [`Folder::put`], in place of what is there, or of nothing without `before`. In a directory it replaces
    /// whatever is there.
    ///
    /// # Errors
    /// [`SinkError::Exists`] if something is there in a bucket, and should not be; whatever storage says.
    pub async fn update(
        &self,
        key: &str,
        bytes: Vec<u8>,
        before: Option<&Version>,
    ) -> Result<Version, SinkError> {
        let client = match &self.place {
            Place::Object { client, .. } => client,
            Place::Local { root, .. } => {
                let path = root.join(key);
                put_local(&path, key, &self.place.show(key), &bytes, Mode::Replace)?;
                return Ok(Version(None));
            }
        };
        let point =
            |step| fail::document(key, step).map_err(|e| SinkError::io(self.place.show(key), &e));
        point("put")?;
        let (path, bytes) = (self.place.key(key)?, Bytes::from(bytes));
        let mode = match before {
            None => PutMode::Create,
            Some(_) => PutMode::Overwrite,
        };
        let mut tries = 0..TRIES_MAX;
        loop {
            tries.next();
            let options = PutOptions::from(mode.clone());
            let request = async {
                match client.put_opts(&path, bytes.clone().into(), options).await {
                    Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(None),
                    other => other.map(|put| Some(Version(put.e_tag))),
                }
            };
            let failure = match self.place.within(key, request).await {
                Ok(Some(version)) => {
                    point("stored")?;
                    point("named")?;
                    return Ok(version);
                }
                Ok(None) => None,
                // An answer that breaks off may look like a refusal.
                Err(e) if may_be_done(&e) && !tries.is_empty() => Some(e),
                Err(e) => return Err(e),
            };
            // It may have been done, and the answer lost: then what is there is ours.
            match (self.get_version(key).await?, failure) {
                (Some((there, version)), _) if there == bytes => return Ok(version),
                (there, Some(e)) if there.as_ref().map(|(_, v)| v) == before => {
                    if e.class() != Class::Retry && tries.len() <= TRIES_MAX as usize / 2 {
                        return Err(e);
                    }
                    tokio::time::sleep(TRY_EVERY).await;
                }
                _ => return Err(SinkError::Exists { what: self.place.show(key) }),
            }
        }
    }

    /// Takes the lock `key`, `alone` or with others; `None` in a bucket, where there are none.
    ///
    /// # Errors
    /// A lock that somebody holds for more than ten seconds; a directory that cannot be written.
    pub async fn hold(&self, key: &str, alone: bool) -> Result<Option<Held>, SinkError> {
        let Place::Local { root, .. } = &self.place else { return Ok(None) };
        let path = root.join(key);
        let failed = |e: io::Error| SinkError::io(self.place.show(key), &e);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(failed)?;
        let start = Instant::now();
        loop {
            match if alone { file.try_lock() } else { file.try_lock_shared() } {
                Ok(()) => return Ok(Some(Held(file))),
                Err(TryLockError::Error(e)) => return Err(failed(e)),
                Err(TryLockError::WouldBlock) if start.elapsed() < HOLD_MAX => {
                    tokio::time::sleep(HOLD_EVERY).await;
                }
                Err(TryLockError::WouldBlock) => {
                    let reason = format!(
                        "a process that does not go on holds this lock for {} s: end it",
                        HOLD_MAX.as_secs()
                    );
                    return Err(SinkError::Storage { what: self.place.show(key), reason });
                }
            }
        }
    }
}
