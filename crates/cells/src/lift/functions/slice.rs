//! `array_slice`: the elements of a list from one position to another, as in DuckDB.
//!
//! Positions count from 1, negative ones from the end, and both ends are included. DataFusion's (55.2) differs where the
//! step goes back, and refuses positions that need more than 32 bits.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, UInt32Array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::take;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{DataFusionError, Result, exec_err, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use super::bounded::too_large;
use super::inner::{hashed_by, scalar};
use crate::lift::error::spoken;

const NAME: &str = "array_slice";

/// The function; it returns at most `limit` bytes for a batch.
pub(super) fn function(limit: u64) -> ScalarUDF {
    let about = "The elements of a list from one position to another, both included.";
    ScalarUDF::from(Slice {
        limit,
        signature: Signature::user_defined(Volatility::Immutable),
        aliases: vec!["list_slice".to_string()],
        documentation: super::documented("array_slice(list, first, last[, step])", about),
    })
}

#[derive(Debug, PartialEq, Eq)]
struct Slice {
    limit: u64,
    signature: Signature,
    aliases: Vec<String>,
    documentation: Documentation,
}

hashed_by!(Slice, function => function.limit);

/// The positions from 0 that a slice of `count` elements has.
fn positions(count: i64, first: i64, last: i64, step: i64) -> impl Iterator<Item = i64> {
    let from_start = |at: i64| match at < 0 {
        true => at.saturating_add(count) + 1,
        false => at,
    };
    let (first, last) = (from_start(first), from_start(last));
    // Both as distances in the direction of the step.
    let (start, end) = match step < 0 {
        true => (first.min(count), last.max(1)),
        false => (first.max(1), last.min(count)),
    };
    let span = if step < 0 { start.saturating_sub(end) } else { end.saturating_sub(start) };
    let steps = if span < 0 || count == 0 { 0 } else { span / step.saturating_abs() + 1 };
    (0..steps).map(move |n| start - 1 + n * step)
}

impl Slice {
    fn of_lists(&self, lists: &ListArray, bounds: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let bounds: Vec<_> = bounds.iter().map(|of| of.as_primitive::<Int64Type>()).collect();
        // One list, or one for each row.
        let list_of = |row: usize| if lists.len() == 1 { 0 } else { row };
        let values = lists.values();
        let each = 4.0 + values.get_array_memory_size() as f64 / values.len().max(1) as f64;
        let mut places: Vec<u32> = Vec::new();
        let mut lengths = Vec::with_capacity(rows);
        let mut valid = Vec::with_capacity(rows);
        for row in 0..rows {
            let list = list_of(row);
            let before = places.len();
            let is_valid = lists.is_valid(list) && bounds.iter().all(|of| of.is_valid(row));
            if is_valid {
                let step = bounds.get(2).map_or(1, |of| of.value(row));
                if step == 0 {
                    return exec_err!("`{NAME}`: the step of a slice is 0");
                }
                let (first, last) = (bounds[0].value(row), bounds[1].value(row));
                let start = i64::from(lists.value_offsets()[list]);
                let count = i64::from(lists.value_length(list));
                places.extend(positions(count, first, last, step).map(|at| (start + at) as u32));
            }
            let bytes = places.len() as f64 * each;
            if bytes > self.limit as f64 || i32::try_from(places.len()).is_err() {
                let error = too_large(NAME, bytes, rows, self.limit);
                return Err(DataFusionError::External(Box::new(error)));
            }
            lengths.push(places.len() - before);
            valid.push(is_valid);
        }
        let DataType::List(field) = lists.data_type() else {
            return internal_err!("`{NAME}` of {}", lists.data_type());
        };
        let values = take(values, &UInt32Array::from(places), None)?;
        let (offsets, nulls) = (OffsetBuffer::from_lengths(lengths), NullBuffer::from(valid));
        Ok(Arc::new(ListArray::try_new(Arc::clone(field), offsets, values, Some(nulls))?))
    }
}

impl ScalarUDFImpl for Slice {
    scalar!(name NAME, signature);

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let Some((list, bounds)) = types.split_first() else {
            return plan_err!("`{NAME}` takes a list and two positions");
        };
        let list = match list {
            DataType::List(_) => list.clone(),
            DataType::LargeList(of) | DataType::FixedSizeList(of, _) => {
                DataType::List(Arc::clone(of))
            }
            DataType::Null => DataType::new_list(DataType::Null, true),
            other => {
                let of = spoken(&other.to_string());
                return plan_err!("`{NAME}` takes a list, and this is {of}");
            }
        };
        if !(2..=3).contains(&bounds.len())
            || !bounds.iter().all(|of| of.is_integer() || of.is_null())
        {
            return plan_err!(
                "`{NAME}` takes a list, two positions and a step, which are integers"
            );
        }
        Ok(std::iter::once(list).chain(bounds.iter().map(|_| DataType::Int64)).collect())
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types.first() {
            Some(list) => Ok(list.clone()),
            None => internal_err!("`{NAME}` is called without arguments"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { args.number_rows };
        let Some((list, bounds)) = args.args.split_first() else {
            return internal_err!("`{NAME}` is called without arguments");
        };
        let list = match list {
            ColumnarValue::Scalar(list) => list.to_array()?,
            ColumnarValue::Array(lists) => Arc::clone(lists),
        };
        let bounds: Vec<ArrayRef> =
            bounds.iter().map(|of| of.to_array(rows)).collect::<Result<_>>()?;
        let Some(lists) = list.as_list_opt::<i32>() else {
            return internal_err!("`{NAME}` is called with {}", list.data_type());
        };
        super::columnar(self.of_lists(lists, &bounds, rows)?, is_scalar)
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

#[cfg(test)]
mod tests {
    use super::positions;

    /// Expected values from DuckDB: `list_slice(range(1, n + 1), first, last, step)`.
    #[test]
    fn positions_of_slices_are_duckdbs() {
        let cases: [(i64, i64, i64, i64, &[i64]); 21] = [
            (3, 1, 2, 1, &[1, 2]),
            (3, -2, -1, 1, &[2, 3]),
            (3, 0, 2, 1, &[1, 2]),
            (3, -9, 2, 1, &[1, 2]),
            (3, 2, 9, 1, &[2, 3]),
            (3, 3, 2, 1, &[]),
            (3, 1, -9, 1, &[]),
            (5, 1, 5, 2, &[1, 3, 5]),
            (5, 2, 5, 2, &[2, 4]),
            (0, 1, -1, 1, &[]),
            (0, -1, 1, -1, &[]),
            (3, -1, 1, -1, &[3, 2, 1]),
            (3, 9, 2, -1, &[3, 2]),
            (5, 5, 1, -2, &[5, 3, 1]),
            (1, 5, 1, -2, &[1]),
            (3, 2, -9, -1, &[2, 1]),
            (3, 1, 3, -1, &[]),
            (3, -9, 1, -1, &[]),
            (3, 0, 0, 1, &[]),
            (3, 0, 0, -1, &[]),
            (4, 4, 4, -3, &[4]),
        ];
        for (count, first, last, step, want) in cases {
            let got: Vec<i64> = positions(count, first, last, step).map(|at| at + 1).collect();
            assert_eq!(got, want, "{count} elements [{first}:{last}:{step}]");
        }
        let far = [i64::MIN, -3, 2, i64::MAX];
        for (first, last) in far.into_iter().flat_map(|a| far.map(|b| (a, b))) {
            for step in far {
                assert!(positions(3, first, last, step).all(|at| (0..3).contains(&at)));
            }
        }
    }
}
