//! Text of times in calendars that Arrow does not support.

use std::sync::Arc;

use arrow::array::{AsArray, StringArray};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};
use tessera_planner::time::format_micros;

use super::inner::scalar;
use crate::lift::table::calendar;

/// `time::text` of an `int64` whose field has a calendar: `2000-02-30T00:00:00`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in crate::lift) struct TimeText {
    signature: Signature,
}

impl Default for TimeText {
    fn default() -> Self {
        Self { signature: Signature::exact(vec![DataType::Int64], Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for TimeText {
    scalar!(name "tessera_time_text", signature, returns DataType::Utf8);

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let calendar = args.arg_fields.first().and_then(|field| calendar(field));
        let (Some(calendar), [time]) = (calendar, args.args.as_slice()) else {
            return exec_err!("{} takes a time", self.name());
        };
        let times = time.to_array(1)?;
        let times = times.as_primitive::<Int64Type>();
        let texts = times.iter().map(|t| Some(format_micros(t?, calendar)));
        let texts = Arc::new(texts.collect::<StringArray>());
        super::columnar(texts, matches!(time, ColumnarValue::Scalar(_)))
    }
}
