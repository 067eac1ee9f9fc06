//! Window frames as numbers of rows before and after the current row.

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Expr, WindowFrame, WindowFrameBound, WindowFrameUnits};
use tessera_planner::window::Frame;

use super::super::super::lower::Reason;

/// More rows than any line has; sums of two do not overflow.
const ALL: i64 = i64::MAX / 4;

/// The rows of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Span {
    /// The whole partition.
    Whole,
    /// From the first row to the current one.
    Running,
    /// A number of rows before and after the current one.
    Rows { before: i64, after: i64 },
}

impl Span {
    pub(super) fn of(frame: &WindowFrame, is_ordered: bool) -> Result<Self, Reason> {
        let is_plain = |bound: &WindowFrameBound| {
            bound.is_unbounded() || matches!(bound, WindowFrameBound::CurrentRow)
        };
        let rows = frame.units == WindowFrameUnits::Rows;
        let is_peers = is_plain(&frame.start_bound) && is_plain(&frame.end_bound);
        if !rows && !is_peers {
            return Err(format!("the frame {frame} has no dense form"));
        }
        if !is_ordered && !rows {
            // All rows are peers of the current one.
            return Ok(Span::Whole);
        }
        let count = |value: &ScalarValue| -> Result<i64, Reason> {
            if value.is_null() {
                return Ok(ALL);
            }
            number(value).ok_or_else(|| format!("the frame {frame} has no dense form"))
        };
        let before = match &frame.start_bound {
            WindowFrameBound::Preceding(n) => count(n)?,
            WindowFrameBound::CurrentRow => 0,
            WindowFrameBound::Following(n) => -count(n)?,
        };
        let after = match &frame.end_bound {
            WindowFrameBound::Preceding(n) => -count(n)?,
            WindowFrameBound::CurrentRow => 0,
            WindowFrameBound::Following(n) => count(n)?,
        };
        Ok(match (before, after) {
            (ALL, ALL) => Span::Whole,
            (ALL, 0) => Span::Running,
            _ => Span::Rows { before, after },
        })
    }

    pub(super) fn frame(self) -> Frame {
        match self {
            Span::Whole => Frame { before: ALL, after: ALL },
            Span::Running => Frame { before: ALL, after: 0 },
            Span::Rows { before, after } => Frame { before, after },
        }
    }

    /// The first and the last row of the frame of row `k` of `n`.
    pub(super) fn of_row(self, k: i64, n: i64) -> Option<(i64, i64)> {
        let Frame { before, after } = self.frame();
        let (low, high) = ((k - before).max(0), (k + after).min(n - 1));
        (low <= high).then_some((low, high))
    }
}

fn number(value: &ScalarValue) -> Option<i64> {
    match value.cast_to(&DataType::Int64) {
        Ok(ScalarValue::Int64(n)) => n.filter(|n| (0..ALL).contains(n)),
        _ => None,
    }
}

/// An integer literal.
pub(super) fn whole_number(expr: &Expr) -> Option<i64> {
    match expr {
        Expr::Literal(value, _) if value.data_type().is_integer() => {
            match value.cast_to(&DataType::Int64) {
                Ok(ScalarValue::Int64(n)) => n.filter(|n| (-ALL..ALL).contains(n)),
                _ => None,
            }
        }
        Expr::Negative(inner) => whole_number(inner).map(|n| -n),
        Expr::Alias(alias) => whole_number(&alias.expr),
        _ => None,
    }
}
