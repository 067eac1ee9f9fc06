//! Converts pieces in any order to record batches in row-major order.

use super::Piece;
use super::top::First;
use crate::lift::{ScanColumn, TensorScan};
use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, MutableArrayData, RecordBatch, RecordBatchOptions,
    UInt32Array, UInt64Array, make_array,
};
use arrow::compute::take;
use arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tessera_planner::region::strides;

pub(super) struct Rows {
    pub(super) scan: Arc<TensorScan>,
    pub(super) pieces: BoxStream<'static, std::result::Result<Piece, super::BoxError>>,
    /// The rows of the table that are wanted.
    pub(super) range: Range<u64>,
    /// Counter of rows built from cells.
    pub(super) exploded: Option<Arc<AtomicU64>>,
    pub(super) limit: Option<usize>,
    pub(super) batch_rows: usize,
    /// A batch is a slice of its chunk and keeps the whole chunk alive. Slices of larger chunks, in bytes, are copied.
    pub(super) held_bytes: usize,
}

pub(super) fn rows(rows: Rows) -> SendableRecordBatchStream {
    let schema = rows.scan.schema.clone();
    let batches = stream::try_unfold(RowStream::new(rows), |mut state| async move {
        Ok(state.next().await?.map(|batch| (batch, state)))
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, batches))
}

struct RowStream {
    scan: Arc<TensorScan>,
    schema: SchemaRef,
    pieces: BoxStream<'static, std::result::Result<Piece, super::BoxError>>,
    exploded: Option<Arc<AtomicU64>>,
    /// Rows left within the limit.
    left: u64,
    batch_rows: usize,
    held_bytes: usize,
    /// The row after the last one.
    end: u64,
    /// The next row whose cells have not arrived.
    at: u64,
    /// Cells that wait for earlier rows or for other roots: by first row, one entry per root.
    waiting: BTreeMap<u64, Vec<Option<ArrayRef>>>,
    /// Complete rows that have not been emitted.
    ready: Option<Ready>,
    /// The best keys so far, for a top-k scan.
    first: Option<First>,
}

/// Consecutive rows, with the cells of all roots.
struct Ready {
    rows: Numbers,
    cells: Vec<ArrayRef>,
}

/// Row numbers of the table.
enum Numbers {
    /// Consecutive rows.
    Range { start: u64, len: u64 },
    /// A subset of rows.
    List(UInt64Array),
}

impl Numbers {
    fn len(&self) -> u64 {
        match self {
            Numbers::Range { len, .. } => *len,
            Numbers::List(list) => list.len() as u64,
        }
    }

    /// Removes and returns the first `n`.
    fn split(&mut self, n: u64) -> UInt64Array {
        match self {
            Numbers::Range { start, len } => {
                let out = (*start..*start + n).collect();
                *start += n;
                *len -= n;
                out
            }
            Numbers::List(list) => {
                let out = list.slice(0, n as usize);
                *list = list.slice(n as usize, list.len() - n as usize);
                out
            }
        }
    }
}

impl RowStream {
    fn new(rows: Rows) -> Self {
        let Rows { scan, pieces, range, exploded, limit, batch_rows, held_bytes } = rows;
        RowStream {
            schema: scan.schema.clone(),
            pieces,
            exploded,
            left: limit.map_or(u64::MAX, |n| n as u64),
            batch_rows,
            held_bytes,
            end: range.end,
            at: range.start,
            waiting: BTreeMap::new(),
            ready: None,
            first: scan.top.map(First::new),
            scan,
        }
    }

    /// The next nonempty batch.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while self.left > 0 {
            if let Some(ready) = self.ready.take_if(|ready| ready.rows.len() > 0) {
                return self.batch(ready).map(Some);
            }
            if self.at >= self.end {
                // All rows have arrived: drain the stream to its end, which reports the plan's statistics.
                while let Some(piece) = self.pieces.next().await {
                    piece.map_err(DataFusionError::External)?;
                }
                break;
            }
            let ready = if self.scan.rooted.roots.is_empty() {
                let (start, len) = (self.at, self.end - self.at);
                Ready { rows: Numbers::Range { start, len }, cells: Vec::new() }
            } else {
                self.fill().await?
            };
            self.at += ready.rows.len();
            self.ready = Some(self.present(ready)?);
        }
        // Cancels the rest of the plan.
        self.pieces = stream::empty().boxed();
        Ok(None)
    }

    /// Receives pieces until the rows at `at` are complete.
    async fn fill(&mut self) -> Result<Ready> {
        let roots = self.scan.rooted.roots.len();
        loop {
            let is_complete = self
                .waiting
                .get(&self.at)
                .is_some_and(|columns| columns.iter().all(Option::is_some));
            if is_complete && let Some(columns) = self.waiting.remove(&self.at) {
                let cells: Vec<ArrayRef> = columns.into_iter().flatten().collect();
                let len = cells.first().map_or(0, |c| c.len());
                if len == 0 || cells.iter().any(|c| c.len() != len) {
                    let what = "pieces of roots differ in length".into();
                    return Err(DataFusionError::Internal(what));
                }
                let rows = Numbers::Range { start: self.at, len: len as u64 };
                return Ok(Ready { rows, cells });
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
                    return Err(DataFusionError::Internal(format!("no such root: {}", piece.root)));
                }
            }
        }
    }

    /// Selects the rows that are present and can be among the first: no arrays are built for the others.
    fn present(&mut self, ready: Ready) -> Result<Ready> {
        let presence = match self.scan.presence {
            Some(root) => Some(ready.cells[root].as_boolean_opt().ok_or_else(|| {
                DataFusionError::Internal("the presence of rows is not a condition".into())
            })?),
            None => None,
        };
        let chosen: UInt32Array = match (&mut self.first, self.scan.top, presence) {
            (Some(first), Some(top), presence) => {
                first.choose(&ready.cells[top.root], presence)?.into()
            }
            (_, _, Some(presence)) => {
                let is_there = |i: &usize| presence.is_valid(*i) && presence.value(*i);
                let rows: Vec<u32> = match presence.null_count() == 0 {
                    true => presence.values().set_indices_u32().collect(),
                    false => (0..presence.len()).filter(is_there).map(|i| i as u32).collect(),
                };
                rows.into()
            }
            (_, _, None) => return Ok(ready),
        };
        let Numbers::Range { start, len } = ready.rows else { return Ok(ready) };
        if chosen.len() as u64 == len {
            return Ok(ready);
        }
        let rows = chosen.values().iter().map(|&i| start + u64::from(i)).collect();
        let cells = ready.cells.iter().map(|c| take(c, &chosen, None));
        let cells = cells.collect::<std::result::Result<_, _>>()?;
        Ok(Ready { rows: Numbers::List(rows), cells })
    }

    /// Takes the next rows, at most `batch_rows`.
    fn batch(&mut self, mut ready: Ready) -> Result<RecordBatch> {
        let len = (self.batch_rows as u64).min(ready.rows.len()).min(self.left);
        let rows = ready.rows.split(len);
        let rest = |c: &ArrayRef| c.slice(len as usize, c.len() - len as usize);
        let part = |c: &ArrayRef| match c.get_buffer_memory_size() > self.held_bytes {
            true => copied(&c.slice(0, len as usize)),
            false => Ok(c.slice(0, len as usize)),
        };
        let cells: Vec<ArrayRef> = ready.cells.iter().map(part).collect::<Result<_>>()?;
        ready.cells = ready.cells.iter().map(rest).collect();
        self.left -= len;
        self.ready = Some(ready);
        if let Some(counter) = &self.exploded {
            counter.fetch_add(len, Ordering::Relaxed);
        }
        self.assemble(&rows, &cells)
    }

    /// Builds the labels and cells of some rows.
    fn assemble(&self, rows: &UInt64Array, cells: &[ArrayRef]) -> Result<RecordBatch> {
        let strides = strides(&self.scan.shape);
        let along = |axis: usize| {
            let (stride, n) = (strides[axis] as u64, self.scan.shape[axis]);
            rows.values().iter().map(move |row| row / stride % n)
        };
        let mut columns = Vec::with_capacity(self.scan.columns.len());
        for column in &self.scan.columns {
            columns.push(match column {
                ScanColumn::Cells(root) => cells[*root].clone(),
                ScanColumn::Row => Arc::new(rows.clone()),
                ScanColumn::Label { axis, values } => {
                    let positions: UInt64Array = along(*axis).collect();
                    take(values, &positions, None)?
                }
                ScanColumn::Position { axis, start } => {
                    let positions = along(*axis).map(|p| (start + p) as i64);
                    Arc::new(Int64Array::from_iter_values(positions))
                }
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }
}

/// Copies the cells to memory of their own.
fn copied(cells: &ArrayRef) -> Result<ArrayRef> {
    let data = cells.to_data();
    let mut copy = MutableArrayData::new(vec![&data], false, cells.len());
    copy.try_extend(0, 0, cells.len())?;
    Ok(make_array(copy.freeze()))
}
