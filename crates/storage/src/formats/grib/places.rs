//! Places of fields, and of grids whose points are computed when they are read.

use super::grid::Grid;
use super::points;
use crate::formats::filters::Filter;
use crate::formats::view::{Fault, View};
use crate::formats::{ChunkIndex, Place};
use std::borrow::Cow;
use std::sync::Arc;
use tessera_planner::region::Dims;

/// The fields of a cube.
#[derive(Debug)]
pub(super) struct Places {
    /// Lengths of the axes before those of the grid.
    pub(super) lens: Dims,
    /// By the row-major index along these axes, in rising order.
    pub(super) list: Vec<(u64, Place)>,
}

impl Places {
    /// The row-major index of a position; `None` if it does not fit.
    pub(super) fn index(lens: &[u64], at: &[u64]) -> Option<u64> {
        lens.iter().zip(at).try_fold(0u64, |n, (len, i)| n.checked_mul(*len)?.checked_add(*i))
    }
}

impl ChunkIndex for Places {
    fn find(&self, _: &View<'_>, units: &[Dims]) -> Result<Vec<Option<Place>>, Fault> {
        let place = |at: &Dims| {
            let index = Places::index(&self.lens, at)?;
            let i = self.list.binary_search_by_key(&index, |(index, _)| *index).ok()?;
            Some(self.list[i].1.clone())
        };
        Ok(units.iter().map(place).collect())
    }
}

/// The one chunk of an array: the section that defines a grid.
#[derive(Debug)]
pub(super) struct Section(pub(super) Place);

impl ChunkIndex for Section {
    fn find(&self, _: &View<'_>, units: &[Dims]) -> Result<Vec<Option<Place>>, Fault> {
        Ok(units.iter().map(|_| Some(self.0.clone())).collect())
    }
}

/// Computes the latitudes or longitudes of the points of a grid, `float64`.
#[derive(Debug)]
pub(super) struct Points {
    pub(super) grid: Arc<Grid>,
    pub(super) are_longitudes: bool,
}

impl Filter for Points {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        let n = usize::try_from(self.grid.count).ok().and_then(|n| n.checked_mul(8));
        let n = n.filter(|n| *n <= limit);
        let mut out = vec![0; n.ok_or_else(|| format!("{} points", self.grid.count))?];
        self.undo_to(&bytes, &mut out)?;
        Ok(Cow::Owned(out))
    }

    fn undo_to(&self, _: &[u8], out: &mut [u8]) -> Result<bool, String> {
        let cells = out.as_chunks_mut::<8>().0;
        let all = cells.len();
        let mut cells = cells.iter_mut();
        let mut count = 0;
        points::each(&self.grid, |latitude, longitude| {
            count += 1;
            if let Some(cell) = cells.next() {
                *cell = if self.are_longitudes { longitude } else { latitude }.to_ne_bytes();
            }
        })?;
        match count == all {
            true => Ok(true),
            false => Err(format!("a grid of {count} points, expected {all}")),
        }
    }
}
