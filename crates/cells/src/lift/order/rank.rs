//! The position of labels along their dimension, as a function to sort by.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt64Array, new_empty_array};
use arrow::datatypes::DataType;
use arrow::row::OwnedRow;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature,
    Volatility,
};

use super::super::functions::scalar;
use super::super::labels::{canonical, row_converter};
use super::super::unnamed::Unnamed;

/// `uint64`: the first position along the dimension at which all the expressions have these values; NULL if one of
/// them is NULL, or for values that do not occur. `labels` holds the values at each position, one array for each
/// expression.
pub(in crate::lift) fn rank(exprs: Vec<Expr>, labels: &[ArrayRef]) -> Result<Expr> {
    let columns: Vec<ArrayRef> = labels.iter().map(canonical).collect();
    let rows = row_converter(&columns)?.convert_columns(&columns)?;
    let mut places = BTreeMap::new();
    for (i, row) in rows.iter().enumerate() {
        if columns.iter().all(|c| c.is_valid(i)) {
            places.entry(row.owned()).or_insert(i as u64);
        }
    }
    let types = labels.iter().map(|l| l.data_type().clone()).collect();
    Ok(function(types, places).call(exprs))
}

fn function(types: Vec<DataType>, places: BTreeMap<OwnedRow, u64>) -> ScalarUDF {
    let signature = Signature::exact(types, Volatility::Immutable);
    ScalarUDF::new_from_impl(Rank { places: Arc::new(places), signature })
}

/// The parts of a `tessera_rank`; `None` for other functions.
pub(in crate::lift) fn rank_of(function: &ScalarUDF) -> Option<Unnamed> {
    let rank = function.inner().downcast_ref::<Rank>()?;
    let TypeSignature::Exact(types) = &rank.signature.type_signature else { return None };
    let places = rank
        .places
        .iter()
        .map(|(row, place)| (AsRef::<[u8]>::as_ref(row).to_vec(), *place))
        .collect();
    Some(Unnamed::Rank { types: types.clone(), places })
}

/// The `tessera_rank` of these parts.
///
/// # Errors
/// Types without an order.
pub(in crate::lift) fn rank_of_parts(
    types: Vec<DataType>,
    places: Vec<(Vec<u8>, u64)>,
) -> Result<ScalarUDF> {
    let columns: Vec<ArrayRef> = types.iter().map(new_empty_array).collect();
    let parser = row_converter(&columns)?.parser();
    let places = places.iter().map(|(row, place)| (parser.parse(row).owned(), *place)).collect();
    Ok(function(types, places))
}

/// The first position of each value.
#[derive(Debug)]
struct Rank {
    places: Arc<BTreeMap<OwnedRow, u64>>,
    signature: Signature,
}

impl PartialEq for Rank {
    fn eq(&self, other: &Self) -> bool {
        self.signature == other.signature && self.places == other.places
    }
}

impl Eq for Rank {}

impl Hash for Rank {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.signature.hash(state);
        self.places.len().hash(state);
    }
}

impl ScalarUDFImpl for Rank {
    scalar!(name "tessera_rank", signature, returns DataType::UInt64);

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let columns = args
            .args
            .iter()
            .map(|a| a.to_array(args.number_rows).map(|column| canonical(&column)))
            .collect::<Result<Vec<ArrayRef>>>()?;
        if columns.is_empty() {
            return exec_err!("tessera_rank takes an argument");
        }
        let rows = row_converter(&columns)?.convert_columns(&columns)?;
        let places: UInt64Array =
            rows.iter().map(|row| self.places.get(&row.owned()).copied()).collect();
        Ok(ColumnarValue::Array(Arc::new(places)))
    }
}
