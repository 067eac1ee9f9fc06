//! Columns of the Parquet files of a table.
//!
//! ```text
//!   files ─▶ their versions ─▶ known columns                          no file is read
//!                        └───▶ each end is checked ─▶ merged schema   known for the next statement
//! ```
//! The schema of a file is made of text in its end, which takes some 100 µs of one thread: a statement over 1,000 files
//! that were read before would spend a tenth of a second on it.

use super::{CHECKS, calendars, uuids};
use crate::rows::{Checked, RowsState};
use arrow::datatypes::SchemaRef;
use datafusion::datasource::listing::{ListingOptions, ListingTableUrl};
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use futures::{FutureExt, TryStreamExt};
use object_store::ObjectMeta;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tessera_storage::source::TableStore;
use tokio::task::{JoinError, JoinSet};

/// Upper bound on the fields that are remembered, of all sets of files.
const FIELDS_MAX: usize = 1 << 16;

/// Bytes of the end of a file that are read at once: another read of a local file costs less than more of them, another
/// request to a bucket costs more.
const LOCAL_END_BYTES: usize = 64 << 10;
const END_BYTES: usize = 512 << 10;

#[derive(Debug, Clone)]
pub(super) struct ParquetColumns {
    pub(super) schema: SchemaRef,
    pub(super) uuids: BTreeSet<String>,
    /// A number of these files in these versions; `None` if one may change unnoticed.
    pub(super) version: Option<u64>,
}

/// The columns of sets of files, by the versions of the files.
#[derive(Debug, Default)]
pub(crate) struct KnownColumns {
    hashes: RandomState,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    by_version: HashMap<u64, ParquetColumns>,
    fields: usize,
}

impl KnownColumns {
    /// A number of these files in their versions; `None` if a version is unknown, or its file has just changed.
    fn version(&self, checked: &Checked, files: &[ObjectMeta], root: &str) -> Option<u64> {
        let one = |meta: &ObjectMeta| checked.version(meta, &format!("{root}/{}", meta.location));
        let all = files.iter().map(one).collect::<Option<Vec<u64>>>()?;
        Some(self.hashes.hash_one(all))
    }

    fn get(&self, version: u64) -> Option<ParquetColumns> {
        self.lock().by_version.get(&version).cloned()
    }

    fn keep(&self, version: u64, columns: &ParquetColumns) {
        let fields = 1 + columns.schema.flattened_fields().len();
        if fields > FIELDS_MAX {
            return;
        }
        let mut kept = self.lock();
        if kept.fields + fields > FIELDS_MAX {
            *kept = Kept::default();
        }
        if kept.by_version.insert(version, columns.clone()).is_none() {
            kept.fields += fields;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RowsState {
    /// Checks Parquet files, unless these versions of them are known, and returns their columns. `root` is the prefix of
    /// their URLs.
    pub(super) async fn parquet_columns(
        &self,
        state: &SessionState,
        (place, files, root): (&ListingTableUrl, &TableStore, &str),
        listing: &ListingOptions,
    ) -> Result<ParquetColumns> {
        let all = place.list_all_files(state, files, "").await?;
        let mut all: Vec<ObjectMeta> = all.try_collect().await?;
        all.sort_by(|a, b| a.location.cmp(&b.location));
        let version = self.columns().version(self.checked(), &all, root);
        if let Some(known) = version.and_then(|version| self.columns().get(version)) {
            return Ok(known);
        }
        self.read_ends(state, (place, files, root), all).await?;
        let schema = listing.infer_schema(state, place).await?;
        let uuids = uuids::of_files(&schema, state, place).await?;
        let schema = calendars::of_files(schema, state, place, root).await?;
        let columns = ParquetColumns { schema, uuids, version };
        if let Some(version) = version {
            self.columns().keep(version, &columns);
        }
        Ok(columns)
    }

    /// Checks the ends of files and reads them to DataFusion's cache, several at a time: all threads parse them.
    async fn read_ends(
        &self,
        state: &SessionState,
        (place, files, root): (&ListingTableUrl, &TableStore, &str),
        all: Vec<ObjectMeta>,
    ) -> Result<()> {
        let environment = state.runtime_env();
        let store = environment.object_store(place)?;
        let cache = environment.cache_manager.get_file_metadata_cache();
        let hint = Some(if root.is_empty() { LOCAL_END_BYTES } else { END_BYTES });
        let mut tasks = JoinSet::new();
        for meta in all {
            if tasks.len() >= CHECKS {
                done(tasks.join_next().await)?;
            }
            let (this, files) = (self.clone(), files.clone());
            let (store, cache) = (store.clone(), cache.clone());
            let shown = format!("{root}/{}", meta.location);
            tasks.spawn(async move {
                this.checked().parquet(&files, &meta, &shown).await?;
                let end = DFParquetMetadata::new(&*store, &meta);
                let end = end.with_metadata_size_hint(hint).with_file_metadata_cache(Some(cache));
                match AssertUnwindSafe(end.fetch_metadata()).catch_unwind().await {
                    Ok(read) => read.map(drop),
                    // The reader of the schema reports the error with the file.
                    Err(_) => Ok(()),
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            done(Some(ended))?;
        }
        Ok(())
    }
}

/// The result of a task that has ended.
fn done(ended: Option<std::result::Result<Result<()>, JoinError>>) -> Result<()> {
    match ended {
        Some(Ok(result)) => result,
        Some(Err(e)) => Err(DataFusionError::ExecutionJoin(Box::new(e))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::datatypes::{DataType, Field, Schema};
    use object_store::path::Path;
    use std::sync::Arc;
    use std::time::SystemTime;

    fn meta(name: &str, tag: &str) -> ObjectMeta {
        ObjectMeta {
            location: Path::from(name),
            last_modified: SystemTime::UNIX_EPOCH.into(),
            size: 8,
            e_tag: Some(tag.into()),
            version: None,
        }
    }

    #[test]
    fn files_are_known_in_their_versions() {
        let (known, checked) = (KnownColumns::default(), Checked::default());
        let of = |files: &[ObjectMeta]| known.version(&checked, files, "s3://b");
        let (a, b) = (meta("a", "1"), meta("b", "1"));
        let both = of(&[a.clone(), b.clone()]).unwrap();
        assert_eq!(of(&[a.clone(), b.clone()]), Some(both));
        assert_ne!(known.version(&checked, &[a.clone(), b.clone()], "s3://c"), Some(both));
        for other in [vec![a.clone()], vec![a.clone(), meta("b", "2")], vec![a.clone(), a.clone()]]
        {
            assert_ne!(of(&other), Some(both));
        }
        // A weak tag, none, and a file that changed just now.
        let now = ObjectMeta { last_modified: SystemTime::now().into(), ..b.clone() };
        let untagged = ObjectMeta { e_tag: None, ..b.clone() };
        for unknown in [meta("b", "W/\"1\""), untagged, now] {
            assert_eq!(of(&[a.clone(), unknown]), None);
        }
    }

    #[test]
    fn columns_are_kept_within_the_bound() {
        let columns = |fields: usize| {
            let fields = (0..fields).map(|i| Field::new(i.to_string(), DataType::Int8, true));
            let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            ParquetColumns { schema, uuids: BTreeSet::new(), version: Some(1) }
        };
        let known = KnownColumns::default();
        known.keep(1, &columns(2));
        known.keep(1, &columns(2));
        assert_eq!(known.get(1).unwrap().schema.fields().len(), 2);
        let fields = known.lock().fields;
        assert_eq!((fields, known.get(2).is_none()), (3, true));
        known.keep(2, &columns(FIELDS_MAX - 4));
        assert!(known.get(1).is_some() && known.get(2).is_some());
        known.keep(3, &columns(1));
        assert!(known.get(1).is_none() && known.get(3).is_some());
        known.keep(4, &columns(FIELDS_MAX));
        assert!(known.get(4).is_none() && known.get(3).is_some());
    }
}
