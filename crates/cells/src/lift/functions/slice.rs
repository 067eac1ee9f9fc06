//! `array_slice`: the elements of a list from one position to another, as in DuckDB.
//!
//! Positions count from 1, negative ones from the end, and both ends are included. DataFusion (55.2) differs for
//! negative steps, and refuses positions that need more than 32 bits. `array_slice` and `array_element` of a text
//! select characters.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, ListArray, StringArray, StringBuilder,
    UInt32Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{nullif, take};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::{DataFusionError, Result, exec_err, internal_err, plan_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use super::bounded::too_large;
use super::inner::{hashed_by, of_inner, scalar};
use crate::lift::error::spoken;

const NAME: &str = "array_slice";

/// The functions, over those of a session; they return at most `limit` bytes for a batch.
pub(super) fn functions(state: &SessionState, limit: u64) -> Vec<ScalarUDF> {
    let about = "The elements of a list, or characters of a text, from one position to another, both included.";
    let slice = ScalarUDF::from(Slice {
        limit,
        signature: Signature::user_defined(Volatility::Immutable),
        aliases: vec!["list_slice".to_string()],
        documentation: super::documented("array_slice(list, first, last[, step])", about),
    });
    let known = |name: &str| state.scalar_functions().get(name).cloned();
    let element = known("array_element").zip(known("map_extract")).map(|(inner, of_map)| {
        let signature = Signature::user_defined(Volatility::Immutable);
        ScalarUDF::from(Element { inner, of_map, limit, signature })
    });
    std::iter::once(slice).chain(element).collect()
}

pub(super) fn is_text(of: &DataType) -> bool {
    match of {
        DataType::Dictionary(_, values) => values.is_string(),
        of => of.is_string(),
    }
}

fn is_position(of: &DataType) -> bool {
    of.is_integer() || of.is_null()
}

/// Refuses a result of `bytes` for `rows` rows.
fn check(name: &str, bytes: f64, rows: usize, limit: u64) -> Result<()> {
    if bytes <= limit as f64 {
        return Ok(());
    }
    Err(DataFusionError::External(Box::new(too_large(name, bytes, rows, limit))))
}

#[derive(Debug, PartialEq, Eq)]
struct Slice {
    limit: u64,
    signature: Signature,
    aliases: Vec<String>,
    documentation: Documentation,
}

hashed_by!(Slice, function => function.limit);

/// The positions from 0 that a slice of `count` elements has.
fn positions(count: i64, first: i64, last: i64, step: i64) -> impl Iterator<Item = i64> {
    let from_start = |at: i64| if at < 0 { at.saturating_add(count) + 1 } else { at };
    let (first, last) = (from_start(first), from_start(last));
    // Both as distances in the direction of the step.
    let (start, end) = match step < 0 {
        true => (first.min(count), last.max(1)),
        false => (first.max(1), last.min(count)),
    };
    let span = if step < 0 { start.saturating_sub(end) } else { end.saturating_sub(start) };
    let steps = if span < 0 || count == 0 { 0 } else { span / step.saturating_abs() + 1 };
    (0..steps).map(move |n| start - 1 + n * step)
}

/// The characters of a text from one position to another.
fn letters(text: &str, first: i64, last: i64) -> &str {
    let mut places = positions(text.chars().count() as i64, first, last, 1);
    let Some(start) = places.next() else { return "" };
    let others = places.count();
    let mut ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    let from = ends.nth(start as usize).unwrap_or(text.len());
    let to = ends.nth(others).unwrap_or(text.len());
    &text[from..to]
}

/// The characters of each text; a single text serves all rows.
fn of_texts(
    name: &str,
    texts: &StringArray,
    (first, last): (&Int64Array, &Int64Array),
    rows: usize,
    limit: u64,
) -> Result<ArrayRef> {
    // The bytes of an array have offsets of 32 bits.
    let limit = limit.min(i32::MAX as u64);
    let mut parts = StringBuilder::new();
    let mut bytes = 0.0;
    for row in 0..rows {
        let text = if texts.len() == 1 { 0 } else { row };
        if texts.is_null(text) || first.is_null(row) || last.is_null(row) {
            parts.append_null();
            continue;
        }
        let part = letters(texts.value(text), first.value(row), last.value(row));
        bytes += part.len() as f64;
        check(name, bytes, rows, limit)?;
        parts.append_value(part);
    }
    Ok(Arc::new(parts.finish()))
}

/// For each row, elements of its list; a single list serves all rows. `choose` gets the row, and where the elements of its
/// list begin and how many there are. It appends the places of the elements, and returns false where the result is NULL.
pub(super) fn chosen<P>(
    name: &str,
    lists: &ListArray,
    rows: usize,
    limit: u64,
    choose: impl Fn(usize, (i64, i64), &mut Vec<P>) -> Result<bool>,
) -> Result<ArrayRef>
where
    UInt32Array: From<Vec<P>>,
{
    let values = lists.values();
    let each = 4.0 + values.get_array_memory_size() as f64 / values.len().max(1) as f64;
    // The elements of an array have offsets of 32 bits.
    let limit = limit.min((f64::from(i32::MAX) * each) as u64);
    let mut places: Vec<P> = Vec::new();
    let (mut lengths, mut valid) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    for row in 0..rows {
        let list = if lists.len() == 1 { 0 } else { row };
        let before = places.len();
        let of_list = (lists.value_offsets()[list].into(), lists.value_length(list).into());
        valid.push(lists.is_valid(list) && choose(row, of_list, &mut places)?);
        check(name, places.len() as f64 * each, rows, limit)?;
        lengths.push(places.len() - before);
    }
    let DataType::List(field) = lists.data_type() else {
        return internal_err!("`{name}` of {}", lists.data_type());
    };
    let values = take(values, &UInt32Array::from(places), None)?;
    let (offsets, nulls) = (OffsetBuffer::from_lengths(lengths), NullBuffer::from(valid));
    Ok(Arc::new(ListArray::try_new(Arc::clone(field), offsets, values, Some(nulls))?))
}

impl Slice {
    fn of_lists(&self, lists: &ListArray, bounds: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let bounds: Vec<_> = bounds.iter().map(|of| of.as_primitive::<Int64Type>()).collect();
        chosen(NAME, lists, rows, self.limit, |row, (start, count), places: &mut Vec<u32>| {
            if !bounds.iter().all(|of| of.is_valid(row)) {
                return Ok(false);
            }
            let step = bounds.get(2).map_or(1, |of| of.value(row));
            if step == 0 {
                return exec_err!("`{NAME}`: the step of a slice is 0");
            }
            let (first, last) = (bounds[0].value(row), bounds[1].value(row));
            places.extend(positions(count, first, last, step).map(|at| (start + at) as u32));
            Ok(true)
        })
    }
}

impl ScalarUDFImpl for Slice {
    scalar!(name NAME, aliases, documentation, signature);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let Some((list, bounds)) = types.split_first() else {
            return plan_err!("`{NAME}` takes a list and two positions");
        };
        let list = match list {
            DataType::List(_) => list.clone(),
            DataType::LargeList(of) | DataType::FixedSizeList(of, _) => {
                DataType::List(Arc::clone(of))
            }
            DataType::Null => DataType::new_list(DataType::Null, true),
            of if is_text(of) => {
                if bounds.len() > 2 {
                    return plan_err!("`{NAME}` of a text takes two positions and no step");
                }
                DataType::Utf8
            }
            other => {
                let of = spoken(&other.to_string());
                return plan_err!("`{NAME}` takes a list, not {of}");
            }
        };
        if !(2..=3).contains(&bounds.len()) || !bounds.iter().all(is_position) {
            return plan_err!(
                "`{NAME}` takes a list, two positions and a step, which are integers"
            );
        }
        Ok(std::iter::once(list).chain(bounds.iter().map(|_| DataType::Int64)).collect())
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types.first() {
            Some(list) => Ok(list.clone()),
            None => internal_err!("`{NAME}` is called without arguments"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { args.number_rows };
        let Some((list, bounds)) = args.args.split_first() else {
            return internal_err!("`{NAME}` is called without arguments");
        };
        let list = match list {
            ColumnarValue::Scalar(list) => list.to_array()?,
            ColumnarValue::Array(lists) => Arc::clone(lists),
        };
        let bounds: Vec<ArrayRef> =
            bounds.iter().map(|of| of.to_array(rows)).collect::<Result<_>>()?;
        if let (Some(texts), [first, last]) = (list.as_string_opt::<i32>(), bounds.as_slice()) {
            let ends = (first.as_primitive(), last.as_primitive());
            let parts = of_texts(NAME, texts, ends, rows, self.limit)?;
            return super::columnar(parts, is_scalar);
        }
        let Some(lists) = list.as_list_opt::<i32>() else {
            return internal_err!("`{NAME}` is called with {}", list.data_type());
        };
        super::columnar(self.of_lists(lists, &bounds, rows)?, is_scalar)
    }
}

/// DataFusion's `array_element`, which also selects a character of a text, and the value of a key of a map. As in DuckDB,
/// a text without that character has an empty one.
#[derive(Debug, PartialEq, Eq)]
struct Element {
    inner: Arc<ScalarUDF>,
    /// `map_extract`, which returns a list of one value.
    of_map: Arc<ScalarUDF>,
    limit: u64,
    signature: Signature,
}

hashed_by!(Element, function => function.limit);

impl Element {
    fn of_maps(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let list = DataType::new_list(args.return_field.data_type().clone(), true);
        args.return_field = Arc::new(Field::new(self.of_map.name(), list, true));
        let rows = args.number_rows;
        // A map that is NULL may have entries.
        let seen = match args.args.first() {
            Some(ColumnarValue::Array(maps)) => maps.nulls().cloned(),
            _ => None,
        };
        let found = self.of_map.invoke_with_args(args)?;
        let is_scalar = matches!(found, ColumnarValue::Scalar(_));
        let found = found.into_array(if is_scalar { 1 } else { rows })?;
        let Some(lists) = found.as_list_opt::<i32>() else {
            return internal_err!("`{}` returned {}", self.of_map.name(), found.data_type());
        };
        let firsts = lists.value_offsets().iter().take(lists.len());
        let firsts = UInt32Array::from_iter_values(firsts.map(|&at| at as u32));
        let found = take(lists.values(), &firsts, None)?;
        let found = match seen.filter(|_| !is_scalar) {
            Some(seen) => nullif(&found, &BooleanArray::new(!seen.inner(), None))?,
            None => found,
        };
        super::columnar(found, is_scalar)
    }
}

impl ScalarUDFImpl for Element {
    of_inner!(name, aliases, documentation);
    scalar!(signature);

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.inner.schema_name(args)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        if let [of, at] = types
            && is_text(of)
            && is_position(at)
        {
            return Ok(vec![DataType::Utf8, DataType::Int64]);
        }
        if let [DataType::Map(..), _] = types {
            return self.of_map.inner().coerce_types(types);
        }
        let field = |of: &DataType| Arc::new(Field::new("", of.clone(), true));
        let fields: Vec<FieldRef> = types.iter().map(field).collect();
        let Ok(fields) = fields_with_udf(&fields, &*self.inner) else {
            let types: Vec<String> = types.iter().map(|of| spoken(&of.to_string())).collect();
            return plan_err!("`{}` is not defined for {}", self.name(), types.join(" and "));
        };
        Ok(fields.iter().map(|field| field.data_type().clone()).collect())
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [DataType::Utf8, _] => Ok(DataType::Utf8),
            [DataType::Map(..), _] => match self.of_map.return_type(types)? {
                DataType::List(value) => Ok(value.data_type().clone()),
                other => internal_err!("`{}` returns {other}", self.of_map.name()),
            },
            _ => self.inner.return_type(types),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [text, at] = args.args.as_slice() else {
            return self.inner.invoke_with_args(args);
        };
        match text.data_type() {
            DataType::Utf8 => {}
            DataType::Map(..) => return self.of_maps(args),
            _ => return self.inner.invoke_with_args(args),
        }
        let is_scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { args.number_rows };
        let texts = match text {
            ColumnarValue::Scalar(text) => text.to_array()?,
            ColumnarValue::Array(texts) => Arc::clone(texts),
        };
        let at = at.to_array(rows)?;
        let at = at.as_primitive::<Int64Type>();
        let parts = of_texts(self.name(), texts.as_string(), (at, at), rows, self.limit)?;
        super::columnar(parts, is_scalar)
    }
}

#[cfg(test)]
mod tests {
    use super::{letters, positions};

    /// Expected values from DuckDB: `s[first:last]`.
    #[test]
    fn characters_of_texts_match_duckdb() {
        let cases = [
            ("hello", 2, 4, "ell"),
            ("hello", 0, 2, "he"),
            ("hello", -3, -1, "llo"),
            ("hello", -9, 2, "he"),
            ("hello", 3, 1, ""),
            ("hello", 9, 9, ""),
            ("hello", -9, -9, ""),
            ("hello", 5, i64::MAX, "o"),
            ("a\u{f1}b", 2, 2, "\u{f1}"),
            ("h\u{e9}llo", 2, 3, "\u{e9}l"),
            ("", 1, 1, ""),
        ];
        for (text, first, last, want) in cases {
            assert_eq!(letters(text, first, last), want, "{text:?} [{first}:{last}]");
        }
    }

    /// Expected values from DuckDB: `list_slice(range(1, n + 1), first, last, step)`.
    #[test]
    fn positions_of_slices_match_duckdb() {
        let cases: [(i64, i64, i64, i64, &[i64]); 21] = [
            (3, 1, 2, 1, &[1, 2]),
            (3, -2, -1, 1, &[2, 3]),
            (3, 0, 2, 1, &[1, 2]),
            (3, -9, 2, 1, &[1, 2]),
            (3, 2, 9, 1, &[2, 3]),
            (3, 3, 2, 1, &[]),
            (3, 1, -9, 1, &[]),
            (5, 1, 5, 2, &[1, 3, 5]),
            (5, 2, 5, 2, &[2, 4]),
            (0, 1, -1, 1, &[]),
            (0, -1, 1, -1, &[]),
            (3, -1, 1, -1, &[3, 2, 1]),
            (3, 9, 2, -1, &[3, 2]),
            (5, 5, 1, -2, &[5, 3, 1]),
            (1, 5, 1, -2, &[1]),
            (3, 2, -9, -1, &[2, 1]),
            (3, 1, 3, -1, &[]),
            (3, -9, 1, -1, &[]),
            (3, 0, 0, 1, &[]),
            (3, 0, 0, -1, &[]),
            (4, 4, 4, -3, &[4]),
        ];
        for (count, first, last, step, want) in cases {
            let got: Vec<i64> = positions(count, first, last, step).map(|at| at + 1).collect();
            assert_eq!(got, want, "{count} elements [{first}:{last}:{step}]");
        }
        let far = [i64::MIN, -3, 2, i64::MAX];
        for (first, last) in far.into_iter().flat_map(|a| far.map(|b| (a, b))) {
            for step in far {
                assert!(positions(3, first, last, step).all(|at| (0..3).contains(&at)));
            }
        }
    }
}
