//! Maps from lists of entries, and from several maps, as in DuckDB.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, MapArray, StructArray, new_empty_array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{interleave, take};
use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use arrow::row::{Row, RowConverter, Rows, SortField};
use datafusion::common::{Result, exec_err, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

use super::inner::{hashed_by, scalar};
use crate::lift::error::spoken;

const CONCAT: &str = "map_concat";
const FROM_ENTRIES: &str = "map_from_entries";

pub(super) fn functions() -> [ScalarUDF; 2] {
    [true, false].map(|is_concat| Maps::new(is_concat).into())
}

/// `map_concat` or `map_from_entries`.
#[derive(Debug, PartialEq, Eq)]
struct Maps {
    is_concat: bool,
    signature: Signature,
    documentation: Documentation,
}

hashed_by!(Maps, function => function.is_concat);

impl Maps {
    fn new(is_concat: bool) -> Self {
        let (syntax, about) = match is_concat {
            true => (
                "map_concat(map, other, …)",
                "A map with the entries of several: of a key in more than one, that of the last.",
            ),
            false => {
                ("map_from_entries(list)", "A map of a list of structs with a key and a value.")
            }
        };
        let documentation = super::documented(syntax, about);
        Self { is_concat, signature: Signature::user_defined(Volatility::Immutable), documentation }
    }
}

/// The type of a map with the key and the value of these entries.
pub(super) fn map_of(entries: &Fields) -> Option<DataType> {
    let [key, value] = &**entries else { return None };
    let key = Field::clone(key).with_name("key").with_nullable(false);
    let value = Field::clone(value).with_name("value").with_nullable(true);
    let entries = DataType::Struct(Fields::from(vec![key, value]));
    Some(DataType::Map(Arc::new(Field::new("entries", entries, false)), false))
}

/// The fields of the entries of a map or of a list of structs.
fn entries(of: &DataType) -> Option<&Fields> {
    match of {
        DataType::Map(entries, _) | DataType::List(entries) => match entries.data_type() {
            DataType::Struct(fields) if fields.len() == 2 => Some(fields),
            _ => None,
        },
        _ => None,
    }
}

/// True for NULL, and for a list without a type of its elements: `[]`.
fn is_untyped(of: &DataType) -> bool {
    match of {
        DataType::Null => true,
        DataType::List(element) => element.data_type().is_null(),
        _ => false,
    }
}

/// The fields of the entries of a map that never has one.
fn no_entries() -> Fields {
    Fields::from(["key", "value"].map(|name| Field::new(name, DataType::Int64, true)).to_vec())
}

impl ScalarUDFImpl for Maps {
    scalar!(documentation, signature, type_by_field);

    fn name(&self) -> &str {
        if self.is_concat { CONCAT } else { FROM_ENTRIES }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let name = self.name();
        if !self.is_concat {
            return match types {
                [list @ DataType::List(_)] if entries(list).is_some() => Ok(types.to_vec()),
                [other] if is_untyped(other) => Ok(types.to_vec()),
                [other] => plan_err!(
                    "`{name}` takes a list of structs with two fields, not {}",
                    spoken(&other.to_string())
                ),
                _ => plan_err!("`{name}` takes one list of structs with two fields"),
            };
        }
        let is_map = |of: &&DataType| matches!(of, DataType::Map(..));
        let Some(first) = types.iter().find(is_map).filter(|_| types.len() > 1) else {
            return plan_err!("`{name}` takes two or more maps");
        };
        let parts = |of: &DataType| {
            entries(of).map(|of| of.iter().map(|f| f.data_type().clone()).collect::<Vec<_>>())
        };
        let is_like = |of: &&DataType| !of.is_null() && parts(of) != parts(first);
        if let Some(other) = types.iter().find(is_like) {
            let (first, other) = (spoken(&first.to_string()), spoken(&other.to_string()));
            return plan_err!("`{name}` takes maps of one type, not {first} and {other}");
        }
        let known = |of: &DataType| match of.is_null() {
            true => first.clone(),
            false => of.clone(),
        };
        Ok(types.iter().map(known).collect())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let map = args.arg_fields.first().and_then(|field| match field.data_type() {
            of if !self.is_concat && is_untyped(of) => map_of(&no_entries()),
            of => entries(of).and_then(map_of),
        });
        let Some(map) = map else {
            return internal_err!("{} has no entries", self.name());
        };
        Ok(Arc::new(Field::new(self.name(), map, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { args.number_rows };
        let DataType::Map(of, _) = args.return_field.data_type() else {
            return internal_err!("{} as {}", self.name(), args.return_field.data_type());
        };
        let arrays: Vec<ArrayRef> =
            args.args.iter().map(|arg| arg.to_array(rows)).collect::<Result<_>>()?;
        let map = match (self.is_concat, arrays.as_slice()) {
            (true, arrays) => concat(arrays, of, rows)?,
            (false, [list]) if is_untyped(list.data_type()) => from_nothing(list, of)?,
            (false, [list]) => from_entries(list, of)?,
            _ => return internal_err!("{} of {} lists", self.name(), arrays.len()),
        };
        super::columnar(Arc::new(map), is_scalar)
    }
}

/// Keys as rows, which are equal if the keys are.
fn keys(columns: &[&ArrayRef]) -> Result<Vec<Rows>> {
    let Some(first) = columns.first() else { return Ok(Vec::new()) };
    let converter = RowConverter::new(vec![SortField::new(first.data_type().clone())])?;
    columns.iter().map(|keys| Ok(converter.convert_columns(&[Arc::clone(keys)])?)).collect()
}

/// Where the key and the value of an entry are: a map, and a place in it.
type Entry = ((usize, usize), (usize, usize));

fn concat(arrays: &[ArrayRef], of: &FieldRef, rows: usize) -> Result<MapArray> {
    let maps: Option<Vec<&MapArray>> = arrays.iter().map(|array| array.as_map_opt()).collect();
    let Some(maps) = maps else { return internal_err!("{CONCAT} of other values than maps") };
    let known = keys(&maps.iter().map(|map| map.keys()).collect::<Vec<_>>())?;
    let (mut all, mut offsets) = (Vec::<Entry>::new(), vec![0i32]);
    for row in 0..rows {
        let mut places: HashMap<Row<'_>, usize> = HashMap::new();
        for (map, (array, keys)) in maps.iter().zip(&known).enumerate() {
            if array.is_null(row) {
                continue;
            }
            let ends = array.value_offsets();
            for at in ends[row] as usize..ends[row + 1] as usize {
                let next = all.len();
                let place = *places.entry(keys.row(at)).or_insert(next);
                match all.get_mut(place) {
                    Some((_, value)) => *value = (map, at),
                    None => all.push(((map, at), (map, at))),
                }
            }
        }
        let Ok(end) = i32::try_from(all.len()) else {
            return exec_err!("`{CONCAT}` returns more than {} entries", i32::MAX);
        };
        offsets.push(end);
    }
    let nulls: NullBuffer =
        (0..rows).map(|row| maps.iter().any(|map| map.is_valid(row))).collect::<Vec<bool>>().into();
    let column = |of: &dyn Fn(&MapArray) -> &ArrayRef, places: Vec<(usize, usize)>| {
        let parts: Vec<&dyn Array> = maps.iter().map(|map| of(map).as_ref()).collect();
        interleave(&parts, &places)
    };
    let keys = column(&|map| map.keys(), all.iter().map(|(key, _)| *key).collect())?;
    let values = column(&|map| map.values(), all.iter().map(|(_, value)| *value).collect())?;
    map(of, offsets, vec![keys, values], Some(nulls))
}

fn from_entries(list: &ArrayRef, of: &FieldRef) -> Result<MapArray> {
    let Some(lists) = list.as_list_opt::<i32>() else {
        return internal_err!("{FROM_ENTRIES} of {}", list.data_type());
    };
    // A list that is NULL may have elements, also some without a key.
    let ends = lists.value_offsets();
    let (mut places, mut offsets) = (Vec::<i32>::new(), vec![0i32]);
    for row in 0..lists.len() {
        if lists.is_valid(row) {
            places.extend(ends[row]..ends[row + 1]);
        }
        // No more than the elements of the lists.
        offsets.push(places.len() as i32);
    }
    let entries = take(lists.values(), &Int32Array::from(places), None)?;
    let Some(entries) = entries.as_struct_opt() else {
        return internal_err!("{FROM_ENTRIES} of a list of {}", entries.data_type());
    };
    let [key, value] = entries.columns() else {
        return internal_err!("{FROM_ENTRIES} of {} fields", entries.columns().len());
    };
    if entries.null_count() > 0 || key.logical_null_count() > 0 {
        return exec_err!("`{FROM_ENTRIES}`: the key of an entry is NULL");
    }
    for rows in keys(&[key])? {
        for ends in offsets.windows(2) {
            let mut seen: HashSet<Row<'_>> = HashSet::new();
            if !(ends[0]..ends[1]).all(|at| seen.insert(rows.row(at as usize))) {
                return exec_err!("`{FROM_ENTRIES}`: a key occurs twice in a list");
            }
        }
    }
    map(of, offsets, vec![Arc::clone(key), Arc::clone(value)], lists.nulls().cloned())
}

/// Maps without entries, from lists without a type.
fn from_nothing(list: &ArrayRef, of: &FieldRef) -> Result<MapArray> {
    if let Some(lists) = list.as_list_opt::<i32>()
        && (0..lists.len()).any(|row| lists.is_valid(row) && lists.value_length(row) > 0)
    {
        return exec_err!("`{FROM_ENTRIES}`: the key of an entry is NULL");
    }
    let columns = no_entries().iter().map(|field| new_empty_array(field.data_type())).collect();
    map(of, vec![0; list.len() + 1], columns, list.logical_nulls())
}

fn map(
    of: &FieldRef,
    offsets: Vec<i32>,
    columns: Vec<ArrayRef>,
    nulls: Option<NullBuffer>,
) -> Result<MapArray> {
    let DataType::Struct(fields) = of.data_type() else {
        return internal_err!("a map of {}", of.data_type());
    };
    let entries = StructArray::try_new(fields.clone(), columns, None)?;
    let offsets = OffsetBuffer::new(offsets.into());
    Ok(MapArray::try_new(Arc::clone(of), offsets, entries, nulls, false)?)
}
