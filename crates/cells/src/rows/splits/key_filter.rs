//! The keys of one side of a join as a filter for the scan of the other side.
//!
//! ```text
//! HashJoinExec
//!   KeysExec: remembers the keys of its rows ────┐
//!     the build side                             │ once it has ended, before the probe side is read
//!   DataSourceExec: the probe side   ◀───────────┘
//! ```
//! DataFusion's hash join passes on such a filter itself, but only when all partitions of the probe side have begun;
//! splits begin one after the other. The filter has the bounds of the keys, by which a scan leaves out groups of rows.
//! Where keys are rare, it also has a Bloom filter whose keys set bits of one word (Putze, Sanders, Singler: Cache-, hash-
//! and space-efficient Bloom filters, 2007), by which the reader of Parquet leaves out rows. The filter is complete before
//! the first row of the probe side is read, and keys are rare or not by the data alone, so what it drops does not depend
//! on threads.

use super::groups::{GroupsExec, evaluated};
use crate::rows::single::{self, over, shown_by_name, usual};
use crate::walk::Walk;
use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{ColumnStatistics, NullEquality, Statistics};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::functions_aggregate::min_max::{MaxAccumulator, MinAccumulator};
use datafusion::logical_expr::{Accumulator, ColumnarValue, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, DynamicFilterPhysicalExpr, lit};
use datafusion::physical_expr::utils::{conjunction, split_conjunction};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::apply_expression_roots;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryStreamExt, stream};
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

const STATE: RandomState = RandomState::with_seed(0x6b65_7973);

/// Keys are rare if at least this many are possible for each of them. The reader of Parquet takes two to three times as
/// long for rows if it skips others between them: it loses where a tenth of the rows pass, and wins where a hundredth
/// does (measured).
const POSSIBLE_OF_RARE: u64 = 32;

/// Words of the filter while keys arrive, a megabyte.
const WORDS: usize = 1 << 17;
/// Keys of a word once all have arrived: with 16 bits a key, about one of a hundred others passes.
const KEYS_OF_WORD: usize = 4;

/// The keys that a join shares.
#[derive(Debug, Clone)]
pub(in crate::rows) struct Keys {
    pub(in crate::rows) build: Vec<Arc<dyn PhysicalExpr>>,
    pub(in crate::rows) probe: Vec<Arc<dyn PhysicalExpr>>,
    /// The columns of the probe side.
    pub(in crate::rows) schema: SchemaRef,
    /// The filter that the probe side's scan has.
    pub(in crate::rows) filter: Arc<DynamicFilterPhysicalExpr>,
    /// True if missing keys are equal.
    pub(in crate::rows) is_null_equal: bool,
    /// Maximum number of rare keys; `None` if the scan never skips single rows.
    pub(in crate::rows) rare_max: Option<u64>,
}

/// The build side of a join, with the join's filter.
#[derive(Debug)]
pub(in crate::rows) struct KeysExec {
    input: Arc<dyn ExecutionPlan>,
    keys: Keys,
}

/// The filters that scans of files have, by their numbers, with [`Keys::rare_max`] of each.
pub(super) struct Applied(HashMap<u64, Option<u64>>);

impl Applied {
    /// The filters of all scans of a plan.
    pub(super) fn of(plan: &Arc<dyn ExecutionPlan>) -> Result<Self> {
        let mut filters: HashMap<u64, Option<u64>> = HashMap::new();
        plan.each(|node| {
            let scan = file_scan(node).and_then(|scan| Some((scan, scan.file_source.filter()?)));
            let Some((scan, condition)) = scan else { return Ok(TreeNodeRecursion::Continue) };
            let statistics = scan.statistics();
            for part in split_conjunction(&condition) {
                let Some(id) = part.expression_id() else { continue };
                let rare = rare_max(part, &statistics);
                // Several scans may have one filter.
                let known = filters.entry(id).or_insert(rare);
                *known = (*known).min(rare);
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(Applied(filters))
    }
}

/// [`Keys::rare_max`] of the filter of a scan with these statistics. Keys are columns there: the reader of Parquet makes
/// a text of the error of an expression.
fn rare_max(filter: &Arc<dyn PhysicalExpr>, statistics: &Statistics) -> Option<u64> {
    let rows = *statistics.num_rows.get_value()? as u64;
    let mut possible = 1u64;
    for key in filter.children() {
        let column = key.downcast_ref::<Column>()?;
        let values = statistics.column_statistics.get(column.index()).and_then(possible_values);
        possible = possible.saturating_mul(values.unwrap_or(rows));
    }
    // Of more keys than fill its words, a Bloom filter lets too many others pass.
    Some((possible.min(rows) / POSSIBLE_OF_RARE).min((WORDS * KEYS_OF_WORD) as u64))
}

/// The number of values that a column may have: within its bounds, or else in the dictionary of a row group. Texts of a few
/// values are mostly keys of all rows, and a reader that leaves out none of them decodes them twice.
fn possible_values(column: &ColumnStatistics) -> Option<u64> {
    let distinct = column.distinct_count.get_value().map(|count| *count as u64);
    values_within(column).or(distinct)
}

/// The number of values that lie within the bounds of a column of integers or times.
pub(in crate::rows) fn values_within(column: &ColumnStatistics) -> Option<u64> {
    let (min, max) = (column.min_value.get_value()?, column.max_value.get_value()?);
    if min.data_type().is_floating() { None } else { min.distance_u64(max)?.checked_add(1) }
}

fn file_scan(node: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    let scan = node.downcast_ref::<DataSourceExec>()?;
    (scan.data_source().as_ref() as &dyn Any).downcast_ref()
}

impl KeysExec {
    /// The build side of a join, which fills the filter that the join has passed to a scan of its probe side. Rows of a
    /// whole table are left as they are: mostly each row of the probe side has a match.
    pub(super) fn of(
        join: &HashJoinExec,
        build: Arc<dyn ExecutionPlan>,
        applied: &Applied,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(filter) = join.dynamic_expressions_produced().pop() else { return Ok(build) };
        let applied = filter.expression_id().and_then(|id| applied.0.get(&id));
        let Some(&rare_max) = applied else { return Ok(build) };
        let filter = filter as Arc<dyn Any + Send + Sync>;
        let Ok(filter) = filter.downcast::<DynamicFilterPhysicalExpr>() else { return Ok(build) };
        if !is_chosen(&build)? {
            return Ok(build);
        }
        let (build_keys, probe) = join.on().iter().cloned().unzip();
        let is_null_equal = join.null_equality() == NullEquality::NullEqualsNull;
        let schema = join.right().schema();
        let keys = Keys { build: build_keys, probe, schema, filter, is_null_equal, rare_max };
        Ok(Arc::new(KeysExec { input: build, keys }))
    }

    /// The build side with these keys.
    pub(in crate::rows) fn new(input: Arc<dyn ExecutionPlan>, keys: Keys) -> Self {
        KeysExec { input, keys }
    }

    pub(in crate::rows) fn keys(&self) -> &Keys {
        &self.keys
    }
}

/// True if some operator may drop rows.
fn is_chosen(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    plan.any(|node| {
        Ok(node.is::<FilterExec>()
            || node.is::<HashJoinExec>()
            || node.is::<AggregateExec>()
            || node.is::<GroupsExec>()
            || has_condition(node))
    })
}

/// True for a scan of files with a condition.
pub(in crate::rows) fn has_condition(node: &Arc<dyn ExecutionPlan>) -> bool {
    file_scan(node).is_some_and(|scan| scan.file_source.filter().is_some())
}

shown_by_name!(KeysExec);

impl ExecutionPlan for KeysExec {
    usual!(name, properties of input, input, in_order);

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(&self.keys.build, visit)
    }

    over!(|node, input| KeysExec { input, keys: node.keys.clone() });

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        single::check(self.name(), partition)?;
        let memory = MemoryConsumer::new("keys of a join").register(context.memory_pool());
        let seen = Seen::new(&self.keys, &self.schema(), memory)?;
        let state = (self.input.execute(0, context)?, seen, self.keys.clone());
        let rows = stream::try_unfold(Some(state), |state| async move {
            let Some((mut rows, mut seen, keys)) = state else { return Ok(None) };
            match rows.try_next().await? {
                Some(batch) => {
                    seen.add(&evaluated(&keys.build, &batch)?, batch.num_rows())?;
                    Ok(Some((batch, Some((rows, seen, keys)))))
                }
                None => seen.finish(&keys).map(|()| None),
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows.boxed())))
    }
}

/// The keys so far. Its size does not depend on their number, so that the filter, and with it the batches of the probe
/// side, do not depend on the memory.
struct Seen {
    /// `None` once the keys are not rare.
    rare: Option<Rare>,
    /// The bounds of each key whose values have an order that the scan knows too.
    bounds: Vec<Option<(MinAccumulator, MaxAccumulator)>>,
}

impl Seen {
    fn new(keys: &Keys, schema: &Schema, memory: MemoryReservation) -> Result<Self> {
        let bounds = keys.build.iter().map(|key| {
            let kind = key.data_type(schema)?;
            let has_bounds = !keys.is_null_equal && (kind.is_integer() || kind.is_temporal());
            Ok(match has_bounds {
                true => Some((MinAccumulator::try_new(&kind)?, MaxAccumulator::try_new(&kind)?)),
                false => None,
            })
        });
        let bounds = bounds.collect::<Result<_>>()?;
        let rare = keys.rare_max.map(|max| Rare::new(max, memory));
        Ok(Seen { rare, bounds })
    }

    fn add(&mut self, keys: &[ArrayRef], rows: usize) -> Result<()> {
        for (bounds, key) in self.bounds.iter_mut().zip(keys) {
            if let Some((min, max)) = bounds {
                min.update_batch(std::slice::from_ref(key))?;
                max.update_batch(std::slice::from_ref(key))?;
            }
        }
        if let Some(rare) = &mut self.rare {
            let mut hashes = vec![0; rows];
            create_hashes(keys, &STATE, &mut hashes)?;
            if !rare.add(&hashes) {
                self.rare = None;
            }
        }
        Ok(())
    }

    /// Fills the filter of the probe side.
    fn finish(self, keys: &Keys) -> Result<()> {
        let mut parts: Vec<Arc<dyn PhysicalExpr>> = Vec::new();
        for (bounds, key) in self.bounds.into_iter().zip(&keys.probe) {
            let Some((mut min, mut max)) = bounds else { continue };
            for (operator, bound) in
                [(Operator::GtEq, min.evaluate()?), (Operator::LtEq, max.evaluate()?)]
            {
                // Keys that are all missing have no bounds.
                if !bound.is_null() {
                    parts.push(Arc::new(BinaryExpr::new(key.clone(), operator, lit(bound))));
                }
            }
        }
        parts.extend(self.rare.map(|rare| rare.filter(&keys.probe)));
        keys.filter.update(conjunction(parts))?;
        // Scans need not watch it.
        keys.filter.mark_complete();
        Ok(())
    }
}

/// Keys that are rare so far.
struct Rare {
    words: Words,
    /// Number of keys, as far as the words distinguish them.
    keys: u64,
    max: u64,
    memory: MemoryReservation,
}

impl Rare {
    fn new(max: u64, memory: MemoryReservation) -> Self {
        memory.grow(WORDS * size_of::<u64>());
        Rare { words: Words(vec![0; WORDS]), keys: 0, max, memory }
    }

    /// Adds keys by their hashes. Returns false if they are no longer rare.
    fn add(&mut self, hashes: &[u64]) -> bool {
        self.keys += hashes.iter().filter(|hash| self.words.add(**hash)).count() as u64;
        self.keys <= self.max
    }

    fn filter(mut self, keys: &[Arc<dyn PhysicalExpr>]) -> Arc<dyn PhysicalExpr> {
        self.words.fold(self.keys as usize);
        self.memory.resize(self.words.0.len() * size_of::<u64>());
        let (words, memory) = (Arc::new(self.words), Arc::new(self.memory));
        Arc::new(InKeys { keys: keys.to_vec(), words, _memory: memory })
    }
}

/// True for a filter with rare keys.
pub(in crate::rows) fn has_rare_keys(filter: &Arc<dyn PhysicalExpr>) -> bool {
    let filter = filter.downcast_ref::<DynamicFilterPhysicalExpr>();
    let filled = filter.and_then(|filter| filter.current().ok());
    filled.is_some_and(|filled| split_conjunction(&filled).iter().any(|part| part.is::<InKeys>()))
}

/// A Bloom filter: a power of two of words.
#[derive(Debug)]
struct Words(Vec<u64>);

impl Words {
    fn word(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.0.len() - 1)
    }

    /// Adds a key. Returns false if all its bits were set.
    fn add(&mut self, hash: u64) -> bool {
        let (word, bits) = (self.word(hash), bits(hash));
        let is_new = !self.may_have(hash);
        self.0[word] |= bits;
        is_new
    }

    fn may_have(&self, hash: u64) -> bool {
        let bits = bits(hash);
        self.0[self.word(hash)] & bits == bits
    }

    /// Halves the filter until `keys` keys fill it: a key's word is then that of the same key in both halves.
    fn fold(&mut self, keys: usize) {
        while self.0.len() > 1 && keys <= self.0.len() / 2 * KEYS_OF_WORD {
            let upper = self.0.split_off(self.0.len() / 2);
            self.0.iter_mut().zip(upper).for_each(|(word, upper)| *word |= upper);
        }
        self.0.shrink_to_fit();
    }
}

/// The bits of a key in its word.
fn bits(hash: u64) -> u64 {
    1 << (hash & 63) | 1 << (hash >> 6 & 63) | 1 << (hash >> 12 & 63)
}

/// True for rows whose keys may be among those of the other side.
#[derive(Debug)]
struct InKeys {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    words: Arc<Words>,
    _memory: Arc<MemoryReservation>,
}

impl fmt::Display for InKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_sql(f)
    }
}

impl PartialEq for InKeys {
    fn eq(&self, other: &Self) -> bool {
        self.keys == other.keys && Arc::ptr_eq(&self.words, &other.words)
    }
}

impl Eq for InKeys {}

impl Hash for InKeys {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.keys.hash(state);
        Arc::as_ptr(&self.words).hash(state);
    }
}

impl PhysicalExpr for InKeys {
    fn data_type(&self, _: &Schema) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn nullable(&self, _: &Schema) -> Result<bool> {
        Ok(false)
    }

    fn evaluate(&self, rows: &RecordBatch) -> Result<ColumnarValue> {
        let mut hashes = vec![0; rows.num_rows()];
        create_hashes(&evaluated(&self.keys, rows)?, &STATE, &mut hashes)?;
        let may_match =
            BooleanBuffer::collect_bool(hashes.len(), |row| self.words.may_have(hashes[row]));
        Ok(ColumnarValue::Array(Arc::new(BooleanArray::new(may_match, None))))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.keys.iter().collect()
    }

    fn with_new_children(
        self: Arc<Self>,
        keys: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let (words, _memory) = (self.words.clone(), self._memory.clone());
        Ok(Arc::new(InKeys { keys, words, _memory }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "keys of a join ({} bytes)", self.words.0.len() * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::common::ScalarValue;
    use datafusion::common::stats::Precision;

    fn hash(i: u64) -> u64 {
        i.wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23)
            .wrapping_mul(0xff51_afd7_ed55_8ccd)
    }

    #[test]
    fn all_keys_pass_and_few_others() {
        for (keys, words) in
            [(0, 1), (1, 1), (5, 2), (1000, 256), (400_000, WORDS), (1_000_000, WORDS)]
        {
            let mut all = Words(vec![0; WORDS]);
            let new = (0..keys).filter(|&i| all.add(hash(i))).count() as u64;
            assert!((keys - keys / 20..=keys).contains(&new), "{new} of {keys} keys");
            assert!((0..keys).all(|i| !all.add(hash(i))), "{keys} keys");
            all.fold(keys as usize);
            assert_eq!(all.0.len(), words, "{keys} keys");
            assert!((0..keys).all(|i| all.may_have(hash(i))), "{keys} keys");
            let others = (keys..keys + 10_000).filter(|&i| all.may_have(hash(i))).count();
            assert!(
                others < if keys > 500_000 { 1500 } else { 300 },
                "{others} others of {keys} keys"
            );
        }
    }

    #[test]
    fn keys_are_rare_among_rows_and_values() {
        let known = |min: ScalarValue, max: ScalarValue| ColumnStatistics {
            min_value: Precision::Exact(min),
            max_value: Precision::Inexact(max),
            ..ColumnStatistics::new_unknown()
        };
        let statistics = |rows, column_statistics| Statistics {
            num_rows: rows,
            total_byte_size: Precision::Absent,
            column_statistics,
        };
        let columns = vec![
            known(1i64.into(), 200_000i64.into()),
            known(ScalarValue::Date32(Some(0)), ScalarValue::Date32(Some(99))),
            known(0f64.into(), 9f64.into()),
            known("a".into(), "b".into()),
            known(i64::MIN.into(), i64::MAX.into()),
            ColumnStatistics::new_unknown(),
        ];
        let many = statistics(Precision::Exact(6_400_000), columns.clone());
        let column = |at: usize| Arc::new(Column::new("k", at)) as Arc<dyn PhysicalExpr>;
        let of = |keys: Vec<Arc<dyn PhysicalExpr>>, statistics: &Statistics| {
            let filter: Arc<dyn PhysicalExpr> =
                Arc::new(DynamicFilterPhysicalExpr::new(keys, lit(true)));
            rare_max(&filter, statistics)
        };
        assert_eq!(of(vec![column(0)], &many), Some(6_250));
        assert_eq!(of(vec![column(1)], &many), Some(3));
        assert_eq!(of(vec![column(0), column(1)], &many), Some(200_000));
        for at in [2, 3, 4, 5, 6] {
            assert_eq!(of(vec![column(at)], &many), Some(200_000), "column {at}");
        }
        let texts = ColumnStatistics {
            distinct_count: Precision::Inexact(320),
            ..known("a".into(), "b".into())
        };
        let few = statistics(Precision::Exact(6_400_000), vec![texts.clone(), texts]);
        assert_eq!(of(vec![column(0)], &few), Some(10));
        assert_eq!(of(vec![column(0), column(1)], &few), Some(3_200));
        let sum = BinaryExpr::new(column(0), Operator::Plus, column(0));
        assert_eq!(of(vec![column(0), Arc::new(sum)], &many), None);
        let most = statistics(Precision::Inexact(1 << 40), columns.clone());
        assert_eq!(of(vec![column(3)], &most), Some((WORDS * KEYS_OF_WORD) as u64));
        assert_eq!(of(vec![column(0)], &statistics(Precision::Absent, columns)), None);
    }
}
