//! Spans of time: numbers with their unit in the attributes `units` and `dtype`, as xarray stores `timedelta64`.
//!
//! ```text
//! step  {units: hours, dtype: timedelta64[ns]}      Duration(ns)
//! 0, 6, 12                                      ⇒   0, 21600000000000, 43200000000000
//! ```
//! In SQL they are numbers. Files and Python have durations, which are made where rows leave the engine: until then
//! the metadata of a column's field has the two attributes.
//!
//! # Source
//! `CFTimedeltaCoder` of xarray.

use std::error::Error;
use std::fmt::{self, Display};
use std::sync::Arc;

use crate::lift::{ColumnOrigin, calendar};
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, Float64Type, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType,
    IntervalUnit, Schema, SchemaRef, TimeUnit, UInt64Type,
};
use arrow::error::ArrowError;
use tessera_planner::catalog::Attrs;

const UNITS: &str = "units";
const DTYPE: &str = "dtype";

const DAY_NS: i64 = 86_400_000_000_000;

/// CF's units and their nanoseconds.
const COUNTED: [(&str, i64); 7] = [
    ("days", DAY_NS),
    ("hours", 3_600_000_000_000),
    ("minutes", 60_000_000_000),
    ("seconds", 1_000_000_000),
    ("milliseconds", 1_000_000),
    ("microseconds", 1_000),
    ("nanoseconds", 1),
];

/// The dtypes of xarray, their units and the nanoseconds of these.
const DTYPES: [(&str, TimeUnit, i64); 4] = [
    ("timedelta64[s]", TimeUnit::Second, 1_000_000_000),
    ("timedelta64[ms]", TimeUnit::Millisecond, 1_000_000),
    ("timedelta64[us]", TimeUnit::Microsecond, 1_000),
    ("timedelta64[ns]", TimeUnit::Nanosecond, 1),
];

/// Why a column of spans cannot become durations.
#[derive(Debug)]
pub enum SpanError {
    /// A number that does not fit 64 bits in the unit of the durations.
    TooLarge {
        /// The column.
        name: String,
        /// The number.
        number: String,
        /// The unit that it counts.
        units: &'static str,
        /// The dtype of the durations.
        dtype: &'static str,
    },
    /// An interval of months.
    Months {
        /// The column.
        name: String,
        /// The months.
        months: i32,
    },
    /// Arrow's error.
    Arrow(ArrowError),
}

impl SpanError {
    /// How to avoid the error.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::TooLarge { name, .. } => Some(format!("`{name} * 1` is a plain number")),
            Self::Months { name, .. } => Some(format!("`{name}::text` is a text")),
            Self::Arrow(_) => None,
        }
    }
}

impl fmt::Display for SpanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { name, number, units, dtype } => {
                write!(f, "`{name}`: {number} {units} do not fit {dtype}")
            }
            Self::Months { name, months } => {
                write!(f, "`{name}` has an interval of {months} months, which has no fixed length")
            }
            Self::Arrow(error) => error.fmt(f),
        }
    }
}

impl Error for SpanError {}

impl From<ArrowError> for SpanError {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(error)
    }
}

/// The unit of the numbers of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    units: &'static str,
    /// NumPy's name of the durations, and their unit.
    dtype: &'static str,
    unit: TimeUnit,
    /// Durations of that unit in one number.
    factor: i64,
}

impl Span {
    /// `None` for plain numbers, and for other columns.
    fn of(field: &Field) -> Option<Self> {
        let text = |key: &str| field.metadata().get(key).map(String::as_str);
        match is_number(field) {
            true => Self::named(text(UNITS)?, text(DTYPE)?, field.data_type()),
            false => None,
        }
    }

    /// By xarray's rule for integers: the unit of the dtype, or the counted one if that is finer. For floats xarray takes
    /// the coarsest unit in which all of them are whole, which is known at their end: here it is nanoseconds.
    fn named(units: &str, dtype: &str, numbers: &DataType) -> Option<Self> {
        let (units, length) = COUNTED.into_iter().find(|(name, _)| *name == units)?;
        let (.., coarsest) = DTYPES.into_iter().find(|(name, ..)| *name == dtype)?;
        let finer = if numbers.is_floating() { 1 } else { length.min(coarsest) };
        let (dtype, unit, _) = DTYPES.into_iter().find(|(.., own)| *own == finer)?;
        Some(Span { units, dtype, unit, factor: length / finer })
    }

    /// The durations of a column of numbers: NULL where they are NULL, NaN or NaT as xarray stores it.
    fn durations(&self, name: &str, numbers: &ArrayRef) -> Result<ArrayRef, SpanError> {
        let refused = |number: &dyn Display| SpanError::TooLarge {
            name: name.to_string(),
            number: number.to_string(),
            units: self.units,
            dtype: self.dtype,
        };
        let of_integer = |number: i128| {
            let scaled = number.checked_mul(i128::from(self.factor));
            scaled.and_then(|n| i64::try_from(n).ok()).ok_or_else(|| refused(&number))
        };
        let of_float = |number: f64| {
            let scaled = (number * self.factor as f64).round_ties_even();
            if scaled.abs() < i64::MAX as f64 { Ok(scaled as i64) } else { Err(refused(&number)) }
        };
        let counts: Int64Array = match numbers.data_type() {
            of if of.is_floating() => {
                let floats = cast(numbers, &DataType::Float64)?;
                let all = floats.as_primitive::<Float64Type>().iter();
                let all = all.map(|n| n.filter(|n| !n.is_nan()).map(of_float).transpose());
                all.collect::<Result<_, SpanError>>()?
            }
            DataType::UInt64 => {
                let all = numbers.as_primitive::<UInt64Type>().iter();
                let all = all.map(|n| n.map(|n| of_integer(n.into())).transpose());
                all.collect::<Result<_, SpanError>>()?
            }
            _ => {
                let integers = cast(numbers, &DataType::Int64)?;
                let all = integers.as_primitive::<Int64Type>().iter();
                let known = |n: Option<i64>| n.filter(|n| *n != i64::MIN);
                let all = all.map(|n| known(n).map(|n| of_integer(n.into())).transpose());
                all.collect::<Result<_, SpanError>>()?
            }
        };
        Ok(cast(&counts, &DataType::Duration(self.unit))?)
    }
}

fn is_number(field: &Field) -> bool {
    let of = field.data_type();
    (of.is_integer() || of.is_floating()) && calendar(field).is_none()
}

/// The field with the attributes among `attrs` that mark spans.
pub fn spanned(field: Field, attrs: &Attrs) -> Field {
    let text = |key: &str| attrs.get(key).and_then(serde_json::Value::as_str);
    let (Some(units), Some(dtype)) = (text(UNITS), text(DTYPE)) else { return field };
    if !is_number(&field) || Span::named(units, dtype, field.data_type()).is_none() {
        return field;
    }
    let mut metadata = field.metadata().clone();
    metadata.insert(UNITS.to_string(), units.to_string());
    metadata.insert(DTYPE.to_string(), dtype.to_string());
    field.with_metadata(metadata)
}

/// The schema of rows whose columns have these origins: [`spanned`] for each.
pub fn spanned_rows(schema: &SchemaRef, origins: &[Option<ColumnOrigin>]) -> SchemaRef {
    let fields = schema.fields().iter().enumerate().map(|(at, field)| {
        match origins.get(at).and_then(Option::as_ref) {
            Some(origin) => Arc::new(spanned(Field::clone(field), &origin.attrs)),
            None => Arc::clone(field),
        }
    });
    let fields = fields.collect::<Vec<_>>();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// The conversion of a column to durations.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Numbers(Span),
    Intervals,
}

/// Makes durations of the columns of rows that are spans of time.
#[derive(Debug)]
pub struct Durations {
    columns: Vec<Option<Kind>>,
    schema: SchemaRef,
}

impl Durations {
    /// The conversion of rows of that schema; `None` if no column has spans. `intervals` converts columns of INTERVAL,
    /// too: an interval with months is an error then.
    pub fn of(schema: &SchemaRef, intervals: bool) -> Option<Self> {
        let kind = |field: &Field| match field.data_type() {
            DataType::Interval(IntervalUnit::MonthDayNano) if intervals => Some(Kind::Intervals),
            _ => Span::of(field).map(Kind::Numbers),
        };
        let columns: Vec<Option<Kind>> = schema.fields().iter().map(|f| kind(f)).collect();
        if columns.iter().all(Option::is_none) {
            return None;
        }
        let fields = schema.fields().iter().zip(&columns).map(|(field, kind)| {
            let unit = match kind {
                Some(Kind::Numbers(span)) => span.unit,
                Some(Kind::Intervals) => TimeUnit::Nanosecond,
                None => return Arc::clone(field),
            };
            let mut metadata = field.metadata().clone();
            metadata.remove(UNITS);
            metadata.remove(DTYPE);
            let field = Field::new(field.name(), DataType::Duration(unit), true);
            Arc::new(field.with_metadata(metadata))
        });
        let fields = fields.collect::<Vec<_>>();
        let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
        Some(Durations { columns, schema })
    }

    /// The schema with the durations.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Converts some of the rows.
    ///
    /// # Errors
    /// A number of spans that does not fit 64 bits in the unit of the durations; an interval of months.
    pub fn rows(&self, batch: &RecordBatch) -> Result<RecordBatch, SpanError> {
        let all = self.schema.fields().iter().zip(batch.columns()).zip(&self.columns);
        let columns = all.map(|((field, column), kind)| match kind {
            Some(Kind::Numbers(span)) => span.durations(field.name(), column),
            Some(Kind::Intervals) => of_intervals(field.name(), column),
            None => Ok(Arc::clone(column)),
        });
        let columns = columns.collect::<Result<_, SpanError>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }
}

/// The durations of a column of INTERVAL, in nanoseconds; a day has 24 hours.
///
/// # Errors
/// An interval of months, which has no fixed length, or one of more than 292 years.
pub fn of_intervals(name: &str, intervals: &ArrayRef) -> Result<ArrayRef, SpanError> {
    let name = || name.to_string();
    let one = |of: IntervalMonthDayNano| {
        if of.months != 0 {
            return Err(SpanError::Months { name: name(), months: of.months });
        }
        let days = i64::from(of.days).checked_mul(DAY_NS);
        let all = days.and_then(|days| days.checked_add(of.nanoseconds));
        all.ok_or_else(|| SpanError::TooLarge {
            name: name(),
            number: of.days.to_string(),
            units: "days",
            dtype: "timedelta64[ns]",
        })
    };
    let all = intervals.as_primitive::<IntervalMonthDayNanoType>().iter();
    let all = all.map(|interval| interval.map(one).transpose());
    let counts: Int64Array = all.collect::<Result<_, SpanError>>()?;
    Ok(cast(&counts, &DataType::Duration(TimeUnit::Nanosecond))?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{Float64Array, Int32Array, IntervalMonthDayNanoArray};

    fn attrs(units: &str, dtype: &str) -> Attrs {
        let text = |value: &str| serde_json::Value::String(value.to_string());
        [(UNITS, text(units)), (DTYPE, text(dtype)), ("long_name", text("x"))]
            .map(|(key, value)| (key.to_string(), value))
            .into()
    }

    fn converted(column: ArrayRef, attrs: &Attrs) -> Result<Vec<Option<i64>>, SpanError> {
        let field = spanned(Field::new("x", column.data_type().clone(), true), attrs);
        let schema = Arc::new(Schema::new(vec![field]));
        let batch = RecordBatch::try_new(schema.clone(), vec![column]).unwrap();
        let durations = Durations::of(&schema, true).unwrap();
        let rows = durations.rows(&batch)?;
        assert!(matches!(rows.column(0).data_type(), DataType::Duration(_)));
        let counts = cast(rows.column(0), &DataType::Int64).unwrap();
        Ok(counts.as_primitive::<Int64Type>().iter().collect())
    }

    /// The values are those of xarray: `xr.decode_cf` of the numbers with these attributes.
    #[test]
    fn numbers_with_the_attributes_of_xarray_are_durations() {
        let integers = || Arc::new(Int32Array::from(vec![Some(6), None, Some(-1)])) as ArrayRef;
        for (units, dtype, unit, want) in [
            ("hours", "timedelta64[ns]", TimeUnit::Nanosecond, 3_600_000_000_000),
            ("days", "timedelta64[s]", TimeUnit::Second, 86_400),
            ("seconds", "timedelta64[us]", TimeUnit::Microsecond, 1_000_000),
            // The counted unit is finer.
            ("milliseconds", "timedelta64[s]", TimeUnit::Millisecond, 1),
        ] {
            let attrs = attrs(units, dtype);
            let span = Span::named(units, dtype, &DataType::Int32);
            assert_eq!(span.map(|span| span.unit), Some(unit));
            assert_eq!(converted(integers(), &attrs).unwrap(), [Some(6 * want), None, Some(-want)]);
        }
        let hours = attrs("hours", "timedelta64[s]");
        for (units, factor) in [("hours", 3600), ("seconds", 1)] {
            let floats = Arc::new(Float64Array::from(vec![0.5, 1.3, f64::NAN]));
            let want = [Some(500_000_000 * factor), Some(1_300_000_000 * factor), None];
            assert_eq!(converted(floats, &attrs(units, "timedelta64[s]")).unwrap(), want);
        }
        let missing = Arc::new(Int64Array::from(vec![i64::MIN, 2]));
        assert_eq!(converted(missing, &hours).unwrap(), [None, Some(7200)]);
        let large = Arc::new(Int64Array::from(vec![i64::MAX / 2]));
        assert!(converted(large, &hours).unwrap_err().to_string().contains("do not fit"));
    }

    #[test]
    fn other_columns_stay() {
        let plain = |field: Field, attrs: &Attrs| {
            let field = spanned(field, attrs);
            Durations::of(&Arc::new(Schema::new(vec![field])), true).is_none()
        };
        let number = || Field::new("x", DataType::Int64, true);
        assert!(plain(number(), &Attrs::new()));
        assert!(plain(number(), &attrs("hours", "int64")));
        assert!(plain(number(), &attrs("fortnights", "timedelta64[ns]")));
        let text = Field::new("x", DataType::Utf8, true);
        assert!(plain(text, &attrs("hours", "timedelta64[ns]")));
        let interval = DataType::Interval(IntervalUnit::MonthDayNano);
        let schema = Arc::new(Schema::new(vec![Field::new("x", interval, true)]));
        assert!(Durations::of(&schema, false).is_none());
    }

    #[test]
    fn intervals_of_months_have_no_length() {
        let of = |months| {
            let one = IntervalMonthDayNano::new(months, 1, 7);
            let column = IntervalMonthDayNanoArray::from(vec![Some(one), None]);
            converted(Arc::new(column), &Attrs::new())
        };
        assert_eq!(of(0).unwrap(), [Some(DAY_NS + 7), None]);
        assert!(of(2).unwrap_err().to_string().contains("2 months"));
    }
}
