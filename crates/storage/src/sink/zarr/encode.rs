//! From the cells of a chunk to the bytes of an object.
//!
//! ```text
//!   a chunk at the edge       its object: chunks are stored whole
//!   1 2 |                     1 2 f
//!   3 # |  # masked           3 f f     f: the fill value
//!   ----+                     f f f
//! ```

use super::Codec;
use super::document::{ArrayDocument, Cells};
use crate::manifest::TRAILER;
use crate::sink::SinkError;
use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tessera_kernels::copy::{Strided, copy_box};
use tessera_planner::dtype::DType;
use tessera_planner::region::{Dims, strides};
use tessera_planner::scalar::Scalar;
use zarrs::array::codec::CodecChain;
use zarrs::array::codec::api::{ArrayToBytesCodecTraits, CodecOptions};
use zarrs::array::{ArrayBytes, ArrayBytesOffsets, DataType, FillValue};
use zstd::bulk::Compressor;
use zstd::zstd_safe;

/// Upper bound on the buffer that a thread retains for encoded objects.
const KEPT_BYTES_MAX: usize = 32 << 20;

thread_local! {
    /// The thread's zstd context with its level, and the buffer of its last object: new pages for each object would
    /// cost a tenth of compressing it.
    static COMPRESSOR: RefCell<Option<(i32, Compressor<'static>)>> = const { RefCell::new(None) };
    static SPARE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Compresses with the thread's context; the buffer has room for a checksum at the end.
fn compress(level: i32, cells: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = SPARE.take();
    out.clear();
    out.reserve(zstd_safe::compress_bound(cells.len()) + TRAILER);
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some((of, compressor)) if *of == level => compressor,
            _ => &mut kept.insert((level, Compressor::new(level)?)).1,
        };
        compressor.compress_to_buffer(cells, &mut out)
    })?;
    Ok(out)
}

/// Retains the buffer of a stored object for the next one.
pub(super) fn again(buffer: Vec<u8>) {
    if buffer.capacity() <= KEPT_BYTES_MAX {
        SPARE.set(buffer);
    }
}

/// Encodes the objects of one array.
#[derive(Debug)]
pub(super) struct Encoder {
    name: String,
    chain: Arc<CodecChain>,
    dtype: DataType,
    fill: FillValue,
    object: Dims,
    /// Bytes of a cell; 0 for texts.
    size: usize,
    /// The level, if the encoding of an object is zstd over its cells in memory order.
    zstd: Option<i32>,
    /// True if the output of zstd is followed by its checksum.
    checked: bool,
}

/// The cells of an object.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    pub(super) bytes: Cow<'a, [u8]>,
    /// True if a valid cell has the value stored for masked cells.
    pub(super) collides: bool,
    pub(super) masked: bool,
}

impl Encoder {
    pub(super) fn new(document: &ArrayDocument) -> Result<Self, SinkError> {
        let meta = document.checked()?;
        let size = match document.cells {
            Cells::Number(d) => d.size(),
            Cells::Text(_) => 0,
        };
        let array = meta.zarr.ok_or_else(|| SinkError::Internal {
            what: document.name.clone(),
            reason: "its metadata are not Zarr's".into(),
        })?;
        Ok(Encoder {
            name: document.name.clone(),
            chain: array.codecs(),
            dtype: array.data_type().clone(),
            fill: array.fill_value().clone(),
            object: document.object.clone(),
            size,
            zstd: match document.codec {
                Codec::Zstd(level)
                    if document.inner.is_none() && size > 0 && cfg!(target_endian = "little") =>
                {
                    Some(level)
                }
                _ => None,
            },
            checked: document.checked,
        })
    }

    /// Bytes of an object before encoding.
    pub(super) fn bytes(&self) -> u64 {
        self.object.iter().fold(self.size as u64, |n, &d| n.saturating_mul(d))
    }

    /// Upper bound on the bytes that [`Encoder::encode`] holds, its input included.
    pub(super) fn peak(&self, sharded: bool) -> u64 {
        let plain = self.bytes();
        // Compressors may add a little; a shard holds its encoded chunks before they are concatenated.
        plain
            .saturating_mul(if sharded { 3 } else { 2 })
            .saturating_add(plain / 8)
            .saturating_add(128 << 10)
    }

    /// Returns the object's cells: the cells of a chunk of lengths `shape`, and `fill` where a cell is masked or beyond
    /// the edge. `stands` is the value stored for masked cells, if the type has one.
    pub(super) fn cut<'a>(
        &self,
        cells: &'a [u8],
        valid: Option<&[u8]>,
        shape: &[u64],
        fill: Scalar,
        stands: Option<Scalar>,
    ) -> Result<Cut<'a>, SinkError> {
        let broken = |reason: String| SinkError::Internal { what: self.name.clone(), reason };
        let collides = valid.is_some_and(|v| stands.is_some_and(|s| meets(cells, v, self.size, s)));
        let whole = shape == self.object.as_slice();
        let masked = valid.is_some_and(|v| v.contains(&0));
        if whole && !masked {
            return Ok(Cut { bytes: Cow::Borrowed(cells), collides, masked });
        }
        let fill = &fill.to_le_bytes()[..self.size];
        let mut dense = Cow::Borrowed(cells);
        if let Some(v) = valid.filter(|_| masked) {
            for (cell, _) in
                dense.to_mut().chunks_exact_mut(self.size).zip(v).filter(|(_, v)| **v == 0)
            {
                cell.copy_from_slice(fill);
            }
        }
        if whole {
            return Ok(Cut { bytes: dense, collides, masked });
        }
        let n = self.object.iter().product::<u64>() as usize;
        let mut out = fill.repeat(n);
        let from = Strided { bytes: &dense, offset: 0, strides: &strides(shape) };
        copy_box(self.size, shape, from, &mut out, 0, &strides(&self.object))
            .map_err(|e| broken(e.to_string()))?;
        Ok(Cut { bytes: Cow::Owned(out), collides, masked })
    }

    /// True if every cell is bitwise the fill value: such an object need not be stored.
    pub(super) fn is_fill(&self, cells: &[u8]) -> bool {
        let fill = self.fill.as_ne_bytes();
        fill.len() == self.size && cells.chunks_exact(self.size).all(|c| c == fill)
    }

    /// Encodes an object, into a buffer that [`again`] takes back.
    pub(super) fn encode(&self, cells: Cow<'_, [u8]>) -> Result<Vec<u8>, SinkError> {
        if let Some(level) = self.zstd {
            let mut out = compress(level, &cells).map_err(|e| SinkError::Internal {
                what: self.name.clone(),
                reason: format!("zstd: {e}"),
            })?;
            if self.checked {
                out.extend(crc32c::crc32c(&out).to_le_bytes());
            }
            return Ok(out);
        }
        self.run(ArrayBytes::new_flen(cells))
    }

    /// Like [`Encoder::encode`], for concatenated texts.
    pub(super) fn encode_texts(
        &self,
        bytes: &[u8],
        offsets: Vec<usize>,
    ) -> Result<Vec<u8>, SinkError> {
        let broken = |reason: String| SinkError::Internal { what: self.name.clone(), reason };
        let offsets = ArrayBytesOffsets::new(offsets).map_err(|e| broken(e.to_string()))?;
        let texts = ArrayBytes::new_vlen(bytes, offsets).map_err(|e| broken(e.to_string()))?;
        self.run(texts)
    }

    fn run(&self, cells: ArrayBytes<'_>) -> Result<Vec<u8>, SinkError> {
        let made = encoded(&self.chain, cells, &self.object, &self.dtype, &self.fill);
        made.map_err(|reason| SinkError::Internal { what: self.name.clone(), reason })
    }
}

/// Encodes the cells of an object of these lengths; the error is the reason why its codecs do not.
pub(in crate::sink) fn encoded(
    chain: &CodecChain,
    cells: ArrayBytes<'_>,
    object: &[u64],
    dtype: &DataType,
    fill: &FillValue,
) -> Result<Vec<u8>, String> {
    let shape: Vec<NonZeroU64> = object.iter().filter_map(|&n| NonZeroU64::new(n)).collect();
    // One thread: the scheduler counts threads, zarrs' own pool would escape it.
    let options =
        CodecOptions::default().with_concurrent_target(1).with_chunk_concurrent_minimum(1);
    let run = || chain.encode(cells, &shape, dtype, fill, &options);
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(bytes)) => Ok(bytes.into_owned()),
        Ok(Err(e)) => Err(e.to_string()),
        Err(_) => Err("its codec failed".into()),
    }
}

/// True if a valid cell has the value; NaN equals every NaN. A cell has `size` bytes.
pub fn meets(cells: &[u8], valid: &[u8], size: usize, value: Scalar) -> bool {
    let want = value.to_le_bytes();
    let mut pairs = cells.chunks_exact(size).zip(valid);
    match value.dtype() {
        DType::Float32 if value.as_f64().is_nan() => pairs.any(|(c, &v)| {
            v != 0 && c.first_chunk().is_some_and(|b| f32::from_le_bytes(*b).is_nan())
        }),
        DType::Float64 if value.as_f64().is_nan() => pairs.any(|(c, &v)| {
            v != 0 && c.first_chunk().is_some_and(|b| f64::from_le_bytes(*b).is_nan())
        }),
        _ => pairs.any(|(c, &v)| v != 0 && *c == want[..size]),
    }
}
