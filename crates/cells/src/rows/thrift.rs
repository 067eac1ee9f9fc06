//! Validates the list lengths in a Parquet file's metadata before its reader trusts them.
//!
//! The reader allocates memory for as many row groups and pages as a list claims, and a list may claim two
//! billion: the process would abort. So this module walks the footer and the offset indexes, in Thrift's compact
//! protocol, and fails if an element count or a length exceeds the remaining bytes.

use datafusion::error::{DataFusionError, Result as Found};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tessera_storage::source::{SourceError, is_told};
pub(super) use tessera_storage::thrift::Compact;

/// Bytes of the first read at a file's end: mostly the whole footer.
const TAIL_BYTES: u64 = 64 << 10;

/// Upper bound on the versions of files that are remembered.
const CHECKED_MAX: usize = 1 << 17;

/// The versions of files that were found valid. Statements over the same files need not read the ends of all of them.
#[derive(Default)]
pub(crate) struct Checked {
    hashes: RandomState,
    versions: Mutex<HashSet<u64>>,
}

impl Checked {
    /// Validates a Parquet file, unless this version of it was valid before.
    ///
    /// # Errors
    /// `SourceError::Damaged`; those of the storage.
    pub(crate) async fn parquet(
        &self,
        store: &dyn ObjectStore,
        meta: &ObjectMeta,
        shown: &str,
    ) -> Found<()> {
        let version = self.version(meta, shown);
        if version.is_some_and(|version| self.versions().contains(&version)) {
            return Ok(());
        }
        check_parquet(store, meta, shown).await?;
        if let Some(version) = version {
            let mut versions = self.versions();
            if versions.len() >= CHECKED_MAX {
                versions.clear();
            }
            versions.insert(version);
        }
        Ok(())
    }

    /// The file in its version; `None` if its storage does not [report](is_told) it.
    pub(crate) fn version(&self, meta: &ObjectMeta, shown: &str) -> Option<u64> {
        let file = (shown, &meta.e_tag, meta.size, meta.last_modified);
        is_told(meta).then(|| self.hashes.hash_one(file))
    }

    fn versions(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Validates a Parquet file.
async fn check_parquet(store: &dyn ObjectStore, meta: &ObjectMeta, shown: &str) -> Found<()> {
    let damaged = |reason: &str| {
        let (path, reason) = (shown.to_string(), reason.to_string());
        DataFusionError::External(Box::new(SourceError::Damaged { path, reason }))
    };
    let (at, size) = (&meta.location, meta.size);
    if size < 12 {
        return Err(damaged("it is too short for a Parquet file"));
    }
    let tail = store.get_range(at, size.saturating_sub(TAIL_BYTES)..size).await?;
    let Some((rest, end)) = tail.split_last_chunk::<8>() else {
        return Err(damaged("its end is missing"));
    };
    // The reader reports the footer of an encrypted file.
    if &end[4..] != b"PAR1" {
        return Ok(());
    }
    let length = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
    if length > size - 12 {
        let reason = format!("its footer would have {length} bytes, and the file has {size}");
        return Err(damaged(&reason));
    }
    let begin = size - 8 - length;
    let footer = match rest.len() as u64 >= length {
        true => rest[rest.len() - length as usize..].to_vec(),
        false => store.get_range(at, begin..size - 8).await?.to_vec(),
    };
    let mut pages = Vec::new();
    let mut offset = None;
    let walked = Compact::new(&footer).structure(&mut |path, value| match path {
        // row_groups, columns: offset_index_offset, then offset_index_length.
        [4, 1, 4] => offset = Some(value),
        [4, 1, 5] => pages.extend(offset.take().map(|at| (at, value))),
        _ => {}
    });
    walked.map_err(|reason| damaged(&format!("its footer: {reason}")))?;
    // The reader reports indexes that lie outside of the file.
    let within = pages.into_iter().filter_map(|(at, length)| {
        let (at, length) = (u64::try_from(at).ok()?, u64::try_from(length).ok()?);
        let end = at.checked_add(length)?;
        (length > 0 && end <= size).then_some(at..end)
    });
    let within: Vec<_> = within.collect();
    if within.is_empty() {
        return Ok(());
    }
    for index in store.get_ranges(at, &within).await? {
        let walked = Compact::new(&index).structure(&mut |_, _| {});
        walked.map_err(|reason| damaged(&format!("an offset index: {reason}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use std::time::SystemTime;

    #[tokio::test]
    async fn a_version_is_checked_once() {
        let (store, at, checked) = (InMemory::new(), Path::from("t.parquet"), Checked::default());
        // The end of an encrypted file, which the reader reports.
        store.put(&at, b"PAR1\0\0\0\0PARE".to_vec().into()).await.unwrap();
        let recent = store.head(&at).await.unwrap();
        assert!(recent.e_tag.is_some());
        let meta = ObjectMeta { last_modified: SystemTime::UNIX_EPOCH.into(), ..recent.clone() };
        checked.parquet(&store, &recent, "m/t.parquet").await.unwrap();
        checked.parquet(&store, &meta, "m/t.parquet").await.unwrap();
        store.delete(&at).await.unwrap();
        checked.parquet(&store, &meta, "m/t.parquet").await.unwrap();
        // Another file, another version, and one that its storage does not tell are read.
        assert!(checked.parquet(&store, &meta, "m/u.parquet").await.is_err());
        let other = ObjectMeta { e_tag: Some("other".into()), ..meta.clone() };
        assert!(checked.parquet(&store, &other, "m/t.parquet").await.is_err());
        // A file that has just changed may change again.
        assert!(checked.parquet(&store, &recent, "m/t.parquet").await.is_err());
        let weak = ObjectMeta { e_tag: Some("W/\"1\"".into()), ..meta.clone() };
        store.put(&at, b"PAR1\0\0\0\0PARE".to_vec().into()).await.unwrap();
        checked.parquet(&store, &weak, "m/t.parquet").await.unwrap();
        store.delete(&at).await.unwrap();
        assert!(checked.parquet(&store, &weak, "m/t.parquet").await.is_err());
        let unknown = ObjectMeta { e_tag: None, ..meta };
        assert!(checked.parquet(&store, &unknown, "m/t.parquet").await.is_err());
        // A damaged file stays one.
        store.put(&at, b"PAR1\xff\xff\xff\x7fPAR1".to_vec().into()).await.unwrap();
        let meta = store.head(&at).await.unwrap();
        for _ in 0..2 {
            let error = checked.parquet(&store, &meta, "m/t.parquet").await.unwrap_err();
            assert!(error.to_string().contains("footer would have 2147483647 bytes"), "{error}");
        }
    }
}
