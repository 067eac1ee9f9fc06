//! Binds the arguments of a call to parameters and checks their values.

use sqlparser::ast::{Expr, Ident};
use sqlparser::tokenizer::Span;
use tessera_planner::dtype::DType;
use tessera_planner::error::Error as PlanError;

use super::row::Parameters;
use super::{Function, Open};
use crate::ast::{self, Call};
use crate::error::{BindError, Error, Position, nearest};
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, TYPES, fail, no_type, span_of, unknown_dim};

/// A call whose arguments are bound to parameters.
pub(crate) struct Bound<'q> {
    /// The function's name as declared.
    pub(crate) name: &'static str,
    pub(crate) span: Span,
    params: &'static [&'static str],
    slots: Vec<Option<&'q Expr>>,
    /// Extra positional arguments.
    pub(crate) rest: Vec<&'q Expr>,
    /// Arguments named by a dimension.
    pub(crate) dims: Vec<(&'q Ident, &'q Expr)>,
}

impl<'q> Bound<'q> {
    pub(super) fn new(f: &'static Function, call: &Call<'q>, span: Span) -> Result<Self, Error> {
        let Parameters { names: params, required, open } = &f.parameters;
        let count = |given: usize| {
            let expected = match (open, *required, params.len()) {
                (Open::Many, n, _) => format!("at least {n} arguments"),
                (_, n, m) if n == m && n == 1 => "1 argument".into(),
                (_, n, m) if n == m => format!("{n} arguments"),
                (_, n, m) => format!("{n} to {m} arguments"),
            };
            BindError::ArgumentCount { function: f.name.into(), expected, given }
        };
        let mut bound = Bound {
            name: f.name,
            span,
            params,
            slots: vec![None; params.len()],
            rest: Vec::new(),
            dims: Vec::new(),
        };
        for (at, &expr) in call.positional.iter().enumerate() {
            match bound.slots.get_mut(at) {
                Some(slot) => *slot = Some(expr),
                None if *open == Open::Many => bound.rest.push(expr),
                None => return fail(count(call.positional.len()), span),
            }
        }
        for &(name, expr) in &call.named {
            let known = params.iter().position(|p| p.eq_ignore_ascii_case(&name.value));
            // A dimension may have the name of the first parameter: if that was given by position, the name is the
            // dimension's.
            let known = known.filter(|&at| *open != Open::Dims || bound.slots[at].is_none());
            // xarray's name of `axis`.
            let known = known.or_else(|| match *open != Open::Dims && name.value == "dim" {
                true => params.iter().position(|p| *p == "axis"),
                false => None,
            });
            match known {
                Some(at) if bound.slots[at].is_none() => bound.slots[at] = Some(expr),
                Some(_) => return fail(bound.twice(&name.value), name.span),
                None if *open == Open::Dims => {
                    if bound.dims.iter().any(|(known, _)| known.value == name.value) {
                        return fail(bound.twice(&name.value), name.span);
                    }
                    bound.dims.push((name, expr));
                }
                None => {
                    return Err(Error::UnknownName {
                        kind: "argument",
                        name: name.value.clone(),
                        candidates: match nearest(&name.value, params) {
                            Some(near) => vec![near.to_string()],
                            None => params.iter().map(|p| (*p).to_string()).collect(),
                        },
                        position: Position::of_span(name.span),
                    });
                }
            }
        }
        match bound.slots[..*required].iter().all(Option::is_some) {
            true => Ok(bound),
            false => fail(count(call.positional.len()), span),
        }
    }

    fn twice(&self, argument: &str) -> BindError {
        self.invalid(&format!("`{argument}`"), "is given twice")
    }

    /// The error for an argument value that is not accepted.
    pub(crate) fn invalid(&self, argument: &str, reason: impl Into<String>) -> BindError {
        BindError::InvalidArgument {
            function: self.name.into(),
            argument: argument.into(),
            reason: reason.into(),
        }
    }

    /// Refuses the value of a parameter.
    pub(crate) fn refuse<T>(&self, param: &str, reason: impl Into<String>) -> Result<T, Error> {
        fail(self.invalid(&format!("`{param}`"), reason), self.place(param))
    }

    pub(crate) fn expr(&self, param: &str) -> Option<&'q Expr> {
        let at = self.params.iter().position(|p| *p == param)?;
        self.slots[at]
    }

    /// The span of an argument, or of the call if it is not given.
    pub(crate) fn place(&self, param: &str) -> Span {
        match self.expr(param).map(span_of) {
            Some(span) if span.start.line > 0 => span,
            _ => self.span,
        }
    }

    /// The value of a parameter; `NULL` if it is not given.
    pub(crate) fn value(&self, l: &mut Lowerer<'_, '_>, param: &str) -> Result<Value, Error> {
        match self.expr(param) {
            Some(expr) => l.expr(expr),
            None => Ok(Value::Null),
        }
    }

    pub(crate) fn tensor(&self, l: &mut Lowerer<'_, '_>, param: &str) -> Result<Tensor, Error> {
        let value = self.value(l, param)?;
        l.tensor(value, self.place(param))
    }

    /// A constant integer.
    pub(crate) fn int(&self, l: &mut Lowerer<'_, '_>, param: &str) -> Result<Option<i128>, Error> {
        let value = self.value(l, param)?;
        self.as_int(l, param, value)
    }

    fn as_int(
        &self,
        l: &mut Lowerer<'_, '_>,
        param: &str,
        value: Value,
    ) -> Result<Option<i128>, Error> {
        match value {
            Value::Null => Ok(None),
            Value::Int(v) => Ok(Some(v)),
            Value::Float(v) if v.fract() == 0.0 && v.abs() < 9e15 => Ok(Some(v as i128)),
            Value::Tensor(t) if l.b.dtype(t.node).is_integer() => {
                let what = format!("`{param}` of `{}`", self.name);
                Ok(l.known_scalar(&t, &what, self.place(param))?.map(|v| v.as_i128()))
            }
            other => self.refuse(param, format!("must be an integer, not {}", other.kind())),
        }
    }

    /// A constant float.
    pub(crate) fn float(&self, l: &mut Lowerer<'_, '_>, param: &str) -> Result<Option<f64>, Error> {
        match self.value(l, param)? {
            Value::Null => Ok(None),
            Value::Int(v) => Ok(Some(v as f64)),
            Value::Float(v) => Ok(Some(v)),
            Value::Tensor(t) => {
                let what = format!("`{param}` of `{}`", self.name);
                Ok(l.known_scalar(&t, &what, self.place(param))?.map(|v| v.as_f64()))
            }
            other => self.refuse(param, format!("must be a number, not {}", other.kind())),
        }
    }

    /// `true` or `false`.
    pub(crate) fn flag(&self, l: &mut Lowerer<'_, '_>, param: &str) -> Result<bool, Error> {
        match self.value(l, param)? {
            Value::Null => Ok(false),
            Value::Bool(v) => Ok(v),
            other => self.refuse(param, format!("must be true or false, not {}", other.kind())),
        }
    }

    pub(crate) fn text(
        &self,
        l: &mut Lowerer<'_, '_>,
        param: &str,
    ) -> Result<Option<String>, Error> {
        match self.value(l, param)? {
            Value::Null => Ok(None),
            Value::Str(text) => Ok(Some(text)),
            other => self.refuse(param, format!("must be a text, not {}", other.kind())),
        }
    }

    /// The element type named by `dtype`.
    pub(crate) fn dtype(&self, l: &mut Lowerer<'_, '_>) -> Result<Option<DType>, Error> {
        match self.text(l, "dtype")? {
            None => Ok(None),
            Some(name) => match DType::parse(&name) {
                Some(dtype) => Ok(Some(dtype)),
                None if self.expr("axis").is_some() => {
                    let axis = self.expr("axis").and_then(ast::text).unwrap_or_default();
                    let list = format!("several dimensions are one list: `[{axis}, '{name}']`");
                    let error = BindError::Types {
                        operation: self.name.into(),
                        types: vec![format!("the type `{name}`")],
                        hint: Some(format!("{TYPES}; {list}")),
                    };
                    fail(error, self.place("dtype"))
                }
                None => no_type(&name, self.place("dtype")),
            },
        }
    }

    /// A list of integers, or one integer.
    pub(crate) fn ints(
        &self,
        l: &mut Lowerer<'_, '_>,
        param: &str,
    ) -> Result<Option<Vec<i128>>, Error> {
        let items = match self.value(l, param)? {
            Value::Null => return Ok(None),
            Value::List(items) => items,
            Value::Tensor(t) if !t.dims.is_empty() => {
                return self.refuse(param, "must be a list of integers");
            }
            one => vec![one],
        };
        let mut out = Vec::with_capacity(items.len());
        for item in items {
            match self.as_int(l, param, item)? {
                Some(v) => out.push(v),
                None => return self.refuse(param, "must not be NULL"),
            }
        }
        Ok(Some(out))
    }

    pub(crate) fn lengths(
        &self,
        l: &mut Lowerer<'_, '_>,
        param: &str,
    ) -> Result<Option<Vec<u64>>, Error> {
        let Some(items) = self.ints(l, param)? else { return Ok(None) };
        let mut out = Vec::with_capacity(items.len());
        for v in items {
            match u64::try_from(v) {
                Ok(v) => out.push(v),
                Err(_) => return self.refuse(param, format!("has the length {v}")),
            }
        }
        Ok(Some(out))
    }

    /// Names of dimensions: a text or a list of texts, `rank` in number.
    pub(crate) fn names(
        &self,
        l: &mut Lowerer<'_, '_>,
        param: &str,
        rank: usize,
    ) -> Result<Option<Vec<Dim>>, Error> {
        let place = self.place(param);
        let items = match self.value(l, param)? {
            Value::Null => return Ok(None),
            Value::List(items) => items,
            one => vec![one],
        };
        if items.len() != rank {
            let reason = format!("has {} names for {rank} dimensions", items.len());
            return fail(self.invalid(&format!("`{param}`"), reason), place);
        }
        let mut dims: Vec<Dim> = Vec::with_capacity(rank);
        for item in items {
            match item {
                Value::Null => dims.push(Dim::default()),
                Value::Str(name) => {
                    if dims.iter().any(|d| d.name.as_deref() == Some(name.as_str())) {
                        let reason = format!("names `{name}` twice");
                        return fail(self.invalid(&format!("`{param}`"), reason), place);
                    }
                    dims.push(Dim::named(name));
                }
                other => {
                    let reason = format!("must be texts, not {}", other.kind());
                    return fail(self.invalid(&format!("`{param}`"), reason), place);
                }
            }
        }
        Ok(Some(dims))
    }

    /// Axes by position or name; `None` if the argument is not given.
    pub(crate) fn axes(
        &self,
        l: &mut Lowerer<'_, '_>,
        t: &Tensor,
        param: &str,
    ) -> Result<Option<Vec<usize>>, Error> {
        let items = match self.value(l, param)? {
            Value::Null => return Ok(None),
            Value::List(items) => items,
            one => vec![one],
        };
        let mut axes = Vec::with_capacity(items.len());
        for item in items {
            let axis = self.one_axis(l, t, param, item, t.dims.len())?;
            if axes.contains(&axis) {
                return self.refuse(param, format!("names dimension `{}` twice", t.dim_name(axis)));
            }
            axes.push(axis);
        }
        Ok(Some(axes))
    }

    /// One axis by position or name.
    pub(crate) fn axis(
        &self,
        l: &mut Lowerer<'_, '_>,
        t: &Tensor,
        param: &str,
    ) -> Result<Option<usize>, Error> {
        match self.value(l, param)? {
            Value::Null => Ok(None),
            Value::List(_) => self.refuse(param, "must be one axis, not a list"),
            one => self.one_axis(l, t, param, one, t.dims.len()).map(Some),
        }
    }

    /// An axis of a tensor of `rank` dimensions (the position of a new axis allows one more).
    pub(crate) fn one_axis(
        &self,
        l: &mut Lowerer<'_, '_>,
        t: &Tensor,
        param: &str,
        value: Value,
        rank: usize,
    ) -> Result<usize, Error> {
        if let Value::Str(name) = &value {
            return t.axis(name).ok_or_else(|| unknown_dim(t, name, self.place(param)));
        }
        if let Value::Tensor(Tensor { name: Some(name), dims, .. }) = &value
            && !dims.is_empty()
            && t.axis(name).is_some()
        {
            let reason = format!(
                "must be a position or a name, not the tensor `{name}`; a name is a text: `'{name}'`"
            );
            return self.refuse(param, reason);
        }
        let Some(axis) = self.as_int(l, param, value)? else {
            return self.refuse(param, "must not be NULL");
        };
        let from_start = if axis < 0 { axis + rank as i128 } else { axis };
        match usize::try_from(from_start) {
            Ok(at) if at < rank => Ok(at),
            _ => Err(PlanError::Axis {
                operation: self.name.into(),
                axis: axis.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64,
                rank,
            })
            .at(self.place(param)),
        }
    }
}
