//! Tasks with tables: lookups, and sums of cells by code.

use super::Operand;
use super::gather::{Seen, gather};
use super::lines::validity;
use crate::chunk::Chunk;
use crate::error::Error;
use tessera_kernels::copy::Strided;
use tessera_kernels::table::{self, Cells, Table};
use tessera_planner::lookup::LookupKind;
use tessera_planner::plan::Access;

fn input(op: &Operand<'_>, k: usize) -> Result<Seen, Error> {
    match &op.stage.inputs[k].access {
        Access::View(view) => gather(op, k, view),
        other => Err(Error::Broken { what: format!("a table's input is read by {other:?}") }),
    }
}

fn cells(seen: &Seen) -> Result<Cells<'_>, Error> {
    let value = Strided { bytes: seen.bytes(0)?, offset: seen.offset, strides: &seen.steps };
    Ok(Cells { value, valid: validity(seen)? })
}

pub(super) fn lookup(op: &Operand<'_>, kind: LookupKind) -> Result<Vec<Chunk>, Error> {
    let shape = op.stage.grid.region(op.index).shape();
    let x = input(op, 0)?;
    let tables = (1..op.stage.inputs.len()).map(|k| input(op, k)).collect::<Result<Vec<_>, _>>()?;
    let mut buffers = op.buffers_if(0, !x.unmasked);
    let (out, valid) = buffers.split_at_mut(1);
    if !shape.contains(&0) {
        // The view of a table names its first cell; its chunk is the whole table.
        let tables = tables
            .iter()
            .map(|t| Ok(Table { value: t.bytes(0)?, valid: validity(t)? }))
            .collect::<Result<Vec<_>, Error>>()?;
        let dtype = x.dtype(0)?;
        let out = out[0].as_mut_slice();
        table::lookup(kind, dtype, &shape, cells(&x)?, &tables, out, &op.cancelled())?;
        if let Some(valid) = valid.first_mut() {
            let from = Strided { bytes: x.bytes(1)?, offset: x.offset, strides: &x.steps };
            let dense = tessera_planner::region::strides(&shape);
            tessera_kernels::copy::copy_box(1, &shape, from, valid.as_mut_slice(), 0, &dense)?;
        }
    }
    drop((x, tables));
    Ok(vec![op.chunk(0, buffers)?])
}

/// Counts the operand's cells by bins, or sums their weights.
pub(super) fn histogram(op: &Operand<'_>) -> Result<Vec<Chunk>, Error> {
    let shape = op.stage.grid.region(op.index).shape();
    let (x, edges) = (input(op, 0)?, input(op, 1)?);
    let weights = if op.stage.inputs.len() > 2 { Some(input(op, 2)?) } else { None };
    let mut buffers = op.buffers(0);
    let weighed = weights.as_ref().map(cells).transpose()?;
    let out = buffers[0].as_mut_slice();
    if shape.contains(&0) {
        out.fill(0);
    } else {
        let (dtype, table) = (x.dtype(0)?, Table { value: edges.bytes(0)?, valid: None });
        table::histogram(dtype, &shape, cells(&x)?, table, weighed, out, &op.cancelled())?;
    }
    drop((x, edges, weights));
    Ok(vec![op.chunk(0, buffers)?])
}

/// Counts the operand's codes, or sums their weights.
pub(super) fn bin(op: &Operand<'_>, strict: bool) -> Result<Vec<Chunk>, Error> {
    let shape = op.stage.grid.region(op.index).shape();
    let codes = input(op, 0)?;
    let weights = if op.stage.inputs.len() > 1 { Some(input(op, 1)?) } else { None };
    let mut buffers = op.buffers(0);
    let weighed = weights.as_ref().map(cells).transpose()?;
    let out = buffers[0].as_mut_slice();
    if shape.contains(&0) {
        out.fill(0);
    } else {
        table::bin(&shape, cells(&codes)?, weighed, strict, out, &op.cancelled())?;
    }
    drop((codes, weights));
    Ok(vec![op.chunk(0, buffers)?])
}
