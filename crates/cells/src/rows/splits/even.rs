//! Batches that end at the same rows, wherever the rows are computed.
//!
//! ```text
//! parts of a sort    ████████ █████│███ ████████ ██│██████ ███
//! batches            ──────── ───────── ──────── ───────── ───     only those across the end of a part are copied
//! ```
//! All batches but the last one have one number of rows, so they follow from the rows alone. Parts that know how many
//! rows are before them cut their own at the same rows.

use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

/// The rows behind the first `from` ones of a result, in batches that end where the number of a row in the result is a
/// multiple of `batch_rows`. Where these are batches or slices of one, they are not copied.
pub(super) fn evenly(
    rows: BoxStream<'static, Result<RecordBatch>>,
    from: usize,
    batch_rows: usize,
) -> BoxStream<'static, Result<RecordBatch>> {
    let even = Even {
        rows: Some(rows),
        batch_rows,
        left: batch_rows - from % batch_rows,
        held: Vec::new(),
        rest: None,
    };
    stream::try_unfold(even, |mut even| async move {
        Ok::<_, DataFusionError>(even.next().await?.map(|batch| (batch, even)))
    })
    .boxed()
}

struct Even {
    /// `None` once they have ended.
    rows: Option<BoxStream<'static, Result<RecordBatch>>>,
    batch_rows: usize,
    /// Rows until the batch ends.
    left: usize,
    /// Rows of the batch.
    held: Vec<RecordBatch>,
    /// Rows behind them.
    rest: Option<RecordBatch>,
}

impl Even {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let batch = match (self.rest.take(), &mut self.rows) {
                (Some(rest), _) => Some(rest),
                (None, Some(rows)) => rows.try_next().await?,
                (None, None) => None,
            };
            let Some(batch) = batch else {
                self.rows = None;
                return self.joined();
            };
            let count = batch.num_rows();
            if count == 0 {
                continue;
            }
            let taken = count.min(self.left);
            if taken < count {
                self.rest = Some(batch.slice(taken, count - taken));
                self.held.push(batch.slice(0, taken));
            } else {
                self.held.push(batch);
            }
            self.left -= taken;
            if self.left == 0 {
                self.left = self.batch_rows;
                return self.joined();
            }
        }
    }

    fn joined(&mut self) -> Result<Option<RecordBatch>> {
        let mut held = std::mem::take(&mut self.held);
        if held.len() < 2 {
            return Ok(held.pop());
        }
        Ok(Some(concat_batches(&held[0].schema(), &held)?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array};
    use datafusion::arrow::datatypes::Int64Type;
    use std::sync::Arc;

    fn batch(from: i64, to: i64) -> RecordBatch {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(from..to));
        RecordBatch::try_from_iter([("n", column)]).unwrap()
    }

    /// The batches of rows from `from` on, read in pieces that end at these numbers.
    async fn cut(from: i64, ends: &[i64], batch_rows: usize) -> Vec<Vec<i64>> {
        let starts = std::iter::once(&from).chain(ends);
        let pieces: Vec<_> = starts.zip(ends).map(|(from, to)| Ok(batch(*from, *to))).collect();
        let rows = evenly(stream::iter(pieces).boxed(), from as usize, batch_rows);
        let batches: Vec<RecordBatch> = rows.try_collect().await.unwrap();
        let values = |batch: &RecordBatch| {
            batch.column(0).as_primitive::<Int64Type>().values().iter().copied().collect()
        };
        batches.iter().map(values).collect()
    }

    #[tokio::test]
    async fn batches_end_at_multiples_whatever_the_pieces() {
        let expected: Vec<Vec<i64>> = vec![vec![3], vec![4, 5, 6, 7], vec![8, 9, 10, 11], vec![12]];
        for ends in
            [&[13][..], &[4, 8, 12, 13], &[5, 5, 6, 13], &[4, 5, 6, 7, 8, 9, 10, 11, 12, 13]]
        {
            assert_eq!(cut(3, ends, 4).await, expected, "{ends:?}");
        }
        assert_eq!(cut(8, &[10], 4).await, [[8, 9]]);
        assert!(cut(8, &[], 4).await.is_empty());
        assert!(cut(8, &[8, 8], 4).await.is_empty());
    }
}
