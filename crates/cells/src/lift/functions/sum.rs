//! `sum` of Booleans counts the true ones. `sum` of floats over moving frames does not subtract. `sum` of integers is
//! exact in 128 bits, and an error if the total does not fit 64 bits, as in the dense path. `sum` of decimals is an
//! error if the total has too many digits, and `sum` of intervals if the total is too long.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Decimal128Type, Field, FieldRef, Int64Type, UInt64Type};
use datafusion::common::types::logical_int64;
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, Signature,
};

use super::booleans::with_booleans;
use super::inner::{hashed_by, of_inner, scalar};
use super::temporal::{self, is_temporal};
use super::{decimal_sum, recomputed, sliding};
use tessera_frontend::error::Error;

/// DataFusion's `sum`, except for Booleans, integers and decimals with many digits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CheckedSum {
    inner: Arc<AggregateUDF>,
    signature: Signature,
}

hashed_by!(CheckedSum, function => function.inner.name());

impl CheckedSum {
    pub(super) fn new(inner: Arc<AggregateUDF>) -> Self {
        let signature = with_booleans(inner.signature(), logical_int64());
        Self { inner, signature }
    }
}

fn is_ours(result: &DataType, distinct: bool) -> bool {
    !distinct && matches!(result, DataType::Int64 | DataType::UInt64)
}

/// The total of integers, of decimals or of intervals; `None` for other sums.
fn total(args: &AccumulatorArgs<'_>) -> Result<Option<Box<dyn Accumulator>>> {
    let result = args.return_type();
    if is_ours(result, args.is_distinct) {
        return Ok(Some(Box::new(Total::new(result.clone()))));
    }
    if decimal_sum::is_ours(result, args.is_distinct) {
        return Ok(Some(Box::new(decimal_sum::Total::new(result.clone()))));
    }
    Ok(temporal::total(args, false)?.map(|total| Box::new(total) as Box<dyn Accumulator>))
}

/// A 128-bit total holds any number of 64-bit values that a query could read.
const STATE: DataType = DataType::Decimal128(38, 0);

impl AggregateUDFImpl for CheckedSum {
    of_inner!(documentation, coerce_types, return_type, order_sensitivity);
    scalar!(signature);

    fn name(&self) -> &str {
        "sum"
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if let Some(total) = total(&args)? {
            return Ok(total);
        }
        self.inner.accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        if is_ours(args.return_field.data_type(), args.is_distinct) {
            let state = |name, data_type| Arc::new(Field::new(name, data_type, true));
            return Ok(vec![state("total", STATE), state("count", DataType::Int64)]);
        }
        if is_temporal(args.return_field.data_type()) {
            return Ok(temporal::state_fields());
        }
        self.inner.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !is_ours(args.return_type(), args.is_distinct)
            && !is_temporal(args.return_type())
            && self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        if decimal_sum::is_ours(args.return_type(), args.is_distinct) {
            return Ok(Box::new(decimal_sum::Groups::new(args.return_type().clone())));
        }
        self.inner.create_groups_accumulator(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if let Some(total) = total(&args)? {
            return Ok(total);
        }
        if *args.return_type() == DataType::Float64 && !args.is_distinct {
            return Ok(sliding::sum());
        }
        recomputed::sliding(&self.inner, args)
    }
}

/// The error of a total that does not fit its type.
pub(crate) fn too_large(total: i128, result: &DataType) -> DataFusionError {
    DataFusionError::External(Box::new(Error::Cells {
        code: "integer_overflow",
        message: format!("sum: the total {total} does not fit {result}"),
        position: None,
        hint: Some("sum `x::double` instead".to_string()),
    }))
}

#[derive(Debug)]
struct Total {
    total: i128,
    count: i64,
    result: DataType,
}

impl Total {
    fn new(result: DataType) -> Self {
        Self { total: 0, count: 0, result }
    }

    fn add(&mut self, values: &[ArrayRef], sign: i128) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("sum of nothing") };
        let sum: i128 = match values.data_type() {
            DataType::Int64 => {
                values.as_primitive::<Int64Type>().iter().flatten().map(i128::from).sum()
            }
            DataType::UInt64 => {
                values.as_primitive::<UInt64Type>().iter().flatten().map(i128::from).sum()
            }
            other => return internal_err!("sum of {other} as integers"),
        };
        self.total += sign * sum;
        self.count += (sign as i64) * (values.len() - values.null_count()) as i64;
        Ok(())
    }
}

impl Accumulator for Total {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values, 1)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values, -1)
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let overflow = || too_large(self.total, &self.result);
        let is_null = self.count == 0;
        match self.result {
            _ if is_null => ScalarValue::try_from(&self.result),
            DataType::UInt64 => {
                let total = u64::try_from(self.total).map_err(|_| overflow())?;
                Ok(ScalarValue::UInt64(Some(total)))
            }
            _ => {
                let total = i64::try_from(self.total).map_err(|_| overflow())?;
                Ok(ScalarValue::Int64(Some(total)))
            }
        }
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let total = ScalarValue::Decimal128(Some(self.total), 38, 0);
        Ok(vec![total, ScalarValue::Int64(Some(self.count))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [totals, counts] = states else { return internal_err!("sum: a broken state") };
        self.total += totals.as_primitive::<Decimal128Type>().iter().flatten().sum::<i128>();
        self.count += counts.as_primitive::<Int64Type>().iter().flatten().sum::<i64>();
        Ok(())
    }
}
