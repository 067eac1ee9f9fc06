//! Versions of documents in a bucket: an update fails unless the stored version matches the version that was read
//! ([`Mode::Update`]).

use super::{Folder, Mode};
use crate::sink::SinkError;
use crate::sink::destination::Destination;
use crate::source::SourceError;
use crate::source::retry::is_unsupported;
use crate::source::store::METADATA_BYTES_MAX;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};

/// A version of a document: the store's etag, and its number of the version if it has one. A directory does not tell
/// versions apart, nor does a store without etags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Version {
    e_tag: Option<String>,
    /// Google's store puts a document only on the condition of this one.
    number: Option<String>,
}

impl Folder {
    /// Returns a document and its version, or `None` if it does not exist.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn get_version(&self, key: &str) -> Result<Option<(Bytes, Version)>, SinkError> {
        let Destination::Object { client, .. } = &self.destination else {
            return Ok(self.get(key).await?.map(|bytes| (bytes, Version::default())));
        };
        let path = self.destination.key(key)?;
        let request = async {
            let got = client.get(&path).await?;
            let (bytes, meta) = (got.meta.size, got.meta.clone());
            let version = Version { e_tag: meta.e_tag, number: meta.version };
            match bytes > METADATA_BYTES_MAX {
                true => Ok(Err(bytes)),
                false => Ok(Ok((got.bytes().await?, version))),
            }
        };
        match self.destination.within(key, request).await {
            Ok(Ok(found)) => Ok(Some(found)),
            Ok(Err(bytes)) => Err(SinkError::Source(SourceError::ObjectTooLarge {
                what: self.destination.show(key),
                bytes,
                limit: METADATA_BYTES_MAX,
            })),
            Err(SinkError::Source(SourceError::NotFound { .. })) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The version of an object in a bucket; `None` if it does not exist, and in a directory.
    ///
    /// # Errors
    /// Errors of the storage.
    pub(in crate::sink) async fn version(&self, key: &str) -> Result<Option<Version>, SinkError> {
        let Destination::Object { client, .. } = &self.destination else { return Ok(None) };
        let path = self.destination.key(key)?;
        match self.destination.within(key, client.head(&path)).await {
            Ok(meta) => Ok(Some(Version { e_tag: meta.e_tag, number: meta.version })),
            Err(SinkError::Source(SourceError::NotFound { .. })) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Puts an object; `None` if its precondition fails. A store without conditions on versions puts it regardless of the
/// stored version.
pub(super) async fn put(
    client: &dyn ObjectStore,
    at: &Path,
    bytes: PutPayload,
    mode: &Mode,
) -> Result<Option<Version>, Error> {
    let mode = match mode {
        Mode::Create => PutMode::Create,
        Mode::Update(Version { e_tag: e_tag @ Some(_), number }) => {
            PutMode::Update(UpdateVersion { e_tag: e_tag.clone(), version: number.clone() })
        }
        Mode::Replace | Mode::Update(Version { e_tag: None, .. }) => PutMode::Overwrite,
    };
    let is_update = matches!(mode, PutMode::Update(_));
    let answer = match client.put_opts(at, bytes.clone(), PutOptions::from(mode)).await {
        Err(e) if is_update && is_unsupported(&e) => {
            tracing::debug!(error = %e, "a store replaces documents without conditions");
            client.put_opts(at, bytes, PutOptions::from(PutMode::Overwrite)).await
        }
        other => other,
    };
    match answer {
        Ok(put) => Ok(Some(Version { e_tag: put.e_tag, number: put.version })),
        Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}
