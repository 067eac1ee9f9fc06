//! `lag(x, n)`, `nth_value(x, n)` and `ntile(n)` with a number for each row, or with NULL, as in DuckDB. DataFusion's take
//! constants.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, UInt64Array, new_null_array};
use arrow::compute::{CastOptions, cast_with_options, interleave};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::function::{
    ExpressionArgs, PartitionEvaluatorArgs, WindowUDFFieldArgs,
};
use datafusion::logical_expr::{
    LimitEffect, PartitionEvaluator, ReversedUDWF, WindowUDF, WindowUDFImpl,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;

use super::inner::of_inner;
use crate::lift::error::spoken;
use crate::rows::go_on;

const NTILE: &str = "ntile";
const NTH_VALUE: &str = "nth_value";

/// The functions of [`ByRow`].
pub(super) const NAMES: [&str; 2] = [NTH_VALUE, NTILE];

/// True if an argument from `at` on is not a constant, or if the number at `at` is NULL, which is 0 to DataFusion.
pub(super) fn is_by_row(args: &[Arc<dyn PhysicalExpr>], at: usize) -> bool {
    args.iter().skip(at).any(|arg| arg.downcast_ref::<Literal>().is_none())
        || constant(args, at).is_some_and(ScalarValue::is_null)
}

/// True if the number at `at` is a constant below `least`.
pub(super) fn is_below(args: &[Arc<dyn PhysicalExpr>], at: usize, least: i64) -> bool {
    let number = constant(args, at).map(|number| number.cast_to(&DataType::Int64));
    matches!(number, Some(Ok(ScalarValue::Int64(Some(number)))) if number < least)
}

fn constant(args: &[Arc<dyn PhysicalExpr>], at: usize) -> Option<&ScalarValue> {
    Some(args.get(at)?.downcast_ref::<Literal>()?.value())
}

/// `nth_value` or `ntile`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ByRow {
    inner: Arc<WindowUDF>,
}

impl ByRow {
    pub(super) fn new(inner: Arc<WindowUDF>) -> Self {
        Self { inner }
    }

    /// True if the number is not a constant that DataFusion takes as DuckDB does. From a negative one, DataFusion's
    /// `nth_value` counts from the end of the frame.
    fn is_own(&self, args: &[Arc<dyn PhysicalExpr>]) -> bool {
        match self.inner.name() {
            NTH_VALUE => is_by_row(args, 1) || is_below(args, 1, 1),
            _ => is_by_row(args, 0),
        }
    }
}

impl WindowUDFImpl for ByRow {
    of_inner!(name, documentation, signature);

    fn expressions(&self, args: ExpressionArgs) -> Vec<Arc<dyn PhysicalExpr>> {
        match self.is_own(args.input_exprs()) {
            true => args.input_exprs().to_vec(),
            false => self.inner.expressions(args),
        }
    }

    fn partition_evaluator(
        &self,
        args: PartitionEvaluatorArgs,
    ) -> Result<Box<dyn PartitionEvaluator>> {
        if !self.is_own(args.input_exprs()) {
            return self.inner.partition_evaluator_factory(args);
        }
        if self.inner.name() == NTILE {
            return Ok(Box::new(Tiles));
        }
        let (ignores_nulls, is_reversed) = (args.ignore_nulls(), args.is_reversed());
        Ok(Box::new(Nth { ignores_nulls, is_reversed, numbers: None, valid: None, row: 0 }))
    }

    fn field(&self, args: WindowUDFFieldArgs) -> Result<FieldRef> {
        let field = self.inner.field(args)?;
        // `ntile(NULL)` is NULL.
        Ok(Arc::new(Field::clone(&field).with_nullable(true)))
    }

    fn reverse_expr(&self) -> ReversedUDWF {
        match self.inner.reverse_expr() {
            ReversedUDWF::Reversed(inner) => {
                ReversedUDWF::Reversed(Arc::new(ByRow::new(inner).into()))
            }
            other => other,
        }
    }

    fn limit_effect(&self, args: &[Arc<dyn PhysicalExpr>]) -> LimitEffect {
        self.inner.inner().limit_effect(args)
    }
}

/// The numbers of rows, from the argument in that place of a function.
fn integers(values: &ArrayRef, function: &str, place: usize) -> Result<Int64Array> {
    let of = values.data_type();
    if !of.is_integer() && !of.is_null() {
        let of = spoken(&of.to_string());
        return exec_err!("argument {place} of `{function}` must be an integer, not {of}");
    }
    Ok(converted(values, &DataType::Int64)?.as_primitive::<Int64Type>().clone())
}

fn converted(values: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    Ok(cast_with_options(values, to, &options)?)
}

/// `ntile(n)`: the group of each row, of `n` that have as many rows, or one more.
#[derive(Debug)]
struct Tiles;

impl PartitionEvaluator for Tiles {
    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let [counts, ..] = values else { return internal_err!("`{NTILE}` without an argument") };
        let counts = integers(counts, NTILE, 1)?;
        let tile = |(row, count): (usize, Option<i64>)| {
            let Some(count) = count else { return Ok(None) };
            let Some(count) = usize::try_from(count).ok().filter(|count| *count > 0) else {
                return exec_err!("argument 1 of `{NTILE}` must be positive, and is {count}");
            };
            let count = count.min(rows);
            let (size, larger) = (rows / count, rows % count);
            let in_larger = larger * (size + 1);
            let before =
                if row < in_larger { row / (size + 1) } else { larger + (row - in_larger) / size };
            Ok(Some(before as u64 + 1))
        };
        let tiles = counts.iter().enumerate().map(tile).collect::<Result<UInt64Array>>()?;
        Ok(Arc::new(tiles))
    }
}

/// `nth_value(x, n)`: the value in row `n` of the frame, from 1; NULL for a number that no row has.
#[derive(Debug)]
struct Nth {
    ignores_nulls: bool,
    is_reversed: bool,
    numbers: Option<Int64Array>,
    /// The rows of the partition with a value, if others do not count.
    valid: Option<Vec<usize>>,
    /// The next row: frames come in the order of their rows.
    row: usize,
}

/// The row behind `before` others of a range, from its end if `is_reversed`; of those with a value if these are given.
fn nth(
    range: Range<usize>,
    before: usize,
    is_reversed: bool,
    valid: Option<&[usize]>,
) -> Option<usize> {
    let mut inside = match valid {
        Some(valid) => {
            let place = |row: usize| valid.partition_point(|at| *at < row);
            place(range.start)..place(range.end)
        }
        None => range,
    };
    let at = if is_reversed { inside.nth_back(before) } else { inside.nth(before) }?;
    Some(valid.map_or(at, |valid| valid[at]))
}

impl PartitionEvaluator for Nth {
    fn evaluate(&mut self, values: &[ArrayRef], range: &Range<usize>) -> Result<ScalarValue> {
        go_on()?;
        let [x, numbers, ..] = values else {
            return internal_err!("`{NTH_VALUE}` without two arguments");
        };
        let numbers = match self.numbers.take() {
            Some(known) => known,
            None => integers(numbers, NTH_VALUE, 2)?,
        };
        let number = numbers.is_valid(self.row).then(|| numbers.value(self.row));
        self.numbers = Some(numbers);
        self.row += 1;
        let before = number.and_then(|number| usize::try_from(number.checked_sub(1)?).ok());
        if self.ignores_nulls && self.valid.is_none() {
            self.valid = Some((0..x.len()).filter(|row| x.is_valid(*row)).collect());
        }
        let at =
            before.and_then(|n| nth(range.clone(), n, self.is_reversed, self.valid.as_deref()));
        match at {
            Some(row) => ScalarValue::try_from_array(x, row),
            None => ScalarValue::try_from(x.data_type()),
        }
    }

    fn uses_window_frame(&self) -> bool {
        true
    }
}

/// `lag(x, n, otherwise)` and `lead`: the value `n` rows before or behind.
#[derive(Debug)]
pub(super) struct Shifts {
    function: String,
    kind: DataType,
    /// True if positive numbers are of rows before.
    is_back: bool,
    ignores_nulls: bool,
}

impl Shifts {
    pub(super) fn new(inner: &WindowUDF, args: &PartitionEvaluatorArgs) -> Result<Self> {
        let function = inner.name().to_string();
        let field = inner.field(WindowUDFFieldArgs::new(args.input_fields(), &function))?;
        let is_back = (function == "lag") != args.is_reversed();
        let ignores_nulls = args.ignore_nulls();
        Ok(Self { function, kind: field.data_type().clone(), is_back, ignores_nulls })
    }
}

/// The row that is `by` rows from another one, of those with a value if these are given.
fn shifted(row: usize, by: i128, rows: usize, valid: Option<&[usize]>) -> Option<usize> {
    match valid {
        Some(valid) if by > 0 => {
            let next = valid.partition_point(|at| *at <= row) as i128;
            valid.get(usize::try_from(next + by - 1).ok()?).copied()
        }
        Some(valid) if by < 0 => {
            let count = valid.partition_point(|at| *at < row) as i128;
            valid.get(usize::try_from(count + by).ok()?).copied()
        }
        _ => usize::try_from(row as i128 + by).ok().filter(|at| *at < rows),
    }
}

impl PartitionEvaluator for Shifts {
    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let [x, numbers, rest @ ..] = values else {
            return internal_err!("`{}` without two arguments", self.function);
        };
        let numbers = integers(numbers, &self.function, 2)?;
        let x = converted(x, &self.kind)?;
        let otherwise = match rest.first() {
            Some(otherwise) => converted(otherwise, &self.kind)?,
            None => new_null_array(&self.kind, rows),
        };
        let null = new_null_array(&self.kind, 1);
        let valid: Option<Vec<usize>> =
            self.ignores_nulls.then(|| (0..rows).filter(|row| x.is_valid(*row)).collect());
        let sign = if self.is_back { -1 } else { 1 };
        let place = |(row, number): (usize, Option<i64>)| match number {
            None => (2, 0),
            Some(number) => match shifted(row, sign * i128::from(number), rows, valid.as_deref()) {
                Some(at) => (0, at),
                None => (1, row),
            },
        };
        let places: Vec<(usize, usize)> = numbers.iter().enumerate().map(place).collect();
        Ok(interleave(&[x.as_ref(), otherwise.as_ref(), null.as_ref()], &places)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn rows_are_counted_with_and_without_nulls() {
        let valid = [0, 2, 5];
        for (row, by, all, with_value) in [
            (2, 0, Some(2), Some(2)),
            (2, 1, Some(3), Some(5)),
            (2, 2, Some(4), None),
            (3, -1, Some(2), Some(2)),
            (3, -2, Some(1), Some(0)),
            (3, -4, None, None),
            (5, i128::from(i64::MAX), None, None),
        ] {
            assert_eq!(shifted(row, by, 6, None), all, "{row}, {by}");
            assert_eq!(shifted(row, by, 6, Some(&valid)), with_value, "{row}, {by}");
        }
    }

    #[test]
    fn rows_of_a_range_are_counted_from_either_end() {
        let valid = [0, 2, 5];
        for (range, before, forward, back, of_valid, of_valid_back) in [
            (1..6, 0, Some(1), Some(5), Some(2), Some(5)),
            (1..6, 1, Some(2), Some(4), Some(5), Some(2)),
            (0..5, 1, Some(1), Some(3), Some(2), Some(0)),
            (3..5, 0, Some(3), Some(4), None, None),
            (4..4, 0, None, None, None, None),
            (0..6, usize::MAX, None, None, None, None),
        ] {
            assert_eq!(nth(range.clone(), before, false, None), forward);
            assert_eq!(nth(range.clone(), before, true, None), back);
            assert_eq!(nth(range.clone(), before, false, Some(&valid)), of_valid);
            assert_eq!(nth(range, before, true, Some(&valid)), of_valid_back);
        }
    }

    #[test]
    fn numbers_that_are_null_or_too_small_are_found() {
        for (number, by_row, below) in [
            (None, true, false),
            (Some(-1), false, true),
            (Some(0), false, true),
            (Some(1), false, false),
        ] {
            let args = [Some(5), number].map(|value| -> Arc<dyn PhysicalExpr> {
                Arc::new(Literal::new(ScalarValue::Int64(value)))
            });
            assert_eq!((is_by_row(&args, 1), is_below(&args, 1, 1)), (by_row, below), "{number:?}");
        }
        assert!(!is_by_row(&[], 1) && !is_below(&[], 1, 1));
    }

    #[test]
    fn tiles_differ_by_one_row() {
        let counts: ArrayRef =
            Arc::new(Int64Array::from(vec![Some(3), Some(3), None, Some(9), Some(2)]));
        let tiles = Tiles.evaluate_all(&[counts], 5).unwrap();
        let want = [Some(1), Some(1), None, Some(4), Some(2)].into_iter().collect::<UInt64Array>();
        assert_eq!(tiles.as_ref(), &want as &dyn Array);
        let counts: ArrayRef = Arc::new(Int64Array::from(vec![0]));
        assert!(Tiles.evaluate_all(&[counts], 1).is_err());
    }
}
