//! Values of CASE and of functions that return one of their arguments are times of the arguments' calendar.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};
use tessera_planner::dtype::{Calendar, DType};

use super::inner::scalar;
use crate::lift::table::field;

/// Its name, which no text can produce.
pub(in crate::lift) const IN_CALENDAR: &str = "tessera_in_calendar";

#[derive(Debug, PartialEq, Eq, Hash)]
pub(in crate::lift) struct InCalendar {
    calendar: Calendar,
    signature: Signature,
}

impl InCalendar {
    pub(in crate::lift) fn new(calendar: Calendar) -> Self {
        Self { calendar, signature: Signature::exact(vec![DataType::Int64], Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for InCalendar {
    scalar!(name IN_CALENDAR, signature, returns DataType::Int64);

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let [time] = args.arg_fields else { return plan_err!("{IN_CALENDAR} takes a time") };
        Ok(Arc::new(field(IN_CALENDAR, DType::Datetime(self.calendar), time.is_nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.into_iter().next() {
            Some(time) => Ok(time),
            None => exec_err!("{IN_CALENDAR} takes a time"),
        }
    }
}
