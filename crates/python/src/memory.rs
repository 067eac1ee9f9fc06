//! Memory that crosses between Python and the engine without a copy.

use arrow::buffer::Buffer;
use bytes::{Bytes, BytesMut};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use tessera_engine::answer::PooledBuf;

/// Cells of an answer, for `numpy.frombuffer`. Only Python holds them, so they may be written.
#[pyclass]
pub struct Memory {
    /// `None` once it drops.
    bytes: Option<Owned>,
    process: u32,
}

enum Owned {
    /// From the engine's pool, to which it returns.
    Pooled(PooledBuf),
    Own(BytesMut),
}

impl Owned {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Owned::Pooled(bytes) => bytes.as_mut_slice(),
            Owned::Own(bytes) => bytes,
        }
    }
}

impl Memory {
    pub(crate) fn new(cells: BytesMut) -> Self {
        Memory::of(Owned::Own(cells))
    }

    pub(crate) fn pooled(cells: PooledBuf) -> Self {
        Memory::of(Owned::Pooled(cells))
    }

    fn of(owned: Owned) -> Self {
        Memory { bytes: Some(owned), process: std::process::id() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // After a fork, a thread of the parent may have held the pool's lock, which no thread of the child releases.
        if self.process != std::process::id() {
            std::mem::forget(self.bytes.take());
        }
    }
}

#[pymethods]
impl Memory {
    /// Number of bytes.
    fn __len__(&self) -> usize {
        match &self.bytes {
            Some(Owned::Pooled(bytes)) => bytes.len(),
            Some(Owned::Own(bytes)) => bytes.len(),
            None => 0,
        }
    }

    #[allow(unsafe_code, reason = "the buffer protocol is C's")]
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (start, bytes) = {
            let mut memory = slf.borrow_mut();
            let bytes = memory.bytes.as_mut().map_or(&mut [][..], Owned::bytes);
            (bytes.as_mut_ptr(), bytes.len() as ffi::Py_ssize_t)
        };
        // SAFETY: Python passes a `view` that it owns. The memory lives as long as `slf`, which the view refers to until
        // it is released, and nothing moves or shortens it. All bytes are initialised.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), bytes, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Memory of a Python object, with the layout of its cells.
pub(crate) struct Borrowed {
    /// All bytes from the lowest to the highest address of a cell.
    pub(crate) data: Buffer,
    /// Bytes between the lowest address and the first cell.
    pub(crate) first: i64,
    pub(crate) shape: Vec<u64>,
    /// Bytes from one cell to the next along each axis.
    pub(crate) strides: Vec<i64>,
}

/// The memory of an object with the buffer protocol. The object lives and keeps its memory until the result drops.
///
/// # Errors
/// Python's, if the object has no such memory, or memory with pointers in it.
pub(crate) fn borrow(object: &Bound<'_, PyAny>) -> PyResult<Borrowed> {
    let buffer = PyUntypedBuffer::get(object)?;
    if buffer.suboffsets().is_some() {
        return Err(PyValueError::new_err("memory with suboffsets is not supported"));
    }
    let shape: Vec<u64> = buffer.shape().iter().map(|n| *n as u64).collect();
    let strides: Vec<i64> = buffer.strides().iter().map(|n| *n as i64).collect();
    if buffer.item_count() == 0 {
        return Ok(Borrowed {
            data: Buffer::from_vec(Vec::<u64>::new()),
            first: 0,
            shape,
            strides,
        });
    }
    let (mut before, mut after) = (0i64, 0i64);
    for (len, stride) in shape.iter().zip(&strides) {
        let reach = (*len as i64 - 1) * stride;
        if reach < 0 { before -= reach } else { after += reach }
    }
    let bytes = (before + after) as usize + buffer.item_size();
    let lent = LentBytes { buffer, before: before as usize, bytes };
    let data = Buffer::from(Bytes::from_owner(lent));
    Ok(Borrowed { data, first: before, shape, strides })
}

/// Bytes of a Python object.
struct LentBytes {
    buffer: PyUntypedBuffer,
    before: usize,
    bytes: usize,
}

impl AsRef<[u8]> for LentBytes {
    #[allow(unsafe_code, reason = "memory of another language")]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the object promises that all cells of its shape and strides are memory of one allocation until the
        // buffer is released, which happens when `self` drops. `before` and `bytes` span exactly these cells. If the
        // caller changes cells while a statement reads them, the statement reads old or new bytes, all of which are valid
        // numbers.
        unsafe {
            let first = self.buffer.buf_ptr().cast::<u8>().sub(self.before);
            std::slice::from_raw_parts(first, self.bytes)
        }
    }
}
