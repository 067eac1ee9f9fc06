//! Replaces SQL operators whose semantics differ in DataFusion by functions.
//!
//! * `<<` and `>>` of integers follow NumPy: a shift by the width of the type or more, or by a negative number, yields
//!   0, or -1 for a right shift of a negative number. DataFusion takes the distance modulo the width.
//! * `||` of texts is DataFusion's, with a bound on the output bytes per batch: see [`super::functions`].
//!
//! Runs before types are coerced.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::compute::kernels::concat_elements::concat_elements_dyn;
use arrow::datatypes::{
    ArrowNativeTypeOp, DataType, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, exec_err, internal_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, Operator, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

use super::functions::scalar;

/// Names of the functions, which no text can produce.
pub(super) const SHIFT_LEFT: &str = "tessera_shift_left";
pub(super) const SHIFT_RIGHT: &str = "tessera_shift_right";
const CONCAT: &str = "tessera_concat";

/// The functions; `||` produces at most `limit` bytes per batch.
pub(super) fn functions(limit: u64) -> [ScalarUDF; 3] {
    [Operator::BitwiseShiftLeft, Operator::BitwiseShiftRight, Operator::StringConcat].map(|op| {
        Operation { op, limit, signature: Signature::user_defined(Volatility::Immutable) }.into()
    })
}

/// Converts one of these operators to a call.
pub(super) fn one(
    expr: Expr,
    schema: &DFSchema,
    state: &SessionState,
) -> Result<Transformed<Expr>> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = expr else {
        return Ok(Transformed::no(expr));
    };
    let keep = |left, right| Expr::BinaryExpr(BinaryExpr::new(left, op, right));
    let Some(name) = name(op) else { return Ok(Transformed::no(keep(left, right))) };
    // An error here is not lost: later planning of the same expression reports it.
    let types = (left.get_type(schema), right.get_type(schema));
    let is_ours = match types {
        (Ok(l), Ok(r)) => BinaryTypeCoercer::new(&l, &op, &r).get_result_type().is_ok_and(|t| {
            if op == Operator::StringConcat { t.is_string() } else { t.is_integer() }
        }),
        _ => false,
    };
    match state.scalar_functions().get(name) {
        Some(function) if is_ours => Ok(Transformed::yes(function.call(vec![*left, *right]))),
        _ => Ok(Transformed::no(keep(left, right))),
    }
}

fn name(op: Operator) -> Option<&'static str> {
    match op {
        Operator::BitwiseShiftLeft => Some(SHIFT_LEFT),
        Operator::BitwiseShiftRight => Some(SHIFT_RIGHT),
        Operator::StringConcat => Some(CONCAT),
        _ => None,
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Operation {
    op: Operator,
    limit: u64,
    signature: Signature,
}

impl ScalarUDFImpl for Operation {
    scalar!(signature);

    fn name(&self) -> &str {
        name(self.op).unwrap_or_default()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [l, r] = types else { return internal_err!("`{}` takes two sides", self.op) };
        let (l, r) = BinaryTypeCoercer::new(l, &self.op, r).get_input_types()?;
        Ok(vec![l, r])
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let [l, r] = types else { return internal_err!("`{}` takes two sides", self.op) };
        BinaryTypeCoercer::new(l, &self.op, r).get_result_type()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = args.args.iter().all(|a| matches!(a, ColumnarValue::Scalar(_)));
        if self.op == Operator::StringConcat {
            super::functions::check_size("||", &args.args, args.number_rows, self.limit)?;
        }
        let [left, right] = &ColumnarValue::values_to_arrays(&args.args)?[..] else {
            return internal_err!("`{}` takes two sides", self.op);
        };
        let out = match self.op {
            Operator::StringConcat => concat_elements_dyn(left, right)?,
            op => shifted(op, left, right)?,
        };
        super::functions::columnar(out, is_constant)
    }
}

fn shifted(op: Operator, left: &ArrayRef, right: &ArrayRef) -> Result<ArrayRef> {
    fn shift<T: ArrowPrimitiveType>(
        [left, right]: [&ArrayRef; 2],
        f: impl Fn(T::Native, T::Native) -> T::Native,
    ) -> Result<ArrayRef> {
        let (left, right) = (left.as_primitive::<T>(), right.as_primitive::<T>());
        let out: PrimitiveArray<T> = arrow::compute::binary(left, right, f)?;
        Ok(Arc::new(out))
    }
    macro_rules! of {
        ($($of:ident => $t:ident),*) => {
            match left.data_type() {
                $(DataType::$of => shift::<$t>([left, right], |x, by| {
                    let by = u32::try_from(by).unwrap_or(u32::MAX);
                    if op == Operator::BitwiseShiftLeft {
                        x.checked_shl(by).unwrap_or_default()
                    } else {
                        // A shift by the maximum leaves only the sign.
                        let most = size_of_val(&x) as u32 * 8 - 1;
                        let x = x >> by.min(most);
                        if by > most && x.is_ge(Default::default()) { Default::default() } else { x }
                    }
                }),)*
                other => exec_err!("`{op}` shifts integers, not {other}"),
            }
        };
    }
    of!(Int8 => Int8Type, Int16 => Int16Type, Int32 => Int32Type, Int64 => Int64Type, UInt8 => UInt8Type,
        UInt16 => UInt16Type, UInt32 => UInt32Type, UInt64 => UInt64Type)
}
