//! Sums, differences and products of decimals.
//!
//! Arrow checks each step of each value for an overflow of 128 bits, which takes several times as long as the step.
//! Here a batch whose values fit into 64 bits is computed without these checks: its results fit into 128 bits. Arrow
//! computes other batches. Arrow does not check that a result has at most 38 digits, so this module does.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Datum, Decimal128Array};
use arrow::buffer::NullBuffer;
use arrow::compute::kernels::numeric;
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, Field, FieldRef};
use arrow::error::ArrowError;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::logical_expr::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, Operator, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_expr_common::datum::apply;
use tessera_frontend::error::Error;

use super::functions::{hashed_by, scalar};

/// The operators, and the names of their functions, which no text can produce.
const OPERATORS: [(Operator, &str); 3] = [
    (Operator::Plus, "tessera_decimal_add"),
    (Operator::Minus, "tessera_decimal_subtract"),
    (Operator::Multiply, "tessera_decimal_multiply"),
];

/// Largest power of ten, as its exponent, whose product with 64 bits has fewer than 127 bits.
const EXPONENT_MAX: u8 = 18;

pub(super) fn functions() -> [ScalarUDF; 3] {
    OPERATORS.map(|(op, name)| {
        let signature = Signature::any(2, Volatility::Immutable);
        ScalarUDF::new_from_impl(Operation { op, name, signature })
    })
}

/// The call of one of the functions, if both sides of an operator are decimals.
pub(super) fn of_operator(
    expr: Expr,
    schema: &DFSchema,
    functions: &[ScalarUDF],
) -> Result<Transformed<Expr>> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = &expr else {
        return Ok(Transformed::no(expr));
    };
    let known = OPERATORS.iter().zip(functions).find(|((known, _), _)| known == op);
    // The type of a column of an outer query is unknown here.
    let is_decimal = |side: &Expr| matches!(side.get_type(schema), Ok(DataType::Decimal128(..)));
    match known {
        Some((_, function)) if is_decimal(left) && is_decimal(right) => {
            let sides = vec![left.as_ref().clone(), right.as_ref().clone()];
            Ok(Transformed::yes(function.call(sides)))
        }
        _ => Ok(Transformed::no(expr)),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Operation {
    op: Operator,
    name: &'static str,
    signature: Signature,
}

hashed_by!(Operation, function => function.name);

impl ScalarUDFImpl for Operation {
    scalar!(name, signature);

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let [l, r] = types else { return internal_err!("`{}` takes two sides", self.op) };
        BinaryTypeCoercer::new(l, &self.op, r).get_result_type()
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let types: Vec<_> = args.arg_fields.iter().map(|side| side.data_type().clone()).collect();
        let is_nullable = args.arg_fields.iter().any(|side| side.is_nullable());
        Ok(Arc::new(Field::new(self.name, self.return_type(&types)?, is_nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [left, right] = args.args.as_slice() else {
            return internal_err!("`{}` takes two sides", self.op);
        };
        let kind = args.return_field.data_type();
        apply(left, right, |left, right| match self.narrow(left, right, kind)? {
            Some(result) => Ok(result),
            None => self.wide(left, right),
        })
    }
}

/// True for numbers with at most the digits of a decimal of 128 bits.
pub(super) fn is_within(digits: i128) -> bool {
    const LIMIT: u128 = 10_u128.pow(DECIMAL128_MAX_PRECISION as u32);
    digits.unsigned_abs() < LIMIT
}

/// The error of an operation whose result has more digits.
pub(super) fn overflow(operation: &str) -> Error {
    Error::Cells {
        code: "decimal_overflow",
        message: format!(
            "{operation}: the result has more than the {DECIMAL128_MAX_PRECISION} digits of a decimal"
        ),
        position: None,
        hint: Some("use `x::double` instead".to_string()),
    }
}

impl Operation {
    /// The result by Arrow, which reports an overflow of 128 bits.
    fn wide(&self, left: &dyn Datum, right: &dyn Datum) -> Result<ArrayRef, ArrowError> {
        let result = match self.op {
            Operator::Plus => numeric::add(left, right),
            Operator::Minus => numeric::sub(left, right),
            _ => numeric::mul(left, right),
        };
        let overflow = || ArrowError::ExternalError(Box::new(overflow(&format!("`{}`", self.op))));
        let result = result.map_err(|error| match error {
            ArrowError::ArithmeticOverflow(_) => overflow(),
            other => other,
        })?;
        let decimals = result.as_primitive_opt::<Decimal128Type>();
        match decimals.is_none_or(|decimals| decimals.iter().flatten().all(is_within)) {
            true => Ok(result),
            false => Err(overflow()),
        }
    }

    /// The result, if the values of both sides fit into 64 bits.
    fn narrow(
        &self,
        left: &dyn Datum,
        right: &dyn Datum,
        kind: &DataType,
    ) -> Result<Option<ArrayRef>, ArrowError> {
        let (Some(l), Some(r)) = (Side::of(left), Side::of(right)) else { return Ok(None) };
        let DataType::Decimal128(precision, scale) = *kind else { return Ok(None) };
        let factor = |side: &Side<'_>| {
            let exponent = u8::try_from(scale.checked_sub(side.scale)?).ok()?;
            (exponent <= EXPONENT_MAX).then(|| 10_i64.pow(u32::from(exponent)))
        };
        let values = match (self.op, factor(&l), factor(&r)) {
            (Operator::Multiply, _, _) => each(&l, &r, |x, y| x * y),
            (Operator::Plus, Some(f), Some(g)) => {
                let (f, g) = (i128::from(f), i128::from(g));
                each(&l, &r, |x, y| x * f + y * g)
            }
            (Operator::Minus, Some(f), Some(g)) => {
                let (f, g) = (i128::from(f), i128::from(g));
                each(&l, &r, |x, y| x * f - y * g)
            }
            _ => return Ok(None),
        };
        let nulls = NullBuffer::union(l.nulls, r.nulls);
        let result = Decimal128Array::try_new(values.into(), nulls)?;
        Ok(Some(Arc::new(result.with_precision_and_scale(precision, scale)?)))
    }
}

/// Values that fit into 64 bits.
struct Side<'a> {
    values: &'a [i128],
    /// The NULLs of an array; a scalar is not NULL.
    nulls: Option<&'a NullBuffer>,
    is_scalar: bool,
    scale: i8,
}

impl<'a> Side<'a> {
    fn of(datum: &'a dyn Datum) -> Option<Self> {
        let (array, is_scalar) = datum.get();
        let decimals = array.as_primitive_opt::<Decimal128Type>()?;
        let (values, scale) = (decimals.values().as_ref(), decimals.scale());
        // No branch, so that the loop is vectorised.
        let fit = values.iter().fold(true, |all, &v| all & (i128::from(v as i64) == v));
        let is_known = fit && !(is_scalar && decimals.null_count() > 0);
        let nulls = decimals.nulls().filter(|_| !is_scalar);
        is_known.then_some(Side { values, nulls, is_scalar, scale })
    }
}

/// The results for all rows; a scalar is the same for each. A product of two 64-bit values is one instruction.
fn each(left: &Side<'_>, right: &Side<'_>, of: impl Fn(i128, i128) -> i128) -> Vec<i128> {
    let of = |&x: &i128, &y: &i128| of(i128::from(x as i64), i128::from(y as i64));
    match (left.values, right.values) {
        ([x], values) if left.is_scalar => values.iter().map(|y| of(x, y)).collect(),
        (values, [y]) if right.is_scalar => values.iter().map(|x| of(x, y)).collect(),
        (left, right) => left.iter().zip(right).map(|(x, y)| of(x, y)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::Scalar;

    const LARGEST: i128 = i64::MAX as i128;

    fn decimals(values: &[Option<i128>], precision: u8, scale: i8) -> Decimal128Array {
        let values: Decimal128Array = values.iter().copied().collect();
        values.with_precision_and_scale(precision, scale).unwrap()
    }

    fn operation(op: Operator) -> Operation {
        let signature = Signature::any(2, Volatility::Immutable);
        let (op, name) = OPERATORS.into_iter().find(|(known, _)| *known == op).unwrap();
        Operation { op, name, signature }
    }

    #[test]
    fn results_are_those_of_arrow() {
        let some = [Some(0), Some(-7), None, Some(LARGEST), Some(-LARGEST - 1), Some(123_456)];
        let other = [Some(3), None, Some(1), Some(LARGEST), Some(LARGEST), Some(-99)];
        for (scale, other_scale) in [(2, 2), (2, 0), (0, 4), (19, 0), (-2, 3)] {
            let left = decimals(&some, 19, scale);
            let right = decimals(&other, 19, other_scale);
            for (op, kernel) in [
                (Operator::Plus, numeric::add as fn(&dyn Datum, &dyn Datum) -> _),
                (Operator::Minus, numeric::sub),
                (Operator::Multiply, numeric::mul),
            ] {
                let operation = operation(op);
                let types = [left.data_type().clone(), right.data_type().clone()];
                let kind = operation.return_type(&types).unwrap();
                let (x, y) = (Scalar::new(left.slice(5, 1)), Scalar::new(right.slice(0, 1)));
                let pairs: [(&dyn Datum, &dyn Datum); 4] =
                    [(&left, &right), (&left, &y), (&x, &right), (&x, &y)];
                for (l, r) in pairs {
                    let want: ArrayRef = kernel(l, r).unwrap();
                    let got = operation.narrow(l, r, &kind).unwrap();
                    let is_ours = op == Operator::Multiply || scale < 19;
                    assert_eq!(got.is_some(), is_ours, "{op} of scales {scale}, {other_scale}");
                    assert!(got.is_none_or(|got| got == want), "{op} {scale} {other_scale}");
                }
            }
        }
    }

    #[test]
    fn results_have_at_most_38_digits() {
        let (half, limit) = (5 * 10_i128.pow(37), 10_i128.pow(38));
        let (half, less) = (decimals(&[Some(half)], 38, 0), decimals(&[Some(half - 1)], 38, 0));
        let most = decimals(&[None, Some(limit - 1)], 38, 0);
        let result = operation(Operator::Plus).wide(&half, &less).unwrap();
        assert_eq!(result.as_primitive::<Decimal128Type>().value(0), limit - 1);
        for (op, left, right) in [
            (Operator::Plus, &half, &half),
            // Beyond 128 bits.
            (Operator::Plus, &most, &most),
            (Operator::Multiply, &most, &most),
        ] {
            let error = operation(op).wide(left, right).unwrap_err();
            assert!(matches!(error, ArrowError::ExternalError(_)), "{error}");
        }
    }

    #[test]
    fn large_values_are_left_to_arrow() {
        let (large, one) = (decimals(&[Some(LARGEST + 1)], 38, 0), decimals(&[Some(1)], 38, 0));
        let null = Scalar::new(decimals(&[None], 38, 0));
        let kind = DataType::Decimal128(38, 0);
        let multiply = operation(Operator::Multiply);
        assert!(multiply.narrow(&large, &one, &kind).unwrap().is_none());
        assert!(multiply.narrow(&one, &large, &kind).unwrap().is_none());
        assert!(multiply.narrow(&one, &null, &kind).unwrap().is_none());
        assert!(multiply.narrow(&one, &one, &kind).unwrap().is_some());
    }
}
