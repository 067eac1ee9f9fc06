//! Header lines of several CSV files: rows are read by the positions of columns, so these have to be the same.

use super::CHECKS;
use arrow::csv::reader::Format;
use datafusion::error::{DataFusionError, Result};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use std::io::Cursor;

/// Bytes of a file that hold its header line.
const HEADER_BYTES: usize = 64 << 10;

/// A file with other columns than the first one, if there is one: its name, its columns and those of the first.
pub(super) async fn differing(
    store: &dyn ObjectStore,
    files: &[ObjectMeta],
    format: &Format,
) -> Result<Option<(String, String, String)>> {
    let read = |file: &ObjectMeta| {
        let file = file.clone();
        async move { Ok::<_, DataFusionError>((columns(store, &file, format).await?, file)) }
    };
    let mut all = stream::iter(files.iter().map(read)).buffered(CHECKS);
    let Some((first, _)) = all.try_next().await? else { return Ok(None) };
    while let Some((columns, file)) = all.try_next().await? {
        // A file without a line has no rows either.
        if columns != first && !columns.is_empty() {
            let name = file.location.filename().unwrap_or_default().to_string();
            return Ok(Some((name, columns.join(", "), first.join(", "))));
        }
    }
    Ok(None)
}

async fn columns(
    store: &dyn ObjectStore,
    file: &ObjectMeta,
    format: &Format,
) -> Result<Vec<String>> {
    let mut bytes = store.get(&file.location).await?.into_stream();
    let mut start = Vec::new();
    while start.len() < HEADER_BYTES
        && let Some(more) = bytes.try_next().await?
    {
        start.extend_from_slice(&more);
    }
    let (schema, _) = format.infer_schema(Cursor::new(start), Some(0))?;
    Ok(schema.fields().iter().map(|field| field.name().clone()).collect())
}
