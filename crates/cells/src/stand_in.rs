//! Stand-ins for results of islands, so that EXPLAIN can lower the rest of a statement without running anything.
//!
//! A stand-in has the type and the rank of the result. Its length is the maximum length of the result, and its
//! values are arbitrary. Lowering with stand-ins shows only the later islands and their dependencies: the resulting
//! plans are not those that will run.

use std::sync::Arc;

use arrow::array::Array;
use tessera_frontend::island::{Done, Island, RowsColumn, RowsToTensor, VALUES_MAX, Work};
use tessera_planner::catalog::{Attrs, Coord, Dataset, Decode, SourceRef, Variable};
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;
use tessera_planner::ir::{ConstArray, Node};
use tessera_planner::optimize::Rooted;
use tessera_planner::region::cells;
use tessera_planner::scalar::Scalar;

use crate::lift::{self, CellPlan};
use crate::rows::RowsState;

/// A stand-in for the result of an island; `number` makes it distinct from those of other islands. `None` if the
/// result cannot be predicted.
pub fn stand_in(island: &Island, number: usize, state: &RowsState) -> Option<Done> {
    match &island.work {
        Work::Values(rooted) => {
            let node = first(rooted)?;
            let length = cells(&node.shape).filter(|n| *n <= VALUES_MAX)?;
            // A condition that is true for every cell, or the first position.
            let one = match node.dtype {
                DType::Bool => Scalar::bool(true),
                other => Scalar::zero(other),
            };
            let values = vec![Some(one); length as usize];
            Some(Done::Values(ConstArray::new(node.dtype, &node.shape, &values)))
        }
        Work::Compress(rooted) => {
            let node = first(rooted)?;
            let array = array(number, 0, node.dtype, &node.shape, node.nullable);
            Some(Done::Arrays(vec![Arc::new(array)]))
        }
        Work::Distinct(rooted) => {
            let node = first(rooted)?;
            let values = array(number, 0, node.dtype, &node.shape, false);
            let counts = array(number, 1, DType::Int64, &node.shape, false);
            Some(Done::Arrays(vec![Arc::new(values), Arc::new(counts)]))
        }
        Work::Rows(rows) => dataset(number, rows, state),
    }
}

fn first(rooted: &Rooted) -> Option<&Node> {
    rooted.roots.first().map(|root| rooted.graph.node(*root))
}

fn array(number: usize, at: usize, dtype: DType, shape: &[u64], nullable: bool) -> SourceRef {
    SourceRef {
        url: format!("temp:stand-in@{number}"),
        path: at.to_string(),
        dtype,
        shape: shape.into(),
        grid: Grid::regular(shape, shape),
        nullable,
        version: None,
        plain: false,
    }
}

/// Tensors over the labels that the keys derive from: rows may be missing, but no other labels can occur.
fn dataset(number: usize, rows: &RowsToTensor, state: &RowsState) -> Option<Done> {
    let plan = CellPlan::of(rows).ok()?;
    let labels = lift::origins(plan, state.get().ok()?)?;
    let fields = plan.logical.schema().fields();
    let (mut coords, mut values) = (Vec::new(), Vec::new());
    for ((column, field), labels) in rows.columns.iter().zip(fields).zip(labels) {
        match column {
            RowsColumn::Key(name) => {
                let labels = labels.filter(|l| l.null_count() == 0)?;
                let values = lift::coordinate(&labels, lift::calendar(field))?;
                let attrs = Attrs::new();
                coords.push(Arc::new(Coord {
                    name: name.clone(),
                    dim: name.clone(),
                    values,
                    attrs,
                }));
            }
            RowsColumn::Value(name) => values.push((name, lift::dtype_of_field(field)?)),
        }
    }
    let dims: Vec<Option<Arc<str>>> = match coords.is_empty() {
        // The number of rows of the block is unknown.
        true => return None,
        false => coords.iter().map(|c| Some(c.dim.clone())).collect(),
    };
    let shape: Vec<u64> = coords.iter().map(|c| c.values.len() as u64).collect();
    let variables = values.into_iter().enumerate().map(|(at, (name, dtype))| Variable {
        name: name.clone(),
        dims: dims.clone(),
        source: array(number, at, dtype, &shape, true),
        decode: Decode::default(),
        attrs: Attrs::new(),
    });
    let variables = variables.collect();
    Some(Done::Dataset(Arc::new(Dataset {
        name: "rows".into(),
        variables,
        coords,
        ..Dataset::default()
    })))
}
