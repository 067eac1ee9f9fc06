//! The file of one chunk.
//!
//! ```text
//!   field 0, padded to blocks │ field 1, padded │ … │ CRC-32 of each block, 4 bytes little-endian
//! ```
//! Fields are stored as in memory. A block is 4 KiB and its checksum is verified when it is read, so that reading a
//! part of a chunk costs only the blocks that it touches.

use super::{Directory, Space, Store};
use crate::chunk::{Chunk, Field};
use crate::error::Error;
use crate::pool::Pool;
use smallvec::SmallVec;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tessera_kernels::copy::{self, Strided};
use tessera_planner::dtype::DType;
use tessera_planner::region::{Dims, cells};
use tessera_storage::{fail, warn_unless_removed};

/// Bytes per checksum.
const BLOCK: u64 = 4096;
/// Upper bound on the bytes of one read of a part.
const WINDOW: u64 = 256 << 10;
/// A gap between two runs that is cheaper to read than to skip.
const GAP: u64 = 16 << 10;
/// Upper bound on the memory that one operand uses to read parts of files, whatever their number.
const STAGING: u64 = WINDOW + 2 * BLOCK + 4 * (WINDOW / BLOCK + 2);

/// A chunk in a file, which is unlinked on drop.
#[derive(Debug)]
pub struct Spilled {
    path: PathBuf,
    number: u64,
    shape: Dims,
    fields: SmallVec<[DType; 2]>,
    bytes: u64,
    unmasked: bool,
    store: Arc<Store>,
    /// Dropped after the file is removed.
    _space: Space,
    _directory: Arc<Directory>,
}

/// Length of a field with its padding.
fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK)
}

/// Returns the checksum of a block. It depends on the file and on the block's position, so that a misplaced block is
/// detected.
fn sum(file: u64, block: u64, bytes: &[u8]) -> u32 {
    // An odd factor leaves numbers distinct.
    let place = file.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(block);
    crc32fast::hash(bytes) ^ (place ^ place >> 32) as u32
}

/// Bytes of the file of a chunk.
pub(super) fn size_of(chunk: &Chunk) -> u64 {
    let of = |f: &Field| {
        let len = padded(f.buffer().len() as u64);
        len + 4 * (len / BLOCK)
    };
    chunk.fields().iter().map(of).sum()
}

/// [`Spilled::staging`] of a chunk of `bytes` bytes.
pub(crate) fn staging_of(bytes: u64) -> u64 {
    let blocks = padded(bytes) / BLOCK;
    STAGING.min(blocks * (BLOCK + 4))
}

impl Spilled {
    pub(super) fn write(
        chunk: &Chunk,
        space: Space,
        directory: Arc<Directory>,
    ) -> Result<Self, Error> {
        let store = space.store.clone();
        let number = store.number();
        let path = directory.file(&format!("{number}.chunk"));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|e| store.io(&e))?;
        store.files.fetch_add(1, Relaxed);
        // From here on dropping it removes the file.
        let spilled = Spilled {
            path,
            number,
            shape: chunk.shape().into(),
            fields: chunk.fields().iter().map(Field::dtype).collect(),
            bytes: chunk.bytes(),
            unmasked: chunk.is_unmasked(),
            store,
            _space: space,
            _directory: directory,
        };
        spilled.fill(&file, chunk).map_err(|e| spilled.store.io(&e))?;
        Ok(spilled)
    }

    fn fill(&self, file: &File, chunk: &Chunk) -> std::io::Result<()> {
        fail::point("spill.write")?;
        let mut sums: Vec<u8> = Vec::new();
        let mut at = 0;
        for field in chunk.fields() {
            let bytes = field.buffer().as_slice();
            file.write_all_at(bytes, at)?;
            for (i, block) in bytes.chunks(BLOCK as usize).enumerate() {
                sums.extend(sum(self.number, at / BLOCK + i as u64, block).to_le_bytes());
            }
            at += padded(bytes.len() as u64);
        }
        file.write_all_at(&sums, at)?;
        fail::point("spill.written")
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Bytes of the chunk when it is in memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory that an operand uses to read parts of this file. Files are read one after the other.
    pub fn staging(&self) -> u64 {
        staging_of(self.bytes)
    }

    pub(crate) fn is_unmasked(&self) -> bool {
        self.unmasked
    }

    /// Shape of the chunk.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Types of its fields.
    pub fn fields(&self) -> &[DType] {
        &self.fields
    }

    /// Opens the file to read parts of it; `read` counts the bytes.
    ///
    /// # Errors
    /// [`Error::ScratchCorrupt`] if it is missing, [`Error::ScratchUnusable`] if it cannot be opened.
    pub fn reader<'a>(&'a self, read: &'a AtomicU64) -> Result<Reader<'a>, Error> {
        let file = File::open(&self.path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => self.corrupt(&e.to_string()),
            _ => self.store.io(&e),
        })?;
        Ok(Reader { of: self, file, read, window: Vec::new(), sums: Vec::new(), holds: None })
    }

    /// Loads the whole chunk into memory.
    ///
    /// # Errors
    /// [`Error::ScratchCorrupt`] if the file is corrupt or cannot be read, [`Error::ScratchUnusable`] if it cannot be
    /// opened.
    pub fn load(self: &Arc<Self>, pool: &Arc<Pool>, read: &AtomicU64) -> Result<Chunk, Error> {
        let mut reader = self.reader(read)?;
        let mut fields: SmallVec<[Field; 2]> = SmallVec::new();
        for (f, &dtype) in self.fields.iter().enumerate() {
            let len = self.field_len(f);
            let mut buffer = pool.take(len as usize);
            reader.fill(f, buffer.as_mut_slice())?;
            fields.push(Field::from_pooled(dtype, buffer)?);
        }
        let chunk = Chunk::new(&self.shape, fields)?;
        let chunk = if self.unmasked { chunk.unmasked() } else { chunk };
        chunk.is_also(self.clone());
        Ok(chunk)
    }

    fn field_len(&self, field: usize) -> u64 {
        cells(&self.shape).unwrap_or(0) * self.fields[field].size() as u64
    }

    /// Offset of a field in the file.
    fn field_at(&self, field: usize) -> u64 {
        (0..field).map(|f| padded(self.field_len(f))).sum()
    }

    fn corrupt(&self, reason: &str) -> Error {
        self.store.corrupt.fetch_add(1, Relaxed);
        tracing::warn!(file = %self.path.display(), reason, "a spilled chunk is not what was written");
        Error::ScratchCorrupt { file: self.path.clone() }
    }
}

impl Drop for Spilled {
    fn drop(&mut self) {
        warn_unless_removed(&self.path, std::fs::remove_file(&self.path));
        self.store.files.fetch_sub(1, Relaxed);
    }
}

/// Reads parts of a spilled chunk through a window of at most [`Spilled::staging`] bytes.
#[derive(Debug)]
pub struct Reader<'a> {
    of: &'a Spilled,
    file: File,
    read: &'a AtomicU64,
    window: Vec<u8>,
    sums: Vec<u8>,
    /// Field and range of its bytes in the window.
    holds: Option<(usize, u64, u64)>,
}

impl Reader<'_> {
    /// Types of the fields.
    pub fn fields(&self) -> &[DType] {
        &self.of.fields
    }

    /// Reads the first `to.len()` bytes of a field.
    fn fill(&mut self, field: usize, to: &mut [u8]) -> Result<(), Error> {
        self.read_blocks(field, 0, to)
    }

    /// Reads whole blocks of a field from `start` on (the last one may end with the field) and verifies them.
    fn read_blocks(&mut self, field: usize, start: u64, to: &mut [u8]) -> Result<(), Error> {
        let of = self.of;
        if to.is_empty() {
            return Ok(());
        }
        let io = |e: std::io::Error| of.corrupt(&e.to_string());
        self.file.read_exact_at(to, of.field_at(field) + start).map_err(io)?;
        let end = of.field_at(of.fields.len());
        let first = (of.field_at(field) + start) / BLOCK;
        self.sums.resize(4 * to.len().div_ceil(BLOCK as usize), 0);
        self.file.read_exact_at(&mut self.sums, end + 4 * first).map_err(io)?;
        let blocks = to.chunks(BLOCK as usize).zip(self.sums.chunks(4));
        for (i, (block, told)) in blocks.enumerate() {
            if sum(of.number, first + i as u64, block).to_le_bytes() != told {
                return Err(of.corrupt("its checksum is another one"));
            }
        }
        self.read.fetch_add(to.len() as u64, Relaxed);
        of.store.read_back.fetch_add(to.len() as u64, Relaxed);
        Ok(())
    }

    /// Returns bytes `[lo, hi)` of a field, at most a window of them.
    fn span(&mut self, field: usize, lo: u64, hi: u64) -> Result<&[u8], Error> {
        let held = self.holds.filter(|&(f, from, to)| f == field && from <= lo && hi <= to);
        let start = match held {
            Some((_, start, _)) => start,
            None => {
                let len = self.of.field_len(field);
                if hi > len {
                    let what = format!("bytes to {hi} of a field of {len} bytes");
                    return Err(Error::Broken { what });
                }
                let (start, end) = (lo - lo % BLOCK, padded(hi).min(len));
                let mut window = std::mem::take(&mut self.window);
                window.resize((end - start) as usize, 0);
                self.holds = None;
                let read = self.read_blocks(field, start, &mut window);
                self.window = window;
                read?;
                self.holds = Some((field, start, end));
                start
            }
        };
        Ok(&self.window[(lo - start) as usize..(hi - start) as usize])
    }

    /// Copies cells as [`copy::copy_box`] does, from a field of the file: cell `p` of the box is at element `offset +
    /// Σ strides[a] * p[a]` of the field.
    ///
    /// # Errors
    /// The errors of [`Spilled::load`]; a box that exceeds the field or the target.
    pub fn copy(
        &mut self,
        field: usize,
        shape: &[u64],
        (offset, strides): (i64, &[i64]),
        to: &mut [u8],
        (to_offset, to_strides): (i64, &[i64]),
    ) -> Result<(), Error> {
        if shape.contains(&0) {
            return Ok(());
        }
        let size = self.of.fields[field].size() as i64;
        let (mut lo, mut hi) = (offset, offset);
        let mut widest: Option<usize> = None;
        for (a, (&n, &s)) in shape.iter().zip(strides).enumerate() {
            let reach = s * (n as i64 - 1);
            (lo, hi) = if reach < 0 { (lo + reach, hi) } else { (lo, hi + reach) };
            let wider = |w: usize| s.unsigned_abs() > strides[w].unsigned_abs();
            if n > 1 && widest.is_none_or(wider) {
                widest = Some(a);
            }
        }
        if lo < 0 {
            return Err(Error::Broken { what: format!("element {lo} of a spilled field") });
        }
        let (window, span) = (WINDOW as i64, (hi + 1 - lo) * size);
        let cut = widest.and_then(|a| {
            let step = strides[a].abs() * size;
            let inner = span - step * (shape[a] as i64 - 1);
            if step - inner > GAP as i64 || inner > window {
                Some((a, 1))
            } else if span > window {
                Some((a, ((window - inner) / step + 1) as u64))
            } else {
                None
            }
        });
        let Some((axis, count)) = cut else {
            let bytes = self.span(field, (lo * size) as u64, ((hi + 1) * size) as u64)?;
            let from = Strided { bytes, offset: offset - lo, strides };
            return Ok(copy::copy_box(size as usize, shape, from, to, to_offset, to_strides)?);
        };
        let mut part: Dims = shape.into();
        let mut done = 0;
        while done < shape[axis] {
            part[axis] = count.min(shape[axis] - done);
            let at = done as i64;
            let from = (offset + strides[axis] * at, strides);
            let target = (to_offset + to_strides[axis] * at, to_strides);
            self.copy(field, &part, from, to, target)?;
            done += part[axis];
        }
        Ok(())
    }
}
