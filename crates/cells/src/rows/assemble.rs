//! Assembles rows into labelled tensors.
//!
//! ```text
//! lat lon  v          codes   as first met    labels   [40, 50] x [0, 5]
//!  50   0  1.0        0 0                     cells     .   3.0
//!  50   5  2.0        0 1                               1.0 2.0
//!  40   5  3.0        1 1                     a position without a row is masked
//! ```
//! Batches are dropped as they arrive: per row only a 32-bit code for each key and the bare value are retained. When
//! all labels are known, the values are written to their chunks. Two rows with the same labels are an error.
//!
//! Both the rows and the chunks spill to files when memory is short, so they may exceed it; labels may not.

mod blocks;
mod heap;
mod key;
mod place;

use crate::error::{plain, worded};
use crate::lift::dtype_of;
use crate::type_name;
use arrow::array::{ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field as ArrowField, SchemaRef};
use arrow::record_batch::RecordBatch;
use blocks::Blocks;
use key::{KeyColumn, key_kind};
use place::Placing;
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_exec::chunk::arrow_type;
use tessera_exec::error::Error;
use tessera_exec::quota::Charge;
use tessera_exec::select::Room;
use tessera_exec::store::Resident;
use tessera_planner::catalog::CoordValues;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::grid::Grid;
use tessera_planner::region::cells;

/// The role of a column of the rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Labels of a dimension, with the calendar of a column that counts microseconds.
    Key(Option<Calendar>),
    /// Values of a tensor, with the calendar likewise.
    Value(Option<Calendar>),
}

/// The result.
#[derive(Debug)]
pub struct Assembled {
    /// Labels of each dimension, in order. Without keys there are none, and the one dimension counts rows.
    pub coords: Vec<CoordValues>,
    /// The tensors, one for each value column.
    pub values: Vec<Value>,
}

/// One tensor.
#[derive(Debug)]
pub struct Value {
    /// Type of its cells.
    pub dtype: DType,
    /// True if cells can be masked.
    pub nullable: bool,
    /// The cells. Chunks may be spilled.
    pub array: Arc<Resident>,
}

/// Consumes rows batch by batch.
#[derive(Debug)]
pub struct Assemble {
    room: Room,
    charges: Vec<Charge>,
    keys: Vec<KeyColumn>,
    columns: Vec<Column>,
    /// For each field of the rows: true if it is a key, and its index among the keys or columns.
    places: Vec<(bool, usize)>,
    blocks: Blocks,
}

#[derive(Debug)]
struct Column {
    name: String,
    dtype: DType,
    bytes: Vec<u8>,
    valid: Vec<u8>,
    nulls: bool,
}

impl Assemble {
    /// Assembles rows of that schema.
    ///
    /// # Errors
    /// [`Error::Rows`] `dtype_mismatch` for columns whose type is not supported for labels or cells.
    pub fn new(schema: &SchemaRef, roles: &[Role], room: Room) -> Result<Self, Error> {
        let (mut keys, mut columns, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (field, role) in schema.fields().iter().zip(roles) {
            let name = field.name().clone();
            match role {
                Role::Key(calendar) => {
                    places.push((true, keys.len()));
                    let kind = key_kind(field, *calendar)?;
                    let (labels, order, codes) = (BTreeMap::new(), Vec::new(), Vec::new());
                    keys.push(KeyColumn { name, kind, labels, order, codes });
                }
                Role::Value(calendar) => {
                    places.push((false, columns.len()));
                    let dtype = value_type(field, *calendar)?;
                    let (bytes, valid) = (Vec::new(), Vec::new());
                    columns.push(Column { name, dtype, bytes, valid, nulls: false });
                }
            }
        }
        let sizes = columns.iter().map(|c: &Column| c.dtype.size()).collect();
        let blocks = Blocks::new(room.clone(), keys.len(), sizes);
        Ok(Assemble { room, charges: Vec::new(), keys, columns, places, blocks })
    }

    /// Orders the labels of a key field as in `labels`. Other labels follow in ascending order, which is the default
    /// for all.
    ///
    /// # Errors
    /// Labels of another type; insufficient memory for the labels.
    pub fn in_order(&mut self, field: usize, labels: &ArrayRef) -> Result<(), Error> {
        let Some(&(true, at)) = self.places.get(field) else { return Ok(()) };
        self.charges.push(self.room.reserve(labels.len() as u64 * 64)?);
        let mut order = Vec::with_capacity(labels.len());
        self.keys[at].each(labels, &mut |label| order.push(label))?;
        self.keys[at].order = order;
        Ok(())
    }

    /// Adds the rows of a batch.
    ///
    /// # Errors
    /// `null_key` for a row without a label, [`Error::ResultTooLarge`] if neither memory nor files have room for the
    /// retained data.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        let rows = batch.num_rows();
        let width: usize =
            4 * self.keys.len() + self.columns.iter().map(|c| c.dtype.size() + 1).sum::<usize>();
        let mut labels = 0;
        for (array, &(is_key, at)) in batch.columns().iter().zip(&self.places) {
            if is_key {
                let known = self.keys[at].labels.len();
                self.keys[at].push(array)?;
                labels += (self.keys[at].labels.len() - known) as u64;
            } else {
                self.columns[at].push(array)?;
            }
        }
        // A label in its map: its share of the node, and about one copy of a text's bytes.
        if labels > 0 {
            self.charges.push(self.room.reserve(labels * 64)?);
        }
        let mut block = Vec::with_capacity(rows * width);
        for key in &mut self.keys {
            key.codes.drain(..).for_each(|code| block.extend(code.to_le_bytes()));
        }
        for column in &mut self.columns {
            column.nulls |= column.valid.contains(&0);
            block.append(&mut column.bytes);
            block.append(&mut column.valid);
        }
        self.blocks.push(rows, block)
    }

    /// The tensors, in chunks of about `target` bytes.
    ///
    /// # Errors
    /// `duplicate_key` for two rows with the same labels, [`Error::ResultTooLarge`] if there is no room for a chunk,
    /// [`Error::Cancelled`].
    pub fn finish(self, target: u64, cancelled: &dyn Fn() -> bool) -> Result<Assembled, Error> {
        let Assemble { room, charges, keys, columns, blocks, .. } = self;
        let mut coords = Vec::with_capacity(keys.len());
        // For each key, the position of each code in the sorted labels.
        let mut ranks: Vec<Vec<u32>> = Vec::with_capacity(keys.len());
        for key in &keys {
            let (labels, rank) = key.sorted();
            ranks.push(rank);
            coords.push(key.coord(&labels));
        }
        let shape: Vec<u64> = match keys.is_empty() {
            true => vec![blocks.rows()],
            false => coords.iter().map(|c| c.len() as u64).collect(),
        };
        let most = room.quota.limit().saturating_add(room.store.limit());
        let too_large =
            |result_bytes: u64| Error::ResultTooLarge { result_bytes, limit_bytes: most };
        let Some(count) = cells(&shape) else { return Err(too_large(u64::MAX)) };
        let mut values = Vec::with_capacity(columns.len());
        for (number, column) in columns.iter().enumerate() {
            let dtype = column.dtype;
            let bytes = count.saturating_mul(dtype.size() as u64 + 1);
            if bytes > most {
                return Err(too_large(bytes));
            }
            let nullable = column.nulls || blocks.rows() < count;
            let placing = Placing {
                blocks: &blocks,
                ranks: &ranks,
                column: number,
                dtype,
                nullable,
                grid: &Grid::auto(&shape, dtype.size(), target),
                room: &room,
                cancelled,
                twice: &|at| duplicate(&keys, &coords, at),
            };
            values.push(Value { dtype, nullable, array: placing.run()? });
        }
        drop(charges);
        Ok(Assembled { coords, values })
    }
}

fn duplicate(keys: &[KeyColumn], coords: &[CoordValues], at: &[u64]) -> Error {
    let labels: Vec<String> = keys
        .iter()
        .zip(coords)
        .zip(at)
        .map(|((key, coord), &p)| format!("{} = {}", key.name, coord.display(p as usize)))
        .collect();
    Error::Rows {
        code: "duplicate_key",
        message: format!("two rows have the same labels: {}", labels.join(", ")),
        hint: Some(
            "GROUP BY the dimensions and aggregate the value, or add the dimension that distinguishes the rows".into(),
        ),
    }
}

fn value_type(field: &ArrowField, calendar: Option<Calendar>) -> Result<DType, Error> {
    Ok(match (field.data_type(), calendar) {
        (DataType::Int64, Some(calendar)) => DType::Datetime(calendar),
        (DataType::Timestamp(_, _) | DataType::Date32 | DataType::Date64, _) => {
            DType::Datetime(Calendar::Standard)
        }
        (DataType::Null, _) => DType::Float64,
        (other, _) => cell_type(other).ok_or_else(|| Error::Rows {
            code: "dtype_mismatch",
            message: format!("the values `{}` have the type {}", field.name(), type_name(other)),
            hint: Some("cells are numbers, truth values or times: cast the column".into()),
        })?,
    })
}

/// The element type of a column's cells: [`dtype_of`], and floats for `float16` and decimals.
fn cell_type(data_type: &DataType) -> Option<DType> {
    match data_type {
        DataType::Float16 => Some(DType::Float32),
        DataType::Decimal128(_, _) | DataType::Decimal256(_, _) => Some(DType::Float64),
        other => dtype_of(other),
    }
}

fn converted(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, Error> {
    if array.data_type() == to {
        return Ok(array.clone());
    }
    let refused = |why: String| Error::Rows {
        code: "dtype_mismatch",
        message: format!(
            "a column of {} as {}: {why}",
            type_name(array.data_type()),
            type_name(to)
        ),
        hint: None,
    };
    let out = cast(array, to).map_err(|e| refused(worded(plain(&e.to_string()))))?;
    // A value that does not fit becomes NULL.
    match out.null_count() > array.null_count() {
        true => Err(refused("a value is out of range".into())),
        false => Ok(out),
    }
}

fn refused(error: arrow::error::ArrowError) -> Error {
    Error::Rows { code: "dtype_mismatch", message: worded(plain(&error.to_string())), hint: None }
}

impl Column {
    fn push(&mut self, array: &ArrayRef) -> Result<(), Error> {
        if array.data_type() == &DataType::Null {
            self.bytes.resize(self.bytes.len() + array.len() * self.dtype.size(), 0);
            self.valid.resize(self.valid.len() + array.len(), 0);
            return Ok(());
        }
        let array = converted(array, &arrow_type(self.dtype))?;
        if self.dtype == DType::Bool {
            let flags = array.as_boolean();
            self.bytes.extend((0..flags.len()).map(|i| u8::from(flags.value(i))));
        } else {
            let data = array.to_data();
            let size = self.dtype.size();
            let Some(buffer) = data.buffers().first() else {
                let what = format!("the column `{}` has no values", self.name);
                return Err(Error::Broken { what });
            };
            let start = data.offset() * size;
            self.bytes.extend_from_slice(&buffer.as_slice()[start..start + array.len() * size]);
        }
        self.valid.extend((0..array.len()).map(|i| u8::from(array.is_valid(i))));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
