//! Lowers expressions.

use sqlparser::ast::{
    BinaryOperator, CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArguments, Ident, TypedString, UnaryOperator, Value as Literal,
};
use sqlparser::tokenizer::Span;
use tessera_planner::catalog::CoordValues;
use tessera_planner::dtype::DType;
use tessera_planner::ir::MapOp;
use tessera_planner::program::ScalarOp;
use tessera_planner::time::DatePart;

use super::value::{Tensor, Value};
use super::{
    At, Binary, Lowerer, RED_ZONE, STACK, fail, intervals, refuse, span_of, types, unsupported,
};
use crate::ast;
use crate::error::{Error, Position, nearest};
use crate::interrupt;
use crate::parameters;
use crate::seasons;

impl Lowerer<'_, '_> {
    pub(crate) fn expr(&mut self, expr: &Expr) -> Result<Value, Error> {
        stacker::maybe_grow(RED_ZONE, STACK, || self.dispatch(expr))
    }

    fn dispatch(&mut self, expr: &Expr) -> Result<Value, Error> {
        interrupt::check()?;
        if let Some(subscript) = ast::subscript(expr) {
            return self.subscript(&subscript);
        }
        if let Some(numbers) = ast::numbers(expr) {
            return self.expr(numbers);
        }
        if let Some((base, fields)) = ast::field(expr) {
            let mut value = self.expr(base)?;
            for field in fields {
                value = self.field(value, field)?;
            }
            return Ok(value);
        }
        if let Some(numbered) = seasons::numbered(expr)? {
            return self.expr(&numbered);
        }
        let span = span_of(expr);
        match expr {
            Expr::Nested(inner) => self.expr(inner),
            Expr::Identifier(ident) => self.name(ident),
            Expr::CompoundIdentifier(parts) => self.dotted(parts, span),
            Expr::Value(value) => literal(&value.value, span),
            Expr::TypedString(TypedString { value, .. }) => literal(&value.value, span),
            Expr::Array(array) => array
                .elem
                .iter()
                .map(|item| self.expr(item))
                .collect::<Result<_, _>>()
                .map(Value::List),
            Expr::Function(function) if ast::tensor_of(function).is_some() => {
                match ast::tensor_of(function) {
                    Some(query) => self.subquery(query, false, span),
                    None => unsupported("this call", span),
                }
            }
            Expr::Function(function) => match ast::call(expr) {
                Some(call) => crate::functions::lower(self, &call, span),
                None => Err(not_plain(function, span)),
            },
            Expr::UnaryOp { op, expr } => self.unary(*op, expr, span),
            Expr::BinaryOp { left, op, right } => self.operator(left, op, right, span),
            Expr::Cast {
                kind: CastKind::Cast | CastKind::DoubleColon, expr, data_type, ..
            } => {
                let value = self.expr(expr)?;
                let dtype = sql_type(data_type, span)?;
                self.cast(value, dtype, span).map(Value::Tensor)
            }
            Expr::Case { operand, conditions, else_result, .. } => {
                self.case(operand.as_deref(), conditions, else_result.as_deref(), span)
            }
            Expr::IsNull(inner) => self.is_null(inner, true, span),
            Expr::IsNotNull(inner) => self.is_null(inner, false, span),
            Expr::IsTrue(inner) => self.is_truth(inner, true, false, span),
            Expr::IsNotTrue(inner) => self.is_truth(inner, true, true, span),
            Expr::IsFalse(inner) => self.is_truth(inner, false, false, span),
            Expr::IsNotFalse(inner) => self.is_truth(inner, false, true, span),
            Expr::InList { expr, list, negated } => self.in_list(expr, list, *negated, span),
            Expr::Between { expr, negated, low, high } => {
                let both = self.is_between(expr, low, high, span)?;
                let result = if *negated { self.negate(both, span)? } else { both };
                Ok(Value::Tensor(result))
            }
            Expr::Extract { field, expr, .. } => {
                let value = self.expr(expr)?;
                let name = field.to_string().to_ascii_lowercase();
                let name = name.trim_matches('\'').to_string();
                self.date_part(value, &name, span).map(Value::Tensor)
            }
            Expr::Tuple(_) => {
                let text = shorten(expr);
                Err(Error::Unsupported {
                    construct: format!("the tuple `{text}` in a tensor block"),
                    position: Position::of_span(span),
                    hint: Some("a list is written in brackets: `['time', 'lat']`, `[2, 3]`".into()),
                })
            }
            Expr::Interval(interval) => Err(intervals::alone(interval, span)),
            Expr::Lambda(_) => unsupported("a lambda here", span),
            Expr::Subquery(query) => self.subquery(query, true, span),
            Expr::Exists { .. } | Expr::InSubquery { .. } => {
                unsupported("a subquery inside a tensor expression", span)
            }
            _ => unsupported(&format!("`{}` in a tensor block", shorten(expr)), span),
        }
    }

    /// A field of a record, or `.T`, the only field of a tensor.
    pub(crate) fn field(&mut self, value: Value, field: &Ident) -> Result<Value, Error> {
        if let Value::Record(record) = &value {
            let names = record.names();
            let found: Vec<&str> = names.iter().map(String::as_str).collect();
            return match record.field(&field.value) {
                Some(tensor) => Ok(Value::Tensor(tensor)),
                None => Err(Error::UnknownName {
                    kind: "field",
                    name: field.value.clone(),
                    candidates: match nearest(&field.value, &found) {
                        Some(near) => vec![near.to_string()],
                        None => names,
                    },
                    position: Position::of_span(field.span),
                }),
            };
        }
        let tensor = self.tensor(value, field.span)?;
        if field.value == "T" {
            let order: Vec<usize> = (0..tensor.dims.len()).rev().collect();
            return self.transposed(tensor, &order, field.span).map(Value::Tensor);
        }
        let (name, of) = (&field.value, tensor.name.as_deref().unwrap_or("x"));
        let coord =
            tensor.dims.iter().filter_map(|dim| dim.coord.as_ref()).find(|c| *c.name == **name);
        let is_time = self.b.dtype(tensor.node).is_datetime();
        let hint = match coord {
            Some(coord) if matches!(coord.values, CoordValues::Time(..)) => {
                format!(
                    "coordinates are names of their own: write `{name}`, and its parts as `month({name})`"
                )
            }
            Some(_) => format!("coordinates are names of their own: write `{name}`"),
            None if is_time && DatePart::parse(name).is_some() => {
                format!("parts of times are functions: write `{name}({of})`")
            }
            None => "the only field of a tensor is `T`, its transpose".into(),
        };
        Err(Error::Cells {
            code: "unknown_name",
            message: format!("unknown field `{name}`"),
            position: Position::of_span(field.span),
            hint: Some(hint),
        })
    }

    fn unary(&mut self, op: UnaryOperator, expr: &Expr, span: Span) -> Result<Value, Error> {
        let value = self.expr(expr)?;
        match (op, value) {
            (UnaryOperator::Minus, Value::Int(v)) => Ok(Value::Int(-v)),
            (UnaryOperator::Minus, Value::Float(v)) => Ok(Value::Float(-v)),
            (UnaryOperator::Minus, Value::Bool(v)) => Ok(Value::Int(-i128::from(v))),
            (UnaryOperator::Minus, value) => {
                let t = self.tensor(value, span)?;
                let node = self.b.map(ScalarOp::Neg, &[t.node]).at(span)?;
                Ok(Value::Tensor(Tensor::new(node, t.dims)))
            }
            (UnaryOperator::Plus, value @ (Value::Int(_) | Value::Float(_) | Value::Bool(_))) => {
                Ok(value)
            }
            (UnaryOperator::Plus, value) => {
                let t = self.tensor(value, span)?;
                match self.b.dtype(t.node).is_numeric() {
                    true => Ok(Value::Tensor(Tensor::new(t.node, t.dims))),
                    false => fail(types("+", vec![self.b.dtype(t.node).name()]), span),
                }
            }
            (UnaryOperator::Not | UnaryOperator::BangNot, value) => {
                let t = self.boolean(value, "NOT", span)?;
                self.negate(t, span).map(Value::Tensor)
            }
            (UnaryOperator::BitwiseNot, value) => {
                let t = self.tensor(value, span)?;
                self.negate(t, span).map(Value::Tensor)
            }
            (op, _) => unsupported(&format!("the operator `{op}`"), span),
        }
    }

    fn operator(
        &mut self,
        left: &Expr,
        op: &BinaryOperator,
        right: &Expr,
        span: Span,
    ) -> Result<Value, Error> {
        let binary = match op {
            BinaryOperator::Plus => Binary::Add,
            BinaryOperator::Minus => Binary::Sub,
            BinaryOperator::Multiply => Binary::Mul,
            BinaryOperator::Divide => Binary::Div,
            BinaryOperator::DuckIntegerDivide => Binary::FloorDiv,
            BinaryOperator::Modulo => Binary::Rem,
            BinaryOperator::Eq => Binary::Compare(ScalarOp::Eq),
            BinaryOperator::NotEq => Binary::Compare(ScalarOp::Ne),
            BinaryOperator::Lt => Binary::Compare(ScalarOp::Lt),
            BinaryOperator::LtEq => Binary::Compare(ScalarOp::Le),
            BinaryOperator::Gt => Binary::Compare(ScalarOp::Gt),
            BinaryOperator::GtEq => Binary::Compare(ScalarOp::Ge),
            BinaryOperator::BitwiseAnd => Binary::Bits(ScalarOp::And),
            BinaryOperator::BitwiseOr => Binary::Bits(ScalarOp::Or),
            BinaryOperator::BitwiseXor | BinaryOperator::PGBitwiseXor => {
                Binary::Bits(ScalarOp::Xor)
            }
            BinaryOperator::PGBitwiseShiftLeft => Binary::Bits(ScalarOp::ShiftLeft),
            BinaryOperator::PGBitwiseShiftRight => Binary::Bits(ScalarOp::ShiftRight),
            BinaryOperator::And | BinaryOperator::Or => {
                let and = *op == BinaryOperator::And;
                let name = if and { "AND" } else { "OR" };
                let (l, r) = (self.expr(left)?, self.expr(right)?);
                let l = self.boolean(l, name, span_of(left))?;
                let r = self.boolean(r, name, span_of(right))?;
                return self.logic(and, l, r, span).map(Value::Tensor);
            }
            BinaryOperator::Xor => {
                let (l, r) = (self.expr(left)?, self.expr(right)?);
                let l = self.boolean(l, "XOR", span_of(left))?;
                let r = self.boolean(r, "XOR", span_of(right))?;
                return self
                    .map(MapOp::Scalar(ScalarOp::Xor), "XOR", vec![l, r], span)
                    .map(Value::Tensor);
            }
            op => return unsupported(&format!("the operator `{op}` in a tensor block"), span),
        };
        if let Some(moved) = self.moved(left, op, right, span)? {
            return Ok(moved);
        }
        let (l, r) = (self.expr(left)?, self.expr(right)?);
        self.binary(binary, l, r, span)
    }

    /// `CAST`: NumPy's `astype`; a text becomes a date.
    pub(crate) fn cast(&mut self, value: Value, dtype: DType, span: Span) -> Result<Tensor, Error> {
        match value {
            Value::Str(_) => self.typed(value, dtype, "cast", span),
            Value::Null => {
                let node = self.b.null(dtype).at(span)?;
                Ok(Tensor::unnamed(node, 0))
            }
            value => {
                let mut tensor = self.tensor(value, span)?;
                if dtype.is_numeric() && self.b.dtype(tensor.node).is_datetime() {
                    // As in NumPy and Arrow: the stored number, in microseconds.
                    tensor.node = self.b.cast(tensor.node, DType::Int64).at(span)?;
                }
                tensor.node = self.b.cast(tensor.node, dtype).at(span)?;
                tensor.name = None;
                Ok(tensor)
            }
        }
    }

    fn case(
        &mut self,
        operand: Option<&Expr>,
        conditions: &[sqlparser::ast::CaseWhen],
        otherwise: Option<&Expr>,
        span: Span,
    ) -> Result<Value, Error> {
        let operand = operand.map(|expr| self.expr(expr)).transpose()?;
        let mut arms = Vec::with_capacity(conditions.len());
        for when in conditions {
            let place = span_of(&when.condition);
            let condition = self.expr(&when.condition)?;
            let condition = match &operand {
                None => condition,
                Some(operand) => {
                    self.binary(Binary::Compare(ScalarOp::Eq), operand.clone(), condition, place)?
                }
            };
            let condition = self.boolean(condition, "CASE", place)?;
            arms.push((self.certain(condition, span)?, self.expr(&when.result)?));
        }
        let mut result = match otherwise {
            Some(expr) => self.expr(expr)?,
            None => Value::Null,
        };
        // All branches are promoted to one type, so it must be known before the first is chosen.
        let mut branches: Vec<Value> = arms.iter().map(|(_, value)| value.clone()).collect();
        branches.push(result.clone());
        let branches = self.settle(branches, span)?;
        let dtype = self.meet("CASE", &branches, span)?;
        for (condition, value) in arms.into_iter().rev() {
            let typed = |this: &mut Self, value: Value| match value {
                Value::Null => Ok(Value::Null),
                value => this.typed(value, dtype, "CASE", span).map(Value::Tensor),
            };
            let (x, y) = (typed(self, value)?, typed(self, result)?);
            result = match (&x, &y) {
                (Value::Null, Value::Null) => Value::Null,
                _ => Value::Tensor(self.choose(condition, x, y, "CASE", span)?),
            };
        }
        match result {
            Value::Null => {
                let node = self.b.null(dtype).at(span)?;
                Ok(Value::Tensor(Tensor::unnamed(node, 0)))
            }
            result => Ok(result),
        }
    }

    fn in_list(
        &mut self,
        expr: &Expr,
        list: &[Expr],
        negated: bool,
        span: Span,
    ) -> Result<Value, Error> {
        let value = self.expr(expr)?;
        let mut any: Option<Tensor> = None;
        for item in list {
            let item = self.expr(item)?;
            let equal = self.binary(Binary::Compare(ScalarOp::Eq), value.clone(), item, span)?;
            let equal = self.boolean(equal, "IN", span)?;
            any = Some(match any {
                None => equal,
                Some(any) => self.logic(false, any, equal, span)?,
            });
        }
        let any = match any {
            Some(any) => any,
            None => self.boolean(Value::Bool(false), "IN", span)?,
        };
        let result = if negated { self.negate(any, span)? } else { any };
        Ok(Value::Tensor(result))
    }

    /// `BETWEEN`, with both bounds inclusive.
    fn is_between(
        &mut self,
        expr: &Expr,
        low: &Expr,
        high: &Expr,
        span: Span,
    ) -> Result<Tensor, Error> {
        let value = self.expr(expr)?;
        let (low, high) = (self.expr(low)?, self.expr(high)?);
        let from = self.binary(Binary::Compare(ScalarOp::Ge), value.clone(), low, span)?;
        let to = self.binary(Binary::Compare(ScalarOp::Le), value, high, span)?;
        let from = self.boolean(from, "BETWEEN", span)?;
        let to = self.boolean(to, "BETWEEN", span)?;
        self.logic(true, from, to, span)
    }

    fn is_null(&mut self, inner: &Expr, null: bool, span: Span) -> Result<Value, Error> {
        let value = self.expr(inner)?;
        let t = self.tensor(value, span)?;
        let node = self.b.map_op(MapOp::IsValid, &[t.node]).at(span)?;
        let valid = Tensor::new(node, t.dims);
        Ok(Value::Tensor(if null { self.negate(valid, span)? } else { valid }))
    }

    fn is_truth(
        &mut self,
        inner: &Expr,
        truth: bool,
        negated: bool,
        span: Span,
    ) -> Result<Value, Error> {
        let value = self.expr(inner)?;
        let mut t = self.boolean(value, "IS", span)?;
        if !truth {
            t = self.negate(t, span)?;
        }
        let t = self.certain(t, span)?;
        Ok(Value::Tensor(if negated { self.negate(t, span)? } else { t }))
    }

    /// A part of a date; the result takes the name of the part.
    pub(crate) fn date_part(
        &mut self,
        value: Value,
        name: &str,
        span: Span,
    ) -> Result<Tensor, Error> {
        if name == "epoch" {
            let t = self.tensor(value, span)?;
            return self.epoch(t, "date_part", span);
        }
        let Some(part) = DatePart::parse(name) else {
            return refuse(
                "date_part",
                format!("'{name}'"),
                "is not a part of a date; parts are year, quarter, month, week, day, \
                             dayofyear, dayofweek, hour, minute, second, season and epoch",
                span,
            );
        };
        let t = self.tensor(value, span)?;
        let node = self.b.map(ScalarOp::DatePart(part), &[t.node]).at(span)?;
        Ok(Tensor::new(node, t.dims))
    }
}

/// The error for a call that is more than a function and its arguments.
fn not_plain(function: &Function, span: Span) -> Error {
    let name = function.name.to_string();
    let position = Position::of_span(span);
    let Some((of, method)) = name.rsplit_once('.') else {
        return Error::Unsupported {
            construct: format!(
                "`{name}` with DISTINCT, FILTER, OVER, `*` or a subquery in a tensor block"
            ),
            position,
            hint: Some("write FROM CELLS(x) to refer to cells".to_string()),
        };
    };
    Error::Unsupported {
        construct: format!("the call `{name}(…)`"),
        position,
        hint: Some(match ["np", "numpy", "xr", "xarray", "jnp", "torch", "da"].contains(&of) {
            true => format!("functions have no prefix: `{}`", called(function, method, None)),
            false => format!("methods are functions: `{}`", called(function, method, Some(of))),
        }),
    }
}

/// A call with the arguments of another one, as text; `of` is the object of a method.
fn called(function: &Function, name: &str, of: Option<&str>) -> String {
    let text = |arg: &FunctionArg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => ast::text(expr),
        other => Some(other.to_string()),
    };
    let mut args: Vec<String> = match &function.args {
        FunctionArguments::List(list) => {
            list.args.iter().map(|arg| text(arg).unwrap_or_else(|| "…".to_string())).collect()
        }
        _ => Vec::new(),
    };
    // Lengths are a list here.
    if of.is_some() && name == "reshape" && args.len() > 1 {
        args = vec![format!("[{}]", args.join(", "))];
    }
    let args: Vec<&str> = of.into_iter().chain(args.iter().map(String::as_str)).collect();
    format!("{name}({})", args.join(", "))
}

fn shorten(expr: &Expr) -> String {
    let text: String = expr.to_string().chars().take(41).collect();
    if text.chars().count() > 40 { text.chars().take(40).chain(['…']).collect() } else { text }
}

/// Converts a literal of the syntax tree.
pub(crate) fn literal(value: &Literal, span: Span) -> Result<Value, Error> {
    match value {
        Literal::Number(text, _) => number(text, span),
        Literal::SingleQuotedString(text)
        | Literal::EscapedStringLiteral(text)
        | Literal::UnicodeStringLiteral(text)
        | Literal::NationalStringLiteral(text) => Ok(Value::Str(text.clone())),
        Literal::DollarQuotedString(text) => Ok(Value::Str(text.value.clone())),
        Literal::Boolean(value) => Ok(Value::Bool(*value)),
        Literal::Null => Ok(Value::Null),
        Literal::Placeholder(name) => Err(parameters::missing(name, Position::of_span(span))),
        other => unsupported(&format!("the literal {other}"), span),
    }
}

fn number(text: &str, span: Span) -> Result<Value, Error> {
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    let is_float = digits.contains(['.', 'e', 'E']);
    if !is_float && let Ok(v) = digits.parse::<i128>() {
        return Ok(Value::Int(v));
    }
    match digits.parse::<f64>() {
        Ok(v) if is_float => Ok(Value::Float(v)),
        _ => refuse(
            "a number",
            format!("`{}`", text.chars().take(40).collect::<String>()),
            "is too large",
            span,
        ),
    }
}

/// The element type of a SQL or NumPy type name.
fn sql_type(data_type: &DataType, span: Span) -> Result<DType, Error> {
    let name = data_type.to_string().to_ascii_lowercase();
    let name = match name.strip_suffix(" unsigned") {
        Some(signed) => format!("u{signed}"),
        None => name,
    };
    let name = match name.as_str() {
        "double precision" => "double",
        // As in cells: SQL's FLOAT is REAL here and in DuckDB. NumPy's `astype(x, 'float')` is float64.
        "float" => "float32",
        "timestamp without time zone" | "date" => "timestamp",
        other => other,
    };
    match DType::parse(name) {
        Some(dtype) => Ok(dtype),
        None => no_type(&data_type.to_string(), span),
    }
}

/// The error for an unknown element type.
pub(crate) fn no_type<T>(name: &str, span: Span) -> Result<T, Error> {
    let is_text = ["text", "varchar", "char", "string", "str"]
        .iter()
        .any(|known| name.to_ascii_lowercase().split('(').next() == Some(*known));
    Err(Error::Cells {
        code: "dtype_mismatch",
        message: format!("a tensor has no cells of the type `{name}`"),
        position: Position::of_span(span),
        hint: Some(match is_text {
            true => "texts are values of rows: `SELECT time::text FROM CELLS(x)`".to_string(),
            false => TYPES.to_string(),
        }),
    })
}

/// The element types, for hints.
pub(crate) const TYPES: &str =
    "types are bool, int8 to int64, uint8 to uint64, float32 and float64";
