//! `date_trunc(part, time)` for any calendar, also to decades, centuries and millennia.

use std::sync::Arc;

use arrow::array::{AsArray, Int64Array, IntervalMonthDayNanoArray};
use arrow::compute::kernels::numeric;
use arrow::compute::{DatePart as ArrowPart, date_part};
use arrow::datatypes::{DataType, Field, FieldRef, Int32Type, Int64Type, IntervalMonthDayNano};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use tessera_frontend::error::Error;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::time::{DatePart, Truncation, format_micros, moved};

use super::date_part::years_of;
use super::inner::{of_inner, scalar};
use crate::lift::error::{InCall, spoken};
use crate::lift::table::{calendar, field};

/// DataFusion's `date_trunc`, extended to times of calendars that Arrow does not support; the results are of the same
/// calendar.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct DateTruncOf {
    inner: Arc<ScalarUDF>,
    signature: Signature,
}

impl DateTruncOf {
    pub(super) fn new(inner: Arc<ScalarUDF>) -> Self {
        Self { inner, signature: Signature::user_defined(Volatility::Immutable) }
    }
}

fn refused(code: &'static str, message: String, hint: &str) -> DataFusionError {
    let error = Error::Cells { code, message, position: None, hint: Some(hint.to_string()) };
    DataFusionError::External(Box::new(InCall { function: "date_trunc".to_string(), error }))
}

/// The part that a text names.
fn truncation(part: &ScalarValue) -> Result<Truncation> {
    let part = part.try_as_str().flatten().unwrap_or("NULL");
    Truncation::parse(&part.to_lowercase()).ok_or_else(|| {
        refused(
            "invalid_argument",
            format!("`date_trunc`: '{part}' is not a part of a time"),
            "write 'millennium', 'century', 'decade', 'year', 'quarter', 'month', 'week', 'day', 'hour', 'minute', 'second', 'millisecond' or 'microsecond'",
        )
    })
}

/// The first instant of the `years` years that a time is in.
fn first_year(time: i64, years: i32, calendar: Calendar) -> Result<i64> {
    let start = Truncation::Months(12).of(time, calendar);
    let year = DatePart::Year.of(start, calendar);
    match moved(start, -12 * (year % i64::from(years)), 0, 0, calendar) {
        Some(first) => Ok(first),
        None => {
            let time = format_micros(time, calendar);
            exec_err!("`date_trunc` of {time} to {years} years is beyond the years ±290,000")
        }
    }
}

impl DateTruncOf {
    /// The result for times of SQL and a part of `years` years.
    fn first_years(&self, mut args: ScalarFunctionArgs, years: i32) -> Result<ColumnarValue> {
        let is_scalar = matches!(args.args.get(1), Some(ColumnarValue::Scalar(_)));
        if let Some(part) = args.args.first_mut() {
            *part = ColumnarValue::Scalar(ScalarValue::from("year"));
        }
        let starts = self.inner.invoke_with_args(args)?.to_array(1)?;
        let year = date_part(&starts, ArrowPart::Year)?;
        let back = |year: i32| IntervalMonthDayNano::new(-12 * (year % years), 0, 0);
        let back: IntervalMonthDayNanoArray =
            year.as_primitive::<Int32Type>().iter().map(|year| year.map(back)).collect();
        super::columnar(numeric::add(&starts, &back)?, is_scalar)
    }
}

impl ScalarUDFImpl for DateTruncOf {
    of_inner!(name, aliases, documentation);
    scalar!(signature, type_by_field);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        // Which integers are times is known from their fields: see the return type.
        if let [DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View, DataType::Int64] = types
        {
            return Ok(types.to_vec());
        }
        let fields: Vec<FieldRef> = types
            .iter()
            .map(|data_type| Arc::new(Field::new("", data_type.clone(), true)))
            .collect();
        let Ok(fields) = fields_with_udf(&fields, &*self.inner) else {
            let types: Vec<String> = types.iter().map(|one| spoken(&one.to_string())).collect();
            return plan_err!("`date_trunc` is not defined for {}", types.join(" and "));
        };
        Ok(fields.iter().map(|field| field.data_type().clone()).collect())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let [_, time] = args.arg_fields else {
            return plan_err!("date_trunc takes a part and a time");
        };
        if *time.data_type() != DataType::Int64 {
            return self.inner.return_field_from_args(args);
        }
        let Some(calendar) = calendar(time) else {
            return Err(refused(
                "type_error",
                "`date_trunc` is not defined for text and int64".to_string(),
                "convert to a time: `to_timestamp(seconds)`",
            ));
        };
        if let Some(Some(part)) = args.scalar_arguments.first()
            && years_of(part).is_none()
        {
            truncation(part)?;
        }
        Ok(Arc::new(field(self.name(), DType::Datetime(calendar), time.is_nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let time = args.arg_fields.get(1).filter(|time| *time.data_type() == DataType::Int64);
        let Some(calendar) = time.map(|time| calendar(time)) else {
            let years = match args.args.first() {
                Some(ColumnarValue::Scalar(part)) => years_of(part),
                _ => None,
            };
            return match years {
                Some(years) => self.first_years(args, years),
                None => self.inner.invoke_with_args(args),
            };
        };
        let (Some(calendar), [ColumnarValue::Scalar(part), time]) =
            (calendar, args.args.as_slice())
        else {
            return exec_err!("date_trunc takes a text such as 'month' and a time");
        };
        let is_scalar = matches!(time, ColumnarValue::Scalar(_));
        let times = time.to_array(1)?;
        let times = times.as_primitive::<Int64Type>().iter();
        if let Some(years) = years_of(part) {
            let first =
                |time: Option<i64>| time.map(|t| first_year(t, years, calendar)).transpose();
            let starts = times.map(first).collect::<Result<Int64Array>>()?;
            return super::columnar(Arc::new(starts), is_scalar);
        }
        let truncation = truncation(part)?;
        let starts: Int64Array = times.map(|t| Some(truncation.of(t?, calendar))).collect();
        super::columnar(Arc::new(starts), is_scalar)
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        self.inner.output_ordering(inputs)
    }
}
