//! Aggregates of ranges of rows, merged from the aggregates of blocks.
//!
//! ```text
//! rows      0 1 2 3 | 4 5 6 7 | 8 9 …      blocks of 256 rows, and blocks of 16 blocks above them
//! 1 .. 11   . update ──┐ merge   merge │ update
//! ```
//! The boundaries of blocks do not depend on the range, so the bits of a sum depend on the rows alone.

use std::ops::Range;

use arrow::array::{Array, ArrayRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Accumulator;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;

/// The rows of a block, and the blocks of one above.
const ROWS: usize = 256;
const BLOCKS: usize = 16;

/// Aggregates whose states have a fixed size. Others gain nothing.
const SMALL: [&str; 14] = [
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "count",
    "max",
    "min",
    "stddev",
    "stddev_pop",
    "sum",
    "var",
    "var_pop",
];

/// The states of the blocks of a partition. Only whole blocks have one.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// From the blocks of rows on upwards: a column for each part of a state.
    levels: Vec<Vec<ArrayRef>>,
}

impl Blocks {
    pub(super) fn new(aggregate: &AggregateFunctionExpr, arguments: &[ArrayRef]) -> Result<Self> {
        let rows = arguments.first().map_or(0, |values| values.len());
        let mut blocks = Blocks::default();
        if !SMALL.contains(&aggregate.fun().name()) {
            return Ok(blocks);
        }
        let mut count = rows / ROWS;
        while count > 0 {
            let below = blocks.levels.len();
            let states = states(aggregate, count, |block, accumulator| {
                let size = size_of_block(below);
                blocks.take(accumulator, arguments, below, block * size..(block + 1) * size)
            })?;
            blocks.levels.push(states);
            count /= BLOCKS;
        }
        Ok(blocks)
    }

    pub(super) fn add(
        &self,
        accumulator: &mut dyn Accumulator,
        arguments: &[ArrayRef],
        rows: Range<usize>,
    ) -> Result<()> {
        self.add_of(accumulator, arguments, 0, rows)
    }

    /// Adds a range of a level: of the rows, which are level 0, or of blocks.
    fn add_of(
        &self,
        accumulator: &mut dyn Accumulator,
        arguments: &[ArrayRef],
        level: usize,
        range: Range<usize>,
    ) -> Result<()> {
        let size = size_of_block(level);
        let whole = range.start.div_ceil(size)..range.end / size;
        if level == self.levels.len() || whole.is_empty() {
            return self.take(accumulator, arguments, level, range);
        }
        let (start, end) = (whole.start * size, whole.end * size);
        self.take(accumulator, arguments, level, range.start..start)?;
        self.add_of(accumulator, arguments, level + 1, whole)?;
        self.take(accumulator, arguments, level, end..range.end)
    }

    /// Adds a range of a level without the blocks above.
    fn take(
        &self,
        accumulator: &mut dyn Accumulator,
        arguments: &[ArrayRef],
        level: usize,
        range: Range<usize>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let slices = |columns: &[ArrayRef]| -> Vec<ArrayRef> {
            columns.iter().map(|column| column.slice(range.start, range.len())).collect()
        };
        match level.checked_sub(1).and_then(|level| self.levels.get(level)) {
            Some(states) => accumulator.merge_batch(&slices(states)),
            None => accumulator.update_batch(&slices(arguments)),
        }
    }
}

/// Number of items of a level in one block above it.
fn size_of_block(level: usize) -> usize {
    if level == 0 { ROWS } else { BLOCKS }
}

/// The states of some blocks, each of which `fill` adds.
fn states(
    aggregate: &AggregateFunctionExpr,
    count: usize,
    fill: impl Fn(usize, &mut dyn Accumulator) -> Result<()>,
) -> Result<Vec<ArrayRef>> {
    let mut columns: Vec<Vec<ScalarValue>> = Vec::new();
    for block in 0..count {
        let mut accumulator = aggregate.create_accumulator()?;
        fill(block, accumulator.as_mut())?;
        let state = accumulator.state()?;
        columns.resize_with(state.len(), || Vec::with_capacity(count));
        columns.iter_mut().zip(state).for_each(|(column, part)| column.push(part));
    }
    columns.into_iter().map(ScalarValue::iter_to_array).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::functions_aggregate::sum::sum_udaf;
    use datafusion::physical_expr::aggregate::AggregateExprBuilder;
    use datafusion::physical_expr::expressions::Column;
    use std::sync::Arc;

    #[test]
    fn ranges_are_merged_from_blocks() {
        let rows = 3 * ROWS * BLOCKS + 100;
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true)]));
        let aggregate = AggregateExprBuilder::new(sum_udaf(), vec![Arc::new(Column::new("x", 0))])
            .schema(schema)
            .alias("x")
            .build()
            .unwrap();
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
        let arguments = [values];
        let blocks = Blocks::new(&aggregate, &arguments).unwrap();
        assert_eq!(blocks.levels.len(), 2);
        for (start, end) in [(0, rows), (1, rows - 1), (5, 9), (255, 513), (4000, 9000)] {
            let mut sum = aggregate.create_accumulator().unwrap();
            blocks.add(sum.as_mut(), &arguments, start..end).unwrap();
            let want: i64 = (start as i64..end as i64).sum();
            assert_eq!(sum.evaluate().unwrap(), ScalarValue::from(want), "{start} {end}");
        }
    }
}
