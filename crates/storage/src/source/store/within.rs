//! Reads inside of a request of another store.

use super::{Store, StoreRoot};
use crate::source::error::SourceError;
use bytes::Bytes;
use object_store::GetOptions;

impl Store {
    /// As [`Store::get`], inside of a request of a store that is [over](Store::over) this one: that request has the
    /// permit, of which another one might never come, and the time-out.
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
}
