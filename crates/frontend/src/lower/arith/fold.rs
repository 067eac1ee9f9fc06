//! Arithmetic of literals alone.

use tessera_planner::program::ScalarOp;

use super::Binary;
use crate::lower::value::Value;

/// Folds arithmetic of two literals as Python does; `None` leaves it to the kernels.
pub(super) fn fold(op: Binary, left: &Value, right: &Value) -> Option<Value> {
    let int = |v: &Value| match v {
        Value::Int(v) => Some(*v),
        Value::Bool(v) => Some(i128::from(*v)),
        _ => None,
    };
    let float = |v: &Value| match v {
        Value::Float(v) => Some(*v),
        v => int(v).map(|v| v as f64),
    };
    if let (Some(a), Some(b)) = (int(left), int(right)) {
        let number = |v: Option<i128>| v.filter(|v| v.unsigned_abs() <= 1 << 100).map(Value::Int);
        return match op {
            Binary::Add => number(a.checked_add(b)),
            Binary::Sub => number(a.checked_sub(b)),
            Binary::Mul => number(a.checked_mul(b)),
            Binary::Div => Some(Value::Float(a as f64 / b as f64)),
            Binary::FloorDiv if b != 0 => {
                number(Some(a.div_euclid(b) - i128::from(b < 0 && a.rem_euclid(b) != 0)))
            }
            Binary::Rem if b != 0 => {
                let r = a % b;
                number(Some(if r != 0 && (r < 0) != (b < 0) { r + b } else { r }))
            }
            Binary::Pow if b >= 0 => number(a.checked_pow(u32::try_from(b).ok()?)),
            Binary::Pow => Some(Value::Float((a as f64).powf(b as f64))),
            Binary::Compare(compare) => Some(Value::Bool(ordered(compare, &a, &b))),
            _ => None,
        };
    }
    let (a, b) = (float(left)?, float(right)?);
    match op {
        Binary::Add => Some(Value::Float(a + b)),
        Binary::Sub => Some(Value::Float(a - b)),
        Binary::Mul => Some(Value::Float(a * b)),
        Binary::Div => Some(Value::Float(a / b)),
        Binary::Compare(compare) => Some(Value::Bool(ordered(compare, &a, &b))),
        _ => None,
    }
}

fn ordered<T: PartialOrd>(op: ScalarOp, a: &T, b: &T) -> bool {
    match op {
        ScalarOp::Eq => a == b,
        ScalarOp::Ne => a != b,
        ScalarOp::Lt => a < b,
        ScalarOp::Le => a <= b,
        ScalarOp::Gt => a > b,
        _ => a >= b,
    }
}
