//! Maps the columns of a table to those of a file.
//!
//! A table may have several files. They have their columns in different orders, and some lack columns of others, which
//! are NULL there, as in Parquet.

use super::said;
use crate::type_name;
use arrow::array::{RecordBatchOptions, new_null_array};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::error::Result;
use std::collections::HashMap;
use std::sync::Arc;

/// The columns of a table that are read from its files.
#[derive(Clone)]
pub(super) struct Columns {
    schema: SchemaRef,
    /// Their places in the table.
    places: Vec<usize>,
}

/// The columns of a table in one file.
pub(super) struct Found {
    /// The positions, in the file, of the columns that the file has.
    pub(super) own: Vec<usize>,
    /// For each column of the table its index in `own`, if they are not the same; `None` for a column that the file
    /// lacks.
    from: Option<Vec<Option<usize>>>,
    schema: SchemaRef,
}

impl Columns {
    pub(super) fn new(table: &Schema, places: &[usize]) -> Result<Self> {
        Ok(Columns { schema: Arc::new(table.project(places)?), places: places.to_vec() })
    }

    /// Finds the columns in a file, by their names.
    ///
    /// # Errors
    /// A column of the file has another type.
    pub(super) fn within(&self, file: &Schema) -> Result<Found> {
        let (mut own, mut from) = (Vec::new(), Vec::with_capacity(self.places.len()));
        let mut names: Option<HashMap<&str, usize>> = None;
        for (field, &place) in self.schema.fields().iter().zip(&self.places) {
            let is_at = |at: usize| file.fields().get(at).is_some_and(|f| f.name() == field.name());
            // Most files have the places of the table.
            let at = if is_at(place) {
                Some(place)
            } else {
                let names = names.get_or_insert_with(|| places(file));
                names.get(field.name().as_str()).copied()
            };
            // A column without a type has only NULL.
            let at = at.filter(|&at| !file.field(at).data_type().is_null());
            let Some(at) = at else {
                from.push(None);
                continue;
            };
            let (name, of_file, of_table) =
                (field.name(), file.field(at).data_type(), field.data_type());
            if of_file != of_table {
                let (of_file, of_table) = (type_name(of_file), type_name(of_table));
                let what =
                    format!("column `{name}` is {of_file}, and that of the table {of_table}");
                return Err(said(what));
            }
            from.push(Some(own.len()));
            own.push(at);
        }
        let is_same = from.iter().enumerate().all(|(i, at)| *at == Some(i));
        Ok(Found { own, from: (!is_same).then_some(from), schema: self.schema.clone() })
    }
}

fn places(file: &Schema) -> HashMap<&str, usize> {
    let fields = file.fields().iter().enumerate();
    fields.map(|(at, field)| (field.name().as_str(), at)).collect()
}

impl Found {
    /// A batch of the file with the columns of the table.
    pub(super) fn batch(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let Some(from) = &self.from else { return Ok(batch) };
        let rows = batch.num_rows();
        let columns = self.schema.fields().iter().zip(from).map(|(field, at)| match at {
            Some(at) => batch.column(*at).clone(),
            None => new_null_array(field.data_type(), rows),
        });
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let schema = self.schema.clone();
        Ok(RecordBatch::try_new_with_options(schema, columns.collect(), &options)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use arrow::datatypes::{DataType, Field};

    fn field(name: &str, kind: DataType) -> Field {
        Field::new(name, kind, true)
    }

    #[test]
    fn columns_are_found_by_their_names() {
        let table = Schema::new(vec![
            field("a", DataType::Int64),
            field("b", DataType::Utf8),
            field("c", DataType::Int64),
        ]);
        let numbers = |from: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![from, from + 1])) };
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["x", "y"]));
        let columns = Columns::new(&table, &[0, 1, 2]).unwrap();
        // The same columns remain as they are.
        let found = columns.within(&table).unwrap();
        assert!(found.own == [0, 1, 2] && found.from.is_none());
        // Another order, and one that is missing.
        let file = Schema::new(vec![field("c", DataType::Int64), field("a", DataType::Int64)]);
        let found = columns.within(&file).unwrap();
        assert_eq!(found.own, [1, 0]);
        let read = [("a", numbers(1)), ("c", numbers(5))];
        let batch = found.batch(RecordBatch::try_from_iter(read).unwrap()).unwrap();
        assert_eq!(batch.schema().as_ref(), &table);
        let none = new_null_array(&DataType::Utf8, 2);
        assert_eq!(batch.columns(), [numbers(1), none, numbers(5)]);
        // Of a file with none of the columns, its rows.
        let found = Columns::new(&table, &[1]).unwrap().within(&file).unwrap();
        assert!(found.own.is_empty());
        let options = RecordBatchOptions::new().with_row_count(Some(3));
        let empty = Arc::new(Schema::empty());
        let batch = RecordBatch::try_new_with_options(empty, vec![], &options).unwrap();
        assert_eq!(found.batch(batch).unwrap().columns(), [new_null_array(&DataType::Utf8, 3)]);
        // A column without a type.
        let file = Schema::new(vec![field("c", DataType::Null), field("a", DataType::Int64)]);
        assert_eq!(columns.within(&file).unwrap().own, [1]);
        // Another type.
        let file = Schema::new(vec![field("b", DataType::Int64)]);
        assert!(columns.within(&file).is_err());
        let file = Schema::new(vec![field("b", DataType::Utf8), field("a", DataType::Int64)]);
        let found = columns.within(&file).unwrap();
        assert_eq!(found.own, [1, 0]);
        let read = [("a", numbers(1)), ("b", texts.clone())];
        let batch = found.batch(RecordBatch::try_from_iter(read).unwrap()).unwrap();
        assert_eq!(batch.columns(), [numbers(1), texts, new_null_array(&DataType::Int64, 2)]);
    }
}
