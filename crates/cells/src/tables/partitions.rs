//! Columns of `key=value` directories, as Hive, Spark and pyarrow write them.
//!
//! ```text
//! year=2020/month=1/a.parquet ⇒ year 2020, month 1 for the rows of the file
//! ```

use super::computed;
use arrow::compute::kernels::cast_utils::Parser;
use arrow::datatypes::{DataType, Date32Type, Field, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::ScalarValue;
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::{TableProvider, TableType};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, Operator, TableProviderFilterPushDown};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Literal, TryCastExpr, case};
use datafusion::physical_plan::ExecutionPlan;
use std::sync::Arc;

/// Hive's name of NULL.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// A column of directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) name: String,
    dtype: DataType,
    /// True if some files have NULL.
    pub(super) has_null: bool,
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

/// A table of files some of whose directories say NULL. The listing has texts for these columns.
#[derive(Debug)]
pub(super) struct WithNulls {
    files: ListingTable,
    /// The keys with NULL.
    keys: Vec<Key>,
    schema: SchemaRef,
}

impl WithNulls {
    pub(super) fn new(files: ListingTable, keys: Vec<Key>) -> Self {
        let keys: Vec<Key> = keys.into_iter().filter(|key| key.has_null).collect();
        let listed = files.schema();
        let fields = listed.fields().iter().map(|field| {
            match keys.iter().find(|key| key.name == *field.name()) {
                Some(key) => Arc::new(Field::new(&key.name, key.dtype.clone(), true)),
                None => field.clone(),
            }
        });
        let fields: Vec<_> = fields.collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, listed.metadata().clone()));
        WithNulls { files, keys, schema }
    }

    pub(super) fn files(&self) -> &ListingTable {
        &self.files
    }

    fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// The value of a key from its text. All texts but that of NULL are values of its type.
    fn value(key: &Key, text: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
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

#[async_trait::async_trait]
impl TableProvider for WithNulls {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        computed::pushdown(&self.files, filters, |name| self.key(name).is_some())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let scan = self.files.scan(state, projection, filters, limit).await?;
        let is_key = |name: &str| self.key(name).is_some();
        computed::computed(scan, is_key, |name, column, _| match self.key(name) {
            Some(key) => Self::value(key, column),
            None => Ok(column),
        })
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
