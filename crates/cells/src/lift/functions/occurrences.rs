//! How often each value occurs.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, UInt64Array};
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, internal_datafusion_err, internal_err};

use crate::lift::labels::canonical;

/// About the bytes of an entry without its key.
const ENTRY_BYTES: usize = 64;

/// The counts of the values that are not NULL.
#[derive(Debug)]
pub(super) struct Occurrences {
    rows: RowConverter,
    /// By values as rows of Arrow's row format, in their order.
    counts: BTreeMap<Box<[u8]>, u64>,
    bytes: usize,
}

impl Occurrences {
    pub(super) fn new(of: &DataType) -> Result<Self> {
        let rows = RowConverter::new(vec![SortField::new(of.clone())])?;
        Ok(Self { rows, counts: BTreeMap::new(), bytes: 0 })
    }

    /// Adds values, each as many times as `more` says, or once.
    pub(super) fn add(&mut self, values: &ArrayRef, more: Option<&UInt64Array>) -> Result<()> {
        let rows = self.rows.convert_columns(&[canonical(values)])?;
        for row in (0..values.len()).filter(|&row| values.is_valid(row)) {
            let times = more.map_or(1, |more| more.value(row));
            let key = rows.row(row).data();
            match self.counts.get_mut(key) {
                Some(count) => *count += times,
                None => {
                    self.bytes += key.len() + ENTRY_BYTES;
                    self.counts.insert(key.into(), times);
                }
            }
        }
        Ok(())
    }

    /// Removes values that were added.
    pub(super) fn remove(&mut self, values: &ArrayRef) -> Result<()> {
        let rows = self.rows.convert_columns(&[canonical(values)])?;
        for row in (0..values.len()).filter(|&row| values.is_valid(row)) {
            let key = rows.row(row).data();
            match self.counts.get_mut(key) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) => {
                    self.bytes -= key.len() + ENTRY_BYTES;
                    self.counts.remove(key);
                }
                None => return internal_err!("a value leaves a frame that did not come"),
            }
        }
        Ok(())
    }

    /// The values, in their order, and their counts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.counts.iter().map(|(key, count)| (&**key, *count))
    }

    /// The values with these keys.
    pub(super) fn values<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>) -> Result<ArrayRef> {
        let parser = self.rows.parser();
        let rows: Vec<_> = keys.into_iter().map(|key| parser.parse(key)).collect();
        let columns = self.rows.convert_rows(rows)?;
        let first = columns.into_iter().next();
        first.ok_or_else(|| internal_datafusion_err!("values without a column"))
    }

    pub(super) fn size(&self) -> usize {
        self.rows.size() + self.bytes
    }
}
