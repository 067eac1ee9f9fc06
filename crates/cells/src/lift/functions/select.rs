//! `list_where` and `list_select`: the elements of a list that another list selects, as in DuckDB.
//!
//! A position without an element is NULL.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, exec_err, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use super::inner::{hashed_by, scalar};
use super::slice::chosen;

const WHERE: &str = "list_where";
const SELECT: &str = "list_select";

/// The functions; they return at most `limit` bytes for a batch.
pub(super) fn functions(limit: u64) -> Vec<ScalarUDF> {
    let made = |name, alias: &str, syntax, about| {
        ScalarUDF::from(Chosen {
            name,
            limit,
            signature: Signature::user_defined(Volatility::Immutable),
            aliases: vec![alias.to_string()],
            documentation: super::documented(syntax, about),
        })
    };
    vec![
        made(
            WHERE,
            "array_where",
            "list_where(list, mask)",
            "The elements of a list where a list of Booleans is true.",
        ),
        made(
            SELECT,
            "array_select",
            "list_select(list, positions)",
            "The elements of a list at positions, which count from 1.",
        ),
    ]
}

#[derive(Debug, PartialEq, Eq)]
struct Chosen {
    name: &'static str,
    limit: u64,
    signature: Signature,
    aliases: Vec<String>,
    documentation: Documentation,
}

hashed_by!(Chosen, function => function.name);

fn element(of: &DataType) -> Option<&DataType> {
    match of {
        DataType::List(of) | DataType::LargeList(of) | DataType::FixedSizeList(of, _) => {
            Some(of.data_type())
        }
        DataType::Null => Some(of),
        _ => None,
    }
}

impl Chosen {
    fn of_lists(&self, lists: &ListArray, places: &ListArray, rows: usize) -> Result<ArrayRef> {
        let choose = |row: usize, (start, count): (i64, i64), chosen: &mut Vec<Option<u32>>| {
            let row = if places.len() == 1 { 0 } else { row };
            if places.is_null(row) {
                return Ok(false);
            }
            let place = |at: i64| (1..=count).contains(&at).then(|| (start + at - 1) as u32);
            let wanted = places.value(row);
            if wanted.null_count() > 0 {
                return exec_err!("`{}`: its second list has a NULL", self.name);
            }
            if self.name == WHERE {
                let mask = wanted.as_boolean().values().iter();
                let positions = (1..).zip(mask).filter(|(_, is_chosen)| *is_chosen);
                chosen.extend(positions.map(|(at, _)| place(at)));
            } else {
                let positions = wanted.as_primitive::<Int64Type>().values().iter();
                chosen.extend(positions.map(|&at| place(at)));
            }
            Ok(true)
        };
        chosen(self.name, lists, rows, self.limit, choose)
    }
}

impl ScalarUDFImpl for Chosen {
    scalar!(name, aliases, documentation, signature);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let taken = match types {
            [list, places] => element(list).zip(element(places)),
            _ => None,
        };
        let list_of = |of: &DataType| DataType::new_list(of.clone(), true);
        match taken {
            Some((of, DataType::Boolean | DataType::Null)) if self.name == WHERE => {
                Ok(vec![list_of(of), list_of(&DataType::Boolean)])
            }
            Some((of, place)) if self.name == SELECT && (place.is_integer() || place.is_null()) => {
                Ok(vec![list_of(of), list_of(&DataType::Int64)])
            }
            _ if self.name == WHERE => plan_err!("`{WHERE}` takes a list and a list of Booleans"),
            _ => plan_err!("`{SELECT}` takes a list and a list of integers"),
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types.first() {
            Some(list) => Ok(list.clone()),
            None => internal_err!("`{}` is called without arguments", self.name),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { args.number_rows };
        let arrays = args.args.iter().map(|arg| match arg {
            ColumnarValue::Scalar(list) => list.to_array(),
            ColumnarValue::Array(lists) => Ok(Arc::clone(lists)),
        });
        let arrays: Vec<ArrayRef> = arrays.collect::<Result<_>>()?;
        let [lists, places] = arrays.as_slice() else {
            return internal_err!("`{}` is called with {} arguments", self.name, arrays.len());
        };
        let (Some(lists), Some(places)) = (lists.as_list_opt(), places.as_list_opt()) else {
            return internal_err!("`{}` is called without lists", self.name);
        };
        super::columnar(self.of_lists(lists, places, rows)?, is_scalar)
    }
}
