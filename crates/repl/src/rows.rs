//! Rows of SHOW and DESCRIBE as texts.

use arrow::array::Array;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use tessera_engine::answer::Answer;

/// Rows of texts under named columns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rows {
    names: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Rows {
    /// The rows of an answer; `None` if it is not rows, or they cannot be read.
    pub fn of(answer: &Answer) -> Option<Rows> {
        let (schema, batches) = answer.rows()?;
        let names: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
        let format = FormatOptions::new();
        let mut rows = Vec::new();
        for batch in batches {
            let batch = batch.ok()?;
            let columns: Vec<ArrayFormatter<'_>> = batch
                .columns()
                .iter()
                .map(|c| ArrayFormatter::try_new(c.as_ref(), &format))
                .collect::<Result<_, _>>()
                .ok()?;
            let cell = |c: usize, i: usize| {
                if batch.column(c).is_null(i) {
                    String::new()
                } else {
                    columns[c].value(i).to_string()
                }
            };
            rows.extend(
                (0..batch.num_rows()).map(|i| (0..columns.len()).map(|c| cell(c, i)).collect()),
            );
        }
        Some(Rows { names, rows })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// True if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The cell of row `i`, below `len`; empty if the column does not exist.
    pub fn text(&self, i: usize, column: &str) -> &str {
        match self.names.iter().position(|n| n == column) {
            Some(c) => &self.rows[i][c],
            None => "",
        }
    }

    /// The cells of a column.
    pub fn column<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        (0..self.len()).map(move |i| self.text(i, name))
    }
}
