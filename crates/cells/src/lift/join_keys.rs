//! Floats as keys of joins: the bits of their canonical values.
//!
//! ```text
//! Inner Join: t.lat = w.lat      ⇒      Inner Join: tessera_join_key(t.lat) = tessera_join_key(w.lat)
//! ```
//! For each batch DataFusion searches all float keys of the side in memory for -0.0, so the time would be quadratic.
//! Integers need no search.

use std::sync::Arc;

use crate::walk::WalkPlan;
use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int32Type, Int64Type};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, internal_err, plan_err};
use datafusion::logical_expr::expr::Cast;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, Join, LogicalPlan, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

use super::functions::scalar;
use super::labels::canonical;

/// Rewrites the joins of an optimised plan; the schema stays the same.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.map_all_up(|node| match node {
        LogicalPlan::Join(join) => of_join(join),
        node => Ok(Transformed::no(node)),
    })
    .map(|t| t.data)
}

fn of_join(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let mut is_changed = false;
    for (left, right) in &mut join.on {
        let kind = left.get_type(join.left.schema())?;
        if bits(&kind).is_some() && kind == right.get_type(join.right.schema())? {
            is_changed = true;
            *left = key(without_cast(left, &kind, join.left.schema()), &kind);
            *right = key(without_cast(right, &kind, join.right.schema()), &kind);
        }
    }
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), is_changed))
}

/// The operand of casts to the type that it has: `x::double` of a `float64` is the same key as `x`.
fn without_cast(expr: &Expr, kind: &DataType, schema: &DFSchema) -> Expr {
    match expr {
        Expr::Cast(Cast { expr: inner, .. })
            if inner.get_type(schema).is_ok_and(|of| of == *kind) =>
        {
            without_cast(inner, kind, schema)
        }
        expr => expr.clone(),
    }
}

/// The key of a float. DataFusion's name of an expression omits casts, so `x` as `float32` and `x` would be two columns
/// of one name: each type has a function of its own.
fn key(float: Expr, kind: &DataType) -> Expr {
    let [of_float32, of_float64] = functions();
    let function = if *kind == DataType::Float32 { of_float32 } else { of_float64 };
    function.call(vec![float])
}

/// `tessera_join_key_32` and `tessera_join_key`.
pub(super) fn functions() -> [ScalarUDF; 2] {
    ["tessera_join_key_32", "tessera_join_key"].map(|name| {
        let signature = Signature::any(1, Volatility::Immutable);
        ScalarUDF::new_from_impl(JoinKey { name, signature })
    })
}

fn bits(float: &DataType) -> Option<DataType> {
    match float {
        DataType::Float32 => Some(DataType::Int32),
        DataType::Float64 => Some(DataType::Int64),
        _ => None,
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct JoinKey {
    name: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for JoinKey {
    scalar!(name, signature);

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types.first().and_then(bits) {
            Some(bits) => Ok(bits),
            None => plan_err!("tessera_join_key takes a float"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [value] = args.args.as_slice() else {
            return internal_err!("tessera_join_key takes one argument");
        };
        let floats = canonical(&value.to_array(args.number_rows)?);
        let keys: ArrayRef = match floats.data_type() {
            DataType::Float32 => Arc::new(
                floats
                    .as_primitive::<Float32Type>()
                    .unary::<_, Int32Type>(|v| v.to_bits().cast_signed()),
            ),
            DataType::Float64 => Arc::new(
                floats
                    .as_primitive::<Float64Type>()
                    .unary::<_, Int64Type>(|v| v.to_bits().cast_signed()),
            ),
            other => return internal_err!("tessera_join_key takes floats, not {other}"),
        };
        Ok(ColumnarValue::Array(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::Float64Array;
    use arrow::datatypes::Field;
    use datafusion::common::Column;
    use datafusion::logical_expr::cast;

    #[test]
    fn keys_of_one_column_in_two_types_have_two_names() {
        let d = Expr::Column(Column::from_qualified_name("a.d"));
        let as_float32 = cast(d.clone(), DataType::Float32);
        let keys = [key(d, &DataType::Float64), key(as_float32, &DataType::Float32)];
        let names = keys.map(|key| key.schema_name().to_string());
        assert_eq!(names, ["tessera_join_key(a.d)", "tessera_join_key_32(a.d)"]);
    }

    #[test]
    fn equal_floats_have_equal_keys() {
        let payload = f64::from_bits(f64::NAN.to_bits() | 1);
        let floats = [Some(0.0), Some(-0.0), Some(f64::NAN), Some(-payload), None, Some(1.5)];
        let array: ArrayRef = Arc::new(Float64Array::from(floats.to_vec()));
        let field = Arc::new(Field::new("x", DataType::Float64, true));
        let args = ScalarFunctionArgs {
            args: vec![ColumnarValue::Array(array)],
            arg_fields: vec![field],
            number_rows: floats.len(),
            return_field: Arc::new(Field::new("k", DataType::Int64, true)),
            config_options: Arc::default(),
        };
        let made = JoinKey { name: "key", signature: Signature::any(1, Volatility::Immutable) };
        let keys = made.invoke_with_args(args).unwrap().to_array(floats.len()).unwrap();
        let keys: Vec<_> = keys.as_primitive::<Int64Type>().iter().collect();
        assert_eq!(keys[0], keys[1]);
        assert_eq!(keys[2], keys[3]);
        assert_eq!(keys[4], None);
        assert!(keys[0] != keys[5] && keys[2] != keys[5]);
    }
}
