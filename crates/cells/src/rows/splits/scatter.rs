//! Distributes rows to parts, mostly by the hashes of their keys. A part has its rows in the order of the input.
//!
//! ```text
//! split ──▶ units of rows, sorted by part ──▶ in order ──▶ part 0: slices of all units
//!                                                          part 1: …                     files, where memory is short
//! ```

use super::gather::{Unit, bounds, memory_of, partitions_of};
use super::groups::evaluated;
use super::in_order::{Begin, in_order};
use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait, UInt32Array,
};
use datafusion::arrow::compute::{BatchCoalescer, concat_batches, take_record_batch};
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::spill_file::SpillFile;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, SpillMetrics};
use datafusion::physical_plan::spill::SpillManager;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The part of each row of a partition of the input; a row that is in none has the number of parts.
type PartsOf = Box<dyn Fn(usize, &RecordBatch) -> Result<Vec<u32>> + Send + Sync>;

/// Determines the part of a row.
pub(super) struct Scatter {
    parts: usize,
    by: By,
}

enum By {
    Keys(Vec<Arc<dyn PhysicalExpr>>, RandomState),
    Other(PartsOf),
}

/// Rows sorted by part.
struct Sorted {
    rows: RecordBatch,
    /// The row after the last one of each part.
    ends: Vec<u32>,
    /// The bits that the hashes of the keys of each part choose.
    key_bits: Vec<u64>,
}

/// The hash of keys of rows that were scattered `depth` times before. Seeds that differ in few bits hash integers alike: all
/// rows of a part would have one part again.
pub(super) const fn hash_at(seed: u64, depth: usize) -> RandomState {
    RandomState::with_seed(seed ^ (depth as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Keys choose some of 64 bits. Up to so many bits, which 44 keys choose on average, keys are few.
const FEW_KEY_BITS: u32 = 32;

/// True if the keys that chose these bits are so few that another scatter would divide their rows little.
pub(super) fn has_few_keys(key_bits: u64) -> bool {
    key_bits.count_ones() <= FEW_KEY_BITS
}

/// True if no scatter would divide the rows whose keys chose these bits, as far as the bits distinguish keys.
pub(super) fn has_one_key(key_bits: u64) -> bool {
    key_bits.count_ones() <= 1
}

impl Scatter {
    /// Rows with equal keys have one part.
    pub(super) fn by_keys(
        keys: Vec<Arc<dyn PhysicalExpr>>,
        parts: usize,
        state: RandomState,
    ) -> Self {
        Scatter { parts, by: By::Keys(keys, state) }
    }

    /// `of` returns the part of each row of a partition of the input, and the number of parts for a row that is in none.
    pub(super) fn by(
        parts: usize,
        of: impl Fn(usize, &RecordBatch) -> Result<Vec<u32>> + Send + Sync + 'static,
    ) -> Self {
        Scatter { parts, by: By::Other(Box::new(of)) }
    }

    /// The part of each row, and the bits that the keys of each part choose.
    fn places(&self, partition: usize, rows: &RecordBatch) -> Result<(Vec<u32>, Vec<u64>)> {
        let (keys, state) = match &self.by {
            By::Keys(keys, state) => (keys, state),
            // The keys may be many.
            By::Other(of) => return Ok((of(partition, rows)?, vec![u64::MAX; self.parts])),
        };
        let mut key_bits = vec![0; self.parts];
        let hashes = hashes_of(&evaluated(keys, rows)?, rows.num_rows(), state)?;
        let places = hashes.into_iter().map(|hash| {
            let part = part_of(hash, self.parts);
            // Parts follow from the upper bits.
            key_bits[part as usize] |= 1 << (hash % u64::from(u64::BITS));
            part
        });
        Ok((places.collect(), key_bits))
    }

    fn sorted(&self, partition: usize, rows: &RecordBatch) -> Result<Sorted> {
        let (parts, key_bits) = self.places(partition, rows)?;
        // Behind the parts are the rows that are in none.
        let mut ends = vec![0u32; self.parts + 1];
        for &part in &parts {
            ends[part as usize] += 1;
        }
        let mut start = 0;
        for end in &mut ends {
            (*end, start) = (start, start + *end);
        }
        let mut order = vec![0u32; parts.len()];
        for (row, &part) in parts.iter().enumerate() {
            let next = &mut ends[part as usize];
            order[*next as usize] = row as u32;
            *next += 1;
        }
        ends.truncate(self.parts);
        order.truncate(ends.last().map_or(0, |end| *end as usize));
        let rows = take_record_batch(rows, &UInt32Array::from(order))?;
        Ok(Sorted { rows, ends, key_bits })
    }
}

/// The part of each of `rows` rows, by the hash of its keys.
pub(super) fn parts_of(
    keys: &[ArrayRef],
    rows: usize,
    state: &RandomState,
    parts: usize,
) -> Result<Vec<u32>> {
    let hashes = hashes_of(keys, rows, state)?;
    Ok(hashes.into_iter().map(|hash| part_of(hash, parts)).collect())
}

fn hashes_of(keys: &[ArrayRef], rows: usize, state: &RandomState) -> Result<Vec<u64>> {
    let mut hashes = vec![0; rows];
    create_hashes(keys, state, &mut hashes)?;
    Ok(hashes)
}

fn part_of(hash: u64, parts: usize) -> u32 {
    // The upper half of the product is below `parts`.
    (((hash >> 32) * parts as u64) >> 32) as u32
}

/// The rows of a part: first those in its file, then those in memory.
struct PartRows {
    count: usize,
    bytes: usize,
    key_bits: u64,
    file: Option<Arc<dyn SpillFile>>,
    rows: Vec<RecordBatch>,
}

pub(in crate::rows) struct Scattered {
    files: SpillManager,
    parts: Vec<PartRows>,
    _memory: MemoryReservation,
}

impl fmt::Debug for Scattered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scattered").field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}

impl Scattered {
    pub(in crate::rows) fn count(&self, part: usize) -> usize {
        self.parts[part].count
    }

    /// The number of the rows of all parts before one.
    pub(in crate::rows) fn before(&self, part: usize) -> usize {
        self.parts[..part].iter().map(|part| part.count).sum()
    }

    pub(in crate::rows) fn bytes(&self, part: usize) -> usize {
        self.parts[part].bytes
    }

    pub(super) fn count_parts(&self) -> usize {
        self.parts.len()
    }

    /// Bytes of the values of all parts.
    pub(super) fn all_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// The bits that the hashes of the keys of a part choose; all if parts have no whole keys.
    pub(in crate::rows) fn key_bits(&self, part: usize) -> u64 {
        self.parts[part].key_bits
    }

    /// The rows of a part, as the input of other operators.
    pub(super) fn plan(self: &Arc<Self>, part: usize) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = self.files.schema().clone();
        let rows = Arc::new(Part { of: self.clone(), part });
        Ok(Arc::new(StreamingTableExec::try_new(schema, vec![rows], None, [], false, None)?))
    }

    /// The rows of a part, in order.
    pub(in crate::rows) fn rows(
        &self,
        part: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let PartRows { file, rows, .. } = &self.parts[part];
        let rows = stream::iter(rows.clone().into_iter().map(Ok));
        match file {
            Some(file) => {
                Ok(self.files.read_spill_as_stream(file.clone(), None)?.chain(rows).boxed())
            }
            None => Ok(rows.boxed()),
        }
    }

    /// As [`Scattered::rows`], in batches of at most `batch_rows` rows, and fewer if these are long. They share no
    /// memory with other parts.
    pub(in crate::rows) fn apart(
        &self,
        part: usize,
        batch_rows: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let joined = BatchCoalescer::new(self.files.schema().clone(), batch_rows);
        let batches = stream::try_unfold(
            (Some(self.rows(part)?), joined, 0_usize),
            |(mut rows, mut joined, mut bytes)| async move {
                loop {
                    if let Some(batch) = joined.next_completed_batch() {
                        return Ok(Some((batch, (rows, joined, bytes))));
                    }
                    let Some(left) = &mut rows else { return Ok(None) };
                    let Some(batch) = left.try_next().await? else {
                        rows = None;
                        joined.finish_buffered_batch()?;
                        continue;
                    };
                    for piece in pieces(batch) {
                        bytes += value_bytes(&piece);
                        joined.push_batch(piece)?;
                        if bytes >= APART_BYTES {
                            joined.finish_buffered_batch()?;
                            bytes = 0;
                        }
                    }
                }
            },
        );
        Ok(batches.boxed())
    }
}

/// Bytes of values at which batches of moved rows end.
const APART_BYTES: usize = 16 << 20;

/// The rows of a batch, in pieces that are not larger than [`APART_BYTES`], unless they are single rows.
fn pieces(rows: RecordBatch) -> Vec<RecordBatch> {
    let count = rows.num_rows();
    if count < 2 || value_bytes(&rows) <= APART_BYTES {
        return vec![rows];
    }
    let (first, last) = (rows.slice(0, count / 2), rows.slice(count / 2, count - count / 2));
    [pieces(first), pieces(last)].concat()
}

#[derive(Debug)]
struct Part {
    of: Arc<Scattered>,
    part: usize,
}

impl PartitionStream for Part {
    fn schema(&self) -> &SchemaRef {
        self.of.files.schema()
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (of, part) = (self.of.clone(), self.part);
        let rows = stream::once(async move { of.rows(part) }).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(self.schema().clone(), rows))
    }
}

/// Reads all splits of the input and distributes their rows. They may take a `share`-th of a statement's memory: the
/// groups of a part need some too.
pub(super) async fn scattered(
    input: Arc<dyn ExecutionPlan>,
    scatter: Scatter,
    share: usize,
    context: &Arc<TaskContext>,
) -> Result<Scattered> {
    let splits = input.output_partitioning().partition_count();
    let mut lists = Lists::new(input.schema(), scatter, share, context);
    lists.read(input, 0..splits, context).await?;
    lists.finish()
}

/// Turns the batches of the partitions from `first` on to units.
fn units(
    rows: Begin<RecordBatch>,
    first: usize,
    schema: SchemaRef,
    unit: Unit,
    scatter: Arc<Scatter>,
) -> Begin<Sorted> {
    Box::new(move |split| {
        let (schema, scatter) = (schema.clone(), scatter.clone());
        let partition = first + split;
        let units = stream::try_unfold(Some(rows(partition)), move |rows| {
            let (schema, scatter) = (schema.clone(), scatter.clone());
            async move {
                let Some(mut rows) = rows else { return Ok(None) };
                let Some((batches, has_more)) = unit.next(&mut rows).await? else {
                    return Ok(None);
                };
                let sorted = scatter.sorted(partition, &concat_batches(&schema, &batches)?)?;
                Ok(Some((sorted, has_more.then_some(rows))))
            }
        });
        units.boxed()
    })
}

/// A file that is written: appends rows, or returns the file if there are none. DataFusion does not export its type.
type Open = Box<dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send>;

/// A part while rows arrive.
#[derive(Default)]
struct Arriving {
    count: usize,
    bytes: usize,
    key_bits: u64,
    file: Option<Open>,
    rows: Vec<RecordBatch>,
}

/// The parts while rows arrive.
pub(super) struct Lists {
    schema: SchemaRef,
    scatter: Arc<Scatter>,
    files: SpillManager,
    parts: Vec<Arriving>,
    memory: MemoryReservation,
    /// Bytes that the rows in memory may take.
    most: usize,
}

impl Lists {
    /// No rows yet. Those in memory may take a `share`-th of a statement's memory.
    pub(super) fn new(
        schema: SchemaRef,
        scatter: Scatter,
        share: usize,
        context: &TaskContext,
    ) -> Self {
        let metrics = SpillMetrics::new(&ExecutionPlanMetricsSet::new(), 0);
        Lists {
            files: SpillManager::new(context.runtime_env(), metrics, schema.clone()),
            schema,
            parts: (0..scatter.parts).map(|_| Arriving::default()).collect(),
            scatter: Arc::new(scatter),
            memory: MemoryConsumer::new("scattered rows").register(context.memory_pool()),
            most: memory_of(context) / share,
        }
    }

    /// Distributes the rows of some splits of an input, behind those that it has.
    pub(super) async fn read(
        &mut self,
        input: Arc<dyn ExecutionPlan>,
        splits: Range<usize>,
        context: &Arc<TaskContext>,
    ) -> Result<()> {
        let (schema, scatter) = (self.schema.clone(), self.scatter.clone());
        let rows = partitions_of(input, context.clone());
        let begin = units(rows, splits.start, schema, Unit::of(context), scatter);
        let size = |unit: &Sorted| get_record_batch_memory_size(&unit.rows);
        let mut units = in_order(splits.len(), begin, size, bounds("scattered rows", context));
        while let Some(unit) = units.try_next().await? {
            self.add(unit)?;
        }
        Ok(())
    }

    fn add(&mut self, unit: Sorted) -> Result<()> {
        let bytes = get_record_batch_memory_size(&unit.rows);
        let fits = self.memory.size() + bytes <= self.most && self.memory.try_grow(bytes).is_ok();
        let mut start = 0;
        let unit_parts = unit.ends.iter().zip(&unit.key_bits);
        for (part, (&end, key_bits)) in self.parts.iter_mut().zip(unit_parts) {
            if start < end {
                part.key_bits |= key_bits;
                let rows = unit.rows.slice(start as usize, (end - start) as usize);
                part.count += rows.num_rows();
                part.bytes += value_bytes(&rows);
                part.rows.push(rows);
            }
            start = end;
        }
        if !fits {
            self.spill()?;
        }
        Ok(())
    }

    /// Appends the rows in memory to the files of their parts.
    pub(super) fn spill(&mut self) -> Result<()> {
        for Arriving { file, rows, .. } in &mut self.parts {
            if rows.is_empty() {
                continue;
            }
            let mut open = match file.take() {
                Some(open) => open,
                None => {
                    let mut created = self.files.create_in_progress_file("scattering rows")?;
                    Box::new(move |rows: Option<&RecordBatch>| match rows {
                        Some(rows) => created.append_batch(rows).map(|_| None),
                        None => created.finish(),
                    })
                }
            };
            for rows in rows.drain(..) {
                open(Some(&rows))?;
            }
            *file = Some(open);
        }
        self.memory.free();
        Ok(())
    }

    /// All rows.
    pub(super) fn finish(self) -> Result<Scattered> {
        let parts =
            self.parts.into_iter().map(|Arriving { count, bytes, key_bits, file, rows }| {
                let file = file.map(|mut open| open(None)).transpose()?.flatten();
                Ok(PartRows { count, bytes, key_bits, file, rows })
            });
        let parts = parts.collect::<Result<_>>()?;
        Ok(Scattered { files: self.files, parts, _memory: self.memory })
    }
}

/// Assumed bytes of a value of unknown width, and of the overhead of a text.
const NOMINAL_BYTES: usize = 16;

/// Bytes of the values of some rows: the same whatever batches they are in and whatever buffers hold them.
pub(super) fn value_bytes(rows: &RecordBatch) -> usize {
    rows.columns().iter().map(array_bytes).sum()
}

fn array_bytes(array: &ArrayRef) -> usize {
    let inner = match array.data_type() {
        DataType::Utf8 => range(array.as_string::<i32>().value_offsets()).len(),
        DataType::LargeUtf8 => range(array.as_string::<i64>().value_offsets()).len(),
        DataType::Binary => range(array.as_binary::<i32>().value_offsets()).len(),
        DataType::LargeBinary => range(array.as_binary::<i64>().value_offsets()).len(),
        DataType::Utf8View => array.as_string_view().lengths().map(|length| length as usize).sum(),
        DataType::BinaryView => {
            array.as_binary_view().lengths().map(|length| length as usize).sum()
        }
        DataType::List(_) => list_bytes(array.as_list::<i32>()),
        DataType::LargeList(_) => list_bytes(array.as_list::<i64>()),
        DataType::FixedSizeList(..) => array_bytes(array.as_fixed_size_list().values()),
        DataType::FixedSizeBinary(width) => usize::try_from(*width).unwrap_or(0) * array.len(),
        DataType::Struct(_) => array.as_struct().columns().iter().map(array_bytes).sum(),
        DataType::Map(..) => {
            let map = array.as_map();
            let of = range(map.value_offsets());
            let entries = map.entries().slice(of.start, of.len());
            entries.columns().iter().map(array_bytes).sum()
        }
        _ => 0,
    };
    inner + array.len() * array.data_type().primitive_width().unwrap_or(NOMINAL_BYTES)
}

fn list_bytes<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> usize {
    let of = range(lists.value_offsets());
    array_bytes(&lists.values().slice(of.start, of.len()))
}

/// The range that the offsets of texts or lists refer to.
fn range<O: OffsetSizeTrait>(offsets: &[O]) -> Range<usize> {
    offsets[0].as_usize()..offsets[offsets.len() - 1].as_usize()
}

#[cfg(test)]
mod tests;
