//! Validates the list lengths in a Parquet file's metadata before its reader trusts them.
//!
//! The reader allocates memory for as many row groups and pages as a list claims, and a list may claim two
//! billion: the process would abort. So this module walks the footer and the offset indexes, in Thrift's compact
//! protocol, and fails if an element count or a length exceeds the remaining bytes.

use datafusion::error::{DataFusionError, Result as Found};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use tessera_storage::source::SourceError;
pub(super) use tessera_storage::thrift::Compact;

/// Bytes of the first read at a file's end: mostly the whole footer.
const TAIL_BYTES: u64 = 64 << 10;

/// Validates a Parquet file.
///
/// # Errors
/// `SourceError::Damaged`; those of the storage.
pub(crate) async fn check_parquet(
    store: &dyn ObjectStore,
    meta: &ObjectMeta,
    shown: &str,
) -> Found<()> {
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
    for index in store.get_ranges(at, &within).await? {
        let walked = Compact::new(&index).structure(&mut |_, _| {});
        walked.map_err(|reason| damaged(&format!("an offset index: {reason}")))?;
    }
    Ok(())
}
