//! The keys of one side of a join as a filter for the scan of the other side.
//!
//! ```text
//! HashJoinExec
//!   KeysExec: remembers the keys of its rows ────┐
//!     the build side                             │ once it has ended, before the probe side is read
//!   DataSourceExec: the probe side   ◀───────────┘
//! ```
//! DataFusion's hash join passes on such a filter itself, but only when all partitions of the probe side have begun;
//! splits begin one after the other. The filter is a Bloom filter whose keys set bits of one word (Putze, Sanders, Singler:
//! Cache-, hash- and space-efficient Bloom filters, 2007), and bounds by which a scan leaves out groups of rows. It is
//! complete before the first row of the probe side is read, so what it drops does not depend on threads.

use super::groups::{GroupsExec, evaluated};
use crate::rows::single;
use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::NullEquality;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::common::internal_datafusion_err;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::functions_aggregate::min_max::{MaxAccumulator, MinAccumulator};
use datafusion::logical_expr::{Accumulator, ColumnarValue, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, DynamicFilterPhysicalExpr, lit};
use datafusion::physical_expr::utils::split_conjunction;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::apply_expression_roots;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

const STATE: RandomState = RandomState::with_seed(0x6b65_7973);

/// Words of the filter while keys arrive, a megabyte. Where keys are more than a million, it lets most rows pass.
const WORDS: usize = 1 << 17;
/// Keys of a word once all have arrived: with 16 bits a key, about one of a hundred others passes.
const KEYS_OF_WORD: usize = 4;

/// The keys that a join shares.
#[derive(Debug, Clone)]
struct Keys {
    build: Vec<Arc<dyn PhysicalExpr>>,
    probe: Vec<Arc<dyn PhysicalExpr>>,
    /// The filter that the probe side's scan has.
    filter: Arc<DynamicFilterPhysicalExpr>,
    /// Whether a missing key equals a missing key.
    is_null_equal: bool,
}

/// The build side of a join, with the join's filter.
#[derive(Debug)]
pub(super) struct KeysExec {
    input: Arc<dyn ExecutionPlan>,
    keys: Keys,
}

/// The filters that scans of files apply while they read.
pub(super) struct Applied(HashSet<u64>);

impl Applied {
    /// Those of all scans of a plan.
    pub(super) fn of(plan: &Arc<dyn ExecutionPlan>) -> Result<Self> {
        let mut ids = HashSet::new();
        plan.apply(|node| {
            if let Some(condition) = file_scan(node).and_then(|scan| scan.file_source.filter()) {
                let parts = split_conjunction(&condition);
                ids.extend(parts.into_iter().filter_map(|part| part.expression_id()));
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(Applied(ids))
    }
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
        let filter = join.dynamic_expressions_produced().pop();
        let filter = filter.filter(|f| f.expression_id().is_some_and(|id| applied.0.contains(&id)));
        let filter = filter.map(|filter| filter as Arc<dyn Any + Send + Sync>);
        let Some(Ok(filter)) = filter.map(Arc::downcast::<DynamicFilterPhysicalExpr>) else {
            return Ok(build);
        };
        if !is_chosen(&build)? {
            return Ok(build);
        }
        let (build_keys, probe) = join.on().iter().cloned().unzip();
        let is_null_equal = join.null_equality() == NullEquality::NullEqualsNull;
        let keys = Keys { build: build_keys, probe, filter, is_null_equal };
        Ok(Arc::new(KeysExec { input: build, keys }))
    }
}

/// True if some operator may leave out rows.
fn is_chosen(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    plan.exists(|node| {
        Ok(node.is::<FilterExec>()
            || node.is::<HashJoinExec>()
            || node.is::<AggregateExec>()
            || node.is::<GroupsExec>()
            || file_scan(node).is_some_and(|scan| scan.file_source.filter().is_some()))
    })
}

impl DisplayAs for KeysExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeysExec")
    }
}

impl ExecutionPlan for KeysExec {
    fn name(&self) -> &str {
        "KeysExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(&self.keys.build, visit)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = <[_; 1]>::try_from(children)
            .map_err(|all| internal_datafusion_err!("KeysExec has {} inputs", all.len()))?;
        Ok(Arc::new(KeysExec { input, keys: self.keys.clone() }))
    }

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

/// What is known of the keys so far. It takes the same memory for any number of keys, so that the filter, and with it
/// the batches of the probe side, do not depend on the memory.
struct Seen {
    words: Words,
    rows: usize,
    /// The bounds of each key whose values have an order that the scan knows too.
    bounds: Vec<Option<(MinAccumulator, MaxAccumulator)>>,
    memory: MemoryReservation,
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
        memory.grow(WORDS * size_of::<u64>());
        Ok(Seen { words: Words(vec![0; WORDS]), rows: 0, bounds, memory })
    }

    fn add(&mut self, keys: &[ArrayRef], rows: usize) -> Result<()> {
        for (bounds, key) in self.bounds.iter_mut().zip(keys) {
            if let Some((min, max)) = bounds {
                min.update_batch(std::slice::from_ref(key))?;
                max.update_batch(std::slice::from_ref(key))?;
            }
        }
        let mut hashes = vec![0; rows];
        create_hashes(keys, &STATE, &mut hashes)?;
        hashes.into_iter().for_each(|hash| self.words.add(hash));
        self.rows += rows;
        Ok(())
    }

    /// Fills the filter of the probe side.
    fn finish(mut self, keys: &Keys) -> Result<()> {
        self.words.fold(self.rows);
        self.memory.resize(self.words.0.len() * size_of::<u64>());
        let mut all: Arc<dyn PhysicalExpr> = Arc::new(InKeys {
            keys: keys.probe.clone(),
            words: Arc::new(self.words),
            _memory: Arc::new(self.memory),
        });
        for (bounds, key) in self.bounds.iter_mut().zip(&keys.probe) {
            let Some((min, max)) = bounds else { continue };
            for (bound, operator) in
                [(max.evaluate()?, Operator::LtEq), (min.evaluate()?, Operator::GtEq)]
            {
                // Keys that are all missing have no bounds.
                if !bound.is_null() {
                    let is_within = BinaryExpr::new(key.clone(), operator, lit(bound));
                    all = Arc::new(BinaryExpr::new(Arc::new(is_within), Operator::And, all));
                }
            }
        }
        keys.filter.update(all)
    }
}

/// A Bloom filter: a power of two of words.
#[derive(Debug)]
struct Words(Vec<u64>);

impl Words {
    fn word(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.0.len() - 1)
    }

    fn add(&mut self, hash: u64) {
        let word = self.word(hash);
        self.0[word] |= bits(hash);
    }

    fn may_have(&self, hash: u64) -> bool {
        let bits = bits(hash);
        self.0[self.word(hash)] & bits == bits
    }

    /// Halves the filter until so many keys fill it: a key's word is then that of the same key in both halves.
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

    #[test]
    fn all_keys_pass_and_few_others() {
        let hash = |i: u64| {
            i.wrapping_add(1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23)
                .wrapping_mul(0xff51_afd7_ed55_8ccd)
        };
        for (keys, words) in
            [(0, 1), (1, 1), (5, 2), (1000, 256), (400_000, WORDS), (1_000_000, WORDS)]
        {
            let mut all = Words(vec![0; WORDS]);
            (0..keys).for_each(|i| all.add(hash(i)));
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
}
