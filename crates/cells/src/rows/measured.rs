//! Measures the operators of a plan, for EXPLAIN ANALYZE.
//!
//! ```text
//! thread 1   Gather │ Filter │ Scan │ Filter │ Gather      a moment counts for the innermost operator that is polled
//! thread 2            Filter │ Scan │ Filter               a task counts for the operator that started it
//! ```
//! The edges between operators ([`stop`](super::stop)) record which operator a thread enters and leaves. So the time of
//! an operator excludes its inputs, wherever these are computed: operators run their splits in tasks, and whole plans
//! inside of these. The time is wall time while a thread computes; waits for storage or for another task do not count.

use super::Operator;
use super::operators::Watched;
use super::run::PhysicalRows;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricValue, MetricsSet};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use std::any::Any;
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

/// Measurements of an operator, over all of its splits and threads. A split that ran again, because memory was short,
/// counts each time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperatorRan {
    /// Rows yielded.
    pub rows: u64,
    /// Batches yielded.
    pub batches: u64,
    /// Time that threads spent on the operator, without its inputs.
    pub busy: Duration,
    /// Bytes of files read.
    pub bytes_read: u64,
    /// Bytes written to scratch files, because memory was short or because rows are read several times.
    pub bytes_spilled: u64,
    /// For a join: the rows of the build side.
    pub table_rows: Option<u64>,
    /// For a scan of Parquet: row groups.
    pub row_groups: Option<LeftOut>,
    /// For a scan of Parquet: files, or their ranges in splits.
    pub files: Option<LeftOut>,
}

/// Counts of parts of files, some of which were skipped because their statistics exclude every wanted row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Skipped parts.
    pub left_out: u64,
    /// All parts that were considered.
    pub of: u64,
}

/// Measures the rows of a statement.
#[derive(Debug, Default)]
pub struct RowsMeasured {
    /// The plans, once they run.
    plans: Mutex<Vec<Watched>>,
    peak: Arc<AtomicU64>,
}

impl RowsMeasured {
    /// The operators of all plans with their measurements so far; the last one returns the result. Empty before they
    /// run.
    pub fn operators(&self) -> Vec<Operator> {
        self.plans().iter().map(Watched::operator).collect()
    }

    /// Peak of the memory that the operators reserved.
    pub fn reserved_bytes(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// The counter of [`Self::reserved_bytes`], which the pool updates.
    pub(super) fn peak(&self) -> &Arc<AtomicU64> {
        &self.peak
    }

    /// Registers plans that run with counts at their edges.
    pub(super) fn begun(&self, plans: &[Arc<dyn ExecutionPlan>]) {
        *self.plans() = plans.iter().map(Watched::of).collect();
    }

    fn plans(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PhysicalRows {
    /// Measures the operators when they run.
    pub fn measure(&mut self) -> Arc<RowsMeasured> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            if set_join_set_tracer(&InheritsOperator).is_err() {
                tracing::warn!(
                    "another task tracer is set: times of operators exclude tasks that DataFusion starts"
                );
            }
        });
        let measured = Arc::new(RowsMeasured::default());
        self.measured = Some(measured.clone());
        measured
    }
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    rows: AtomicU64,
    batches: AtomicU64,
    nanos: AtomicU64,
    read: AtomicU64,
    spilled: AtomicU64,
}

struct Computed {
    counts: Arc<Counts>,
    since: Instant,
}

thread_local! {
    static COMPUTED: RefCell<Option<Computed>> = const { RefCell::new(None) };
}

/// Sets the operator that this thread computes, or none. Returns the previous one.
fn switch(next: Option<Arc<Counts>>) -> Option<Arc<Counts>> {
    let since = Instant::now();
    let before = COMPUTED.replace(next.map(|counts| Computed { counts, since }))?;
    let nanos = since.duration_since(before.since).as_nanos();
    before.counts.nanos.fetch_add(u64::try_from(nanos).unwrap_or(u64::MAX), Relaxed);
    Some(before.counts)
}

/// The operator that this thread computes; `None` if it is not measured.
fn current() -> Option<Arc<Counts>> {
    COMPUTED.with_borrow(|computed| computed.as_ref().map(|computed| computed.counts.clone()))
}

/// Returns to the outer operator on drop.
struct Inside(Option<Arc<Counts>>);

impl Drop for Inside {
    fn drop(&mut self) {
        switch(self.0.take());
    }
}

impl Counts {
    /// Runs `work` for the operator.
    pub(super) fn within<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let _inside = Inside(switch(Some(self.clone())));
        work()
    }

    pub(super) fn counted(
        self: Arc<Self>,
        mut rows: BoxStream<'static, Result<RecordBatch>>,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let counted = stream::poll_fn(move |cx| {
            let polled = self.within(|| rows.poll_next_unpin(cx));
            if let Poll::Ready(Some(Ok(batch))) = &polled {
                self.rows.fetch_add(batch.num_rows() as u64, Relaxed);
                self.batches.fetch_add(1, Relaxed);
            }
            polled
        });
        counted.boxed()
    }

    /// The operator's measurements. `scan` has DataFusion's metrics of a scan.
    pub(super) fn ran(&self, scan: Option<&ExecutionPlanMetricsSet>) -> OperatorRan {
        let scan = scan.map(ExecutionPlanMetricsSet::clone_inner);
        OperatorRan {
            rows: self.rows.load(Relaxed),
            batches: self.batches.load(Relaxed),
            busy: Duration::from_nanos(self.nanos.load(Relaxed)),
            bytes_read: self.read.load(Relaxed),
            bytes_spilled: self.spilled.load(Relaxed),
            table_rows: None,
            row_groups: scan.as_ref().and_then(row_groups),
            files: scan.as_ref().and_then(|all| pruned(all, "files_ranges_pruned_statistics")),
        }
    }
}

/// Counts bytes of a file that the operator of this thread has read.
pub(crate) fn read(bytes: u64) {
    COMPUTED.with_borrow(|computed| {
        if let Some(Computed { counts, .. }) = computed {
            counts.read.fetch_add(bytes, Relaxed);
        }
    });
}

/// Counts bytes that the operator of this thread has written to scratch files.
pub(super) fn spilled(bytes: u64) {
    COMPUTED.with_borrow(|computed| {
        if let Some(Computed { counts, .. }) = computed {
            counts.spilled.fetch_add(bytes, Relaxed);
        }
    });
}

/// Attributes the work of a new task to the operator that this thread computes.
pub(super) fn of_operator<F>(work: F) -> impl Future<Output = F::Output> + Send + 'static
where
    F: Future + Send + 'static,
{
    let counts = current();
    async move {
        let mut work = pin!(work);
        poll_fn(|cx| match &counts {
            Some(counts) => counts.within(|| work.as_mut().poll(cx)),
            None => work.as_mut().poll(cx),
        })
        .await
    }
}

/// Attributes DataFusion's tasks to the operators that start them.
struct InheritsOperator;

impl JoinSetTracer for InheritsOperator {
    fn trace_future(
        &self,
        work: BoxFuture<'static, Box<dyn Any + Send>>,
    ) -> BoxFuture<'static, Box<dyn Any + Send>> {
        match current() {
            Some(_) => of_operator(work).boxed(),
            None => work,
        }
    }

    fn trace_block(
        &self,
        work: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>,
    ) -> Box<dyn FnOnce() -> Box<dyn Any + Send> + Send> {
        match current() {
            Some(counts) => Box::new(move || counts.within(work)),
            None => work,
        }
    }
}

/// The row groups of a scan of Parquet, including those skipped by a filter that a join or a top-k fills while the plan
/// runs.
fn row_groups(metrics: &MetricsSet) -> Option<LeftOut> {
    let mut groups = pruned(metrics, "row_groups_pruned_statistics")?;
    for later in ["row_groups_pruned_bloom_filter", "limit_pruned_row_groups"] {
        groups.left_out += pruned(metrics, later).unwrap_or_default().left_out;
    }
    let running = metrics.sum_by_name("row_groups_pruned_dynamic_filter");
    groups.left_out += running.map_or(0, |count| count.as_usize() as u64);
    Some(groups)
}

/// The parts of files of a metric; `None` if there are none.
fn pruned(metrics: &MetricsSet, name: &str) -> Option<LeftOut> {
    let mut all = LeftOut::default();
    for metric in metrics {
        if let MetricValue::PruningMetrics { name: own, pruning_metrics } = metric.value()
            && own == name
        {
            let left_out = pruning_metrics.pruned() as u64;
            all.left_out += left_out;
            all.of += left_out + pruning_metrics.matched() as u64;
        }
    }
    (all.of > 0).then_some(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::rows::IsStopped;
    use crate::rows::stop::measurable;
    use datafusion::arrow::array::RecordBatchOptions;
    use datafusion::arrow::datatypes::Schema;
    use datafusion::physical_plan::empty::EmptyExec;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread::sleep;

    fn panics() {
        panic!("of a test");
    }

    fn busy(counts: &Counts) -> Duration {
        Duration::from_nanos(counts.nanos.load(Relaxed))
    }

    #[test]
    fn time_counts_for_the_innermost_operator() {
        let (outer, inner) = (Arc::new(Counts::default()), Arc::new(Counts::default()));
        let (short, long) = (Duration::from_millis(20), Duration::from_millis(100));
        let started = Instant::now();
        outer.within(|| {
            sleep(short);
            inner.within(|| {
                sleep(long);
                spilled(7);
            });
            read(5);
        });
        let elapsed = started.elapsed();
        // Counts for no operator.
        read(100);
        sleep(short);
        assert!(busy(&outer) >= short && busy(&inner) >= long, "{outer:?} {inner:?}");
        // However long the machine lets a thread wait, a moment counts once.
        assert!(busy(&outer) + busy(&inner) <= elapsed, "{outer:?} {inner:?} {elapsed:?}");
        assert_eq!((outer.read.load(Relaxed), outer.spilled.load(Relaxed)), (5, 0));
        assert_eq!((inner.read.load(Relaxed), inner.spilled.load(Relaxed)), (0, 7));
    }

    #[test]
    fn a_panic_leaves_the_operator() {
        let (outer, inner) = (Arc::new(Counts::default()), Arc::new(Counts::default()));
        outer.within(|| {
            assert!(catch_unwind(AssertUnwindSafe(|| inner.within(panics))).is_err());
            read(5);
        });
        assert!(current().is_none());
        assert_eq!((outer.read.load(Relaxed), inner.read.load(Relaxed)), (5, 0));
    }

    #[test]
    fn measurements_retain_no_plan() {
        let is_stopped: IsStopped = Arc::new(|| false);
        let empty: Arc<dyn ExecutionPlan> = Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
        let held = Arc::downgrade(&empty);
        let measured = RowsMeasured::default();
        measured.begun(&[measurable(empty, &is_stopped).unwrap()]);
        assert!(held.upgrade().is_none());
        let operators = measured.operators();
        assert_eq!((operators.len(), operators[0].name.as_str()), (1, "EmptyExec"));
        assert_eq!(operators[0].ran, Some(OperatorRan::default()));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_task_counts_for_the_operator_that_starts_it() {
        let counts = Arc::new(Counts::default());
        let work = || async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            read(3);
        };
        let task = counts.within(|| tokio::spawn(of_operator(work())));
        let other = tokio::spawn(of_operator(work()));
        assert!(task.await.is_ok() && other.await.is_ok());
        assert_eq!(counts.read.load(Relaxed), 3);
    }

    #[tokio::test]
    async fn rows_and_batches_are_counted() {
        let counts = Arc::new(Counts::default());
        let batch = |rows: usize| -> Result<RecordBatch> {
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let schema = Arc::new(Schema::empty());
            Ok(RecordBatch::try_new_with_options(schema, vec![], &options)?)
        };
        let rows = stream::iter([batch(3), batch(0), batch(4)]).boxed();
        let seen: Vec<_> = counts.clone().counted(rows).collect().await;
        assert_eq!(seen.len(), 3);
        assert_eq!((counts.rows.load(Relaxed), counts.batches.load(Relaxed)), (7, 3));
    }
}
