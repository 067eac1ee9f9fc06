//! Reads inside of a request of another store.

use super::{Store, StoreRoot};
use crate::disk;
use crate::source::error::SourceError;
use crate::source::versions;
use bytes::Bytes;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The version that an object must have.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// See [`versions::of_file`] and [`versions::of_object`]; `None` if it is unknown.
    pub(crate) version: Option<u64>,
    /// Its etag for `If-Match`.
    pub(crate) tag: Option<String>,
}

impl Store {
    /// Like [`Store::over`], for the members of an archive in the object of this store.
    pub(crate) fn over_members(&self, client: Arc<dyn ObjectStore>) -> Store {
        Store { has_suffixes: true, has_headers: true, ..self.over(client) }
    }

    /// Number of requests for the first part of an object, of which only the length is known if it `is_suffix`.
    pub(crate) fn first_part_requests(&self, is_suffix: bool) -> u64 {
        1 + u64::from(is_suffix && !self.has_suffixes) + u64::from(self.has_headers)
    }

    /// Like [`Store::get`], but inside of a request of a store [over](Store::over) this one. The outer request already
    /// holds a permit and a time-out; waiting for a second permit could last forever.
    pub(crate) async fn get_within(
        &self,
        key: &str,
        limit: u64,
    ) -> Result<Option<Bytes>, SourceError> {
        let StoreRoot::Object { client, prefix } = &self.kind else {
            return self.get(key, limit).await;
        };
        let path = self.path(prefix, key)?;
        let got = async {
            let answer = client.get_opts(&path, GetOptions::default()).await?;
            match answer.meta.size {
                size if size > limit => Ok(Err(size)),
                _ => Ok(Ok(answer.bytes().await?)),
            }
        };
        let got: object_store::Result<_> = got.await;
        let bytes = got.as_ref().ok().and_then(|got| got.as_ref().ok()).map_or(0, Bytes::len);
        self.counters.count(bytes);
        match got {
            Ok(Ok(bytes)) => Ok(Some(bytes)),
            Ok(Err(bytes)) => {
                Err(SourceError::ObjectTooLarge { what: self.show(key), bytes, limit })
            }
            Err(e) => match self.failure(key, e) {
                SourceError::NotFound { .. } => Ok(None),
                e => Err(e),
            },
        }
    }

    /// The version of an object that was read, if this store records versions.
    pub(crate) fn known(&self, key: &str) -> Known {
        let object = self.object(key);
        let version = self.versions.as_ref().and_then(|v| v.version(object));
        Known { version, tag: self.tag(key) }
    }

    /// Reads a part of an object of a known version, inside of a request of a store that is [over](Store::over) this
    /// one. That request counts itself; this one is counted besides if it `is_more`.
    ///
    /// # Errors
    /// [`SourceError::Changed`] for another version, or if the part is not in the object.
    pub(crate) async fn part_within(
        &self,
        key: &str,
        range: Range<u64>,
        known: &Known,
        is_more: bool,
    ) -> Result<Bytes, SourceError> {
        let wanted = range.end.saturating_sub(range.start);
        if wanted == 0 {
            return Ok(Bytes::new());
        }
        let is_known = |version: u64| known.version.is_none_or(|known| known == version);
        let bytes = match &self.kind {
            StoreRoot::Local(root) => disk::wait(|| -> Result<Bytes, SourceError> {
                let file = self.open_file(root, key)?.filter(|file| is_known(file.version));
                let Some(file) = file.filter(|file| range.end <= file.len) else {
                    return Err(self.changed(key));
                };
                let mut out = vec![0u8; wanted as usize];
                self.io(key, file.file.read_exact_at(&mut out, range.start))?;
                Ok(Bytes::from(out))
            })?,
            StoreRoot::Object { client, prefix } => {
                let path = self.path(prefix, key)?;
                let range = Some(GetRange::Bounded(range));
                let if_match = known.tag.clone();
                let options = GetOptions { range, if_match, ..GetOptions::default() };
                let got = async {
                    let answer = client.get_opts(&path, options).await?;
                    let meta = answer.meta.clone();
                    Ok((answer.bytes().await?, meta))
                };
                let got: object_store::Result<(Bytes, ObjectMeta)> = got.await;
                match got {
                    Ok((bytes, meta)) if is_known(versions::of_object(&meta).0) => bytes,
                    Ok(_) => return Err(self.changed(key)),
                    Err(e) => {
                        return Err(match self.failure(key, e) {
                            SourceError::NotFound { .. } => self.changed(key),
                            e => e,
                        });
                    }
                }
            }
        };
        if is_more {
            self.counters.count(bytes.len());
        }
        if bytes.len() as u64 == wanted { Ok(bytes) } else { Err(self.changed(key)) }
    }
}
