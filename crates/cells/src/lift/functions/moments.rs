//! Statistics of floats from moments of blocks: values are buffered until they fill a block, which is computed in
//! lanes.
//!
//! Blocks are counted from the first value, so that bits do not depend on the ends of batches.

use std::{array, fmt};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array};
use arrow::buffer::NullBuffer;
use arrow::compute::filter;
use arrow::datatypes::Float64Type;
use arrow::error::ArrowError;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::Accumulator;

const BLOCK: usize = 256;

/// Sums that are accumulated side by side.
const LANES: usize = 8;

/// A summary of rows of N columns. The default is the summary of no rows.
pub(super) trait Summary<const N: usize>:
    Copy + Default + fmt::Debug + Send + Sync + 'static
{
    /// The summary of a block with at least one row.
    fn of_block(columns: [&[f64]; N]) -> Self;

    /// The summary of these rows and of others behind them.
    fn merged(self, behind: Self) -> Self;

    /// The summaries as columns of a state, one row for each.
    fn state(all: &[Self]) -> Vec<ArrayRef>;

    /// The summaries in the rows of a state.
    ///
    /// # Errors
    /// `internal` if the columns are not those of [`Summary::state`].
    fn of_state(columns: &[ArrayRef]) -> Result<Vec<Self>>;
}

type Finish<S> = Box<dyn Fn(S) -> Option<f64> + Send + Sync>;

/// A statistic of all rows.
pub(super) struct Blocks<const N: usize, S> {
    finish: Finish<S>,
    /// The summary of the full blocks.
    full: S,
    /// The rows behind the full blocks.
    waiting: [Vec<f64>; N],
}

impl<const N: usize, S: Summary<N>> Blocks<N, S> {
    pub(super) fn new(finish: impl Fn(S) -> Option<f64> + Send + Sync + 'static) -> Self {
        let waiting = array::from_fn(|_| Vec::new());
        Blocks { finish: Box::new(finish), full: S::default(), waiting }
    }

    fn rows(&self) -> usize {
        self.waiting.first().map_or(0, Vec::len)
    }

    fn all(&self) -> S {
        match self.rows() {
            0 => self.full,
            _ => self.full.merged(S::of_block(self.waiting.each_ref().map(Vec::as_slice))),
        }
    }
}

impl<const N: usize, S: fmt::Debug> fmt::Debug for Blocks<N, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").field("full", &self.full).finish_non_exhaustive()
    }
}

impl<const N: usize, S: Summary<N>> Accumulator for Blocks<N, S> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let columns: Option<Vec<_>> =
            values.iter().map(|column| column.as_primitive_opt::<Float64Type>()).collect();
        let Some(columns) = columns.filter(|columns| columns.len() == N) else {
            return internal_err!("a statistic of {N} floats has {} columns", values.len());
        };
        let nulls = columns.iter().fold(None::<NullBuffer>, |nulls, column| {
            NullBuffer::union(nulls.as_ref(), column.nulls())
        });
        let columns: Vec<Float64Array> = match nulls.filter(|nulls| nulls.null_count() > 0) {
            Some(nulls) => {
                let mask = BooleanArray::new(nulls.into_inner(), None);
                let kept = columns.into_iter().map(|column| filter(column, &mask));
                let kept: Vec<ArrayRef> = kept.collect::<Result<_, ArrowError>>()?;
                kept.iter().map(|column| column.as_primitive::<Float64Type>().clone()).collect()
            }
            None => columns.into_iter().cloned().collect(),
        };
        let rows = columns.first().map_or(0, |column| column.len());
        let mut at = 0;
        while at < rows {
            let end = rows.min(at + BLOCK - self.rows());
            let pieces: [&[f64]; N] = array::from_fn(|i| &columns[i].values()[at..end]);
            if end - at == BLOCK {
                self.full = self.full.merged(S::of_block(pieces));
            } else {
                for (waiting, piece) in self.waiting.iter_mut().zip(pieces) {
                    waiting.extend_from_slice(piece);
                }
                if self.rows() == BLOCK {
                    self.full = self.all();
                    self.waiting.iter_mut().for_each(Vec::clear);
                }
            }
            at = end;
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Float64((self.finish)(self.all())))
    }

    fn size(&self) -> usize {
        let waiting: usize = self.waiting.iter().map(Vec::capacity).sum();
        size_of_val(self) + waiting * size_of::<f64>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        S::state(&[self.all()])
            .iter()
            .map(|column| ScalarValue::try_from_array(column, 0))
            .collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.full = self.all();
        self.waiting.iter_mut().for_each(Vec::clear);
        for behind in S::of_state(states)? {
            self.full = self.full.merged(behind);
        }
        Ok(())
    }
}

/// A column of a block. Its mean is counted from its first value, so that rounding is in proportion to the spread of the
/// values and not to their distance from zero.
pub(super) struct Column<'a> {
    values: &'a [f64],
    pub(super) first: f64,
    pub(super) mean: f64,
}

impl<'a> Column<'a> {
    pub(super) fn of(values: &'a [f64]) -> Self {
        let first = values.first().copied().unwrap_or_default();
        let mean = in_lanes(values, values, |x, _| x - first) / values.len() as f64;
        Column { values, first, mean }
    }

    /// The sum of the products of deviations from the means; NaN if a value is not finite.
    pub(super) fn product(&self, other: &Self) -> f64 {
        in_lanes(self.values, other.values, |x, y| {
            ((x - self.first) - self.mean) * ((y - other.first) - other.mean)
        })
    }
}

/// The sum of a term of each pair.
fn in_lanes(xs: &[f64], ys: &[f64], term: impl Fn(f64, f64) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let mut add = |xs: &[f64], ys: &[f64]| {
        for (lane, (&x, &y)) in lanes.iter_mut().zip(xs.iter().zip(ys)) {
            *lane += term(x, y);
        }
    };
    let ((xs, x_rest), (ys, y_rest)) = (xs.as_chunks::<LANES>(), ys.as_chunks::<LANES>());
    for (xs, ys) in xs.iter().zip(ys) {
        add(xs, ys);
    }
    add(x_rest, y_rest);
    lanes.iter().sum()
}
