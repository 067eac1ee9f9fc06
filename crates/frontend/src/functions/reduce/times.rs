//! Means, medians and ranges of times, which are counted from the least one.

use sqlparser::tokenizer::Span;
use tessera_planner::dtype::DType;
use tessera_planner::ir::{AxisReduce, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;

use super::reduction::{Reduction, reduction_name};
use crate::error::{BindError, Error};
use crate::lower::value::Tensor;
use crate::lower::{At, Lowerer, fail};

/// Times as microseconds since the least one of the reduction, in float64: no digits are lost within 285 years. The
/// second part is that least one for each cell of the result, in int64.
pub(in crate::functions) fn since_least(
    l: &mut Lowerer<'_, '_>,
    x: NodeId,
    how: &[AxisReduce],
    span: Span,
) -> Result<(NodeId, NodeId), Error> {
    let least = l.b.reduce(x, ReduceKind::Min, how).at(span)?;
    let least = l.b.cast(least, DType::Int64).at(span)?;
    let mut of_cell = least;
    for (axis, how) in how.iter().enumerate() {
        if let AxisReduce::Group(groups) = how {
            let codes = groups.codes.iter().map(|&code| u64::from(code)).collect();
            of_cell = l.b.take(of_cell, axis, codes).at(span)?;
        }
    }
    let us = l.b.cast(x, DType::Int64).at(span)?;
    let since = l.b.map(ScalarOp::Sub, &[us, of_cell]).at(span)?;
    Ok((l.b.cast(since, DType::Float64).at(span)?, least))
}

/// Moves microseconds in float64 by the least time; fractions of a microsecond are dropped.
pub(in crate::functions) fn after_least(
    l: &mut Lowerer<'_, '_>,
    since: NodeId,
    least: NodeId,
    dtype: DType,
    span: Span,
) -> Result<NodeId, Error> {
    let since = l.b.cast(since, DType::Int64).at(span)?;
    let us = l.b.map(ScalarOp::Add, &[since, least]).at(span)?;
    l.b.cast(us, dtype).at(span)
}

/// The reductions that times have of their own; `None` for those that all types share.
///
/// # Errors
/// `dtype_mismatch` for variances, and for means in another type.
pub(super) fn reduce(
    l: &mut Lowerer<'_, '_>,
    x: NodeId,
    kind: Reduction,
    how: &[AxisReduce],
    dtype: Option<DType>,
    span: Span,
) -> Result<Option<NodeId>, Error> {
    match kind {
        Reduction::Mean if dtype.is_none() => mean(l, x, how, span).map(Some),
        Reduction::Ptp => range(l, x, how, span).map(Some),
        Reduction::Mean | Reduction::Var(_) | Reduction::Std(_) => {
            let error = BindError::Types {
                operation: reduction_name(kind).into(),
                types: vec![l.b.dtype(x).name()],
                hint: Some("`epoch(x)` has times in seconds since 1970".into()),
            };
            fail(error, span)
        }
        _ => Ok(None),
    }
}

fn mean(
    l: &mut Lowerer<'_, '_>,
    x: NodeId,
    how: &[AxisReduce],
    span: Span,
) -> Result<NodeId, Error> {
    let (since, least) = since_least(l, x, how, span)?;
    let mean = l.b.reduce(since, ReduceKind::Mean, how).at(span)?;
    let dtype = l.b.dtype(x);
    after_least(l, mean, least, dtype, span)
}

/// The greatest less the least time, in seconds.
fn range(
    l: &mut Lowerer<'_, '_>,
    x: NodeId,
    how: &[AxisReduce],
    span: Span,
) -> Result<NodeId, Error> {
    let mut ends = Vec::with_capacity(2);
    for kind in [ReduceKind::Max, ReduceKind::Min] {
        let end = l.b.reduce(x, kind, how).at(span)?;
        ends.push(l.b.cast(end, DType::Int64).at(span)?);
    }
    let range = l.b.map(ScalarOp::Sub, &ends).at(span)?;
    Ok(l.seconds(Tensor::unnamed(range, how.len()), span)?.node)
}
