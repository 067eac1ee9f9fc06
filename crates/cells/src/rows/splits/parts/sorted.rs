//! Parts of a sort: the rows between two bounds, sorted.
//!
//! ```text
//! split ──▶ rows at equal distances ──┐ of all splits: bounds between parts of about the same number of rows
//! split ──▶ …                         ┘
//!           all rows wait ─────────────▶ distributed to parts, in the order of the splits ──▶ each part is sorted
//! ```
//! Samples follow from the rows of a split alone, and bounds from the samples of all splits, so all workers get the
//! same ones. Parts follow each other as the rows of the result do. Equal keys are in the order of their splits.

use super::super::gather::{Unit, bounds, memory_of, partitions_of, turns_of};
use super::super::in_order::{Begin, in_order};
use super::super::key_bounds::{Bound, KeyBounds};
use super::super::keys::Keys;
use super::super::scatter::{Lists, Scatter, Scattered};
use super::super::sort::sorted_beside;
use super::KEPT_SHARE;
use super::waiting::Waiting;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, BinaryArray, UInt32Array, UInt64Array};
use datafusion::arrow::compute::take_record_batch;
use datafusion::arrow::datatypes::{DataType, UInt32Type, UInt64Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::internal_err;
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows between two samples of a small split.
const STEP: usize = 16;

/// Upper bounds on the samples of a split, and on the bytes of their keys. Beyond them every second one remains.
const SAMPLES_MAX: usize = 256;
const SAMPLE_BYTES_MAX: usize = 16 << 10;

/// Maximum bytes of a key that are the sample. As a bound they are before all keys that begin with them.
const KEY_BYTES_MAX: usize = 4 << 10;

/// Rows whose parts are not known yet may take this part of a worker's memory for rows of a statement.
const UNKNOWN_SHARE: usize = 2 * KEPT_SHARE;

/// Share of a worker's memory for rows of a statement that all its tasks may use to sort.
const SORTING_SHARE: usize = 4;

#[derive(Debug, Clone)]
pub(super) struct SortOfSplits {
    pub(super) input: Arc<dyn ExecutionPlan>,
    pub(super) order: LexOrdering,
    /// Rows with the same first `whole` keys are in one part. With 0, rows with the same keys may be in several, but not
    /// those of one split.
    pub(super) whole: usize,
}

/// The key of a row that represents others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::rows) struct Sample {
    key: Vec<u8>,
    split: u32,
    /// Number of rows that it represents.
    rows: u64,
}

/// The columns of samples that are sent.
pub(in crate::rows) const SAMPLE_COLUMNS: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::rows) struct PartBounds(Vec<Bound>);

/// The samples of some splits, and their rows until their parts are known.
#[derive(Debug)]
pub(in crate::rows) struct Sampled {
    samples: Vec<Sample>,
    waiting: Mutex<Option<Arc<Waiting>>>,
}

impl Sampled {
    pub(in crate::rows) fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The samples as one batch, for another worker.
    pub(in crate::rows) fn batch(&self) -> Result<RecordBatch> {
        let keys = BinaryArray::from_iter_values(self.samples.iter().map(|sample| &sample.key));
        let splits = UInt32Array::from_iter_values(self.samples.iter().map(|sample| sample.split));
        let rows = UInt64Array::from_iter_values(self.samples.iter().map(|sample| sample.rows));
        let columns: [(&str, ArrayRef, bool); SAMPLE_COLUMNS] = [
            ("key", Arc::new(keys), false),
            ("split", Arc::new(splits), false),
            ("rows", Arc::new(rows), false),
        ];
        Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
    }

    /// Drops the rows: they are distributed.
    pub(in crate::rows) fn drop_rows(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn waiting(&self) -> Option<Arc<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The samples of [`Sampled::batch`].
pub(in crate::rows) fn samples_of(batch: &RecordBatch) -> Result<Vec<Sample>> {
    let types: Vec<&DataType> = batch.columns().iter().map(|column| column.data_type()).collect();
    let [DataType::Binary, DataType::UInt32, DataType::UInt64] = types[..] else {
        return internal_err!("samples have columns of {types:?}");
    };
    let keys = batch.column(0).as_binary::<i32>();
    let splits = batch.column(1).as_primitive::<UInt32Type>().values();
    let rows = batch.column(2).as_primitive::<UInt64Type>().values();
    let sample =
        |row: usize| Sample { key: keys.value(row).to_vec(), split: splits[row], rows: rows[row] };
    Ok((0..batch.num_rows()).map(sample).collect())
}

impl PartBounds {
    /// Bounds of at most `parts` parts with about the same number of rows.
    fn between(mut samples: Vec<Sample>, parts: usize, whole: usize) -> Self {
        samples.sort_unstable();
        let all = samples.iter().map(|sample| sample.rows).sum::<u64>().max(1);
        let (mut bounds, mut before, mut last): (Vec<Bound>, u64, u64) = (Vec::new(), 0, 0);
        for Sample { key, split, rows } in samples {
            let part = before * parts as u64 / all;
            let bound = (key, if whole > 0 { 0 } else { split });
            if part > last && bounds.last() != Some(&bound) {
                bounds.push(bound);
                last = part;
            }
            before += rows;
        }
        PartBounds(bounds)
    }
}

/// Chooses rows of a split at equal distances, independent of the batches.
struct Sampler {
    keys: Arc<Keys>,
    whole: usize,
    step: usize,
    seen: usize,
    picked: Vec<Vec<u8>>,
    bytes: usize,
}

impl Sampler {
    fn new(keys: Arc<Keys>, whole: usize) -> Self {
        Sampler { keys, whole, step: STEP, seen: 0, picked: Vec::new(), bytes: 0 }
    }

    fn see(&mut self, batches: &[RecordBatch]) -> Result<()> {
        for batch in batches {
            let first = self.seen.next_multiple_of(self.step) - self.seen;
            let rows = (first..batch.num_rows()).step_by(self.step).map(|row| row as u32);
            let rows = UInt32Array::from_iter_values(rows);
            self.seen += batch.num_rows();
            if rows.is_empty() {
                continue;
            }
            let keys = take_record_batch(batch, &rows)?;
            let keys = self.keys.first_of_rows(&keys, self.whole)?;
            for row in 0..rows.len() {
                let mut key = keys.bytes(row);
                key.truncate(KEY_BYTES_MAX);
                self.bytes += key.len();
                self.picked.push(key);
            }
            while self.picked.len() > SAMPLES_MAX || self.bytes > SAMPLE_BYTES_MAX {
                let mut is_even = false;
                self.picked.retain(|_| {
                    is_even = !is_even;
                    is_even
                });
                self.bytes = self.picked.iter().map(Vec::len).sum();
                self.step *= 2;
            }
        }
        Ok(())
    }

    fn samples(self, split: usize) -> Vec<Sample> {
        let (split, rows) = (split as u32, self.step as u64);
        self.picked.into_iter().map(|key| Sample { key, split, rows }).collect()
    }
}

/// The output of a split.
enum Found {
    Rows {
        split: usize,
        rows: Vec<RecordBatch>,
    },
    /// The samples, behind the last rows.
    Samples(Vec<Sample>),
}

fn bytes(found: &Found) -> usize {
    match found {
        Found::Rows { rows, .. } => rows.iter().map(get_record_batch_memory_size).sum(),
        Found::Samples(_) => 0,
    }
}

fn found(
    rows: BoxStream<'static, Result<RecordBatch>>,
    split: usize,
    unit: Unit,
    sampler: Sampler,
) -> BoxStream<'static, Result<Found>> {
    let all = stream::try_unfold(Some((Some(rows), sampler)), move |state| async move {
        let Some((rows, mut sampler)) = state else { return Ok::<_, DataFusionError>(None) };
        let Some(mut rows) = rows else {
            return Ok(Some((Found::Samples(sampler.samples(split)), None)));
        };
        let Some((batches, has_more)) = unit.next(&mut rows).await? else {
            return Ok(Some((Found::Samples(sampler.samples(split)), None)));
        };
        sampler.see(&batches)?;
        let state = Some((has_more.then_some(rows), sampler));
        Ok(Some((Found::Rows { split, rows: batches }, state)))
    });
    all.boxed()
}

impl SortOfSplits {
    pub(super) fn keys(&self) -> Result<Keys> {
        Keys::new(self.order.iter(), &self.input.schema())
    }

    /// Reads some of the splits, chooses samples, and retains the rows.
    pub(super) async fn sampled(
        &self,
        splits: Range<usize>,
        context: &Arc<TaskContext>,
    ) -> Result<Sampled> {
        let (first, unit, whole) = (splits.start, Unit::of(context), self.whole);
        let (keys, of_input) =
            (Arc::new(self.keys()?), partitions_of(self.input.clone(), context.clone()));
        let begin: Begin<Found> = Box::new(move |split| {
            let split = first + split;
            found(of_input(split), split, unit, Sampler::new(keys.clone(), whole))
        });
        let ahead = bounds("sampled rows", context);
        let mut all = in_order(splits.len(), begin, bytes, ahead);
        let mut waiting = Waiting::new(self.input.schema(), UNKNOWN_SHARE, context);
        let mut samples = Vec::new();
        while let Some(found) = all.try_next().await? {
            match found {
                Found::Rows { split, rows } => waiting.add(split, rows)?,
                Found::Samples(some) => samples.extend(some),
            }
        }
        Ok(Sampled { samples, waiting: Mutex::new(Some(Arc::new(waiting))) })
    }

    /// The bounds of `parts` parts, by the samples of all splits.
    pub(super) fn bounds(&self, samples: Vec<Sample>, parts: usize) -> PartBounds {
        PartBounds::between(samples, parts, self.whole)
    }

    /// Distributes the rows of some splits to `parts` parts. Rows that `sampled` retains are not read again.
    pub(super) async fn scattered(
        &self,
        splits: Range<usize>,
        (bounds, parts): (&PartBounds, usize),
        sampled: Option<&Sampled>,
        context: &Arc<TaskContext>,
    ) -> Result<Scattered> {
        if bounds.0.len() >= parts {
            return internal_err!("{} bounds of {parts} parts", bounds.0.len());
        }
        let (keys, whole) = (self.keys()?, self.whole);
        let bounds = KeyBounds::new(&keys, &bounds.0)?;
        let (input, partitions, splits) = match sampled.and_then(Sampled::waiting) {
            Some(waiting) => {
                let splits = waiting.splits();
                (waiting.plan()?, 0..splits.len(), splits)
            }
            None => (self.input.clone(), splits.clone(), (0..splits.end).collect()),
        };
        let of = move |partition: usize, rows: &RecordBatch| -> Result<Vec<u32>> {
            bounds.parts_of(&keys.first_of_rows(rows, whole)?, splits[partition] as u32)
        };
        let scatter = Scatter::by(parts, of);
        let mut lists = Lists::new(self.input.schema(), scatter, KEPT_SHARE, context);
        lists.read(input, partitions, context).await?;
        lists.finish()
    }

    /// Distributes the rows of all splits.
    pub(super) async fn all(
        &self,
        parts: usize,
        context: &Arc<TaskContext>,
    ) -> Result<Arc<Scattered>> {
        let splits = 0..self.input.output_partitioning().partition_count();
        let sampled = self.sampled(splits.clone(), context).await?;
        let bounds = self.bounds(sampled.samples().to_vec(), parts);
        let all = self.scattered(splits, (&bounds, parts), Some(&sampled), context).await?;
        Ok(Arc::new(all))
    }

    /// The rows of a part, sorted; `before` others are before it.
    pub(super) async fn part(
        &self,
        rows: Arc<dyn ExecutionPlan>,
        before: usize,
        context: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        // Rows that do not fit go to files early: a task whose first rows find no memory would fail.
        let most = memory_of(context) / SORTING_SHARE / turns_of(context).max(1);
        sorted_beside(rows, self.order.clone(), (before, most), context).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::arrow::array::{Int64Array, StringArray};
    use datafusion::physical_expr::PhysicalSortExpr;
    use datafusion::physical_expr::expressions::col;

    /// The samples of rows from 0 on, in batches that end at these rows, by a number or by a text.
    fn samples(column: &str, ends: &[usize]) -> Vec<Sample> {
        let batch = |(from, to): (usize, usize)| {
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(from as i64..to as i64));
            let texts = StringArray::from_iter_values((from..to).map(|i| format!("{i:01000}")));
            let texts: ArrayRef = Arc::new(texts);
            let columns = [("n", numbers, false), ("s", texts, false)];
            RecordBatch::try_from_iter_with_nullable(columns).unwrap()
        };
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let batches: Vec<RecordBatch> = starts.zip(ends.iter().copied()).map(batch).collect();
        let schema = batches[0].schema();
        let key = PhysicalSortExpr::new_default(col(column, &schema).unwrap());
        let mut sampler = Sampler::new(Arc::new(Keys::new(&[key], &schema).unwrap()), 0);
        sampler.see(&batches).unwrap();
        sampler.samples(5)
    }

    #[test]
    fn samples_follow_from_the_rows_whatever_their_batches() {
        for column in ["n", "s"] {
            let one = samples(column, &[9000]);
            for ends in [&[1, 2, 4097, 9000][..], &[0, 3000, 3000, 6000, 9000], &[8999, 9000]] {
                assert_eq!(samples(column, ends), one, "{column} {ends:?}");
            }
            let rows = one[0].rows as usize;
            assert_eq!(one.len(), 9000_usize.div_ceil(rows), "{column}");
            assert!(one.iter().all(|sample| sample.split == 5 && sample.rows as usize == rows));
            // Samples of long keys are fewer.
            assert_eq!(rows, if column == "n" { 64 } else { 1024 }, "{column}");
        }
        assert!(samples("n", &[0]).is_empty());
        assert_eq!(samples("n", &[1]).len(), 1);
    }

    #[test]
    fn samples_are_those_that_were_sent() {
        let sampled = |samples| Sampled { samples, waiting: Mutex::default() };
        for of in [samples("s", &[5000]), Vec::new()] {
            let batch = sampled(of.clone()).batch().unwrap();
            assert_eq!((batch.num_columns(), samples_of(&batch).unwrap()), (SAMPLE_COLUMNS, of));
        }
        let other =
            RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
        assert!(samples_of(&other.unwrap()).is_err());
    }

    #[test]
    fn bounds_are_between_parts_of_the_same_size() {
        // 63 samples of 16 rows: the fourth parts of 1008 rows end before the samples 16, 32 and 48.
        let all = samples("n", &[1000]);
        let bound = |at: usize| (all[at].key.clone(), 5);
        let expected: Vec<Bound> = vec![bound(16), bound(32), bound(48)];
        assert_eq!(PartBounds::between(all.clone(), 4, 0).0, expected);
        assert!(PartBounds::between(all, 1, 0).0.is_empty());
        assert!(PartBounds::between(Vec::new(), 4, 0).0.is_empty());
        // Equal keys are cut between splits, unless they have to be in one part.
        let equal = |split| vec![Sample { key: vec![7], split, rows: 1 }; 2];
        let equal: Vec<Sample> = (0..3).flat_map(equal).collect();
        let bound = |split| -> Bound { (vec![7], split) };
        assert_eq!(PartBounds::between(equal.clone(), 4, 0).0, [bound(1), bound(2)]);
        assert_eq!(PartBounds::between(equal, 4, 1).0, [bound(0)]);
    }

    #[test]
    fn long_keys_are_cut_to_bounds_before_them() {
        let text = |last: &str| format!("{}{last}", "a".repeat(2 * KEY_BYTES_MAX));
        let texts: Vec<String> = vec!["a".into(), text("b"), text("c"), "b".into()];
        let texts = StringArray::from(texts);
        let rows = RecordBatch::try_from_iter([("s", Arc::new(texts) as ArrayRef)]).unwrap();
        let key = PhysicalSortExpr::new_default(col("s", &rows.schema()).unwrap());
        let keys = Arc::new(Keys::new(&[key], &rows.schema()).unwrap());
        let mut sampler = Sampler::new(keys.clone(), 0);
        sampler.see(&[rows.slice(1, 1)]).unwrap();
        let samples = sampler.samples(5);
        assert_eq!((samples.len(), samples[0].key.len()), (1, KEY_BYTES_MAX));
        let bounds = KeyBounds::new(&keys, &[(samples[0].key.clone(), 5)]).unwrap();
        for split in [0, 5, 9] {
            let of_rows = keys.first_of_rows(&rows, 0).unwrap();
            assert_eq!(bounds.parts_of(&of_rows, split).unwrap(), [0, 1, 1, 1]);
        }
    }
}
