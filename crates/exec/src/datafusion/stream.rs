//! Pieces in any order → record batches in row-major order.

use super::table::{Column, TableParts};
use super::{Piece, RunTensor};
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array,
};
use arrow::compute::{filter_record_batch, take};
use arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tessera_planner::region::{cells, strides};

/// What a stream of rows is made of.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) parts: Arc<TableParts>,
    pub(super) runner: Arc<dyn RunTensor>,
    /// Where rows of cells are counted.
    pub(super) exploded: Option<Arc<AtomicU64>>,
    /// Rows after which the stream ends.
    pub(super) limit: Option<usize>,
    /// Rows of a batch, at most.
    pub(super) batch_rows: usize,
}

/// The rows of a table. The plan is started by the first poll.
pub(super) fn rows(rows: Rows) -> SendableRecordBatchStream {
    let schema = rows.parts.schema.clone();
    let batches = stream::try_unfold(None, move |state: Option<State>| {
        let begun = match state {
            Some(state) => Ok(state),
            None => State::begin(&rows),
        };
        async move {
            let mut state = begun?;
            Ok(state.next().await?.map(|batch| (batch, Some(state))))
        }
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, batches))
}

struct State {
    parts: Arc<TableParts>,
    schema: SchemaRef,
    pieces: BoxStream<'static, std::result::Result<Piece, super::BoxError>>,
    exploded: Option<Arc<AtomicU64>>,
    /// Rows that the limit still lets out.
    left: u64,
    batch_rows: usize,
    /// Rows of the table.
    total: u64,
    /// The next row.
    at: u64,
    /// Cells that wait for those before them or beside them: by first row, one for each root.
    waiting: BTreeMap<u64, Vec<Option<ArrayRef>>>,
    /// Complete cells of the rows from `at` on, with how many rows of the first were given.
    ready: VecDeque<(Vec<ArrayRef>, usize)>,
}

impl State {
    fn begin(rows: &Rows) -> Result<Self> {
        let parts = rows.parts.clone();
        let total = cells(&parts.shape)
            .ok_or_else(|| DataFusionError::Internal("a table with too many rows".into()))?;
        let is_labels_only = parts.rooted.roots.is_empty() || total == 0;
        let pieces = if is_labels_only {
            stream::empty().boxed()
        } else {
            rows.runner.run(parts.rooted.clone())
        };
        Ok(State {
            schema: parts.schema.clone(),
            pieces,
            exploded: rows.exploded.clone(),
            left: rows.limit.map_or(u64::MAX, |n| n as u64),
            batch_rows: rows.batch_rows,
            total,
            at: 0,
            waiting: BTreeMap::new(),
            ready: VecDeque::new(),
            parts,
        })
    }

    /// The next batch that has rows.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while self.at < self.total && self.left > 0 {
            if !self.parts.rooted.roots.is_empty() && self.ready.is_empty() {
                self.fill().await?;
            }
            let batch = self.batch()?;
            if batch.num_rows() > 0 {
                self.left -= batch.num_rows() as u64;
                return Ok(Some(batch));
            }
        }
        // What still runs is cancelled.
        self.pieces = stream::empty().boxed();
        Ok(None)
    }

    /// Takes pieces until the rows at `at` are complete.
    async fn fill(&mut self) -> Result<()> {
        let roots = self.parts.rooted.roots.len();
        loop {
            let is_complete = self
                .waiting
                .get(&self.at)
                .is_some_and(|columns| columns.iter().all(Option::is_some));
            if is_complete && let Some(columns) = self.waiting.remove(&self.at) {
                self.ready.push_back((columns.into_iter().flatten().collect(), 0));
                return Ok(());
            }
            let Some(piece) = self.pieces.next().await else {
                return Err(DataFusionError::Internal(format!(
                    "the rows from {} on are missing",
                    self.at
                )));
            };
            let piece = piece.map_err(DataFusionError::External)?;
            let columns = self.waiting.entry(piece.start).or_insert_with(|| vec![None; roots]);
            match columns.get_mut(piece.root) {
                Some(column) => *column = Some(piece.cells),
                None => {
                    return Err(DataFusionError::Internal(format!(
                        "there is no root {}",
                        piece.root
                    )));
                }
            }
        }
    }

    /// The next rows: of one complete piece, at most `batch_rows`.
    fn batch(&mut self) -> Result<RecordBatch> {
        let mut len = (self.batch_rows as u64).min(self.total - self.at);
        if self.parts.presence.is_none() {
            len = len.min(self.left);
        }
        let mut columns: Vec<ArrayRef> = Vec::new();
        if let Some((cells, given)) = self.ready.front_mut() {
            let rows = cells.first().map_or(0, |c| c.len());
            if rows == 0 || cells.iter().any(|c| c.len() != rows) {
                return Err(DataFusionError::Internal("pieces of roots differ in length".into()));
            }
            len = len.min((rows - *given) as u64);
            columns = cells.iter().map(|c| c.slice(*given, len as usize)).collect();
            *given += len as usize;
            if *given == rows {
                self.ready.pop_front();
            }
        }
        let batch = self.assemble(len, &columns)?;
        self.at += len;
        if let Some(counter) = &self.exploded {
            counter.fetch_add(len, Ordering::Relaxed);
        }
        let Some(presence) = self.parts.presence else { return Ok(batch) };
        let presence = columns[presence].as_boolean_opt().ok_or_else(|| {
            DataFusionError::Internal("the presence of rows is not a condition".into())
        })?;
        let is_there: BooleanArray = presence.iter().map(|p| Some(p == Some(true))).collect();
        let batch = filter_record_batch(&batch, &is_there)?;
        Ok(batch.slice(0, batch.num_rows().min(self.left as usize)))
    }

    /// Labels and cells of the `len` rows from `at` on.
    fn assemble(&self, len: u64, cells: &[ArrayRef]) -> Result<RecordBatch> {
        let strides = strides(&self.parts.shape);
        let mut columns = Vec::with_capacity(self.parts.columns.len());
        for column in &self.parts.columns {
            columns.push(match column {
                Column::Cells(root) => cells[*root].clone(),
                Column::Row => Arc::new((self.at..self.at + len).collect::<UInt64Array>()),
                Column::Label { axis, values } => {
                    let (stride, n) = (strides[*axis] as u64, self.parts.shape[*axis]);
                    let positions: UInt64Array =
                        (self.at..self.at + len).map(|row| row / stride % n).collect();
                    take(values, &positions, None)?
                }
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(len as usize));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }
}
