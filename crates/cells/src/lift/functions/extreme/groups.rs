//! The least or greatest float of each group in SQL's order, where NaN is greater than all numbers.
//!
//! DataFusion compares with `<`, so its result for a group with a NaN depends on the NaN's position.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::super::decimal_sum::kept;
use super::super::inner::holds;

/// One value per group, `None` while the group has no value.
#[derive(Debug)]
pub(super) struct Floats<T: ArrowPrimitiveType> {
    is_min: bool,
    compare: fn(&T::Native, &T::Native) -> Ordering,
    best: Vec<Option<T::Native>>,
}

impl<T: ArrowPrimitiveType> Floats<T> {
    pub(super) fn new(is_min: bool, compare: fn(&T::Native, &T::Native) -> Ordering) -> Self {
        Self { is_min, compare, best: Vec::new() }
    }
}

impl<T: ArrowPrimitiveType + Send + std::fmt::Debug> GroupsAccumulator for Floats<T> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> Result<()> {
        let Some(values) = values.first().and_then(|v| v.as_primitive_opt::<T>()) else {
            return internal_err!("min or max of another type than it was planned for");
        };
        self.best.resize(total, None);
        let wanted = if self.is_min { Ordering::Less } else { Ordering::Greater };
        for (i, &group) in groups.iter().enumerate() {
            if values.is_null(i) || !holds(filter, i) {
                continue;
            }
            let (value, best) = (values.value(i), &mut self.best[group]);
            if best.is_none_or(|best| (self.compare)(&value, &best) == wanted) {
                *best = Some(value);
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit: EmitTo) -> Result<ArrayRef> {
        let best = emit.take_needed(&mut self.best);
        Ok(Arc::new(best.into_iter().collect::<PrimitiveArray<T>>()))
    }

    fn state(&mut self, emit: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.evaluate(emit)?])
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.update_batch(values, groups, None, total)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let Some(values) = values.first() else { return internal_err!("min or max of nothing") };
        Ok(vec![kept(values, filter)?])
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.best.capacity() * size_of::<Option<T::Native>>()
    }
}
