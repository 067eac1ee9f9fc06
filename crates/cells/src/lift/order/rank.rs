//! The position of labels along their dimension, as a function to sort by.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt64Array};
use arrow::datatypes::DataType;
use arrow::row::OwnedRow;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::super::labels::{canonical, row_converter};

/// `uint64`: the first position along the dimension at which all the expressions have these values; NULL if one of
/// them is NULL, or for values that do not occur. `labels` holds the values at each position, one array for each
/// expression.
pub(super) fn rank(exprs: Vec<Expr>, labels: &[ArrayRef]) -> Result<Expr> {
    let columns: Vec<ArrayRef> = labels.iter().map(canonical).collect();
    let rows = row_converter(&columns)?.convert_columns(&columns)?;
    let mut places = BTreeMap::new();
    for (i, row) in rows.iter().enumerate() {
        if columns.iter().all(|c| c.is_valid(i)) {
            places.entry(row.owned()).or_insert(i as u64);
        }
    }
    let types = labels.iter().map(|l| l.data_type().clone()).collect();
    let signature = Signature::exact(types, Volatility::Immutable);
    let udf = ScalarUDF::new_from_impl(Rank { places: Arc::new(places), signature });
    Ok(udf.call(exprs))
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
    fn name(&self) -> &str {
        "tessera_rank"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::UInt64)
    }

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
