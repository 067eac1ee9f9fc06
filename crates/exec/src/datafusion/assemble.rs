//! Rows put together to labelled tensors.
//!
//! ```text
//! lat lon  v          codes   first come      labels   [40, 50] x [0, 5]
//!  50   0  1.0        0 0                     cells     .   3.0
//!  50   5  2.0        0 1                               1.0 2.0
//!  40   5  3.0        1 1                     a place without a row is masked
//! ```
//! Batches are let go as they come: of a row a 32-bit code for each key and the bare value stay. When all labels are
//! known, the values go to their places in the chunks of the result. Two rows at one place are an error.
//!
//! Both the rows and the chunks go to files when memory is short, so they may be larger than it; labels may not.

mod blocks;
mod place;

use crate::error::Error;
use crate::quota::Charge;
use crate::select::Room;
use crate::store::Resident;
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{self as types, DataType, Field as ArrowField, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use blocks::Blocks;
use place::Placing;
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_planner::catalog::CoordValues;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::grid::Grid;
use tessera_planner::region::cells;

/// What a column of the rows is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Labels of a dimension; the calendar of a column that counts microseconds.
    Key(Option<Calendar>),
    /// Values of a tensor; the calendar likewise.
    Value(Option<Calendar>),
}

/// The result.
#[derive(Debug)]
pub struct Assembled {
    /// Labels of each dimension, in their order. Without keys there are none, and the one dimension counts rows.
    pub coords: Vec<CoordValues>,
    /// Each value.
    pub values: Vec<Value>,
}

/// One tensor.
#[derive(Debug)]
pub struct Value {
    /// Type of its cells.
    pub dtype: DType,
    /// Can cells be masked?
    pub nullable: bool,
    /// The cells. Its chunks may be spilled.
    pub array: Arc<Resident>,
}

/// Takes rows batch by batch.
#[derive(Debug)]
pub struct Assemble {
    room: Room,
    charges: Vec<Charge>,
    keys: Vec<Key>,
    columns: Vec<Column>,
    /// For each field of the rows whether it is a key, and which.
    places: Vec<(bool, usize)>,
    blocks: Blocks,
}

#[derive(Debug)]
struct Key {
    name: String,
    kind: KeyKind,
    labels: BTreeMap<Label, u32>,
    /// The order in which labels come, if they have one of their own.
    order: Vec<Label>,
    /// Those of the rows that have just come.
    codes: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
enum KeyKind {
    Int(DType),
    Float(DType),
    Time(Calendar),
    Text,
}

/// A label; ordered as labels of one kind are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Int(i64),
    /// Unsigned integers beyond the signed range, and floats by bits that are ordered as they are.
    Bits(u64),
    Text(String),
}

#[derive(Debug)]
struct Column {
    name: String,
    dtype: DType,
    /// Those of the rows that have just come.
    bytes: Vec<u8>,
    valid: Vec<u8>,
    /// Did NULL ever come?
    nulls: bool,
}

impl Assemble {
    /// For rows of that schema.
    ///
    /// # Errors
    /// [`Error::Rows`] `dtype_mismatch` for columns whose type labels or cells cannot have.
    pub fn new(schema: &SchemaRef, roles: &[Role], room: Room) -> Result<Self, Error> {
        let (mut keys, mut columns, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (field, role) in schema.fields().iter().zip(roles) {
            let name = field.name().clone();
            match role {
                Role::Key(calendar) => {
                    places.push((true, keys.len()));
                    let kind = key_kind(field, *calendar)?;
                    let (labels, order, codes) = (BTreeMap::new(), Vec::new(), Vec::new());
                    keys.push(Key { name, kind, labels, order, codes });
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

    /// Puts the labels of a field that is a key in the order in which they stand in `labels`; others come behind,
    /// ascending, as all do without an order.
    ///
    /// # Errors
    /// Labels of another type, no memory for so many.
    pub fn in_order(&mut self, field: usize, labels: &ArrayRef) -> Result<(), Error> {
        let Some(&(true, at)) = self.places.get(field) else { return Ok(()) };
        self.charges.push(self.room.reserve(labels.len() as u64 * 64)?);
        let mut order = Vec::with_capacity(labels.len());
        self.keys[at].each(labels, &mut |label| order.push(label))?;
        self.keys[at].order = order;
        Ok(())
    }

    /// Takes a batch.
    ///
    /// # Errors
    /// `null_key` for a row without a label, [`Error::ResultTooLarge`] if neither memory nor files have room for what
    /// stays.
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
        // A label in its map: the node's share, and a text's own bytes about once.
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
        // For each key the place of a code among the labels in their order.
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

fn duplicate(keys: &[Key], coords: &[CoordValues], at: &[u64]) -> Error {
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
            "GROUP BY the dimensions and aggregate the value, or add the dimension that tells the rows apart".into(),
        ),
    }
}

fn key_kind(field: &ArrowField, calendar: Option<Calendar>) -> Result<KeyKind, Error> {
    Ok(match (field.data_type(), calendar) {
        (DataType::Int64, Some(calendar)) => KeyKind::Time(calendar),
        (DataType::Timestamp(_, _) | DataType::Date32 | DataType::Date64, _) => {
            KeyKind::Time(Calendar::Standard)
        }
        (DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View, _) => KeyKind::Text,
        (other, _) => match number(other) {
            Some(d) if d.is_integer() => KeyKind::Int(d),
            Some(d) if d.is_float() => KeyKind::Float(d),
            _ => {
                return Err(Error::Rows {
                    code: "dtype_mismatch",
                    message: format!("the labels `{}` have the type {other}", field.name()),
                    hint: Some("labels are numbers, times or texts: cast the column".into()),
                });
            }
        },
    })
}

fn value_type(field: &ArrowField, calendar: Option<Calendar>) -> Result<DType, Error> {
    Ok(match (field.data_type(), calendar) {
        (DataType::Int64, Some(calendar)) => DType::Datetime(calendar),
        (DataType::Timestamp(_, _) | DataType::Date32 | DataType::Date64, _) => {
            DType::Datetime(Calendar::Standard)
        }
        (DataType::Boolean, _) => DType::Bool,
        (DataType::Null, _) => DType::Float64,
        (other, _) => match number(other) {
            Some(dtype) => dtype,
            None => {
                return Err(Error::Rows {
                    code: "dtype_mismatch",
                    message: format!("the values `{}` have the type {other}", field.name()),
                    hint: Some("cells are numbers, truth values or times: cast the column".into()),
                });
            }
        },
    })
}

fn number(data_type: &DataType) -> Option<DType> {
    Some(match data_type {
        DataType::Int8 => DType::Int8,
        DataType::Int16 => DType::Int16,
        DataType::Int32 => DType::Int32,
        DataType::Int64 => DType::Int64,
        DataType::UInt8 => DType::UInt8,
        DataType::UInt16 => DType::UInt16,
        DataType::UInt32 => DType::UInt32,
        DataType::UInt64 => DType::UInt64,
        DataType::Float16 | DataType::Float32 => DType::Float32,
        DataType::Float64 | DataType::Decimal128(_, _) | DataType::Decimal256(_, _) => {
            DType::Float64
        }
        _ => return None,
    })
}

/// The Arrow type that holds cells of a type as they lie in memory.
fn plain_type(dtype: DType) -> DataType {
    match dtype {
        DType::Bool => DataType::Boolean,
        DType::Int8 => DataType::Int8,
        DType::Int16 => DataType::Int16,
        DType::Int32 => DataType::Int32,
        DType::UInt8 => DataType::UInt8,
        DType::UInt16 => DataType::UInt16,
        DType::UInt32 => DataType::UInt32,
        DType::UInt64 => DataType::UInt64,
        DType::Float32 => DataType::Float32,
        DType::Float64 => DataType::Float64,
        DType::Datetime(Calendar::Standard) => DataType::Timestamp(TimeUnit::Microsecond, None),
        DType::Int64 | DType::Datetime(_) => DataType::Int64,
    }
}

fn converted(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, Error> {
    if array.data_type() == to {
        return Ok(array.clone());
    }
    let refused = |why: String| Error::Rows {
        code: "dtype_mismatch",
        message: format!("a column of {} as {to}: {why}", array.data_type()),
        hint: None,
    };
    let out = cast(array, to).map_err(|e| refused(e.to_string()))?;
    // A value that does not fit becomes NULL.
    match out.null_count() > array.null_count() {
        true => Err(refused("a value is out of range".into())),
        false => Ok(out),
    }
}

impl Key {
    fn push(&mut self, array: &ArrayRef) -> Result<(), Error> {
        if array.null_count() > 0 {
            return Err(Error::Rows {
                code: "null_key",
                message: format!("a row has no label: `{}` is NULL", self.name),
                hint: Some(format!("leave such rows out: WHERE {} IS NOT NULL", self.name)),
            });
        }
        let (next, codes) = (&mut self.labels, &mut self.codes);
        each(self.kind, array, &mut |label| {
            let code = next.len() as u32;
            codes.push(*next.entry(label).or_insert(code));
        })
    }

    /// Calls `f` with each label of an array that is not NULL.
    fn each(&self, array: &ArrayRef, f: &mut dyn FnMut(Label)) -> Result<(), Error> {
        let array = match array.null_count() {
            0 => array.clone(),
            _ => {
                let valid = arrow::compute::is_not_null(array).map_err(refused)?;
                arrow::compute::filter(array, &valid).map_err(refused)?
            }
        };
        each(self.kind, &array, f)
    }

    /// The labels in their order, and the place of each code among them.
    fn sorted(&self) -> (Vec<&Label>, Vec<u32>) {
        const NONE: u32 = u32::MAX;
        let mut rank = vec![NONE; self.labels.len()];
        let mut labels = Vec::with_capacity(rank.len());
        let known = self.order.iter().filter_map(|label| self.labels.get_key_value(label));
        for (label, &code) in known.chain(&self.labels) {
            let place = &mut rank[code as usize];
            if *place == NONE {
                *place = labels.len() as u32;
                labels.push(label);
            }
        }
        (labels, rank)
    }

    /// Labels as a coordinate.
    fn coord(&self, labels: &[&Label]) -> CoordValues {
        let ints = || {
            let int = |l: &Label| match l {
                Label::Int(v) => *v,
                Label::Bits(v) => *v as i64,
                Label::Text(_) => 0,
            };
            labels.iter().map(|l| int(l)).collect()
        };
        match self.kind {
            KeyKind::Int(dtype) => CoordValues::Int(dtype, ints()),
            KeyKind::Time(calendar) => CoordValues::Time(calendar, ints()),
            KeyKind::Float(dtype) => {
                let float = |l: &Label| match l {
                    Label::Bits(v) => crate::distinct::unorder(*v),
                    _ => f64::NAN,
                };
                CoordValues::Float(dtype, labels.iter().map(|l| float(l)).collect())
            }
            KeyKind::Text => {
                let text = |l: &Label| match l {
                    Label::Text(text) => text.clone(),
                    _ => String::new(),
                };
                CoordValues::Text(labels.iter().map(|l| text(l)).collect())
            }
        }
    }
}

fn refused(error: arrow::error::ArrowError) -> Error {
    Error::Rows { code: "dtype_mismatch", message: error.to_string(), hint: None }
}

/// Calls `f` with each label of an array without NULLs.
fn each(kind: KeyKind, array: &ArrayRef, f: &mut dyn FnMut(Label)) -> Result<(), Error> {
    match kind {
        KeyKind::Text => {
            let texts = converted(array, &DataType::Utf8)?;
            texts.as_string::<i32>().iter().flatten().for_each(|v| f(Label::Text(v.to_string())));
        }
        KeyKind::Float(_) => {
            let wide = converted(array, &DataType::Float64)?;
            let values = wide.as_primitive::<types::Float64Type>().values();
            values.iter().for_each(|&v| f(Label::Bits(crate::distinct::order(v))));
        }
        KeyKind::Int(DType::UInt64) => {
            let wide = converted(array, &DataType::UInt64)?;
            let values = wide.as_primitive::<types::UInt64Type>().values();
            values.iter().for_each(|&v| f(Label::Bits(v)));
        }
        KeyKind::Time(Calendar::Standard) => {
            let micros = plain_type(DType::Datetime(Calendar::Standard));
            let times = converted(array, &micros)?;
            let values = times.as_primitive::<types::TimestampMicrosecondType>().values();
            values.iter().for_each(|&v| f(Label::Int(v)));
        }
        KeyKind::Int(_) | KeyKind::Time(_) => {
            let wide = converted(array, &DataType::Int64)?;
            let values = wide.as_primitive::<types::Int64Type>().values();
            values.iter().for_each(|&v| f(Label::Int(v)));
        }
    }
    Ok(())
}

impl Column {
    fn push(&mut self, array: &ArrayRef) -> Result<(), Error> {
        if array.data_type() == &DataType::Null {
            self.bytes.resize(self.bytes.len() + array.len() * self.dtype.size(), 0);
            self.valid.resize(self.valid.len() + array.len(), 0);
            return Ok(());
        }
        let array = converted(array, &plain_type(self.dtype))?;
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
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;
    use crate::pool::Pool;
    use crate::quota::Quota;
    use crate::store::{Held, Store};
    use arrow::array::{Float32Array, Float64Array, Int64Array, StringArray};
    use arrow::datatypes::Schema;
    use std::sync::atomic::AtomicU64;

    fn room(limit: u64, spill: u64, dir: &std::path::Path) -> Room {
        let quota = Quota::new(limit);
        Room::new(quota.clone(), Pool::new(quota, limit), Store::open(dir, spill))
    }

    fn batch(lat: Vec<f64>, place: Vec<&str>, v: Vec<Option<f32>>) -> RecordBatch {
        let schema = Arc::new(Schema::new(vec![
            ArrowField::new("lat", DataType::Float64, true),
            ArrowField::new("place", DataType::Utf8, true),
            ArrowField::new("v", DataType::Float32, true),
        ]));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Float64Array::from(lat)),
            Arc::new(StringArray::from(place)),
            Arc::new(Float32Array::from(v)),
        ];
        RecordBatch::try_new(schema, columns).unwrap()
    }

    const ROLES: [Role; 3] = [Role::Key(None), Role::Key(None), Role::Value(None)];

    #[test]
    fn rows_find_their_places_and_gaps_are_masked() {
        let dir = tempfile::tempdir().unwrap();
        let room = room(1 << 20, 0, dir.path());
        let first = batch(vec![50.0, 50.0], vec!["b", "a"], vec![Some(1.0), Some(2.0)]);
        let mut rows = Assemble::new(&first.schema(), &ROLES, room.clone()).unwrap();
        rows.push(&first).unwrap();
        rows.push(&batch(vec![40.0, 60.0], vec!["a", "b"], vec![None, Some(4.0)])).unwrap();
        // Chunks of two cells: places are found in them all the same.
        let done = rows.finish(8, &|| false).unwrap();
        assert_eq!(
            done.coords,
            [
                CoordValues::Float(DType::Float64, [40.0, 50.0, 60.0].into()),
                CoordValues::Text(["a".to_string(), "b".into()].into()),
            ]
        );
        let value = &done.values[0];
        assert!(value.nullable && value.array.grid.count() == 3);
        let mut cells = Vec::new();
        for n in 0..3 {
            let Some(Held::Memory(chunk)) = value.array.held(n) else { panic!("{n} is not here") };
            let values = chunk.field(0).unwrap().values::<f32>().unwrap();
            let valid = chunk.field(1).unwrap().values::<u8>().unwrap();
            cells.extend(values.iter().zip(valid).map(|(v, k)| (*k == 1).then_some(*v)));
        }
        assert_eq!(cells, [None, None, Some(2.0), Some(1.0), None, Some(4.0)]);
        drop(done);
        assert_eq!(room.quota.used(), 0);
    }

    #[test]
    fn more_than_memory_goes_through_files() {
        let dir = tempfile::tempdir().unwrap();
        let room = room(256 << 10, 8 << 20, dir.path());
        let schema = Arc::new(Schema::new(vec![
            ArrowField::new("y", DataType::Int64, true),
            ArrowField::new("x", DataType::Int64, true),
            ArrowField::new("v", DataType::Float64, true),
            ArrowField::new("w", DataType::Int64, true),
        ]));
        let roles = [Role::Key(None), Role::Key(None), Role::Value(None), Role::Value(None)];
        // 300 x 200 cells in an order of their own, each seventh absent, each fifth NULL.
        let order = |scattered: bool| -> Vec<i64> {
            let all = (0..60_000).map(|i| if scattered { i * 7919 % 60_000 } else { i });
            all.filter(|i| i % 7 != 0).collect()
        };
        for scattered in [false, true] {
            let mut rows = Assemble::new(&schema, &roles, room.clone()).unwrap();
            for cells in order(scattered).chunks(1000) {
                let of = |f: &dyn Fn(i64) -> i64| -> ArrayRef {
                    Arc::new(Int64Array::from_iter_values(cells.iter().map(|&i| f(i))))
                };
                let v = cells.iter().map(|&i| (i % 5 != 0).then_some(i as f64));
                let v: ArrayRef = Arc::new(Float64Array::from_iter(v));
                let columns = vec![of(&|i| i / 200), of(&|i| i % 200), v, of(&|i| -i)];
                rows.push(&RecordBatch::try_new(schema.clone(), columns).unwrap()).unwrap();
            }
            // Half of the memory, and the labels.
            assert!(room.quota.used() <= 192 << 10, "{}", room.quota.used());
            let done = rows.finish(16 << 10, &|| false).unwrap();
            assert!(room.store.figures().files > 10);
            let pool = Pool::new(Quota::new(1 << 20), 0);
            for (k, value) in done.values.iter().enumerate() {
                let (grid, read) = (&value.array.grid, AtomicU64::new(0));
                for n in 0..grid.count() {
                    let chunk = match value.array.held(n).unwrap() {
                        Held::Memory(chunk) => chunk,
                        Held::File(file) => Arc::new(file.load(&pool, &read).unwrap()),
                    };
                    let region = grid.region(&grid.unravel(n));
                    let valid = chunk.field(1).unwrap().values::<u8>().unwrap();
                    let mut at = 0;
                    for y in region.start[0]..region.end[0] {
                        for x in region.start[1]..region.end[1] {
                            let i = (y * 200 + x) as i64;
                            let there = i % 7 != 0 && (k == 1 || i % 5 != 0);
                            assert_eq!(valid[at] == 1, there, "{i}");
                            if there && k == 0 {
                                assert_eq!(
                                    chunk.field(0).unwrap().values::<f64>().unwrap()[at],
                                    i as f64
                                );
                            } else if there {
                                assert_eq!(
                                    chunk.field(0).unwrap().values::<i64>().unwrap()[at],
                                    -i
                                );
                            }
                            at += 1;
                        }
                    }
                }
            }
            drop(done);
            let figures = room.store.figures();
            assert_eq!((room.quota.used(), figures.files, figures.bytes), (0, 0, 0));
        }
        assert_eq!(room.quota.overrun(), 0);
    }

    #[test]
    fn two_rows_at_one_place_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let room = room(1 << 20, 0, dir.path());
        let both = batch(vec![50.0, 50.0], vec!["b", "b"], vec![None, None]);
        let mut rows = Assemble::new(&both.schema(), &ROLES, room).unwrap();
        rows.push(&both).unwrap();
        let error = rows.finish(8, &|| false).unwrap_err();
        assert_eq!(error.code(), "duplicate_key");
        assert!(error.to_string().contains("lat = 50, place = b"), "{error}");
    }

    #[test]
    fn what_is_no_label_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let room = room(1 << 20, 0, dir.path());
        let schema = Arc::new(Schema::new(vec![ArrowField::new("k", DataType::Int64, true)]));
        let array: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        let rows = RecordBatch::try_new(schema.clone(), vec![array]).unwrap();
        let mut keys = Assemble::new(&schema, &[Role::Key(None)], room.clone()).unwrap();
        assert_eq!(keys.push(&rows).unwrap_err().code(), "null_key");
        let texts = Arc::new(Schema::new(vec![ArrowField::new("v", DataType::Utf8, true)]));
        let error = Assemble::new(&texts, &[Role::Value(None)], room).unwrap_err();
        assert_eq!(error.code(), "dtype_mismatch");
    }
}
