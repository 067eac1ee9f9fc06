//! Uploads of a session: arrays become a temp tensor, rows a temp table.
//!
//! 1. Arrays arrive in the [engine's own form](crate::format::native), in a file. The file is checked as a whole first.
//! 2. Their chunks are read one after another. While at most half of the memory is in use, a chunk stays in memory,
//!    charged to the quota, and may be spilled later like chunks of any temp tensor. Otherwise it is spilled at once.
//! 3. The chunks have the grid of an `.npy` file, so that an array has the bits of its file.
//!
//! Rows stay in the file in which they arrived, an Arrow IPC stream; each statement reads it as it reads other tables.

use crate::answer::scratch::ScratchFile;
use crate::error::Error;
use crate::format::native::dataset::{self, Received, ReceivedArray};
use crate::session::open::Temp;
use crate::session::{Host, Session};
use arrow::buffer::MutableBuffer;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use tessera_exec::chunk::{Chunk, Field};
use tessera_exec::quota::Account;
use tessera_exec::store::{Resident, Space};
use tessera_planner::catalog::{Dataset, Decode, SourceRef, Variable};
use tessera_planner::dtype::DType;
use tessera_planner::region::cells;
use tessera_storage::source::{Lent, slabs};
use tokio_util::sync::CancellationToken;

/// Upper bound on the bytes of labels that are texts, and of attributes; a small memory limit lowers it.
const HEADER_MAX: u64 = 64 << 20;
const HEADER_SHARE: u64 = 64;

/// An upload.
#[derive(Debug)]
pub enum Upload {
    /// Arrays in the engine's own form.
    Arrays(ScratchFile),
    /// Rows.
    Rows(TableFile),
}

/// A file of rows, an Arrow IPC stream, which is removed when the value drops.
#[derive(Debug)]
pub struct TableFile {
    path: String,
    bytes: u64,
    _lent: Lent,
    _directory: TempDir,
    _space: Space,
}

impl TableFile {
    /// A file of `directory`, which occupies `space` and is `lent` to statements.
    ///
    /// # Errors
    /// The file cannot be found, or its path is not UTF-8.
    pub fn new(path: PathBuf, directory: TempDir, lent: Lent, space: Space) -> Result<Self, Error> {
        let bytes = std::fs::metadata(&path)
            .map_err(|e| Error::io("read the length of", path.display().to_string(), e))?
            .len();
        let path = path.into_os_string().into_string().map_err(|path| Error::Internal {
            what: format!("the spill directory `{}` is not UTF-8", path.display()),
        })?;
        Ok(TableFile { path, bytes, _lent: lent, _directory: directory, _space: space })
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Session {
    /// Keeps an upload under a name; returns its kind. Dropping the future stops it.
    pub(super) async fn keep_upload(
        &self,
        name: &str,
        upload: Upload,
    ) -> Result<&'static str, Error> {
        let temp = match upload {
            Upload::Rows(file) => Temp::table(file),
            Upload::Arrays(file) => {
                let (host, key) = (self.host.clone(), name.to_owned());
                let stop = CancellationToken::new();
                let _stops = stop.clone().drop_guard();
                let loading =
                    tokio::task::spawn_blocking(move || host.load(&key, &Arc::new(file), &stop));
                let blocked = |e| Error::Internal { what: format!("reading an upload ended: {e}") };
                loading.await.map_err(blocked)??
            }
        };
        let kind = temp.kind();
        self.temps().insert(name.to_owned(), Arc::new(temp));
        Ok(kind)
    }
}

impl Host {
    /// Loads arrays as a temp tensor.
    fn load(
        &self,
        name: &str,
        file: &Arc<ScratchFile>,
        stop: &CancellationToken,
    ) -> Result<Temp, Error> {
        let quota = self.runtime.quota();
        let account = quota.account();
        let header_max = HEADER_MAX.min(quota.limit() / HEADER_SHARE);
        let Received { attrs, coords, scalars, coordinates, arrays, labels } =
            dataset::read(file, header_max, &account)?;
        let mut loaded = Vec::with_capacity(arrays.len());
        for array in arrays {
            let resident = self.load_array(&array, file, &account, stop)?;
            let source = SourceRef {
                url: String::new(),
                path: array.name.clone(),
                dtype: array.dtype,
                shape: array.shape,
                grid: resident.grid.clone(),
                nullable: array.nullable,
                version: None,
                plain: false,
            };
            let dims = array.dims.into_iter().map(|dim| dim.map(Into::into)).collect();
            let variable = Variable {
                name: array.name.into(),
                dims,
                source,
                decode: Decode::default(),
                attrs: array.attrs,
            };
            loaded.push((variable, resident));
        }
        let dataset = Dataset {
            name: name.into(),
            attrs,
            coords: coords.into_iter().map(Arc::new).collect(),
            scalars: scalars.into_iter().map(Arc::new).collect(),
            coordinates: coordinates.into_iter().map(Into::into).collect(),
            ..Dataset::default()
        };
        Ok(Temp::uploaded(name, dataset, loaded, labels))
    }

    fn load_array(
        &self,
        array: &ReceivedArray,
        file: &ScratchFile,
        account: &Arc<Account>,
        stop: &CancellationToken,
    ) -> Result<Arc<Resident>, Error> {
        let (store, quota) = (self.runtime.store(), self.runtime.quota());
        let size = array.dtype.size() as u64;
        let grid = slabs(&array.shape, size, false);
        let resident = Resident::charged(grid.clone(), account).map_err(Error::stage)?;
        store.adopt(&resident);
        let all = cells(&array.shape).unwrap_or(0);
        let mut first = 0;
        for number in 0..grid.count() {
            if stop.is_cancelled() {
                return Err(Error::Cancelled);
            }
            // Chunks of this grid follow each other in row-major order.
            let shape = grid.region(&grid.unravel(number)).shape();
            let n = cells(&shape).unwrap_or(0);
            let mut charge = match account.try_reserve(n * (size + u64::from(array.nullable))) {
                Some(charge) => charge,
                // One chunk at a time, until it is in a file.
                None if store.is_on() => account.nothing(),
                None => {
                    account.reserve(n * (size + u64::from(array.nullable))).map_err(Error::stage)?
                }
            };
            let data = read_cells(file, array.start + first * size, n, array.dtype)?;
            let mut fields = vec![Field::new(array.dtype, data.into()).map_err(Error::stage)?];
            if array.nullable {
                let valid = read_cells(file, array.start + all * size + first, n, DType::Bool)?;
                fields.push(Field::new(DType::Bool, valid.into()).map_err(Error::stage)?);
            }
            let mut chunk = Chunk::new(&shape, fields).map_err(Error::stage)?;
            let held = if charge.bytes() == 0 && n > 0 {
                charge.extend(chunk.bytes());
                let space = store.reserve(&chunk).map_err(|e| self.scratch.full(e))?;
                let spilled = store.write(&chunk, space).map_err(|e| self.scratch.full(e))?;
                tessera_exec::store::FinishedChunk::File(spilled)
            } else {
                chunk.charge(charge);
                store.settle(Arc::new(chunk), quota).map_err(|e| self.scratch.full(e))?
            };
            resident.put_held(number, held);
            first += n;
        }
        Ok(resident)
    }
}

/// Reads `n` cells. Truth values are made 0 or 1, because kernels count on that.
fn read_cells(file: &ScratchFile, at: u64, n: u64, dtype: DType) -> Result<MutableBuffer, Error> {
    let mut cells = MutableBuffer::from_len_zeroed(n as usize * dtype.size());
    file.read_at(at, &mut cells)?;
    if dtype == DType::Bool {
        cells.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
    Ok(cells)
}
