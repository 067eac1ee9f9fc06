//! Labels that a block assigns to its dimensions.
//!
//! ```text
//! SELECT (lon + 180) % 360 - 180 AS lon, t2m FROM era5
//!   lon    [lon]              its cells are the labels
//!   t2m    [time, lat, lon]   the same cells, under the new labels
//! ```
//! A 1-d item whose alias is the name of its own dimension is that dimension's coordinate in the whole dataset
//! that the block yields. As in xarray, the two share one name.

use std::collections::BTreeSet;
use std::sync::Arc;

use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{Coord, CoordValues, DimLabel};
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;

use super::value::{Dim, Tensor};
use super::{Lowerer, fail, misshapen, refuse};
use crate::error::{BindError, Error};
use crate::labels::are_coordinates;

impl Dim {
    /// The same dimension with other labels.
    pub(crate) fn labelled(&self, coord: Arc<Coord>) -> Self {
        Dim { name: Some(coord.dim.clone()), coord: Some(coord), group: None }
    }
}

/// For each item, true if another item has it as labels: see [`crate::labels::are_coordinates`].
pub(super) fn are_labels(items: &[Tensor]) -> Vec<bool> {
    let dims = |t: &Tensor| t.dims.iter().map(Dim::label).collect::<Vec<DimLabel>>();
    let dims: Vec<_> = items.iter().map(dims).collect();
    let named = items.iter().map(|t| t.name.as_deref().unwrap_or_default());
    are_coordinates(&named.zip(dims.iter().map(Vec::as_slice)).collect::<Vec<_>>())
}

impl Lowerer<'_, '_> {
    /// Makes the items whose alias is their own dimension its coordinate, on all items. `spans` has the position of
    /// each alias.
    ///
    /// # Errors
    /// `duplicate_name` for an item that has the name of a dimension of the block and does not lie along it alone,
    /// those of [`Lowerer::labels`], `shape_mismatch` and `not_aligned` if another item has other positions on it.
    pub(super) fn coordinates(
        &mut self,
        items: &mut [Tensor],
        spans: &[Option<Span>],
    ) -> Result<(), Error> {
        let dims = items.iter().flat_map(|item| &item.dims).filter_map(|dim| dim.name.clone());
        let dims: BTreeSet<Arc<str>> = dims.collect();
        for at in 0..items.len() {
            let (Some(span), Some(name)) = (spans[at], items[at].name.clone()) else { continue };
            if !dims.contains(&name) {
                continue;
            }
            let old = match items[at].dims.as_slice() {
                [dim] if dim.name.as_ref() == Some(&name) => dim.coord.clone(),
                _ => {
                    let kind = "dimension and item";
                    return fail(BindError::DuplicateName { kind, name: name.to_string() }, span);
                }
            };
            let item = items[at].clone();
            let coord = self.labels(&item, &name, span)?;
            if old.as_ref().is_some_and(|old| old.name == name && old.values == coord.values) {
                continue;
            }
            for other in items.iter_mut() {
                self.relabel(other, &coord, old.as_deref(), span)?;
            }
        }
        Ok(())
    }

    /// Sets a coordinate on the dimension that it labels, wherever a tensor has it. Existing labels must equal `old`,
    /// position by position.
    fn relabel(
        &self,
        t: &mut Tensor,
        coord: &Arc<Coord>,
        old: Option<&Coord>,
        span: Span,
    ) -> Result<(), Error> {
        let shape = self.b.shape(t.node);
        for (dim, &length) in t.dims.iter_mut().zip(&shape) {
            if dim.name.as_ref() != Some(&coord.dim) {
                continue;
            }
            if length != coord.values.len() as u64 {
                let hint = format!(
                    "each item of the block has to have the {} positions of `{}`",
                    coord.values.len(),
                    coord.dim
                );
                return misshapen(
                    &format!("the coordinate `{}`", coord.dim),
                    &[&[coord.values.len() as u64][..], &shape[..]],
                    hint,
                    span,
                );
            }
            if let (Some(old), Some(own)) = (old, &dim.coord) {
                self.same_labels(old, own, span)?;
            }
            *dim = dim.labelled(coord.clone());
        }
        Ok(())
    }

    /// The cells of a 1-d tensor as the coordinate of `dim`: evaluated here if they consist of labels and
    /// literals, else computed by an island.
    ///
    /// # Errors
    /// `invalid_argument` for masked cells and for types that labels cannot have, `too_many_cells`.
    pub(crate) fn labels(
        &mut self,
        t: &Tensor,
        dim: &Arc<str>,
        span: Span,
    ) -> Result<Arc<Coord>, Error> {
        let what = format!("the coordinate `{dim}`");
        let refused = |reason: String| refuse(&what, "the expression", reason, span);
        let dtype = self.b.dtype(t.node);
        let cells = self.cells(t, &what, span)?;
        let masked = cells.iter().filter(|cell| cell.is_none()).count();
        if masked > 0 {
            return refused(format!("is masked at {masked} of {} positions", cells.len()));
        }
        let known: Vec<Scalar> = cells.iter().copied().flatten().collect();
        let Some(values) = values(dtype, &known) else {
            return refused(format!("is {}, and labels are numbers, times or texts", dtype.name()));
        };
        Ok(Arc::new(Coord { name: dim.clone(), dim: dim.clone(), values, attrs: t.attrs.clone() }))
    }
}

/// Cells as labels; `None` for types that labels cannot have.
fn values(dtype: DType, cells: &[Scalar]) -> Option<CoordValues> {
    let ints = || cells.iter().map(|v| v.as_i128() as i64).collect();
    Some(match dtype {
        DType::Bool => return None,
        DType::Datetime(calendar) => CoordValues::Time(calendar, ints()),
        // The bits of an unsigned 64-bit label are stored in an `i64`.
        d if d.is_integer() => CoordValues::Int(d, ints()),
        d => CoordValues::Float(d, cells.iter().map(|v| v.as_f64()).collect()),
    })
}
