//! Bounds functions whose result may be far larger than their arguments: `repeat('x', 2000000000)`.
//!
//! DataFusion accounts for the memory of sorts, groups and joins, but not for that of one expression. So the output of
//! these functions for a batch is estimated from their arguments, and rejected beyond a share of the memory limit.
//! Functions that only concatenate their arguments are included: thirty of them, each applied twice to the one before,
//! double thirty times.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::kernels::length::length;
use arrow::compute::{cast, is_null, nullif};
use arrow::datatypes::{
    DataType, Field, FieldRef, Float64Type, Int64Type, IntervalMonthDayNanoType, TimeUnit,
};
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
};

use super::inner::of_inner;
use tessera_frontend::error::Error;

pub(super) const NAMES: [&str; 28] = [
    "array_append",
    "array_concat",
    "array_has_all",
    "array_has_any",
    "array_insert",
    "array_prepend",
    "array_repeat",
    "array_resize",
    "array_to_string",
    "array_union",
    "concat",
    "concat_ws",
    "encode",
    "generate_series",
    "levenshtein",
    "lpad",
    "make_array",
    "map",
    "named_struct",
    "overlay",
    "range",
    "regexp_replace",
    "repeat",
    "replace",
    "rpad",
    "string_to_array",
    "strpos",
    "struct",
];

/// Maximum pairs, of characters of two texts or of elements of two lists, that a function may compare for one batch:
/// it cannot be cancelled while it runs.
const PAIRS_MAX: f64 = 1e9;
/// Adjacent characters that are compared in the time of one pair.
const AT_ONCE: f64 = 100.0;

/// Maximum parts of a type: comparing or printing a type visits each part, and nesting `named_struct('a', x, 'b', x)`
/// doubles their number with each step.
const TYPE_MAX: usize = 1000;

/// True if a type has at most `left` parts.
fn has_few_parts(of: &DataType, left: &mut usize) -> bool {
    let Some(rest) = left.checked_sub(1) else { return false };
    *left = rest;
    match of {
        DataType::Struct(fields) => fields.iter().all(|f| has_few_parts(f.data_type(), left)),
        DataType::List(f)
        | DataType::LargeList(f)
        | DataType::FixedSizeList(f, _)
        | DataType::Map(f, _) => has_few_parts(f.data_type(), left),
        _ => true,
    }
}

/// DataFusion's function with a bound on its output bytes per batch.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Bounded {
    inner: Arc<ScalarUDF>,
    limit: u64,
}

impl Bounded {
    pub(super) fn new(inner: Arc<ScalarUDF>, limit: u64) -> Self {
        Self { inner, limit }
    }
}

impl ScalarUDFImpl for Bounded {
    of_inner!(name, aliases, documentation, signature);

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let taken = |of: &DataType| taken_as(self.name(), of).unwrap_or_else(|| of.clone());
        self.inner.return_type(&types.iter().map(taken).collect::<Vec<_>>())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let fields = args.arg_fields.iter().map(|field| taken(self.name(), field));
        let fields: Vec<FieldRef> = fields.collect();
        let args = ReturnFieldArgs { arg_fields: &fields, ..args };
        let field = self.inner.return_field_from_args(args)?;
        match has_few_parts(field.data_type(), &mut { TYPE_MAX }) {
            true => Ok(field),
            false => Err(DataFusionError::External(Box::new(Error::TooComplex {
                what: format!("`{}` would return a type of more parts", self.name()),
                limit: TYPE_MAX,
                position: None,
            }))),
        }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.inner().coerce_types(types)
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let lists = match self.name() {
            "array_has_all" | "array_has_any" => args.args.clone(),
            _ => Vec::new(),
        };
        if lists.iter().any(is_always_null) {
            return Ok(ColumnarValue::Scalar(ScalarValue::Boolean(None)));
        }
        check_size(self.name(), &args.args, args.number_rows, self.limit)?;
        for arg in &mut args.args {
            if let Some(of) = taken_as(self.name(), &arg.data_type()) {
                *arg = arg.cast_to(&of, None)?;
            }
        }
        for field in &mut args.arg_fields {
            *field = taken(self.name(), field);
        }
        let result = self.inner.invoke_with_args(args)?;
        lists.iter().try_fold(result, null_with)
    }
}

fn is_always_null(of: &ColumnarValue) -> bool {
    of.data_type().is_null() || matches!(of, ColumnarValue::Scalar(value) if value.is_null())
}

/// The Boolean, and NULL where a list is: DataFusion's `array_has_all` (55.2) is true if its second list is NULL, and
/// `array_has_any` false if one list is NULL and the other an empty constant.
fn null_with(found: ColumnarValue, list: &ColumnarValue) -> Result<ColumnarValue> {
    let ColumnarValue::Array(list) = list else { return Ok(found) };
    if list.null_count() == 0 {
        return Ok(found);
    }
    let found = found.into_array(list.len())?;
    Ok(ColumnarValue::Array(nullif(&found, &is_null(list)?)?))
}

/// The type as which a function takes an argument; `None` for its own. Series of dates are timestamps, as in FROM: their
/// step may have hours.
fn taken_as(name: &str, of: &DataType) -> Option<DataType> {
    let is_series = matches!(name, "range" | "generate_series");
    let is_date = matches!(of, DataType::Date32 | DataType::Date64);
    (is_series && is_date).then_some(DataType::Timestamp(TimeUnit::Nanosecond, None))
}

fn taken(name: &str, field: &FieldRef) -> FieldRef {
    match taken_as(name, field.data_type()) {
        Some(of) => Arc::new(Field::clone(field).with_data_type(of)),
        None => Arc::clone(field),
    }
}

/// Checks the estimated output of a function or an operator against the limit.
///
/// # Errors
/// `memory_exceeded` if it is larger.
pub(in crate::lift) fn check_size(
    name: &str,
    args: &[ColumnarValue],
    rows: usize,
    limit: u64,
) -> Result<()> {
    let is_constant = args.iter().all(|a| matches!(a, ColumnarValue::Scalar(_)));
    // Plans store constants, and planning holds several plans at a time.
    let limit = if is_constant { limit / 4 } else { limit };
    let bytes = estimate(name, args, rows)?;
    if bytes > limit as f64 {
        return Err(DataFusionError::External(Box::new(too_large(name, bytes, rows, limit))));
    }
    Ok(())
}

pub(super) fn too_large(name: &str, bytes: f64, rows: usize, limit: u64) -> Error {
    let mib = |bytes: f64| (bytes / f64::from(1 << 20)).ceil();
    let rows = if rows == 1 { "one row".to_string() } else { format!("{rows} rows") };
    Error::Cells {
        code: "memory_exceeded",
        message: format!(
            "`{name}` would return about {} MiB for {rows}, and the limit for one function is {} MiB",
            mib(bytes),
            mib(limit as f64)
        ),
        position: None,
        hint: Some("return less for each row, or raise `memory-limit`".to_string()),
    }
}

/// Rejects functions that compare each part of one argument with each of the other for too long to be
/// cancelled in time; `at_once` pairs take the time of one.
fn few_pairs(name: &str, a: Vec<f64>, b: Vec<f64>, at_once: f64) -> Result<()> {
    let pairs = a.iter().zip(&b).map(|(a, b)| a * b).sum::<f64>();
    let limit = PAIRS_MAX * at_once;
    if pairs <= limit {
        return Ok(());
    }
    Err(DataFusionError::External(Box::new(Error::Cells {
        code: "too_complex",
        message: format!("`{name}` would compare {pairs:.0} pairs, and the limit is {limit:.0}"),
        position: None,
        hint: Some("give it shorter texts or lists".to_string()),
    })))
}

/// Estimates the bytes that a function produces from its arguments; a NULL cell produces none.
fn estimate(name: &str, args: &[ColumnarValue], rows: usize) -> Result<f64> {
    let constant = args.iter().all(|a| matches!(a, ColumnarValue::Scalar(_)));
    let rows = if constant { 1 } else { rows };
    let arrays: Vec<ArrayRef> =
        args.iter().map(|a| a.to_array(rows)).collect::<Result<Vec<ArrayRef>>>()?;
    let all: f64 = arrays.iter().map(|a| a.get_array_memory_size() as f64).sum();
    Ok(match (name, arrays.as_slice()) {
        ("repeat", [text, times]) => {
            let (text, times) = (lengths(text)?, numbers(times)?);
            text.iter().zip(&times).map(|(text, n)| text * n).sum()
        }
        ("lpad" | "rpad", [text, to, fill @ ..]) => {
            let (own, to) = (lengths(text)?, numbers(to)?);
            // The argument counts characters, which have up to four bytes.
            let is_ascii =
                [text].into_iter().chain(fill).map(is_ascii).collect::<Result<Vec<_>>>()?;
            let each = if is_ascii.contains(&false) { 4.0 } else { 1.0 };
            own.iter().zip(&to).map(|(own, to)| own + each * to).sum()
        }
        ("array_repeat", [value, times]) => {
            let all = value.to_data().get_slice_memory_size()? as f64;
            let each = (all / rows.max(1) as f64).max(1.0);
            numbers(times)?.iter().map(|n| n * each).sum()
        }
        ("array_resize", [list, to, ..]) => {
            list.get_array_memory_size() as f64 + numbers(to)?.iter().map(|n| n * 16.0).sum::<f64>()
        }
        ("range" | "generate_series", [stop]) => numbers(stop)?.iter().map(|n| n.abs() * 8.0).sum(),
        ("range" | "generate_series", [start, stop, step @ ..]) => {
            let (start, stop) = (ends(start)?, ends(stop)?);
            let step = match step.first() {
                Some(step) => steps(step)?,
                None => vec![1.0; rows],
            };
            let each = start.iter().zip(&stop).zip(&step);
            // The function itself reports a step of zero.
            let count = |((a, b), s): ((&f64, &f64), &f64)| match *s == 0.0 {
                true => 0.0,
                false => ((b - a) / s).max(0.0) + 1.0,
            };
            each.map(|each| count(each) * 8.0).sum()
        }
        ("replace", [text, from, to]) => {
            let parts = (lengths(text)?, lengths(from)?, lengths(to)?);
            let each = parts.0.iter().zip(&parts.1).zip(&parts.2);
            each.map(|((text, from), to)| text + (text / from.max(1.0) + 1.0) * to).sum()
        }
        ("regexp_replace", [text, _, to, ..]) => {
            let (text, to) = (lengths(text)?, lengths(to)?);
            text.iter().zip(&to).map(|(text, to)| text + (text + 1.0) * to).sum()
        }
        ("levenshtein", [a, b]) => few_pairs(name, lengths(a)?, lengths(b)?, 1.0).map(|()| all)?,
        ("strpos", [a, b]) => few_pairs(name, lengths(a)?, lengths(b)?, AT_ONCE).map(|()| all)?,
        ("array_has_all" | "array_has_any", [a, b]) => {
            let count = |list: &ArrayRef| numbers(&(length(list)? as ArrayRef));
            few_pairs(name, count(a)?, count(b)?, 1.0).map(|()| all)?
        }
        ("format" | "printf", [formats, ..]) => {
            let open = if name == "format" { '{' } else { '%' };
            let formats = cast(formats, &DataType::Utf8View)?;
            let values = formats.as_string_view().iter().flatten().map(|t| t.matches(open).count());
            all * values.max().unwrap_or(0).max(1) as f64
        }
        // Two digits per byte.
        ("encode", _) => all * 2.0,
        // A list of texts: an offset and the bytes of each.
        (
            "string_split" | "string_to_array" | "regexp_extract_all" | "regexp_split_to_array",
            _,
        ) => all * 8.0,
        _ => all,
    })
}

/// Bytes of each text, 0 for NULL.
fn lengths(array: &ArrayRef) -> Result<Vec<f64>> {
    let texts = cast(array, &DataType::Utf8View)?;
    Ok(texts.as_string_view().iter().map(|t| t.map_or(0.0, |t| t.len() as f64)).collect())
}

fn is_ascii(array: &ArrayRef) -> Result<bool> {
    let texts = cast(array, &DataType::Utf8View)?;
    Ok(texts.as_string_view().is_ascii())
}

/// Numbers, with 0 for negative ones and NULL.
fn numbers(array: &ArrayRef) -> Result<Vec<f64>> {
    let numbers = cast(array, &DataType::Float64)?;
    let numbers = numbers.as_primitive::<Float64Type>();
    Ok(numbers.iter().map(|n| n.unwrap_or(0.0).max(0.0)).collect())
}

/// Ends of a range: numbers, or times as seconds.
fn ends(array: &ArrayRef) -> Result<Vec<f64>> {
    let times = match array.data_type() {
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => {
            let seconds = cast(array, &DataType::Timestamp(TimeUnit::Second, None))?;
            cast(&seconds, &DataType::Int64)?
        }
        _ => {
            let numbers = cast(array, &DataType::Float64)?;
            let numbers = numbers.as_primitive::<Float64Type>();
            return Ok(numbers.iter().map(|n| n.unwrap_or(0.0)).collect());
        }
    };
    let times = times.as_primitive::<Int64Type>();
    Ok(times.iter().map(|n| n.unwrap_or(0) as f64).collect())
}

/// Steps of a range, intervals as seconds.
fn steps(array: &ArrayRef) -> Result<Vec<f64>> {
    let DataType::Interval(_) = array.data_type() else { return ends(array) };
    let steps = cast(array, &DataType::Interval(arrow::datatypes::IntervalUnit::MonthDayNano))?;
    let seconds = steps.as_primitive::<IntervalMonthDayNanoType>().iter().map(|step| {
        step.map_or(0.0, |step| {
            let days = f64::from(step.months) * 28.0 + f64::from(step.days);
            days * 86400.0 + step.nanoseconds as f64 / 1e9
        })
    });
    Ok(seconds.collect())
}
