//! A chunk: the cells that one operand makes for one output.
//!
//! Fields are row-major, dense, 64-byte aligned and shared: a clone increments a reference count. A value that can be
//! masked has a second field of `bool`, one byte a cell, false where the cell is masked. Bitmaps exist only in
//! [`to_array`]. A chunk knows whether any cell is masked ([`Chunk::is_unmasked`]). Chunks without a masked cell share
//! their mask buffer.
//!
//! [`to_array`]: Chunk::to_array

mod dense;
mod facts;
pub mod ipc;

pub use dense::dense;
pub(crate) use facts::{Condition, all_valid};

use crate::error::Error;
use crate::pool::PooledBuf;
use crate::quota::{Charge, Quota};
use crate::store::Spilled;
use arrow::array::{ArrayData, ArrayRef, BooleanArray, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, TimeUnit};
use arrow::error::ArrowError;
use facts::Facts;
use ndarray::{ArrayViewD, IxDyn};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use tessera_kernels::Plain;
use tessera_planner::catalog::NAT;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::region::{Dims, cells};

/// Values of one type, one for each cell.
#[derive(Debug, Clone)]
pub struct Field {
    dtype: DType,
    data: Buffer,
}

/// A Rust type that holds the elements of some [`DType`].
pub trait Element: Plain + ArrowNativeType {
    /// The dtype of a field made from a slice of this type.
    const DTYPE: DType;

    /// True if a field of `dtype` can be read as a slice of this type: `u8` also reads `bool`, `i64` also datetimes.
    fn holds(dtype: DType) -> bool {
        dtype == Self::DTYPE
    }
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
element!(i8 => Int8, i16 => Int16, i32 => Int32, u16 => UInt16, u32 => UInt32, u64 => UInt64,
    f32 => Float32, f64 => Float64);

impl Element for u8 {
    const DTYPE: DType = DType::UInt8;
    fn holds(dtype: DType) -> bool {
        matches!(dtype, DType::UInt8 | DType::Bool)
    }
}

impl Element for i64 {
    const DTYPE: DType = DType::Int64;
    fn holds(dtype: DType) -> bool {
        dtype == DType::Int64 || dtype.is_datetime()
    }
}

impl Field {
    /// Creates a field over a buffer, whose address must be aligned for the type.
    pub fn new(dtype: DType, data: Buffer) -> Result<Self, Error> {
        if !data.len().is_multiple_of(dtype.size()) || data.as_ptr().align_offset(dtype.size()) != 0
        {
            let what = format!("a buffer of {} bytes does not hold {dtype}", data.len());
            return Err(Error::Broken { what });
        }
        Ok(Field { dtype, data })
    }

    /// Creates a field from a written pool buffer.
    pub fn from_pooled(dtype: DType, data: PooledBuf) -> Result<Self, Error> {
        Field::new(dtype, data.freeze())
    }

    /// Creates a field that takes ownership of a vector. `dtype` is the dtype of `T`, or another dtype whose cells `T`
    /// holds.
    pub fn from_vec<T: Element>(dtype: DType, values: Vec<T>) -> Result<Self, Error> {
        if !T::holds(dtype) {
            return Err(Error::Broken { what: format!("{} is not {dtype}", T::DTYPE) });
        }
        Field::new(dtype, Buffer::from_vec(values))
    }

    /// Type of the values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.data.len() / self.dtype.size()
    }

    /// True if the field has no values.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The bytes. A clone of the buffer does not keep the chunk's memory charged: hold the chunk as well.
    pub fn buffer(&self) -> &Buffer {
        &self.data
    }

    /// Returns the values as a slice; fails if the field has another type.
    pub fn values<T: Element>(&self) -> Result<&[T], Error> {
        if !T::holds(self.dtype) {
            let what = format!("a field of {} was read as {}", self.dtype, T::DTYPE);
            return Err(Error::Broken { what });
        }
        Ok(self.data.typed_data::<T>())
    }
}

/// The cells of a chunk.
#[derive(Debug)]
pub struct Chunk {
    shape: Dims,
    fields: SmallVec<[Field; 2]>,
    /// The quota charge of this chunk, until its last holder drops it. Dropped first, so that the pool sees the room
    /// that the buffers leave.
    charge: Option<Charge>,
    /// The spill file with the same cells, if any. Such a chunk can be dropped and read again.
    file: OnceLock<Arc<Spilled>>,
    /// The chunk whose memory this one shares and to which its bytes are charged.
    owner: Option<Arc<Chunk>>,
    /// Known conditions of the cells.
    facts: Facts,
}

impl Chunk {
    /// Creates a chunk; every field has as many values as the shape has cells.
    pub fn new(shape: &[u64], fields: impl IntoIterator<Item = Field>) -> Result<Self, Error> {
        let fields: SmallVec<[Field; 2]> = fields.into_iter().collect();
        let n = cells(shape);
        for field in &fields {
            if n != Some(field.len() as u64) {
                let what = format!("{} values of {} in shape {shape:?}", field.len(), field.dtype);
                return Err(Error::Broken { what });
            }
        }
        Ok(Chunk {
            shape: shape.into(),
            fields,
            charge: None,
            file: OnceLock::new(),
            owner: None,
            facts: Facts::default(),
        })
    }

    /// Creates a chunk of one field that takes ownership of a vector.
    pub fn from_vec<T: Element>(shape: &[u64], values: Vec<T>) -> Result<Self, Error> {
        Chunk::new(shape, [Field::from_vec(T::DTYPE, values)?])
    }

    /// Length of each axis.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The fields: the data, then the mask or the other parts of a state.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Returns field `i`; fails if the chunk has fewer fields.
    pub fn field(&self, i: usize) -> Result<&Field, Error> {
        self.fields.get(i).ok_or_else(|| Error::Broken {
            what: format!("field {i} of a chunk with {} fields", self.fields.len()),
        })
    }

    /// Number of cells.
    pub fn cells(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes of all fields.
    pub fn bytes(&self) -> u64 {
        self.fields.iter().map(|f| f.data.len() as u64).sum()
    }

    /// Sets the charge that the chunk holds for its memory.
    pub fn charge(&mut self, charge: Charge) {
        self.charge = Some(charge);
    }

    /// Drops the mask and its charge.
    pub(crate) fn drop_mask(&mut self) {
        self.fields.truncate(1);
        let bytes = self.bytes();
        if let Some(charge) = self.charge.as_mut().filter(|c| c.bytes() > bytes) {
            let own = charge.split(bytes);
            self.charge = Some(own);
        }
    }

    /// Takes the charge, to be reused for another chunk of these cells.
    pub(crate) fn take_charge(&mut self) -> Option<Charge> {
        self.charge.take()
    }

    /// Creates a chunk of the same cells in the same memory, which stays charged to `owner`.
    pub(crate) fn shared(owner: &Arc<Chunk>) -> Self {
        Chunk {
            shape: owner.shape.clone(),
            fields: owner.fields.clone(),
            charge: None,
            file: OnceLock::new(),
            owner: Some(owner.clone()),
            facts: Facts::default(),
        }
    }

    /// Truncates the chunk to its first fields: a tensor without a masked cell is stored with its mask and read
    /// without it.
    pub(crate) fn first_fields(mut self, count: usize) -> Self {
        self.fields.truncate(count);
        self
    }

    /// True if the bytes are charged to another chunk.
    pub(crate) fn is_shared(&self) -> bool {
        self.owner.is_some()
    }

    /// Bytes of the charge that is released with the chunk.
    pub(crate) fn charged(&self) -> u64 {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }

    /// True if the charge belongs to `quota`.
    pub(crate) fn is_charged_to(&self, quota: &Arc<Quota>) -> bool {
        self.charge.as_ref().is_some_and(|c| Arc::ptr_eq(c.account().quota(), quota))
    }

    pub(crate) fn file(&self) -> Option<&Arc<Spilled>> {
        self.file.get()
    }

    /// Records the spill file with the same cells. The first one is retained.
    pub(crate) fn is_also(&self, file: Arc<Spilled>) {
        // Files written concurrently have the same bytes; the second is unlinked here.
        let _ = self.file.set(file);
    }

    /// Returns a field as an array, without a copy.
    pub fn view<T: Element>(&self, field: usize) -> Result<ArrayViewD<'_, T>, Error> {
        let shape: Vec<usize> = self.shape.iter().map(|&n| n as usize).collect();
        ArrayViewD::from_shape(IxDyn(&shape), self.field(field)?.values::<T>()?)
            .map_err(|e| Error::Broken { what: format!("a chunk of shape {shape:?}: {e}") })
    }

    /// Returns the cells in row-major order as an Arrow array. Values are not copied, but a `bool` becomes a bitmap,
    /// as does the mask, if a second field says which cells are valid. The array keeps the chunk and its charge
    /// alive. Datetimes of calendars that Arrow does not have are returned as their `int64`.
    pub fn to_array(self: &Arc<Self>) -> Result<ArrayRef, Error> {
        let field = self.field(0)?;
        let nulls = match self.fields.get(1) {
            Some(valid) if !self.is_unmasked() => {
                Some(NullBuffer::new(bitmap(valid.values::<u8>()?)))
            }
            _ => None,
        };
        if field.dtype == DType::Bool {
            return Ok(Arc::new(BooleanArray::new(bitmap(field.values::<u8>()?), nulls)));
        }
        column(arrow_type(field.dtype), self.held(0)?, 0..field.len(), nulls)
            .map_err(|e| Error::Broken { what: format!("a chunk as an Arrow array: {e}") })
    }

    /// Returns the bytes of a field as a buffer that keeps the chunk and its charge alive.
    pub fn held(self: &Arc<Self>, field: usize) -> Result<Buffer, Error> {
        self.field(field)?;
        Ok(Buffer::from(bytes::Bytes::from_owner(FieldBytes(self.clone(), field))))
    }
}

/// The Arrow type of values; `int64` for calendars that Arrow does not have. Except for `bool` it has the same layout
/// in memory.
pub fn arrow_type(dtype: DType) -> DataType {
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

/// Rows of a buffer as a column of a primitive type, without a copy.
fn column(
    data_type: DataType,
    buffer: Buffer,
    rows: Range<usize>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, ArrowError> {
    let data = ArrayData::builder(data_type).offset(rows.start).len(rows.len());
    Ok(make_array(data.add_buffer(buffer).nulls(nulls).build()?))
}

/// A field's bytes, with the chunk that owns them.
struct FieldBytes(Arc<Chunk>, usize);

impl AsRef<[u8]> for FieldBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.fields.get(self.1).map_or(&[], |f| f.data.as_slice())
    }
}

fn bitmap(bytes: &[u8]) -> BooleanBuffer {
    BooleanBuffer::collect_bool(bytes.len(), |i| bytes[i] != 0)
}

/// Writes NaN, or NaT, to the masked cells of a type that has such a value.
pub fn fill_masked(dtype: DType, cells: &mut [u8], valid: &[u8]) {
    fn fill<const N: usize>(cells: &mut [u8], valid: &[u8], value: [u8; N]) {
        for (cell, valid) in cells.as_chunks_mut::<N>().0.iter_mut().zip(valid) {
            if *valid == 0 {
                *cell = value;
            }
        }
    }
    match dtype {
        DType::Float32 => fill(cells, valid, f32::NAN.to_ne_bytes()),
        DType::Float64 => fill(cells, valid, f64::NAN.to_ne_bytes()),
        DType::Datetime(_) => fill(cells, valid, NAT.to_ne_bytes()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::pool::Pool;
    use crate::quota::Quota;
    use arrow::array::{Array, AsArray};
    use arrow::datatypes as types;
    use ndarray::array;

    #[test]
    fn arrays_come_and_go_without_a_copy() {
        let values = vec![1.5f64, 2.0, 3.0, 4.0, 5.0, 6.0];
        let at = values.as_ptr();
        let chunk = Arc::new(Chunk::from_vec(&[3, 2], values).unwrap());
        let view = chunk.view::<f64>(0).unwrap();
        assert_eq!(view, array![[1.5, 2.0], [3.0, 4.0], [5.0, 6.0]].into_dyn());
        assert_eq!(view.as_ptr(), at);
        let arrow = chunk.to_array().unwrap();
        let values = arrow.as_primitive::<types::Float64Type>().values();
        assert_eq!((values.as_ptr(), values.len()), (at, 6));
    }

    #[test]
    fn types_and_lengths_are_checked() {
        let chunk = Chunk::from_vec(&[2], vec![1i64, 2]).unwrap();
        assert!(chunk.view::<f64>(0).is_err());
        assert!(chunk.field(1).is_err());
        assert!(Chunk::from_vec(&[3], vec![1i64, 2]).is_err());
        assert!(Field::from_vec(DType::Float32, vec![1i32]).is_err());
        let times = Field::from_vec(DType::Datetime(Calendar::NoLeap), vec![7i64]).unwrap();
        assert_eq!(times.values::<i64>().unwrap(), [7]);
        assert_eq!(Chunk::from_vec::<f32>(&[0, 4], vec![]).unwrap().cells(), 0);
    }

    #[test]
    fn masks_and_booleans_become_bitmaps() {
        let value = Field::from_vec(DType::Bool, vec![1u8, 0, 1]).unwrap();
        let valid = Field::from_vec(DType::Bool, vec![1u8, 1, 0]).unwrap();
        let array = Arc::new(Chunk::new(&[3], [value, valid]).unwrap()).to_array().unwrap();
        let array = array.as_boolean();
        assert_eq!(array.iter().collect::<Vec<_>>(), [Some(true), Some(false), None]);
    }

    #[test]
    fn an_arrow_array_keeps_the_charge() {
        let quota = Quota::new(1 << 20);
        let pool = Pool::new(quota.clone(), 1 << 20);
        let field = Field::from_pooled(DType::Int16, pool.take(80)).unwrap();
        let mut chunk = Chunk::new(&[4, 10], [field]).unwrap();
        chunk.charge(quota.account().try_reserve(chunk.bytes()).unwrap());
        let chunk = Arc::new(chunk);
        let array = chunk.to_array().unwrap();
        drop(chunk);
        assert_eq!((array.len(), quota.used()), (40, 80));
        drop(array);
        assert_eq!(quota.used(), 0);
    }
}
