//! Scans of files and of rows in memory, cut into splits.
//!
//! The cuts follow from the files' sizes and the numbers of rows alone, never from threads. A range of a Parquet file
//! has the row groups that begin in it, one of an Arrow file the record batches, a range of an NDJSON file the lines that
//! begin in it, one of a CSV file the rows ([`super::super::csv`]). Arrow streams are not cut: nothing lists their batches.

use super::super::guard::{can_be_cut, of_ranges};
use super::super::ipc;
use super::{SPLITS_MAX, SplitSize};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::{DataSource, DataSourceExec};
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use std::any::Any;
use std::sync::Arc;
use tessera_storage::source::Packing;

/// Largest number of splits of a scan that has fewer of the usual size.
const SPLITS_FEW: u64 = 8;

/// So many CSV files are not cut if none has more than half of all bytes.
const WHOLE_FILES: usize = 4;

/// The scan with a partition for each split, or `None` if it has only one.
pub(super) fn split(
    scan: &DataSourceExec,
    size: SplitSize,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let source = scan.data_source().as_ref() as &dyn Any;
    if let Some(files) = source.downcast_ref::<FileScanConfig>() {
        return Ok(files_of(files, scan, size.bytes));
    }
    match source.downcast_ref::<MemorySourceConfig>() {
        Some(rows) => rows_of(rows, size),
        None => Ok(None),
    }
}

fn files_of(
    scan: &FileScanConfig,
    node: &DataSourceExec,
    bytes: u64,
) -> Option<Arc<dyn ExecutionPlan>> {
    let [files] = scan.file_groups.as_slice() else { return None };
    if scan.limit.is_some() {
        return None;
    }
    let total: u64 = files.iter().map(PartitionedFile::effective_size).sum();
    // Of equal size. A small scan has up to eight smaller splits: it is often a side of a join.
    let few = total.div_ceil((bytes / SPLITS_FEW).max(1)).min(SPLITS_FEW);
    let splits = total.div_ceil(bytes).clamp(few.max(1), SPLITS_MAX);
    let bytes = total.div_ceil(splits).max(1);
    let largest = files.iter().map(PartitionedFile::effective_size).max().unwrap_or(0);
    let is_packed =
        |file: &PartitionedFile| Packing::of(file.object_meta.location.as_ref()).is_some();
    let is_cut = !files.iter().any(is_packed)
        && match scan.file_source.file_type() {
            "parquet" | "json" | "arrow" => true,
            // Files of similar sizes are splits as they are, which workers can compute, too.
            "csv" => {
                let few = files.len() < WHOLE_FILES || largest > total / 2;
                few && can_be_cut(&scan.file_source)
            }
            _ => false,
        };
    let is_arrow = scan.file_source.file_type() == "arrow";
    let cuts = |file: &PartitionedFile| {
        is_cut && !(is_arrow && ipc::is_stream(&file.object_meta.location))
    };
    let groups = groups(files.iter(), bytes, cuts);
    if groups.len() == 1 {
        return None;
    }
    let of_csv = if is_cut { of_ranges(&scan.file_source, &groups) } else { None };
    let source = of_csv.unwrap_or_else(|| scan.file_source.clone());
    let is_ordered = node.properties().output_ordering().is_some();
    let order = if is_ordered { scan.output_ordering.clone() } else { Vec::new() };
    let scan = FileScanConfigBuilder::from(scan.clone())
        .with_source(source)
        .with_file_groups(groups)
        .with_output_ordering(order)
        // Else a partition takes over files of others.
        .with_preserve_order(true)
        .build();
    Some(DataSourceExec::from_data_source(scan))
}

/// Cuts files into groups of about `bytes` bytes, in order.
fn groups<'a>(
    files: impl Iterator<Item = &'a PartitionedFile>,
    bytes: u64,
    is_cut: impl Fn(&PartitionedFile) -> bool,
) -> Vec<FileGroup> {
    let (mut groups, mut group, mut filled) = (Vec::new(), Vec::new(), 0);
    for file in files {
        let (mut start, end) = file.range();
        if !is_cut(file) || end <= start {
            group.push(file.clone());
            filled += end.saturating_sub(start);
            start = end;
        }
        while start < end {
            let length = (bytes - filled.min(bytes - 1)).min(end - start);
            let part = file.clone();
            group.push(match length == file.effective_size() {
                true => part,
                false => part.with_range(start as i64, (start + length) as i64),
            });
            filled += length;
            start += length;
            if filled >= bytes {
                groups.push(FileGroup::new(std::mem::take(&mut group)));
                filled = 0;
            }
        }
        if filled >= bytes {
            groups.push(FileGroup::new(std::mem::take(&mut group)));
            filled = 0;
        }
    }
    if !group.is_empty() || groups.is_empty() {
        groups.push(FileGroup::new(group));
    }
    groups
}

fn rows_of(scan: &MemorySourceConfig, size: SplitSize) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let ([batches], None) = (scan.partitions(), scan.fetch()) else { return Ok(None) };
    let total: usize = batches.iter().map(|batch| batch.num_rows()).sum();
    let rows = size.rows_of(total as u64) as usize;
    if total <= rows || !scan.sort_information().is_empty() {
        return Ok(None);
    }
    let (mut splits, mut split, mut filled) = (Vec::new(), Vec::new(), 0);
    for batch in batches {
        let mut at = 0;
        while at < batch.num_rows() {
            let length = (rows - filled).min(batch.num_rows() - at);
            split.push(batch.slice(at, length));
            at += length;
            filled += length;
            if filled == rows {
                splits.push(std::mem::take(&mut split));
                filled = 0;
            }
        }
    }
    if !split.is_empty() {
        splits.push(split);
    }
    let scan =
        MemorySourceConfig::try_new(&splits, scan.original_schema(), scan.projection().clone())?;
    Ok(Some(DataSourceExec::from_data_source(scan)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(sizes: &[u64], bytes: u64, is_cut: bool) -> Vec<Vec<(String, u64, u64)>> {
        let files: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(i, &n)| PartitionedFile::new(format!("{i}"), n))
            .collect();
        let shown = |file: &PartitionedFile| {
            let (start, end) = file.range();
            (file.object_meta.location.to_string(), start, end)
        };
        let groups = groups(files.iter(), bytes, |_| is_cut);
        groups.iter().map(|group| group.iter().map(shown).collect()).collect()
    }

    fn at(file: u64, start: u64, end: u64) -> (String, u64, u64) {
        (file.to_string(), start, end)
    }

    #[test]
    fn splits_follow_from_the_sizes_of_files() {
        let three = vec![vec![at(0, 0, 10)], vec![at(0, 10, 20)], vec![at(0, 20, 25)]];
        assert_eq!(cut(&[25], 10, true), three);
        let shared = vec![vec![at(0, 0, 4), at(1, 0, 6)], vec![at(1, 6, 7), at(2, 0, 3)]];
        assert_eq!(cut(&[4, 7, 3], 10, true), shared);
        let whole = vec![vec![at(0, 0, 4), at(1, 0, 7)], vec![at(2, 0, 30)], vec![at(3, 0, 3)]];
        assert_eq!(cut(&[4, 7, 30, 3], 10, false), whole);
        assert_eq!(cut(&[], 10, true), vec![Vec::new()]);
        assert_eq!(cut(&[0, 0], 10, true), vec![vec![at(0, 0, 0), at(1, 0, 0)]]);
    }
}
