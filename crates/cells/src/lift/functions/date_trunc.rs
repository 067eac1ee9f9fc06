//! `date_trunc(part, time)` for any calendar.

use std::sync::Arc;

use arrow::array::{AsArray, Int64Array};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use tessera_frontend::error::Error;
use tessera_planner::dtype::DType;
use tessera_planner::time::Truncation;

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
            "write 'year', 'quarter', 'month', 'week', 'day', 'hour', 'minute', 'second', 'millisecond' or 'microsecond'",
        )
    })
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
        if let Some(Some(part)) = args.scalar_arguments.first() {
            truncation(part)?;
        }
        Ok(Arc::new(field(self.name(), DType::Datetime(calendar), time.is_nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let time = args.arg_fields.get(1).filter(|time| *time.data_type() == DataType::Int64);
        let Some(calendar) = time.map(|time| calendar(time)) else {
            return self.inner.invoke_with_args(args);
        };
        let (Some(calendar), [ColumnarValue::Scalar(part), time]) =
            (calendar, args.args.as_slice())
        else {
            return exec_err!("date_trunc takes a text such as 'month' and a time");
        };
        let truncation = truncation(part)?;
        let is_scalar = matches!(time, ColumnarValue::Scalar(_));
        let times = time.to_array(1)?;
        let times = times.as_primitive::<Int64Type>().iter();
        let starts: Int64Array = times.map(|t| Some(truncation.of(t?, calendar))).collect();
        super::columnar(Arc::new(starts), is_scalar)
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        self.inner.output_ordering(inputs)
    }
}
