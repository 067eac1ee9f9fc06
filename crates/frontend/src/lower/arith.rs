//! Types that meet, literals that take a type, and the operators.

use tessera_planner::dtype::DType;
use tessera_planner::ir::{ConstArray, MapOp};
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;
use tessera_planner::time::parse_period;

use sqlparser::tokenizer::Span;

use super::value::{Dim, Record, Tensor, Value};
use super::{At, Lowerer, fail};
use crate::error::{BindError, Error, Position};

/// The operators of two operands.
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
                    hint: None,
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

    /// The type in which values meet: arrays by NumPy's promotion, literals taking the array's
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

    /// Lists become arrays, so that what is left is tensors and literals.
    pub(crate) fn settle(&mut self, values: Vec<Value>, span: Span) -> Result<Vec<Value>, Error> {
        values
            .into_iter()
            .map(|value| match value {
                Value::List(items) => self.array(&items, span).map(Value::Tensor),
                other => Ok(other),
            })
            .collect()
    }

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
            Some(_) => DType::Datetime(tessera_planner::dtype::Calendar::Standard),
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

    /// As [`Self::map`], with values that first meet in one type.
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
            // NumPy counts bools as `int8` where they have no meaning of their own.
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

    /// The difference of two times in seconds: there is no type of durations.
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

    /// Seconds since 1970 of a time.
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
    fn seconds(&mut self, mut t: Tensor, span: Span) -> Result<Tensor, Error> {
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
            Value::Int(v) if *v < 0 && dtype.is_integer() => fail(
                BindError::InvalidArgument {
                    function: "^".into(),
                    argument: format!("the exponent {v}"),
                    reason: format!("is negative and the base is {dtype}; write `{v}.0`"),
                },
                span,
            ),
            _ => Ok(None),
        }
    }

    fn compare(
        &mut self,
        op: ScalarOp,
        name: &str,
        values: Vec<Value>,
        span: Span,
    ) -> Result<Tensor, Error> {
        // Integers of any size compare by value, as in NumPy 2: where a literal or an operand
        // does not fit the other's type, its sign decides.
        match values.as_slice() {
            [Value::Tensor(t), Value::Int(v)] => {
                let dtype = self.b.dtype(t.node);
                if dtype.is_integer() && Scalar::from_i128(dtype, *v).is_none() {
                    return self.constant_compare(t.clone(), known(op, *v > 0), span);
                }
            }
            [Value::Int(v), Value::Tensor(t)] => {
                let dtype = self.b.dtype(t.node);
                if dtype.is_integer() && Scalar::from_i128(dtype, *v).is_none() {
                    return self.constant_compare(t.clone(), known(op, *v < 0), span);
                }
            }
            [Value::Tensor(l), Value::Tensor(r)] => {
                let (dl, dr) = (self.b.dtype(l.node), self.b.dtype(r.node));
                if dl.is_signed() && dr == DType::UInt64 || dl == DType::UInt64 && dr.is_signed() {
                    return self.compare_signs(op, l.clone(), r.clone(), span);
                }
            }
            _ => {}
        }
        self.map_values(op, name, values, |dtype| dtype, span)
    }

    /// The same answer for every cell, masked where the tensor is.
    fn constant_compare(&mut self, t: Tensor, answer: bool, span: Span) -> Result<Tensor, Error> {
        let valid = self.b.map_op(MapOp::IsValid, &[t.node]).at(span)?;
        let shape = self.b.shape(t.node);
        let all = self.b.full(Some(Scalar::bool(answer)), DType::Bool, &shape, None).at(span)?;
        let node = match self.b.node(t.node).nullable {
            true => self.b.map_op(MapOp::Mask, &[all, valid]).at(span)?,
            false => all,
        };
        Ok(Tensor::new(node, t.dims))
    }

    /// A signed integer beside a `uint64`: a negative one is less than all of them.
    fn compare_signs(
        &mut self,
        op: ScalarOp,
        left: Tensor,
        right: Tensor,
        span: Span,
    ) -> Result<Tensor, Error> {
        let is_left_signed = self.b.dtype(left.node).is_signed();
        let (nodes, dims) = self.align("comparison", vec![left, right], span)?;
        let signed = nodes[usize::from(!is_left_signed)];
        let zero = self.b.constant(Scalar::zero(self.b.dtype(signed))).at(span)?;
        let negative = self.b.map(ScalarOp::Lt, &[signed, zero]).at(span)?;
        let wide = self.b.cast(signed, DType::UInt64).at(span)?;
        let pair = if is_left_signed { [wide, nodes[1]] } else { [nodes[0], wide] };
        let compared = self.b.map(op, &pair).at(span)?;
        // `true` says that the right operand is the greater one.
        let answer = self.b.constant(Scalar::bool(known(op, is_left_signed))).at(span)?;
        let node = self.b.map(ScalarOp::Where, &[negative, answer, compared]).at(span)?;
        Ok(Tensor::new(node, dims))
    }

    /// A `bool` tensor, or an error that names the operation.
    pub(crate) fn boolean(
        &mut self,
        value: Value,
        operation: &str,
        span: Span,
    ) -> Result<Tensor, Error> {
        let tensor = match value {
            Value::Null => {
                let node = self.b.null(DType::Bool).at(span)?;
                Tensor::unnamed(node, 0)
            }
            other => self.tensor(other, span)?,
        };
        match self.b.dtype(tensor.node) {
            DType::Bool => Ok(tensor),
            dtype => fail(
                BindError::Types {
                    operation: operation.into(),
                    types: vec![dtype.name()],
                    hint: Some("compare, as in `x <> 0`, or convert with `x::bool`".into()),
                },
                span,
            ),
        }
    }

    /// Three-valued `and` and `or`; two-valued where no cell can be masked.
    pub(crate) fn logic(
        &mut self,
        and: bool,
        left: Tensor,
        right: Tensor,
        span: Span,
    ) -> Result<Tensor, Error> {
        let masked = self.b.node(left.node).nullable || self.b.node(right.node).nullable;
        let op = match (and, masked) {
            (true, false) => MapOp::Scalar(ScalarOp::And),
            (false, false) => MapOp::Scalar(ScalarOp::Or),
            (true, true) => MapOp::KleeneAnd,
            (false, true) => MapOp::KleeneOr,
        };
        self.map(op, if and { "AND" } else { "OR" }, vec![left, right], span)
    }

    /// `NOT`.
    pub(crate) fn negate(&mut self, mut tensor: Tensor, span: Span) -> Result<Tensor, Error> {
        tensor.node = self.b.map(ScalarOp::Not, &[tensor.node]).at(span)?;
        Ok(Tensor::new(tensor.node, tensor.dims))
    }

    /// A condition in which a masked cell counts as false.
    pub(crate) fn certain(&mut self, mut tensor: Tensor, span: Span) -> Result<Tensor, Error> {
        if self.b.node(tensor.node).nullable {
            let no = self.b.constant(Scalar::bool(false)).at(span)?;
            tensor.node = self.b.map_op(MapOp::Coalesce, &[tensor.node, no]).at(span)?;
        }
        Ok(tensor)
    }

    /// The cells of `x` where the condition holds. The condition is written first, so its dimensions come first.
    fn kept(
        &mut self,
        x: Tensor,
        condition: Tensor,
        operation: &str,
        span: Span,
    ) -> Result<Tensor, Error> {
        let (nodes, dims) = self.align(operation, vec![condition, x], span)?;
        Ok(Tensor::new(self.b.map_op(MapOp::Mask, &[nodes[1], nodes[0]]).at(span)?, dims))
    }

    /// `where(condition, x, y)`, with a `NULL` branch as a mask.
    pub(crate) fn choose(
        &mut self,
        condition: Tensor,
        x: Value,
        y: Value,
        operation: &str,
        span: Span,
    ) -> Result<Tensor, Error> {
        let values = self.settle(vec![x, y], span)?;
        let dtype = self.meet(operation, &values, span)?;
        match values.as_slice() {
            [x, Value::Null] => {
                let x = self.typed(x.clone(), dtype, operation, span)?;
                self.kept(x, condition, operation, span)
            }
            [Value::Null, y] => {
                let condition = self.negate(condition, span)?;
                let y = self.typed(y.clone(), dtype, operation, span)?;
                self.kept(y, condition, operation, span)
            }
            _ => {
                let mut inputs = vec![condition];
                for value in values {
                    inputs.push(self.typed(value, dtype, operation, span)?);
                }
                self.map(MapOp::Scalar(ScalarOp::Where), operation, inputs, span)
            }
        }
    }
}

/// A type error.
pub(crate) fn types(operation: &str, types: Vec<String>) -> BindError {
    BindError::Types { operation: operation.into(), types, hint: None }
}

/// The error that an integer literal does not fit a type.
fn fits<T>(v: i128, dtype: DType, span: Span) -> Result<T, Error> {
    Err(tessera_planner::error::Error::Range {
        what: "an integer literal".into(),
        value: v.to_string(),
        expected: format!("it must fit {dtype}; convert the tensor first, as in `x::int64`"),
    })
    .at(span)
}

/// What errors call `[1, 2]`.
const LITERAL: &str = "an array literal";

/// A text as the first instant of a date.
fn date(text: &str, dtype: DType, operation: &str, span: Span) -> Result<Scalar, Error> {
    let DType::Datetime(calendar) = dtype else {
        return fail(types(operation, vec![dtype.name(), format!("the text '{text}'")]), span);
    };
    match parse_period(text, calendar) {
        Some((start, _)) => Ok(Scalar::i64(start).cast(dtype)),
        // The type of a literal was a guess.
        None if operation == LITERAL => fail(
            BindError::Types {
                operation: operation.into(),
                types: vec![format!("the text '{text}'")],
                hint: Some(
                    "tensors hold numbers, bool and dates, and a date is written '2020-01-31'"
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
fn default_type(values: &[Value]) -> DType {
    let any = |test: fn(&Value) -> bool| values.iter().any(test);
    if any(|v| matches!(v, Value::Float(_))) {
        DType::Float64
    } else if any(|v| matches!(v, Value::Int(_))) {
        // Numbers from 2^63 on are `uint64`, unless a negative one stands beside them.
        let large = any(|v| matches!(v, Value::Int(v) if *v > i128::from(i64::MAX)));
        let negative = any(|v| matches!(v, Value::Int(v) if *v < 0));
        if large && !negative { DType::UInt64 } else { DType::Int64 }
    } else if any(|v| matches!(v, Value::Bool(_))) {
        DType::Bool
    } else {
        DType::Float64
    }
}

/// The error that a record stands where one tensor is needed.
fn bare_record<T>(record: &Record, span: Span) -> Result<T, Error> {
    let fields: Vec<String> = record.names().iter().map(|name| format!("`.{name}`")).collect();
    let error = BindError::Types {
        operation: "a tensor expression".into(),
        types: vec![format!("the record that `{}` gives", record.of)],
        hint: Some(format!("choose one of its fields: {}", fields.join(", "))),
    };
    fail(error, span)
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
        Err(tessera_planner::error::Error::Shapes {
            operation: LITERAL.into(),
            shapes_: vec![shape.to_vec()],
            hint: Some(format!("all lists of one level must have the same length; found {found}")),
        })
        .at(span)
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

/// A comparison whose right operand is known to be greater (or less) than the left one.
fn known(op: ScalarOp, right_is_greater: bool) -> bool {
    match op {
        ScalarOp::Eq => false,
        ScalarOp::Ne => true,
        ScalarOp::Lt | ScalarOp::Le => right_is_greater,
        _ => !right_is_greater,
    }
}

/// Arithmetic of two literals, as Python computes it; `None` leaves it to the kernels.
fn fold(op: Binary, left: &Value, right: &Value) -> Option<Value> {
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
