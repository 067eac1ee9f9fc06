//! References in tables: a directory with the metadata in one document and the references in Parquet.
//!
//! ```text
//!   .zmetadata            {"metadata": {".zgroup": …, "t/.zarray": …}, "record_size": 10000}
//!   t/refs.0.parq         the chunks 0 to 9999 of `t`, by their places in row-major order
//!   t/refs.1.parq         those from 10000 on; a table without references is absent
//! ```
//! Only the tables of chunks that are read are fetched. They are cached as long as `.zmetadata`, which writers replace
//! last, is the same.
//!
//! # Source
//! fsspec's `LazyReferenceMapper` and kerchunk's `refs_to_dataframe`.

use super::part::{Directory, File, Reference};
use super::table::{Row, Table};
use crate::lock;
use crate::source::error::SourceError;
use crate::source::location::{Location, Options};
use crate::source::store::{METADATA_BYTES_MAX, Store, Stores};
use bytes::Bytes;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::OnceCell;

pub(super) const DOCUMENT: &str = ".zmetadata";

/// Key of the number of rows of a table in the document.
const RECORD_SIZE: &str = "record_size";

/// Upper bound on the rows of a table.
const RECORD_SIZE_MAX: u64 = 1 << 22;

/// Upper bound on the approximate bytes of the cached tables of a dataset.
const CACHED_BYTES_MAX: usize = 64 << 20;

/// Upper bound on the cached tables of a dataset.
const CACHED_MAX: usize = 256;

/// True for the document of such a directory.
pub(in crate::source) fn is_document(document: &Map<String, Value>) -> bool {
    document.contains_key(RECORD_SIZE) && document.get("metadata").is_some_and(Value::is_object)
}

/// The references of a directory.
pub(super) struct Tables {
    store: Store,
    directory: Directory,
    options: Options,
    stores: Stores,
    record_size: u64,
    /// Documents of groups and arrays by key, and the consolidated document.
    documents: BTreeMap<String, Bytes>,
    /// By path.
    arrays: BTreeMap<String, Chunks>,
    cache: Mutex<Cache>,
}

/// The chunks of an array.
#[derive(Debug)]
struct Chunks {
    /// Number of chunks along each axis.
    counts: Vec<u64>,
    separator: char,
}

/// A table while and after it is read; `None` if it does not exist.
type Slot = Arc<OnceCell<Option<Arc<Table>>>>;

#[derive(Default)]
struct Cache {
    by_key: BTreeMap<String, (Slot, u64)>,
    clock: u64,
}

impl Tables {
    /// Parses the document of a directory; the error describes the expected form.
    pub(super) fn parse(
        mut document: Map<String, Value>,
        store: &Store,
        location: &Location,
        options: &Options,
        stores: &Stores,
    ) -> Result<Tables, String> {
        let size = document.remove(RECORD_SIZE);
        let record_size = size.as_ref().and_then(Value::as_u64);
        let record_size =
            record_size.filter(|n| (1..=RECORD_SIZE_MAX).contains(n)).ok_or_else(|| {
                let found = size.map_or_else(|| "missing".into(), |v| v.to_string());
                format!("`{RECORD_SIZE}` is {found}, expected 1 to {RECORD_SIZE_MAX}")
            })?;
        let Some(Value::Object(metadata)) = document.get("metadata") else {
            return Err("`metadata` is missing or not an object".into());
        };
        let (mut documents, mut arrays) = (BTreeMap::new(), BTreeMap::new());
        for (key, value) in metadata {
            let (path, file) = key.rsplit_once('/').unwrap_or(("", key));
            // The array with faulty metadata is reported by Zarr's reader.
            if file == ".zarray"
                && let Some(chunks) = Chunks::of(value)
            {
                arrays.insert(path.to_string(), chunks);
            }
            let text = match value {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            documents.insert(key.clone(), text.into());
        }
        documents.insert(DOCUMENT.into(), Value::Object(document).to_string().into());
        Ok(Tables {
            store: store.unnoted(),
            directory: Directory::at(location),
            options: options.clone(),
            stores: stores.clone(),
            record_size,
            documents,
            arrays,
            cache: Mutex::default(),
        })
    }

    /// Keys of the documents.
    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.documents.keys()
    }

    pub(super) async fn find(&self, key: &str) -> Result<Option<Reference>, SourceError> {
        if let Some(text) = self.documents.get(key) {
            return Ok(Some(Reference::Inline(text.clone())));
        }
        let Some((array, number)) = self.chunk(key) else { return Ok(None) };
        let (table, row) = (number / self.record_size, number % self.record_size);
        let name = format!("refs.{table}.parq");
        let path = if array.is_empty() { name } else { format!("{array}/{name}") };
        let Some(table) = self.table(&path).await? else { return Ok(None) };
        let found = table.row(row as usize).ok_or_else(|| {
            let rows = table.rows();
            self.bad(&path, format!("it has {rows} rows, expected one for `{key}`, row {row}"))
        })?;
        match found {
            Row::Absent => Ok(None),
            Row::Inline(bytes) => Ok(Some(Reference::Inline(bytes))),
            Row::Part { path, range } => {
                let file = File::at(&path, &self.directory, &self.options, &self.stores)?;
                Ok(Some(Reference::Part { file: Arc::new(file), range }))
            }
        }
    }

    /// The array of a chunk's key, and the place of the chunk in row-major order.
    fn chunk<'k>(&self, key: &'k str) -> Option<(&'k str, u64)> {
        let of_root = self.arrays.contains_key("").then_some(("", key));
        let splits = key.rmatch_indices('/').map(|(i, _)| (&key[..i], &key[i + 1..]));
        let (array, place) = splits.chain(of_root).find(|(a, _)| self.arrays.contains_key(*a))?;
        Some((array, self.arrays.get(array)?.number(place)?))
    }

    /// A table, from the cache or its file; `None` if it does not exist. Concurrent requests for a table read it once.
    async fn table(&self, key: &str) -> Result<Option<Arc<Table>>, SourceError> {
        let slot = self.slot(key);
        let read = async || {
            let Some(file) = self.store.get_within(key, METADATA_BYTES_MAX).await? else {
                return Ok(None);
            };
            let table = crate::disk::wait(|| Table::parse(file, self.record_size));
            table.map(|t| Some(Arc::new(t))).map_err(|reason| self.bad(key, reason))
        };
        let table = slot.get_or_try_init(read).await?.clone();
        self.evict(key);
        Ok(table)
    }

    fn slot(&self, key: &str) -> Slot {
        let mut cache = lock(&self.cache);
        cache.clock += 1;
        let clock = cache.clock;
        let (slot, used) = cache.by_key.entry(key.to_string()).or_default();
        *used = clock;
        slot.clone()
    }

    /// Removes the least recently used tables until the others fit, but not the table of `key`.
    fn evict(&self, key: &str) {
        let mut cache = lock(&self.cache);
        let bytes = |slot: &Slot| slot.get().and_then(Option::as_ref).map_or(0, |t| t.bytes());
        let mut all: usize = cache.by_key.values().map(|(slot, _)| bytes(slot)).sum();
        while all > CACHED_BYTES_MAX || cache.by_key.len() > CACHED_MAX {
            let others = cache.by_key.iter().filter(|(k, _)| *k != key);
            let oldest = others.min_by_key(|(_, (_, used))| *used).map(|(k, _)| k.clone());
            let Some((slot, _)) = oldest.and_then(|k| cache.by_key.remove(&k)) else { return };
            all = all.saturating_sub(bytes(&slot));
        }
    }

    fn bad(&self, key: &str, reason: String) -> SourceError {
        SourceError::BadFile {
            path: self.store.show(key),
            format: "references".into(),
            at: 0,
            reason,
        }
    }
}

impl Chunks {
    /// The chunks of an array with the metadata of Zarr v2.
    fn of(array: &Value) -> Option<Chunks> {
        let list = |key: &str| -> Option<Vec<u64>> {
            array.get(key)?.as_array()?.iter().map(Value::as_u64).collect()
        };
        let (shape, chunks) = (list("shape")?, list("chunks")?);
        if shape.len() != chunks.len() || chunks.contains(&0) {
            return None;
        }
        let counts = shape.iter().zip(&chunks).map(|(n, c)| n.div_ceil(*c)).collect();
        let separator = array.get("dimension_separator").and_then(Value::as_str);
        Some(Chunks { counts, separator: if separator == Some("/") { '/' } else { '.' } })
    }

    /// The place of a chunk in row-major order; `None` if the key is that of no chunk.
    fn number(&self, key: &str) -> Option<u64> {
        if self.counts.is_empty() {
            return (key == "0").then_some(0);
        }
        let mut counts = self.counts.iter();
        let number = key.split(self.separator).try_fold(0u64, |number, digits| {
            let (count, i) = (*counts.next()?, digits.parse::<u64>().ok()?);
            if i >= count {
                return None;
            }
            number.checked_mul(count)?.checked_add(i)
        })?;
        counts.next().is_none().then_some(number)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn chunks_have_numbers_in_row_major_order() {
        // numpy.ravel_multi_index((1, 0, 2), (2, 1, 3)) is 5.
        let array = json!({"shape": [7, 5, 9], "chunks": [4, 5, 3]});
        let chunks = Chunks::of(&array).unwrap();
        assert_eq!(chunks.number("1.0.2"), Some(5));
        assert_eq!(chunks.number("0.0.0"), Some(0));
        for key in ["2.0.0", "1.0", "1.0.2.0", "1.0.x", "1/0/2", ".zarray", "", "-1.0.0"] {
            assert_eq!(chunks.number(key), None, "{key}");
        }
        let slashes = json!({"shape": [7, 5], "chunks": [4, 5], "dimension_separator": "/"});
        assert_eq!(Chunks::of(&slashes).unwrap().number("1/0"), Some(1));
        let point = Chunks::of(&json!({"shape": [], "chunks": []})).unwrap();
        assert_eq!((point.number("0"), point.number("1")), (Some(0), None));
        let huge = json!({"shape": [u64::MAX, u64::MAX], "chunks": [1, 1]});
        assert_eq!(Chunks::of(&huge).unwrap().number("9999999999.9999999999"), None);
        assert!(Chunks::of(&json!({"shape": [7], "chunks": [0]})).is_none());
    }
}
