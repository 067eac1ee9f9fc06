//! Literals: their types, dates, and arrays of them.

use sqlparser::tokenizer::Span;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::error::Error as PlanError;
use tessera_planner::ir::ConstArray;
use tessera_planner::scalar::Scalar;
use tessera_planner::time::parse_period;

use super::types;
use crate::error::{BindError, Error};
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, fail, misshapen};

/// The name of `[1, 2]` in errors.
const LITERAL: &str = "an array literal";

impl Lowerer<'_, '_> {
    /// An array literal: numbers, `NULL` for masked cells, or tensors of one shape, which are
    /// stacked.
    pub(crate) fn array(&mut self, items: &[Value], span: Span) -> Result<Tensor, Error> {
        if has_tensor(items) {
            let mut parts = Vec::with_capacity(items.len());
            for item in items {
                parts.push(self.tensor(item.clone(), span)?);
            }
            return self.stack(parts, 0, Dim::default(), span);
        }
        let mut shape = Vec::new();
        let mut level = items;
        loop {
            shape.push(level.len() as u64);
            match level.first() {
                Some(Value::List(inner)) => level = inner,
                _ => break,
            }
        }
        let mut flat = Vec::new();
        flatten(items, &shape, &mut flat, span)?;
        let dtype = match flat.iter().find(|v| matches!(v, Value::Str(_))) {
            Some(_) => DType::Datetime(Calendar::Standard),
            None => default_type(&flat),
        };
        let mut cells = Vec::with_capacity(flat.len());
        for value in flat {
            cells.push(match value {
                Value::Null => None,
                Value::Int(v) => match Scalar::from_i128(dtype, v) {
                    Some(scalar) => Some(scalar),
                    None => return fits(v, dtype, span),
                },
                Value::Float(v) => Some(Scalar::from_f64(dtype, v)),
                Value::Bool(v) => Some(Scalar::bool(v).cast(dtype)),
                Value::Str(text) => Some(date(&text, dtype, LITERAL, span)?),
                other => return fail(types(LITERAL, vec![other.kind().into()]), span),
            });
        }
        let node = self.b.array(ConstArray::new(dtype, &shape, &cells)).at(span)?;
        Ok(Tensor::unnamed(node, shape.len()))
    }
}

/// The error that an integer literal does not fit a type.
pub(super) fn fits<T>(v: i128, dtype: DType, span: Span) -> Result<T, Error> {
    Err(PlanError::Range {
        what: "an integer literal".into(),
        value: v.to_string(),
        expected: format!("it must fit {dtype}; convert the tensor first, as in `x::int64`"),
    })
    .at(span)
}

/// A text as the first instant of a date.
pub(super) fn date(text: &str, dtype: DType, operation: &str, span: Span) -> Result<Scalar, Error> {
    let DType::Datetime(calendar) = dtype else {
        return fail(types(operation, vec![dtype.name(), format!("the text '{text}'")]), span);
    };
    match parse_period(text, calendar) {
        Some((start, _)) => Ok(Scalar::i64(start).cast(dtype)),
        // The target type was inferred from the literal.
        None if operation == LITERAL => fail(
            BindError::Types {
                operation: operation.into(),
                types: vec![format!("the text '{text}'")],
                hint: Some(
                    "tensors contain numbers, bool and dates; a date is written '2020-01-31'"
                        .to_string(),
                ),
            },
            span,
        ),
        None => fail(
            BindError::Types {
                operation: operation.into(),
                types: vec![dtype.name(), format!("the text '{text}'")],
                hint: Some(format!(
                    "dates are written '2020-01-31' (calendar {})",
                    calendar.name()
                )),
            },
            span,
        ),
    }
}

/// NumPy's type of an array of literals.
pub(super) fn default_type(values: &[Value]) -> DType {
    let any = |test: fn(&Value) -> bool| values.iter().any(test);
    if any(|v| matches!(v, Value::Float(_))) {
        DType::Float64
    } else if any(|v| matches!(v, Value::Int(_))) {
        // Numbers from 2^63 on are `uint64`, unless the list has a negative one.
        let large = any(|v| matches!(v, Value::Int(v) if *v > i128::from(i64::MAX)));
        let negative = any(|v| matches!(v, Value::Int(v) if *v < 0));
        if large && !negative { DType::UInt64 } else { DType::Int64 }
    } else if any(|v| matches!(v, Value::Bool(_))) {
        DType::Bool
    } else {
        DType::Float64
    }
}

fn has_tensor(items: &[Value]) -> bool {
    items.iter().any(|item| match item {
        Value::Tensor(_) => true,
        Value::List(inner) => has_tensor(inner),
        _ => false,
    })
}

fn flatten(items: &[Value], shape: &[u64], out: &mut Vec<Value>, span: Span) -> Result<(), Error> {
    let ragged = |found: String| {
        misshapen(
            LITERAL,
            &[shape],
            format!("all lists of one level must have the same length; found {found}"),
            span,
        )
    };
    if items.len() as u64 != shape[0] {
        return ragged(format!("{} and {} items", shape[0], items.len()));
    }
    for item in items {
        match (item, shape.len() > 1) {
            (Value::List(inner), true) => flatten(inner, &shape[1..], out, span)?,
            (Value::List(_), false) => return ragged("a number and a list".into()),
            (_, true) => return ragged("a list and a number".into()),
            (_, false) => out.push(item.clone()),
        }
    }
    Ok(())
}
