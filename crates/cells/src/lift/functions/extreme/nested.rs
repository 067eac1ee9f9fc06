//! `min` and `max` of lists, structs and maps.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef, make_comparator};
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::Accumulator;

use crate::lift::nested::ORDER;

/// The least of some values, or the greatest one.
#[derive(Debug)]
pub(super) struct Nested {
    is_min: bool,
    best: ScalarValue,
}

impl Nested {
    pub(super) fn new(of: &DataType, is_min: bool) -> Result<Self> {
        Ok(Self { is_min, best: ScalarValue::try_from(of)? })
    }
}

impl Accumulator for Nested {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("an extreme of nothing") };
        let wanted = if self.is_min { Ordering::Less } else { Ordering::Greater };
        let compare = make_comparator(values.as_ref(), values.as_ref(), ORDER)?;
        let mut first: Option<usize> = None;
        for row in (0..values.len()).filter(|&row| values.is_valid(row)) {
            if first.is_none_or(|first| compare(row, first) == wanted) {
                first = Some(row);
            }
        }
        let Some(row) = first else { return Ok(()) };
        let is_better = if self.best.is_null() {
            true
        } else {
            let best = self.best.to_array()?;
            make_comparator(values.as_ref(), best.as_ref(), ORDER)?(row, 0) == wanted
        };
        if is_better {
            // A slice would keep the whole batch in memory.
            self.best = ScalarValue::try_from_array(values, row)?.compacted();
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.best.clone())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.best.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }
}
