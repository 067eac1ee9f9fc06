//! A tensor that is read window by window, in row-major order.
//!
//! ```text
//!   . . . . . .      windows of [4, 6] with at most 12 cells: rows 0 and 1, then rows 2 and 3;
//!   # # # # # #      with at most 4: columns 0 to 3 of row 0, columns 4 and 5 of row 0, …
//!   # # # # # #
//!   . . . . . .      The cells of a window follow each other in row-major order.
//! ```
//! So formats hold some megabytes of a tensor, independent of its size. The cells may be in one piece, in the chunks in
//! which they were computed, or in a file.

use super::{Cell, Tensor};
use crate::error::Error;
use arrow::buffer::Buffer;
use std::borrow::Cow;
use std::sync::Arc;
use tessera_frontend::labels::DatasetLabels;
use tessera_planner::catalog::{Attrs, CoordValues, DimLabel, NAT};
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;
use tessera_planner::region::{Dims, Region};

/// The metadata of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// The name.
    pub name: &'a str,
    /// False if the name is derived from the item's text.
    pub named: bool,
    /// Type of the cells.
    pub dtype: DType,
    /// Names and coordinates of the axes.
    pub dims: &'a [DimLabel],
    /// The chunks in which the tensor was computed.
    pub grid: &'a Grid,
    /// May cells be masked?
    pub nullable: bool,
    /// The attributes of the result.
    pub attrs: &'a Attrs,
    /// True for a coordinate of other results that is not the labels of a dimension.
    pub is_coordinate: bool,
    /// The attributes and labels that all results share.
    pub dataset: &'a Arc<DatasetLabels>,
}

/// A tensor whose cells are read window by window.
pub trait Windows: Send + Sync {
    /// The metadata, without reading a cell.
    fn head(&self) -> Head<'_>;

    /// The cells of a window, one of [`windows`].
    ///
    /// # Errors
    /// A file cannot be read.
    fn window(&self, region: &Region) -> Result<Cells, Error>;

    /// True if a chunk of the grid may be read as a window, too.
    fn has_chunks(&self) -> bool {
        false
    }
}

/// Cells in row-major order: dense, little-endian, aligned for their type.
#[derive(Debug, Clone)]
pub struct Cells {
    /// The type of the cells.
    pub dtype: DType,
    /// The bytes of the cells.
    pub data: Buffer,
    /// One byte for each cell, 0 where it is masked; `None` if no cell can be masked.
    pub valid: Option<Buffer>,
}

impl Cells {
    /// Number of cells.
    pub fn len(&self) -> usize {
        self.data.len() / self.dtype.size()
    }

    /// True if the window has no cells.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// A cell by its number, below `len`.
    pub fn cell(&self, i: usize) -> Cell<'static> {
        cell_at(self.dtype, &self.data, self.valid.as_deref(), i)
    }
}

impl Head<'_> {
    /// Lengths of the axes.
    pub fn shape(&self) -> Dims {
        self.grid.shape()
    }

    /// Number of cells.
    pub fn cells(&self) -> u64 {
        self.shape().iter().product()
    }

    /// Names of the axes. An axis without a name is `dim_0`, …; a name that an earlier axis has gets `_1`, ….
    pub fn dim_names(&self) -> Vec<Arc<str>> {
        dim_names(self.dims)
    }

    /// The label at `position` of `axis`; without a coordinate, the position.
    pub fn label(&self, axis: usize, position: usize) -> Cell<'_> {
        label(&self.dims[axis], position)
    }
}

impl Windows for Tensor {
    fn head(&self) -> Head<'_> {
        Head {
            name: &self.name,
            named: true,
            dtype: self.dtype,
            dims: &self.dims,
            grid: &self.grid,
            nullable: self.valid.is_some(),
            attrs: &self.attrs,
            is_coordinate: self.is_coordinate,
            dataset: &self.dataset,
        }
    }

    fn window(&self, region: &Region) -> Result<Cells, Error> {
        let (first, n) = (number(&region.start, &self.shape()) as usize, region.cells() as usize);
        let size = self.dtype.size();
        Ok(Cells {
            dtype: self.dtype,
            data: self.data.slice_with_length(first * size, n * size),
            valid: self.valid.as_ref().map(|v| v.slice_with_length(first, n)),
        })
    }
}

/// The windows of a tensor, at most `cells_max` cells each, in row-major order.
pub fn windows(shape: &[u64], cells_max: u64) -> impl Iterator<Item = Region> + use<> {
    let shape: Dims = shape.into();
    // The inner axes that a window spans.
    let (mut whole, mut inner) = (shape.len(), 1u64);
    while whole > 0 && inner.saturating_mul(shape[whole - 1]) <= cells_max.max(1) {
        whole -= 1;
        inner *= shape[whole];
    }
    let is_empty = shape.contains(&0);
    let step = (cells_max / inner.max(1)).max(1);
    let mut next = (!is_empty).then(|| -> Dims { shape.iter().map(|_| 0).collect() });
    std::iter::from_fn(move || {
        let start = next.take()?;
        let mut end = shape.clone();
        for a in 0..whole {
            end[a] = start[a] + 1;
        }
        if whole > 0 {
            let cut = whole - 1;
            end[cut] = (start[cut] + step).min(shape[cut]);
            let mut after = start.clone();
            after[cut] = end[cut];
            for a in (0..whole).rev() {
                if after[a] < shape[a] {
                    next = Some(after);
                    break;
                }
                after[a] = 0;
                if a > 0 {
                    after[a - 1] += 1;
                }
            }
        }
        Some(Region { start, end })
    })
}

/// The row-major number of the cell at `index`.
pub(super) fn number(index: &[u64], shape: &[u64]) -> u64 {
    index.iter().zip(shape).fold(0, |n, (i, len)| n * len + i)
}

/// Copies the dense cells of the box `part` to their places in the dense box `whole`, which contains it. A cell has
/// `size` bytes.
pub(super) fn scatter(from: &[u8], part: &Region, whole: &Region, size: usize, to: &mut [u8]) {
    runs(part, whole, &mut |cell, at, n| {
        to[at * size..][..n * size].copy_from_slice(&from[cell * size..][..n * size]);
    });
}

/// Calls `run` with cells of the box `part` that follow each other in the box `whole`, which contains it: the number of the
/// first one in either box, and how many they are.
pub(super) fn runs(part: &Region, whole: &Region, run: &mut dyn FnMut(usize, usize, usize)) {
    let rank = part.rank();
    let shape = whole.shape();
    // The inner axes that the part spans, and one more, make a run.
    let mut inner = rank;
    while inner > 0 && part.len(inner - 1) == shape[inner - 1] {
        inner -= 1;
    }
    let outer = inner.saturating_sub(1);
    let cells = (outer..rank).map(|a| part.len(a)).product::<u64>() as usize;
    if cells == 0 {
        return;
    }
    let mut index: Dims = part.start.iter().zip(&whole.start).map(|(p, w)| p - w).collect();
    for first in (0..part.cells() as usize).step_by(cells) {
        run(first, number(&index, &shape) as usize, cells);
        for a in (0..outer).rev() {
            index[a] += 1;
            if index[a] < part.end[a] - whole.start[a] {
                break;
            }
            index[a] = part.start[a] - whole.start[a];
        }
    }
}

/// Unique names of axes.
pub(super) fn dim_names(dims: &[DimLabel]) -> Vec<Arc<str>> {
    let mut names: Vec<Arc<str>> = Vec::with_capacity(dims.len());
    for (i, d) in dims.iter().enumerate() {
        let own = d.name.clone().unwrap_or_else(|| format!("dim_{i}").into());
        let mut name = own.clone();
        let mut suffix = 1;
        while names.contains(&name) {
            name = format!("{own}_{suffix}").into();
            suffix += 1;
        }
        names.push(name);
    }
    names
}

pub(super) fn label(dim: &DimLabel, position: usize) -> Cell<'_> {
    match dim.coord.as_deref().map(|c| &c.values) {
        None => Cell::Int(position as i64),
        // An unsigned label beyond the signed range is stored as the same bits.
        Some(CoordValues::Int(DType::UInt64, v)) => Cell::UInt(v[position] as u64),
        Some(CoordValues::Int(_, v)) => Cell::Int(v[position]),
        Some(CoordValues::Float(DType::Float32, v)) => Cell::F32(v[position] as f32),
        Some(CoordValues::Float(_, v)) => Cell::F64(v[position]),
        Some(CoordValues::Time(_, v)) if v[position] == NAT => Cell::Null,
        Some(CoordValues::Unreadable(_)) => Cell::Null,
        Some(CoordValues::Time(c, v)) => {
            Cell::Text(tessera_planner::time::format_micros(v[position], *c).into())
        }
        Some(CoordValues::Text(v)) => {
            v.at(position).map_or(Cell::Null, |text| Cell::Text(Cow::Borrowed(text)))
        }
    }
}

/// The cell with number `i` in `data`.
pub(super) fn cell_at(dtype: DType, data: &[u8], valid: Option<&[u8]>, i: usize) -> Cell<'static> {
    if valid.is_some_and(|v| v[i] == 0) {
        return Cell::Null;
    }
    fn bytes<const N: usize>(data: &[u8], i: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&data[i * N..(i + 1) * N]);
        out
    }
    let d = data;
    match dtype {
        DType::Bool => Cell::Bool(d[i] != 0),
        DType::Int8 => Cell::Int(i8::from_le_bytes(bytes(d, i)).into()),
        DType::Int16 => Cell::Int(i16::from_le_bytes(bytes(d, i)).into()),
        DType::Int32 => Cell::Int(i32::from_le_bytes(bytes(d, i)).into()),
        DType::Int64 => Cell::Int(i64::from_le_bytes(bytes(d, i))),
        DType::UInt8 => Cell::UInt(d[i].into()),
        DType::UInt16 => Cell::UInt(u16::from_le_bytes(bytes(d, i)).into()),
        DType::UInt32 => Cell::UInt(u32::from_le_bytes(bytes(d, i)).into()),
        DType::UInt64 => Cell::UInt(u64::from_le_bytes(bytes(d, i))),
        DType::Float32 => Cell::F32(f32::from_le_bytes(bytes(d, i))),
        DType::Float64 => Cell::F64(f64::from_le_bytes(bytes(d, i))),
        DType::Datetime(c) => {
            let t = i64::from_le_bytes(bytes(d, i));
            Cell::Text(tessera_planner::time::format_micros(t, c).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_each_other() {
        for shape in [&[][..], &[7], &[4, 6], &[3, 1, 5], &[2, 3, 4], &[1, 1], &[2, 0, 3]] {
            for cells_max in [1, 2, 4, 5, 12, 1000] {
                let mut at = 0;
                for w in windows(shape, cells_max) {
                    assert_eq!(number(&w.start, shape), at, "{shape:?} {cells_max}");
                    assert!(w.cells() <= cells_max && w.cells() > 0, "{w:?}");
                    at += w.cells();
                }
                assert_eq!(at, shape.iter().product::<u64>(), "{shape:?} {cells_max}");
            }
        }
        assert_eq!(windows(&[4, 6], 12).count(), 2);
    }

    #[test]
    fn parts_are_placed_at_their_offsets() {
        let whole = Region { start: [2, 0, 0].as_slice().into(), end: [4, 3, 4].as_slice().into() };
        let part = Region { start: [2, 1, 1].as_slice().into(), end: [4, 3, 3].as_slice().into() };
        let mut to = vec![0u8; 24];
        scatter(&[1, 2, 3, 4, 5, 6, 7, 8], &part, &whole, 1, &mut to);
        let want = [0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 5, 6, 0, 0, 7, 8, 0];
        assert_eq!(to, want);
        let scalar = Region::whole(&[]);
        let mut one = [0u8; 2];
        scatter(&[7, 8], &scalar, &scalar, 2, &mut one);
        assert_eq!(one, [7, 8]);
    }
}
