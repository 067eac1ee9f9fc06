//! Objects that references define: parts of files. Neighbours are read at once.

use super::{CONCURRENT_MAX, Store, StoreRoot};
use crate::source::dataset_cache;
use crate::source::error::SourceError;
use crate::source::references::{References, Referred};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, ObjectMeta};
use std::ops::Range;
use std::sync::Arc;

impl Store {
    /// Like [`Store::over`], for the objects that references define.
    pub(crate) fn over_references(&self, references: Arc<References>) -> Store {
        Store { references: Some(references.clone()), ..self.over(references) }
    }

    /// True if references define its objects.
    pub(crate) fn is_referred(&self) -> bool {
        self.references.is_some()
    }

    /// The parts of files that references name for `keys`; `None` for other objects, and for objects that do not exist.
    pub(crate) async fn referred(
        &self,
        keys: &[String],
    ) -> Result<Vec<Option<Referred>>, SourceError> {
        let (Some(references), StoreRoot::Object { prefix, .. }) = (&self.references, &self.kind)
        else {
            return Ok(vec![None; keys.len()]);
        };
        // Tables of references are fetched with the permit and within the time of one request.
        let permit = self.requests.acquire().await;
        let found = stream::iter(keys.to_vec())
            .map(|key| async move { references.part(self.path(prefix, &key)?.as_ref()).await })
            .buffered(CONCURRENT_MAX)
            .try_collect();
        let found = tokio::time::timeout(self.timeout, found).await;
        drop(permit);
        found.unwrap_or_else(|_| {
            let what = keys.first().map_or_else(String::new, |key| self.show(key));
            Err(SourceError::Timeout { what, seconds: self.timeout.as_secs().max(1) })
        })
    }

    /// Reads a stretch of the file in which a part is. `objects` are the keys and parts in the stretch. `None` if nothing
    /// is read.
    pub(crate) async fn stretch(
        &self,
        part: &Referred,
        range: &Range<u64>,
        objects: &[(String, Range<u64>)],
    ) -> Result<Option<Bytes>, SourceError> {
        let (Some(references), Some((first, _))) = (&self.references, objects.first()) else {
            return Ok(None);
        };
        let options = GetOptions { if_match: self.tag(first), ..GetOptions::default() };
        let got = self.guard(first, references.stretch(part, range, options)).await?;
        let Some((bytes, meta)) = got else { return Ok(None) };
        for (key, part) in objects {
            // The part is treated as a read of its own: the version of a file without an etag has the size of the part.
            let meta = ObjectMeta { size: part.end - part.start, ..meta.clone() };
            self.note(key, || dataset_cache::of_object(&meta));
            self.met_answer(key, Some(&meta))?;
        }
        Ok(Some(bytes))
    }
}
