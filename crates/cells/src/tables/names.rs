//! Names of the columns of files.

use arrow::datatypes::{Field, Schema};
use std::collections::{BTreeMap, BTreeSet};

/// The names of columns, of which no two are the same: those of `a, a, a` are `a`, `a_1` and `a_2`.
#[derive(Default)]
pub(crate) struct Names {
    used: BTreeSet<String>,
    /// The last number behind a name.
    numbers: BTreeMap<String, usize>,
}

impl Names {
    /// The name of the next column, which is called `name` in the file.
    pub(crate) fn free(&mut self, name: String) -> String {
        let mut free = name.clone();
        while !self.used.insert(free.clone()) {
            let number = self.numbers.entry(name.clone()).or_default();
            *number += 1;
            free = format!("{name}_{number}");
        }
        free
    }
}

/// A schema with such names.
pub(crate) fn distinct(schema: &Schema) -> Schema {
    let mut names = Names::default();
    let fields = schema.fields().iter().map(|field| {
        let name = names.free(field.name().clone());
        Field::clone(field).with_name(name)
    });
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone())
}
