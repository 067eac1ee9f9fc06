//! Tasks with tables: lookups, and sums of cells by code.

use super::Operand;
use super::gather::{Seen, gather_input};
use crate::chunk::Chunk;
use crate::error::Error;
use tessera_kernels::copy::copy_box;
use tessera_kernels::table::{self, Cells, Table};
use tessera_planner::lookup::LookupKind;

fn cells(seen: &Seen) -> Result<Cells<'_>, Error> {
    Ok(Cells { value: seen.strided(0)?, valid: seen.validity()? })
}

pub(super) fn lookup(op: &Operand<'_>, kind: LookupKind) -> Result<Vec<Chunk>, Error> {
    let shape = op.stage.grid.region(op.index).shape();
    let x = gather_input(op, 0)?;
    let tables =
        (1..op.stage.inputs.len()).map(|k| gather_input(op, k)).collect::<Result<Vec<_>, _>>()?;
    let mut buffers = op.buffers_if(0, !x.unmasked);
    let (out, valid) = buffers.split_at_mut(1);
    if !shape.contains(&0) {
        // The view of a table names its first cell; its chunk is the whole table.
        let tables = tables
            .iter()
            .map(|t| Ok(Table { value: t.bytes(0)?, valid: t.validity()? }))
            .collect::<Result<Vec<_>, Error>>()?;
        let dtype = x.dtype(0)?;
        let out = out[0].as_mut_slice();
        table::lookup(kind, dtype, &shape, cells(&x)?, &tables, out, &op.cancelled())?;
        if let Some(valid) = valid.first_mut() {
            let dense = tessera_planner::region::strides(&shape);
            copy_box(1, &shape, x.strided(1)?, valid.as_mut_slice(), 0, &dense)?;
        }
    }
    drop((x, tables));
    Ok(vec![op.chunk(0, buffers)?])
}

/// Counts the operand's cells by bins, or sums their weights.
pub(super) fn histogram(op: &Operand<'_>) -> Result<Vec<Chunk>, Error> {
    let edges = gather_input(op, 1)?;
    sums(op, 2, |shape, x, weighed, out| {
        let (dtype, table) = (x.dtype(0)?, Table { value: edges.bytes(0)?, valid: None });
        Ok(table::histogram(dtype, shape, cells(x)?, table, weighed, out, &op.cancelled())?)
    })
}

/// Counts the operand's codes, or sums their weights.
pub(super) fn bin(op: &Operand<'_>, strict: bool) -> Result<Vec<Chunk>, Error> {
    sums(op, 1, |shape, codes, weighed, out| {
        Ok(table::bin(shape, cells(codes)?, weighed, strict, out, &op.cancelled())?)
    })
}

/// The sums that `add` makes of the operand's cells. Input `weights_at` has their weights; without it they have none.
fn sums(
    op: &Operand<'_>,
    weights_at: usize,
    add: impl FnOnce(&[u64], &Seen, Option<Cells<'_>>, &mut [u8]) -> Result<(), Error>,
) -> Result<Vec<Chunk>, Error> {
    let shape = op.stage.grid.region(op.index).shape();
    let x = gather_input(op, 0)?;
    let weights =
        (weights_at < op.stage.inputs.len()).then(|| gather_input(op, weights_at)).transpose()?;
    let mut buffers = op.buffers(0);
    let weighed = weights.as_ref().map(cells).transpose()?;
    let out = buffers[0].as_mut_slice();
    if shape.contains(&0) {
        out.fill(0);
    } else {
        add(&shape, &x, weighed, out)?;
    }
    drop((x, weights));
    Ok(vec![op.chunk(0, buffers)?])
}
