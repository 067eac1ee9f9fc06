//! Arrays and tables of the caller as bytes, for a server.
//!
//! A dataset is written in the [engine's own form](crate::format::native), box by box in any layout, a table as an Arrow
//! IPC stream. Neither is copied as a whole.

use super::{Kind, Local, LocalArray};
use crate::answer::{Cells, Head, Windows};
use crate::error::Error;
use crate::format::native;
use crate::format::native::dataset::Sent;
use arrow::buffer::MutableBuffer;
use arrow::ipc::writer::StreamWriter;
use std::io::Write;
use std::sync::Arc;
use tessera_exec::task::Lent;
use tessera_frontend::labels::DatasetLabels;
use tessera_planner::catalog::DimLabel;
use tessera_planner::grid::Grid;
use tessera_planner::region::Region;
use tessera_storage::source::slabs;

/// The media type of a table.
const ARROW: &str = "application/vnd.apache.arrow.stream";

/// An array without labels, in its row-major order.
struct Unlabelled<'a> {
    array: &'a LocalArray,
    cells: Lent,
    dims: Vec<DimLabel>,
    grid: Grid,
    /// None: those of the dataset are sent beside its arrays.
    dataset: Arc<DatasetLabels>,
}

impl Unlabelled<'_> {
    fn of(array: &LocalArray) -> Unlabelled<'_> {
        let dim = |d: &Option<String>| DimLabel { name: d.as_deref().map(Into::into), coord: None };
        Unlabelled {
            array,
            cells: Lent::new(array.dtype, array.data.clone(), array.offset, &array.strides),
            dims: array.dims.iter().map(dim).collect(),
            grid: slabs(&array.shape, array.dtype.size() as u64, false),
            dataset: Arc::default(),
        }
    }
}

impl Windows for Unlabelled<'_> {
    fn head(&self) -> Head<'_> {
        Head {
            name: &self.array.name,
            named: true,
            dtype: self.array.dtype,
            dims: &self.dims,
            grid: &self.grid,
            nullable: self.array.valid.is_some(),
            attrs: &self.array.attrs,
            is_coordinate: self.array.is_auxiliary,
            dataset: &self.dataset,
        }
    }

    fn window(&self, region: &Region) -> Result<Cells, Error> {
        let (dtype, n) = (self.array.dtype, region.cells() as usize);
        let first = region.start.iter().zip(&self.array.shape).fold(0, |n, (i, len)| n * len + i);
        let valid = self.array.valid.as_ref();
        let valid = valid.map(|valid| valid.slice_with_length(first as usize, n));
        let data = match self.array.is_row_major() {
            true => {
                let start = (self.array.offset as usize + first as usize) * dtype.size();
                self.array.data.slice_with_length(start, n * dtype.size())
            }
            false => {
                let mut data = MutableBuffer::from_len_zeroed(n * dtype.size());
                self.cells.copy(region, &mut data).map_err(Error::stage)?;
                data.into()
            }
        };
        Ok(Cells { dtype, data, valid })
    }
}

impl Local {
    /// The media type of the bytes that [`Local::send`] writes.
    pub fn media_type(&self) -> &'static str {
        match &self.kind {
            Kind::Dataset { .. } => native::CONTENT_TYPE,
            Kind::Table { .. } | Kind::Stored(_) | Kind::Kept(_) => ARROW,
        }
    }

    /// Number of bytes that [`Local::send`] writes, if it is known before.
    ///
    /// # Errors
    /// Labels that are texts, and attributes, of more than 4 GiB.
    pub fn sent_bytes(&self) -> Result<Option<u64>, Error> {
        let Kind::Dataset { dataset, arrays, .. } = &self.kind else { return Ok(None) };
        let arrays: Vec<Unlabelled<'_>> = arrays.iter().map(Unlabelled::of).collect();
        let arrays: Vec<&dyn Windows> = arrays.iter().map(|a| a as _).collect();
        Ok(Some(Sent::new(dataset, &arrays)?.bytes()))
    }

    /// Writes it for a server.
    ///
    /// # Errors
    /// Errors of `out`; a batch that Arrow IPC cannot represent.
    pub fn send(&self, out: &mut dyn Write) -> Result<(), Error> {
        match &self.kind {
            Kind::Dataset { dataset, arrays, .. } => {
                let arrays: Vec<Unlabelled<'_>> = arrays.iter().map(Unlabelled::of).collect();
                let arrays: Vec<&dyn Windows> = arrays.iter().map(|a| a as _).collect();
                Sent::new(dataset, &arrays)?.write(out)
            }
            Kind::Table { table, batches } => {
                let refused = |source| Error::Rows { source };
                let mut rows = StreamWriter::try_new(out, &table.schema()).map_err(refused)?;
                batches.iter().try_for_each(|batch| rows.write(batch)).map_err(refused)?;
                rows.finish().map_err(refused)
            }
            Kind::Stored(url) => Err(Error::Unsupported {
                construct: format!("the store `{url}` of this program on a server"),
                hint: Some("name a store that the server reads, or load the data first".into()),
            }),
            Kind::Kept(_) => Err(Error::Internal { what: "an upload cannot be sent again".into() }),
        }
    }
}
