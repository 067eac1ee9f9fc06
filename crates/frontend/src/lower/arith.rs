//! Type promotion, typing of literals, and the operators.

mod compare;
mod fold;
mod literal;
mod logic;

use tessera_planner::dtype::DType;
use tessera_planner::ir::MapOp;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use sqlparser::tokenizer::Span;

use super::value::{Record, Tensor, Value};
use super::{At, Lowerer, fail, refuse};
use crate::error::{BindError, Error, Position};
use fold::fold;
use literal::{date, default_type, fits};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binary {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`
    Div,
    /// `//`
    FloorDiv,
    /// `%`
    Rem,
    /// `^`
    Pow,
    /// Comparisons: `=`, `<>`, `<`, `<=`, `>`, `>=`
    Compare(ScalarOp),
    /// `&`, `|`, `#` and shifts
    Bits(ScalarOp),
}

impl Binary {
    fn symbol(self) -> &'static str {
        match self {
            Binary::Add => "+",
            Binary::Sub => "-",
            Binary::Mul => "*",
            Binary::Div => "/",
            Binary::FloorDiv => "//",
            Binary::Rem => "%",
            Binary::Pow => "^",
            Binary::Compare(op) => match op {
                ScalarOp::Eq => "=",
                ScalarOp::Ne => "<>",
                ScalarOp::Lt => "<",
                ScalarOp::Le => "<=",
                ScalarOp::Gt => ">",
                _ => ">=",
            },
            Binary::Bits(op) => match op {
                ScalarOp::And => "&",
                ScalarOp::Or => "|",
                ScalarOp::Xor => "#",
                ScalarOp::ShiftLeft => "<<",
                _ => ">>",
            },
        }
    }
}

impl Lowerer<'_, '_> {
    /// The value as a tensor; literals get NumPy's default type, lists become arrays.
    pub(crate) fn tensor(&mut self, value: Value, span: Span) -> Result<Tensor, Error> {
        match value {
            Value::Tensor(tensor) => Ok(tensor),
            Value::List(items) => self.array(&items, span),
            Value::Int(_) | Value::Float(_) | Value::Bool(_) => {
                let dtype = default_type(std::slice::from_ref(&value));
                self.typed(value, dtype, "a literal", span)
            }
            Value::Null => {
                let node = self.b.null(DType::Float64).at(span)?;
                Ok(Tensor::unnamed(node, 0))
            }
            Value::Record(record) => bare_record(&record, span),
            Value::Str(_) | Value::Slice(_) => fail(
                BindError::Types {
                    operation: "a tensor expression".into(),
                    types: vec![value.kind().into()],
                    hint: Some(
                        "tensors have no texts: select it in a statement of its own; in a block without FROM, `list_value(1, 2)` is a list that may stand beside a text"
                            .into(),
                    ),
                },
                span,
            ),
        }
    }

    /// The value as a tensor of that type. Integer literals must fit, texts are dates.
    pub(crate) fn typed(
        &mut self,
        value: Value,
        dtype: DType,
        operation: &str,
        span: Span,
    ) -> Result<Tensor, Error> {
        let scalar = match value {
            Value::Tensor(mut tensor) => {
                tensor.node = self.b.cast(tensor.node, dtype).at(span)?;
                return Ok(tensor);
            }
            Value::List(items) => {
                let tensor = self.array(&items, span)?;
                return self.typed(Value::Tensor(tensor), dtype, operation, span);
            }
            Value::Null => None,
            Value::Str(text) => Some(date(&text, dtype, operation, span)?),
            Value::Int(_) | Value::Float(_) | Value::Bool(_) if dtype.is_datetime() => {
                return fail(types(operation, vec![dtype.name(), value.kind().into()]), span);
            }
            Value::Int(v) => match Scalar::from_i128(dtype, v) {
                Some(scalar) => Some(scalar),
                None => return fits(v, dtype, span),
            },
            Value::Float(v) => Some(Scalar::from_f64(dtype, v)),
            Value::Bool(v) => Some(Scalar::bool(v).cast(dtype)),
            Value::Slice(_) => return fail(types(operation, vec![value.kind().into()]), span),
            Value::Record(record) => return bare_record(&record, span),
        };
        let node = match scalar {
            Some(scalar) => self.b.constant(scalar),
            None => self.b.null(dtype),
        };
        Ok(Tensor::unnamed(node.at(span)?, 0))
    }

    /// The common type of values: arrays follow NumPy's promotion, literals take the array's
    /// kind (NEP 50).
    pub(crate) fn meet(
        &mut self,
        operation: &str,
        values: &[Value],
        span: Span,
    ) -> Result<DType, Error> {
        let mut strong: Option<DType> = None;
        for value in values {
            if let Value::Tensor(tensor) = value {
                let dtype = self.b.dtype(tensor.node);
                strong = Some(match strong {
                    None => dtype,
                    Some(s) => match s.promote(dtype) {
                        Some(d) => d,
                        None => return fail(types(operation, vec![s.name(), dtype.name()]), span),
                    },
                });
            }
        }
        let Some(mut dtype) = strong else {
            if let Some(Value::Record(record)) =
                values.iter().find(|v| matches!(v, Value::Record(_)))
            {
                return bare_record(record, span);
            }
            if let Some(odd) = values.iter().find(|v| matches!(v, Value::Str(_) | Value::Slice(_)))
            {
                return fail(types(operation, vec![odd.kind().into()]), span);
            }
            return Ok(default_type(values));
        };
        for value in values {
            let fits = match value {
                Value::Tensor(_) | Value::Null => true,
                Value::Record(record) => return bare_record(record, span),
                Value::Str(_) | Value::Slice(_) | Value::List(_) => {
                    matches!(value, Value::Str(_)) && dtype.is_datetime()
                }
                Value::Int(_) | Value::Float(_) | Value::Bool(_) => !dtype.is_datetime(),
            };
            if !fits {
                return fail(types(operation, vec![dtype.name(), value.kind().into()]), span);
            }
            dtype = match value {
                Value::Int(_) if dtype == DType::Bool => DType::Int64,
                Value::Float(_) if !dtype.is_float() => DType::Float64,
                _ => dtype,
            };
        }
        Ok(dtype)
    }

    /// Converts lists to arrays, so that only tensors and literals remain.
    pub(crate) fn settle(&mut self, values: Vec<Value>, span: Span) -> Result<Vec<Value>, Error> {
        values
            .into_iter()
            .map(|value| match value {
                Value::List(items) => self.array(&items, span).map(Value::Tensor),
                other => Ok(other),
            })
            .collect()
    }

    /// An elementwise node over aligned tensors.
    pub(crate) fn map(
        &mut self,
        op: MapOp,
        operation: &str,
        inputs: Vec<Tensor>,
        span: Span,
    ) -> Result<Tensor, Error> {
        let (nodes, dims) = self.align(operation, inputs, span)?;
        Ok(Tensor::new(self.b.map_op(op, &nodes).at(span)?, dims))
    }

    /// As [`Self::map`], after promoting the values to a common type.
    pub(crate) fn map_values(
        &mut self,
        op: ScalarOp,
        operation: &str,
        values: Vec<Value>,
        to: impl Fn(DType) -> DType,
        span: Span,
    ) -> Result<Tensor, Error> {
        let values = self.settle(values, span)?;
        let dtype = to(self.meet(operation, &values, span)?);
        let mut inputs = Vec::with_capacity(values.len());
        for value in values {
            inputs.push(self.typed(value, dtype, operation, span)?);
        }
        self.map(MapOp::Scalar(op), operation, inputs, span)
    }

    /// `left op right`.
    pub(crate) fn binary(
        &mut self,
        op: Binary,
        left: Value,
        right: Value,
        span: Span,
    ) -> Result<Value, Error> {
        if let Some(folded) = fold(op, &left, &right) {
            return Ok(folded);
        }
        let name = op.symbol();
        if let (Value::Int(_), Value::Int(0)) = (&left, &right)
            && matches!(op, Binary::FloorDiv | Binary::Rem)
        {
            return Err(Error::Cells {
                code: "division_by_zero",
                message: format!("`{name}` of the integer {} by 0", left.show()),
                position: Position::of_span(span),
                hint: Some(format!(
                    "of floats, `{}.0 {name} 0`, it is NaN or an infinity",
                    left.show()
                )),
            });
        }
        let mut values = self.settle(vec![left, right], span)?;
        let scalar = match op {
            Binary::Compare(compare) => {
                return self.compare(compare, name, values, span).map(Value::Tensor);
            }
            Binary::Pow => {
                if let Some(short) = self.short_power(&values, span)? {
                    return Ok(Value::Tensor(short));
                }
                ScalarOp::Pow
            }
            Binary::Add => ScalarOp::Add,
            Binary::Sub => ScalarOp::Sub,
            Binary::Mul => ScalarOp::Mul,
            Binary::Div => ScalarOp::Div,
            Binary::FloorDiv => ScalarOp::FloorDiv,
            Binary::Rem => ScalarOp::Rem,
            Binary::Bits(bits) => bits,
        };
        if matches!(op, Binary::Add | Binary::Sub)
            && let Some(error) = self.time_and_number(name, &values)
        {
            return fail(error, span);
        }
        let met = self.meet(name, &values, span)?;
        if met.is_datetime() {
            let both = values.iter().all(|v| matches!(v, Value::Tensor(_) | Value::Str(_)));
            if op == Binary::Sub && both {
                return self.seconds_between(values, met, span).map(Value::Tensor);
            }
            return fail(types(name, vec![met.name(), met.name()]), span);
        }
        let dtype = match op {
            Binary::Div if met.is_float() => met,
            Binary::Div => DType::Float64,
            // NumPy treats bools as `int8` where bools have no meaning of their own.
            Binary::FloorDiv | Binary::Rem | Binary::Pow if met == DType::Bool => DType::Int8,
            Binary::Bits(ScalarOp::ShiftLeft | ScalarOp::ShiftRight) if met == DType::Bool => {
                DType::Int8
            }
            _ => met,
        };
        let right = values.pop().unwrap_or(Value::Null);
        let left = values.pop().unwrap_or(Value::Null);
        let left = self.typed(left, dtype, name, span)?;
        let right = self.typed(right, dtype, name, span)?;
        self.map(MapOp::Scalar(scalar), name, vec![left, right], span).map(Value::Tensor)
    }

    /// The difference of two times in seconds: there is no duration type.
    fn seconds_between(
        &mut self,
        values: Vec<Value>,
        dtype: DType,
        span: Span,
    ) -> Result<Tensor, Error> {
        let mut sides = Vec::with_capacity(2);
        for value in values {
            let mut side = self.typed(value, dtype, "-", span)?;
            side.node = self.b.cast(side.node, DType::Int64).at(span)?;
            sides.push(side);
        }
        let difference = self.map(MapOp::Scalar(ScalarOp::Sub), "-", sides, span)?;
        self.seconds(difference, span)
    }

    /// A time as seconds since 1970.
    pub(crate) fn epoch(
        &mut self,
        mut t: Tensor,
        operation: &str,
        span: Span,
    ) -> Result<Tensor, Error> {
        let dtype = self.b.dtype(t.node);
        if !dtype.is_datetime() {
            return fail(types(operation, vec![dtype.name()]), span);
        }
        t.node = self.b.cast(t.node, DType::Int64).at(span)?;
        self.seconds(Tensor::new(t.node, t.dims), span)
    }

    /// Microseconds as seconds.
    pub(crate) fn seconds(&mut self, mut t: Tensor, span: Span) -> Result<Tensor, Error> {
        t.node = self.b.cast(t.node, DType::Float64).at(span)?;
        let unit = self.b.constant(Scalar::f64(1e6)).at(span)?;
        t.node = self.b.map(ScalarOp::Div, &[t.node, unit]).at(span)?;
        Ok(t)
    }

    /// Powers that NumPy computes as products and roots.
    fn short_power(&mut self, values: &[Value], span: Span) -> Result<Option<Tensor>, Error> {
        let [Value::Tensor(base), exponent] = values else { return Ok(None) };
        let dtype = self.b.dtype(base.node);
        let square = match exponent {
            Value::Int(2) => dtype.is_numeric(),
            Value::Float(v) => *v == 2.0 && dtype.is_float(),
            _ => false,
        };
        if square {
            let pair = vec![base.clone(), base.clone()];
            return self.map(MapOp::Scalar(ScalarOp::Mul), "^", pair, span).map(Some);
        }
        if matches!(exponent, Value::Float(v) if *v == 0.5) && dtype.is_float() {
            let root = vec![base.clone()];
            return self.map(MapOp::Scalar(ScalarOp::Sqrt), "^", root, span).map(Some);
        }
        match exponent {
            Value::Int(v) if *v < 0 && dtype.is_integer() => refuse(
                "^",
                format!("the exponent {v}"),
                format!("is negative and the base is {dtype}; write `{v}.0`"),
                span,
            ),
            _ => Ok(None),
        }
    }
}

pub(crate) fn types(operation: &str, types: Vec<String>) -> BindError {
    BindError::Types { operation: operation.into(), types, hint: None }
}

/// The error for a record where one tensor is required.
fn bare_record<T>(record: &Record, span: Span) -> Result<T, Error> {
    let fields: Vec<String> = record.names().iter().map(|name| format!("`.{name}`")).collect();
    let error = BindError::Types {
        operation: "a tensor expression".into(),
        types: vec![format!("the record that `{}` gives", record.of)],
        hint: Some(format!("choose one of its fields: {}", fields.join(", "))),
    };
    fail(error, span)
}
