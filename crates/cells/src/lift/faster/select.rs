//! `CASE WHEN c THEN x ELSE y END` of numbers that need no guard: both are computed for all rows, and each row takes one.
//!
//! DataFusion filters the columns for each branch and merges the results, so that a branch is not computed for rows of
//! the other one. Columns, literals and arithmetic of floats never fail, and cost less than that.

use std::iter;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::prep_null_mask_filter;
use arrow::datatypes::{
    DataType, Decimal128Type, Field, FieldRef, Float32Type, Float64Type, Int64Type,
};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue, internal_err};
use datafusion::logical_expr::expr::Case;
use datafusion::logical_expr::{
    BinaryExpr, Cast, ColumnarValue, Expr, ExprSchemable, Operator, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use crate::lift::functions::scalar;

/// The functions, which no text can produce, and whether their results may be NULL. That does not follow from both
/// sides: `CASE WHEN x IS NOT NULL THEN x ELSE 0 END` is never NULL.
const NAMES: [(&str, bool); 2] = [("tessera_select", true), ("tessera_select_valid", false)];

/// Rows of a block: their conditions fit into one word.
const BLOCK: usize = 64;

pub(in crate::lift) fn functions() -> [ScalarUDF; 2] {
    NAMES.map(|(name, is_nullable)| {
        let signature = Signature::any(3, Volatility::Immutable);
        ScalarUDF::new_from_impl(Select { name, is_nullable, signature })
    })
}

/// The call of one of the functions, if an expression is such a CASE.
pub(super) fn of_case(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::Case(Case { expr: base, when_then_expr, else_expr: Some(other) }) = &expr else {
        return Ok(Transformed::no(expr));
    };
    let [(when, then)] = when_then_expr.as_slice() else { return Ok(Transformed::no(expr)) };
    // Arrow has a way for two literals.
    let is_constant = |side: &Expr| matches!(side, Expr::Literal(..));
    let has_column = !is_constant(then) || !is_constant(other);
    if !has_column || !is_free(then, schema) || !is_free(other, schema) {
        return Ok(Transformed::no(expr));
    }
    // The type of a column of an outer query is unknown here.
    let (Ok(kind), Ok(of_other), Ok(of_all), Ok(is_nullable)) = (
        then.get_type(schema),
        other.get_type(schema),
        expr.get_type(schema),
        expr.nullable(schema),
    ) else {
        return Ok(Transformed::no(expr));
    };
    if !has_select(&kind) || kind != of_other || kind != of_all {
        return Ok(Transformed::no(expr));
    }
    let when = when.as_ref().clone();
    let when = match base {
        Some(base) => base.as_ref().clone().eq(when),
        None => when,
    };
    if !matches!(when.get_type(schema), Ok(DataType::Boolean)) {
        return Ok(Transformed::no(expr));
    }
    let [nullable, valid] = functions();
    let function = if is_nullable { nullable } else { valid };
    let sides = vec![when, then.as_ref().clone(), other.as_ref().clone()];
    Ok(Transformed::yes(function.call(sides)))
}

fn has_select(kind: &DataType) -> bool {
    use DataType::{Decimal128, Float32, Float64, Int64};
    matches!(kind, Int64 | Float32 | Float64 | Decimal128(..))
}

/// True for expressions that are cheap and never fail.
fn is_free(expr: &Expr, schema: &DFSchema) -> bool {
    use DataType::{Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32};
    match expr {
        Expr::Column(_) | Expr::Literal(..) => true,
        Expr::Cast(Cast { expr: inner, field }) => {
            let Ok(from) = inner.get_type(schema) else { return false };
            let is_wider = match field.data_type() {
                Float64 => from.is_integer() || from == Float32,
                Int64 => matches!(from, Int8 | Int16 | Int32 | UInt8 | UInt16 | UInt32),
                _ => false,
            };
            is_wider && is_free(inner, schema)
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            use Operator::{Divide, Minus, Multiply, Plus};
            let is_float = |side: &Expr| matches!(side.get_type(schema), Ok(Float32 | Float64));
            matches!(op, Plus | Minus | Multiply | Divide)
                && [left, right].iter().all(|side| is_float(side) && is_free(side, schema))
        }
        _ => false,
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Select {
    name: &'static str,
    is_nullable: bool,
    signature: Signature,
}

impl ScalarUDFImpl for Select {
    scalar!(name, signature);

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [DataType::Boolean, then, other] if then == other => Ok(then.clone()),
            _ => internal_err!("`{}` of {types:?}", self.name),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let types: Vec<_> = args.arg_fields.iter().map(|side| side.data_type().clone()).collect();
        Ok(Arc::new(Field::new(self.name, self.return_type(&types)?, self.is_nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [when, then, other] = args.args.as_slice() else {
            return internal_err!("`{}` takes three arguments", self.name);
        };
        let mask = match when {
            ColumnarValue::Scalar(ScalarValue::Boolean(Some(true))) => return Ok(then.clone()),
            ColumnarValue::Scalar(_) => return Ok(other.clone()),
            ColumnarValue::Array(mask) => mask.as_boolean(),
        };
        let selected = match args.return_field.data_type() {
            DataType::Int64 => select::<Int64Type>(mask, then, other),
            DataType::Float32 => select::<Float32Type>(mask, then, other),
            DataType::Float64 => select::<Float64Type>(mask, then, other),
            DataType::Decimal128(..) => select::<Decimal128Type>(mask, then, other),
            kind => internal_err!("`{}` of {kind}", self.name),
        };
        Ok(ColumnarValue::Array(selected?))
    }
}

/// A value of the CASE: one for each row, or one for all.
struct Side<T: ArrowPrimitiveType> {
    values: PrimitiveArray<T>,
    /// The value of a scalar for the rows of a block.
    block: Vec<T::Native>,
    is_scalar: bool,
}

impl<T: ArrowPrimitiveType> Side<T> {
    fn of(value: &ColumnarValue) -> Result<Self> {
        let (array, is_scalar) = match value {
            ColumnarValue::Array(array) => (array.clone(), false),
            ColumnarValue::Scalar(scalar) => (scalar.to_array()?, true),
        };
        let Some(values) = array.as_primitive_opt::<T>().cloned() else {
            return internal_err!("a side of CASE is {}, not {}", array.data_type(), T::DATA_TYPE);
        };
        let block = if is_scalar { vec![values.value(0); BLOCK] } else { Vec::new() };
        Ok(Side { values, block, is_scalar })
    }

    /// The values, block by block.
    fn blocks(&self) -> Box<dyn Iterator<Item = &[T::Native]> + '_> {
        match self.is_scalar {
            true => Box::new(iter::repeat(self.block.as_slice())),
            false => Box::new(self.values.values().chunks(BLOCK)),
        }
    }

    /// The rows that are not NULL.
    fn valid(&self, rows: usize) -> BooleanBuffer {
        match self.values.nulls() {
            Some(nulls) if !self.is_scalar => nulls.inner().clone(),
            Some(_) if self.values.is_null(0) => BooleanBuffer::new_unset(rows),
            _ => BooleanBuffer::new_set(rows),
        }
    }
}

/// `then` where the mask is true, `other` elsewhere.
fn select<T: ArrowPrimitiveType>(
    mask: &BooleanArray,
    then: &ColumnarValue,
    other: &ColumnarValue,
) -> Result<ArrayRef> {
    let (then, other) = (Side::<T>::of(then)?, Side::<T>::of(other)?);
    let is_true = match mask.null_count() {
        0 => mask.values().clone(),
        _ => prep_null_mask_filter(mask).values().clone(),
    };
    let rows = is_true.len();
    for side in [&then, &other] {
        if !side.is_scalar && side.values.len() != rows {
            return internal_err!("CASE of {rows} conditions and {} values", side.values.len());
        }
    }
    let mut values: Vec<T::Native> = Vec::with_capacity(rows);
    let words = is_true.bit_chunks();
    for ((word, x), y) in words.iter_padded().zip(then.blocks()).zip(other.blocks()) {
        let end = (rows - values.len()).min(BLOCK);
        let pairs = x[..end].iter().zip(&y[..end]).enumerate();
        values.extend(pairs.map(|(row, (&x, &y))| if (word >> row) & 1 == 1 { x } else { y }));
    }
    let nulls = match then.values.null_count() + other.values.null_count() {
        0 => None,
        _ => {
            let taken = &is_true & &then.valid(rows);
            let valid = NullBuffer::new(&taken | &(&!&is_true & &other.valid(rows)));
            Some(valid).filter(|valid| valid.null_count() > 0)
        }
    };
    let selected = PrimitiveArray::<T>::try_new(values.into(), nulls)?;
    Ok(Arc::new(selected.with_data_type(then.values.data_type().clone())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Datum, Int64Array, Scalar};
    use arrow::compute::kernels::zip::zip;
    use datafusion::prelude::{col, lit, when};

    #[test]
    fn values_are_those_of_arrow() {
        let rows = 200;
        let some = |rows: usize, null: usize| -> Int64Array {
            (0..rows).map(|row| (row % null != 1).then_some(row as i64 * 3)).collect()
        };
        let (x, y, z) = (some(rows, 5), some(rows, 3), some(rows, rows + 2));
        let mask: BooleanArray =
            (0..rows).map(|row| (row % 11 != 4).then_some(row % 7 < 3)).collect();
        let constants = [ScalarValue::Int64(Some(-1)), ScalarValue::Int64(None)];
        let arrays = [x, y, z].map(|array| Arc::new(array) as ArrayRef);
        for length in [0, 1, 63, 64, 65, 130] {
            // Bits of a slice do not begin at a byte.
            let mask = mask.slice(3, length);
            let arrays = arrays.iter().map(|array| ColumnarValue::Array(array.slice(3, length)));
            let constants = constants.iter().cloned().map(ColumnarValue::Scalar);
            let sides: Vec<ColumnarValue> = arrays.chain(constants).collect();
            for (then, other) in sides.iter().flat_map(|then| sides.iter().map(move |y| (then, y)))
            {
                let datum = |side: &ColumnarValue| -> Box<dyn Datum> {
                    match side {
                        ColumnarValue::Array(array) => Box::new(array.clone()),
                        ColumnarValue::Scalar(one) => {
                            Box::new(Scalar::new(one.to_array().unwrap()))
                        }
                    }
                };
                let want = zip(&mask, &*datum(then), &*datum(other)).unwrap();
                let got = select::<Int64Type>(&mask, then, other).unwrap();
                assert_eq!(&got, &want, "{length} rows");
            }
        }
    }

    #[test]
    fn only_expressions_that_cannot_fail_are_replaced() {
        let field = |name: &str, kind| Field::new(name, kind, true);
        let fields = vec![
            field("k", DataType::Int32),
            field("i", DataType::Int64),
            field("v", DataType::Float64),
            field("s", DataType::Utf8),
        ];
        let schema = DFSchema::from_unqualified_fields(fields.into(), Default::default()).unwrap();
        let of = |then: Expr, other: Expr| {
            let case = when(col("k").eq(lit(1i32)), then).otherwise(other).unwrap();
            of_case(case, &schema).unwrap().transformed
        };
        let cast = |name: &str, to| Expr::Cast(Cast::new(Box::new(col(name)), to));
        assert!(of(col("v"), lit(0.0)));
        assert!(of(col("v") * lit(2.0) - col("v"), col("v")));
        assert!(of(cast("k", DataType::Int64), lit(0i64)));
        // Arrow's own way, an overflow, a cast that fails, another type.
        assert!(!of(lit(1.0), lit(0.0)));
        assert!(!of(col("i") + lit(1i64), lit(0i64)));
        assert!(!of(cast("s", DataType::Float64), lit(0.0)));
        assert!(!of(col("s"), lit("")));
        for (condition, is_nullable) in
            [(col("v").is_not_null(), false), (col("i").is_null(), true)]
        {
            let case = when(condition, col("v")).otherwise(lit(0.0)).unwrap();
            assert_eq!(case.nullable(&schema).unwrap(), is_nullable);
            let call = of_case(case, &schema).unwrap();
            assert!(call.transformed);
            assert_eq!(call.data.nullable(&schema).unwrap(), is_nullable);
        }
    }
}
