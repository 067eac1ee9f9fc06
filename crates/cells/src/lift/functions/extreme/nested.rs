//! `min` and `max` of lists, structs and maps.

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::Accumulator;

use super::super::value_at::better_row;

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
        if let Some(row) = better_row(values, values, !self.is_min, &self.best)? {
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
