//! `max(x, n)`, `min(x, n)`, `arg_max(x, y, n)` and `arg_min(x, y, n)`: the x of the n rows with the greatest or smallest
//! keys, which are x or y, as a list; the best one first, of equal ones the first row. Rows in which x or the key is NULL
//! do not count; without others the result is NULL. As in DuckDB.

use std::collections::BinaryHeap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, FieldRef};
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, ColumnarValue, Signature, Volatility,
};

use super::discrete::{has_order, list_of};
use super::inner::scalar;
use super::recomputed;
use crate::lift::error::spoken;
use crate::lift::labels::canonical;
use crate::lift::names::{TOP_MAX, TOP_MIN};

/// Maximum values of a list, as in DuckDB.
pub(in crate::lift) const COUNT_MAX: i64 = 999_999;

/// The call with that number of columns before its number as it is written, and what to write, for errors.
pub(in crate::lift) fn top_call(is_max: bool, columns: usize) -> (String, String) {
    let (name, function, superlative, comparative) = match is_max {
        true => ("max", "greatest", "greatest", "greater"),
        false => ("min", "least", "smallest", "smaller"),
    };
    if columns > 1 {
        let hint = format!("write a number: `arg_{name}(x, y, 3)` is a list of 3 values");
        return (format!("arg_{name}(x, y, n)"), hint);
    }
    let hint = format!(
        "`{name}(x, 3)` is a list of the 3 {superlative} values of a column, `{function}(x, y)` the {comparative} one of two values"
    );
    (format!("{name}(x, n)"), hint)
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Top {
    is_max: bool,
    signature: Signature,
}

impl Top {
    pub(super) fn new(is_max: bool) -> Self {
        Self { is_max, signature: Signature::user_defined(Volatility::Immutable) }
    }

    /// The functions as written, for errors.
    fn written(&self) -> &'static str {
        if self.is_max {
            "`max(x, n)` and `arg_max(x, y, n)`"
        } else {
            "`min(x, n)` and `arg_min(x, y, n)`"
        }
    }

    /// The constant number of values.
    fn count(&self, args: &AccumulatorArgs) -> Result<usize> {
        let nothing = RecordBatch::new_empty(Arc::new(args.schema.clone()));
        let value = match args.exprs.last().map(|expr| expr.evaluate(&nothing)).transpose()? {
            Some(ColumnarValue::Scalar(value)) => value.cast_to(&DataType::Int64)?,
            _ => return plan_err!("{} take a constant n, not a column", self.written()),
        };
        match value {
            ScalarValue::Int64(Some(n @ 1..=COUNT_MAX)) => Ok(n as usize),
            other => {
                plan_err!("{} take an n from 1 to {COUNT_MAX}, not {other}", self.written())
            }
        }
    }
}

/// The type as which values are stored; `None` for types that have no row format.
fn stored(of: &DataType) -> Option<DataType> {
    let of = match of {
        DataType::Dictionary(_, values) => &**values,
        DataType::Null => &DataType::Int64,
        of => of,
    };
    RowConverter::supports_fields(&[SortField::new(of.clone())]).then(|| of.clone())
}

impl AggregateUDFImpl for Top {
    scalar!(signature);

    fn name(&self) -> &str {
        if self.is_max { TOP_MAX } else { TOP_MIN }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let Some((n, columns)) =
            types.split_last().filter(|(_, rest)| [1, 2].contains(&rest.len()))
        else {
            return plan_err!("{} take one or two columns and a number", self.written());
        };
        if !n.is_integer() && !n.is_null() {
            let (call, _) = top_call(self.is_max, columns.len());
            return plan_err!("`{call}` takes an integer n, not {}", spoken(&n.to_string()));
        }
        let is_key = |at: usize| at + 1 == columns.len();
        let mut taken = Vec::with_capacity(types.len());
        for (at, of) in columns.iter().enumerate() {
            // Intervals are ordered by their length, which their row format does not have.
            let fits = !is_key(at) || has_order(of) && !matches!(of, DataType::Interval(_));
            let Some(stored) = stored(of).filter(|_| fits) else {
                let of = spoken(&of.to_string());
                return plan_err!("{} take values that can be ordered, not {of}", self.written());
            };
            taken.push(stored);
        }
        taken.push(DataType::Int64);
        Ok(taken)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let of = types.first().cloned().unwrap_or(DataType::Null);
        Ok(DataType::new_list(of, true))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let [value, rest @ ..] = args.input_fields else {
            return internal_err!("{} takes arguments", self.name());
        };
        let key = if let [key, _] = rest { key } else { value };
        let list = |name: &str, of: &FieldRef| {
            let element = Field::new_list_field(of.data_type().clone(), true);
            Arc::new(Field::new_list(name, element, true))
        };
        Ok(vec![list("values", value), list("keys", key)])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let [value, rest @ ..] = args.expr_fields else {
            return internal_err!("{} takes arguments", self.name());
        };
        let key = if let [key, _] = rest { key } else { value };
        let count = self.count(&args)?;
        Ok(Box::new(Best::new(value.data_type(), key.data_type(), self.is_max, count)?))
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(recomputed::anew(Arc::new(Top::new(self.is_max).into()), args))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

/// A key as a row of Arrow's row format, of which the smallest is the best one, the number of the row, and the value.
type Row = (Box<[u8]>, u64, Box<[u8]>);

/// The best rows so far.
#[derive(Debug)]
struct Best {
    /// The type of the result.
    of: DataType,
    values: RowConverter,
    keys: RowConverter,
    count: usize,
    /// The worst one is on top.
    rows: BinaryHeap<Row>,
    /// The rows that have been added.
    seen: u64,
    bytes: usize,
}

impl Best {
    fn new(value: &DataType, key: &DataType, is_max: bool, count: usize) -> Result<Self> {
        let options = SortOptions { descending: is_max, nulls_first: false };
        let keys = SortField::new_with_options(key.clone(), options);
        Ok(Self {
            of: DataType::new_list(value.clone(), true),
            values: RowConverter::new(vec![SortField::new(value.clone())])?,
            keys: RowConverter::new(vec![keys])?,
            count,
            rows: BinaryHeap::new(),
            seen: 0,
            bytes: 0,
        })
    }

    fn add(&mut self, values: &ArrayRef, keys: &ArrayRef) -> Result<()> {
        // -0.0 equals 0.0, as in ORDER BY.
        let key_rows = self.keys.convert_columns(&[canonical(keys)])?;
        let value_rows = self.values.convert_columns(std::slice::from_ref(values))?;
        for row in (0..keys.len()).filter(|&row| keys.is_valid(row) && values.is_valid(row)) {
            self.seen += 1;
            let key = key_rows.row(row).data();
            if self.rows.len() == self.count {
                // Of equal rows the first one is better.
                if self.rows.peek().is_some_and(|(worst, ..)| &**worst <= key) {
                    continue;
                }
                if let Some((key, _, value)) = self.rows.pop() {
                    self.bytes -= key.len() + value.len();
                }
            }
            let value = value_rows.row(row).data();
            self.bytes += key.len() + value.len();
            self.rows.push((key.into(), self.seen, value.into()));
        }
        Ok(())
    }

    /// The values and the keys, the best ones first.
    fn columns(&self) -> Result<[ArrayRef; 2]> {
        // Texts of one array have at most so many bytes.
        if i32::try_from(self.bytes).is_err() {
            let (bytes, most) = (self.bytes, i32::MAX);
            return exec_err!(
                "the greatest or smallest values have {bytes} bytes, and at most {most}"
            );
        }
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_unstable();
        let (of_value, of_key) = (self.values.parser(), self.keys.parser());
        let values = rows.iter().map(|(_, _, value)| of_value.parse(value));
        let keys = rows.iter().map(|(key, ..)| of_key.parse(key));
        let columns = [self.values.convert_rows(values)?, self.keys.convert_rows(keys)?];
        match columns.map(|mut columns| columns.pop()) {
            [Some(values), Some(keys)] => Ok([values, keys]),
            _ => internal_err!("values without a column"),
        }
    }
}

impl Accumulator for Best {
    fn update_batch(&mut self, columns: &[ArrayRef]) -> Result<()> {
        match columns {
            [values, _] => self.add(values, values),
            [values, keys, _] => self.add(values, keys),
            _ => internal_err!("the greatest values of {} columns", columns.len()),
        }
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if self.rows.is_empty() {
            return ScalarValue::try_from(&self.of);
        }
        let [values, _] = self.columns()?;
        list_of(values)
    }

    fn size(&self) -> usize {
        let rows = self.rows.capacity() * size_of::<Row>();
        size_of_val(self) + self.values.size() + self.keys.size() + rows + self.bytes
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.columns()?.into_iter().map(list_of).collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [values, keys] = states else {
            return internal_err!("the greatest values have a broken state");
        };
        let (values, keys) = (values.as_list::<i32>(), keys.as_list::<i32>());
        for (values, keys) in values.iter().zip(keys.iter()) {
            if let (Some(values), Some(keys)) = (values, keys) {
                self.add(&values, &keys)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{Float64Array, StringArray};

    fn best(is_max: bool, count: usize) -> Best {
        Best::new(&DataType::Utf8, &DataType::Float64, is_max, count).unwrap()
    }

    #[test]
    fn the_best_rows_of_all_parts_in_their_order() {
        let names = ["a", "b", "c", "d", "e", "f"].map(Some);
        let names: ArrayRef = Arc::new(StringArray::from_iter(names.into_iter().chain([None])));
        let keys = [Some(1.0), Some(-0.0), None, Some(f64::NAN), Some(1.0), Some(0.0), Some(9.0)];
        let keys: ArrayRef = Arc::new(Float64Array::from(keys.to_vec()));
        let n: ArrayRef = Arc::new(Float64Array::from(vec![0.0; 7]));
        for (is_max, count, want) in [
            (true, 1, "[d]"),
            (true, 4, "[d, a, e, b]"),
            (false, 3, "[b, f, a]"),
            (false, 9, "[b, f, a, e, d]"),
        ] {
            for middle in [0, 3, 7] {
                let mut all = best(is_max, count);
                for (start, end) in [(0, middle), (middle, 7)] {
                    let mut part = best(is_max, count);
                    let columns = [&names, &keys, &n].map(|all| all.slice(start, end - start));
                    part.update_batch(&columns).unwrap();
                    let state: Vec<ArrayRef> =
                        part.state().unwrap().iter().map(|of| of.to_array().unwrap()).collect();
                    all.merge_batch(&state).unwrap();
                }
                let ScalarValue::List(list) = all.evaluate().unwrap() else { unreachable!() };
                let got: Vec<_> = list.values().as_string::<i32>().iter().flatten().collect();
                assert_eq!(format!("[{}]", got.join(", ")), want, "{is_max} {count} {middle}");
                assert!(all.rows.len() <= count && all.size() < 4096);
            }
        }
        assert!(best(true, 2).evaluate().unwrap().is_null());
    }
}
