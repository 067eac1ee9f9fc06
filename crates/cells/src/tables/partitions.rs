//! Columns of `key=value` directories, as Hive, Spark and pyarrow write them.
//!
//! ```text
//! year=2020/month=1/a.parquet ⇒ year 2020, month 1 for the rows of the file
//! ```

use super::computed::{Columns, computed};
use arrow::compute::kernels::cast_utils::Parser;
use arrow::datatypes::{DataType, Date32Type, Field, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::ScalarValue;
use datafusion::datasource::TableProvider;
use datafusion::datasource::listing::ListingTable;
use datafusion::error::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Literal, TryCastExpr, case};
use std::sync::Arc;

/// Hive's name of NULL.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// A column of directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) name: String,
    dtype: DataType,
    /// True if some files have NULL.
    has_null: bool,
}

impl Key {
    /// The type that the listing of files has for it: its values are never NULL.
    pub(super) fn listed(&self) -> DataType {
        if self.has_null { DataType::Utf8 } else { self.dtype.clone() }
    }
}

/// The columns of directories that all files are in, in the same order; none if a file is elsewhere. Their values are
/// integers or dates if all of them are, apart from NULL, and texts otherwise.
pub(super) fn keys(names: &[String]) -> Vec<Key> {
    let of_name = |name: &String| -> Vec<(String, String)> {
        let directories = name.rsplit_once('/').map_or("", |(directories, _)| directories);
        let keys = directories.split('/').map_while(|part| part.split_once('='));
        keys.map(|(key, value)| (key.to_string(), value.to_string())).collect()
    };
    let Some(first) = names.first().map(of_name) else { return Vec::new() };
    let mut types: Vec<(Option<DataType>, bool)> = vec![(None, false); first.len()];
    for name in names {
        let values = of_name(name);
        let is_same = values.len() == first.len()
            && values.iter().zip(&first).all(|((key, _), (first, _))| key == first);
        if !is_same {
            return Vec::new();
        }
        for ((known, has_null), (_, value)) in types.iter_mut().zip(&values) {
            if value == NULL {
                *has_null = true;
                continue;
            }
            let of_value = type_of(value);
            *known = match known.take() {
                None => Some(of_value),
                Some(known) if known == of_value => Some(known),
                Some(_) => Some(DataType::Utf8),
            };
        }
    }
    let keys = first.into_iter().zip(types).map(|((name, _), (dtype, has_null))| Key {
        name,
        dtype: dtype.unwrap_or(DataType::Utf8),
        has_null,
    });
    keys.collect()
}

fn type_of(value: &str) -> DataType {
    let is_date = || {
        let parts: Vec<&str> = value.split('-').collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        lengths == [4, 2, 2]
            && parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_digit()))
            && Date32Type::parse(value).is_some()
    };
    if value.parse::<i64>().is_ok() {
        DataType::Int64
    } else if is_date() {
        DataType::Date32
    } else {
        DataType::Utf8
    }
}

/// The table of files some of whose directories say NULL.
pub(super) fn with_nulls(files: ListingTable, mut keys: Vec<Key>) -> Arc<dyn TableProvider> {
    keys.retain(|key| key.has_null);
    let files: Arc<dyn TableProvider> = Arc::new(files);
    if keys.is_empty() { files } else { computed(files, NullKeys(keys)) }
}

/// Keys with NULL. The listing has texts for them.
#[derive(Debug)]
struct NullKeys(Vec<Key>);

impl NullKeys {
    fn key(&self, name: &str) -> Option<&Key> {
        self.0.iter().find(|key| key.name == name)
    }
}

impl Columns for NullKeys {
    fn has(&self, name: &str) -> bool {
        self.key(name).is_some()
    }

    fn field(&self, read: &Field) -> Field {
        let dtype = self.key(read.name()).map_or(read.data_type(), |key| &key.dtype);
        Field::new(read.name(), dtype.clone(), true)
    }

    /// All texts but that of NULL are values of the key's type.
    fn value(
        &self,
        name: &str,
        text: Arc<dyn PhysicalExpr>,
        _: &SchemaRef,
        _: &dyn Session,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let Some(key) = self.key(name) else { return Ok(text) };
        // May be NULL also where the scan has replaced the text by that of a file.
        let cast = |value| -> Arc<dyn PhysicalExpr> {
            Arc::new(TryCastExpr::new(value, key.dtype.clone()))
        };
        if key.dtype != DataType::Utf8 {
            return Ok(cast(text));
        }
        let literal = |value: Option<&str>| -> Arc<dyn PhysicalExpr> {
            Arc::new(Literal::new(ScalarValue::Utf8(value.map(str::to_string))))
        };
        let is_null: Arc<dyn PhysicalExpr> =
            Arc::new(BinaryExpr::new(text.clone(), Operator::Eq, literal(Some(NULL))));
        case(None, vec![(is_null, literal(None))], Some(text)).map(cast)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_all_files_share_are_columns() {
        let keys = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let shown = |key: Key| {
                let null = if key.has_null { " NULL" } else { "" };
                format!("{} {}{null}", key.name, key.dtype)
            };
            keys(&names).into_iter().map(shown).collect::<Vec<_>>()
        };
        let hive = ["year=2020/month=01/a.parquet", "year=2021/month=12/b.parquet"];
        assert_eq!(keys(&hive), ["year Int64", "month Int64"]);
        assert_eq!(keys(&["d=2020-01-05/a", "d=2020-02-05/b"]), ["d Date32"]);
        assert_eq!(keys(&["k=1/a", "k=x/b"]), ["k Utf8"]);
        assert_eq!(keys(&["k=1/a", "k=__HIVE_DEFAULT_PARTITION__/b"]), ["k Int64 NULL"]);
        assert_eq!(keys(&["k=__HIVE_DEFAULT_PARTITION__/b"]), ["k Utf8 NULL"]);
        assert_eq!(keys(&["k=1/x/a", "k=2/y/b"]), ["k Int64"]);
        assert_eq!(keys(&["k=1/a", "l=1/b"]), Vec::<String>::new());
        assert_eq!(keys(&["k=1/a", "b"]), Vec::<String>::new());
        assert_eq!(keys(&["a.parquet", "x/b.parquet"]), Vec::<String>::new());
        assert_eq!(keys(&[]), Vec::<String>::new());
    }
}
