//! Factorisations: the matrices of an operand one after the other.

use super::Operand;
use super::gather::{Seen, gather, lie};
use crate::chunk::{Chunk, Element};
use crate::error::Error;
use crate::pool::PooledBuf;
use std::sync::Arc;
use tessera_kernels::KernelError;
use tessera_kernels::factor::{Matrix, Problem, Real, Refusal, factor};
use tessera_planner::dtype::DType;
use tessera_planner::factor::Factor;
use tessera_planner::plan::Access;
use tessera_planner::region::Region;
use tessera_planner::tile::for_each_index;
use tessera_planner::view::View;

pub(super) fn run(
    op: &Operand<'_>,
    kind: Factor,
    parts: &[usize],
    dtype: DType,
) -> Result<Vec<Chunk>, Error> {
    match dtype {
        DType::Float32 => typed::<f32>(op, kind, parts),
        DType::Float64 => typed::<f64>(op, kind, parts),
        other => Err(Error::Broken { what: format!("{kind} of {other}") }),
    }
}

/// An input of the operand and the layout of its matrices in memory.
struct Side {
    data: Data,
    offset: i64,
    /// Steps along the stack, then down and right.
    steps: Vec<i64>,
}

enum Data {
    Seen(Seen),
    /// One whole chunk.
    Chunk(Arc<Chunk>),
}

fn typed<T: Real + Element>(
    op: &Operand<'_>,
    kind: Factor,
    parts: &[usize],
) -> Result<Vec<Chunk>, Error> {
    let region = op.stage.grid.region(op.index);
    let lead = region.rank() - kind.trailing();
    let (m, n) = kind.matrix(&region.shape());
    let sides = (0..op.stage.inputs.len())
        .map(|k| side(op, kind, k, &region, lead))
        .collect::<Result<Vec<_>, _>>()?;
    let cells = kind.work_cells(m, n) as usize;
    let mut work = op.cx.buffer(cells * size_of::<T>());
    let mut buffers: Vec<PooledBuf> =
        (0..op.stage.outputs.len()).flat_map(|output| op.buffers(output)).collect();
    let stack = Region { start: region.start[..lead].into(), end: region.end[..lead].into() };
    let count = stack.cells().max(1) as usize;
    let lengths = |k: usize| -> (u64, u64) {
        match (kind, k) {
            (_, 0) => (m, n),
            // All the rows that belong to a block, however few rows it has itself.
            (Factor::QrApply { .. }, _) => (n, region.len(lead + 2)),
            _ => (m, region.len(lead + 2)),
        }
    };
    let mut at_matrix = 0;
    let mut result = Ok(());
    let mut each = |at: &[u64]| -> Result<(), Error> {
        op.cx.cancel.check()?;
        let matrix = |k: usize| -> Result<Matrix<'_, T>, Error> {
            let side = &sides[k];
            let along = at.iter().zip(&stack.start).zip(&side.steps);
            let offset = along.fold(side.offset, |o, ((p, s), step)| o + (p - s) as i64 * step);
            let cells = match &side.data {
                Data::Seen(seen) => seen.values::<T>()?,
                Data::Chunk(chunk) => chunk.field(0)?.values::<T>()?,
            };
            let (rows, columns) = lengths(k);
            let steps = [side.steps[lead], side.steps[lead + 1]];
            Ok(Matrix { cells, offset, steps, rows: rows as usize, columns: columns as usize })
        };
        let (a, c) = (matrix(0)?, (sides.len() > 1).then(|| matrix(1)).transpose()?);
        let mut outputs: Vec<&mut [T]> = buffers
            .iter_mut()
            .map(|b| {
                let all = b.typed_mut::<T>();
                let len = all.len() / count;
                &mut all[at_matrix * len..(at_matrix + 1) * len]
            })
            .collect();
        let cancelled = op.cancelled();
        let problem = Problem { kind, a, c, work: work.typed_mut::<T>(), cancelled: &cancelled };
        at_matrix += 1;
        factor(problem, parts, &mut outputs).map_err(|refusal| match refusal {
            Refusal::Kernel(e) => Error::from(e),
            Refusal::Matrix(fault) => Error::from(KernelError::Matrix {
                operation: kind.name(),
                index: at.to_vec(),
                fault,
            }),
        })
    };
    if lead == 0 {
        result = each(&[]);
    } else {
        for_each_index(&stack, &mut |at| {
            if result.is_ok() {
                result = each(at);
            }
        });
    }
    result?;
    let mut buffers = buffers.into_iter();
    (0..op.stage.outputs.len())
        .map(|output| {
            let own = op.stage.outputs[output].fields.len();
            op.chunk(output, buffers.by_ref().take(own).collect())
        })
        .collect()
}

fn side(
    op: &Operand<'_>,
    kind: Factor,
    k: usize,
    region: &Region,
    lead: usize,
) -> Result<Side, Error> {
    let input = &op.stage.inputs[k];
    match &input.access {
        Access::View(view) => {
            let seen = gather(op, k, view)?;
            let last = if k == 0 { lead + 1 } else { lead + 2 };
            let steps = (0..=lead).chain([last]).map(|axis| seen.steps[axis]).collect();
            Ok(Side { offset: seen.offset, steps, data: Data::Seen(seen) })
        }
        Access::Fan(_) => {
            let chunk = op.inputs.get(input.from, op.index)?.clone();
            let held = op.plan().output(input.from).grid.region(op.index);
            let (offset, steps) = lie(&View::identity(held.rank()), &held, &held);
            let last = steps.len() - 1;
            Ok(Side { offset, steps: vec![steps[0], steps[last]], data: Data::Chunk(chunk) })
        }
        other => {
            Err(Error::Broken { what: format!("{kind} of {region} reads its input by {other:?}") })
        }
    }
}
