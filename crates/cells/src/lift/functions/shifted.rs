//! `lead` and `lag`: DataFusion's, except that `lead` with IGNORE NULLS gets whole partitions. Row by row, DataFusion's
//! loses count of the NULLs between the values if it has to pass several values. Numbers of rows that differ from row to
//! row are [`by_row`]'s.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::FieldRef;
use datafusion::common::Result;
use datafusion::logical_expr::function::{
    ExpressionArgs, PartitionEvaluatorArgs, WindowUDFFieldArgs,
};
use datafusion::logical_expr::{
    LimitEffect, PartitionEvaluator, ReversedUDWF, WindowUDF, WindowUDFImpl,
};
use datafusion::physical_expr::PhysicalExpr;

use super::by_row;
use super::inner::of_inner;

/// `lead` or `lag`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Shifted {
    inner: Arc<WindowUDF>,
    /// True if the rows come in reverse order.
    is_reversed: bool,
}

impl Shifted {
    pub(super) fn new(inner: Arc<WindowUDF>) -> Self {
        Self { inner, is_reversed: false }
    }
}

impl WindowUDFImpl for Shifted {
    of_inner!(name, documentation, signature);

    fn expressions(&self, args: ExpressionArgs) -> Vec<Arc<dyn PhysicalExpr>> {
        match by_row::is_by_row(args.input_exprs(), 1) {
            true => args.input_exprs().to_vec(),
            false => self.inner.expressions(args),
        }
    }

    fn partition_evaluator(
        &self,
        args: PartitionEvaluatorArgs,
    ) -> Result<Box<dyn PartitionEvaluator>> {
        if by_row::is_by_row(args.input_exprs(), 1) {
            return Ok(Box::new(by_row::Shifts::new(&self.inner, &args)?));
        }
        let ignores_nulls = args.ignore_nulls();
        let inner = self.inner.partition_evaluator_factory(args)?;
        // A causal one needs no later rows: `lag`, or `lead` over rows in reverse order.
        if ignores_nulls && !inner.is_causal() {
            return Ok(Box::new(Whole(inner)));
        }
        Ok(inner)
    }

    fn field(&self, args: WindowUDFFieldArgs) -> Result<FieldRef> {
        self.inner.field(args)
    }

    fn reverse_expr(&self) -> ReversedUDWF {
        let reversed = Shifted { inner: Arc::clone(&self.inner), is_reversed: !self.is_reversed };
        ReversedUDWF::Reversed(Arc::new(reversed.into()))
    }

    fn limit_effect(&self, args: &[Arc<dyn PhysicalExpr>]) -> LimitEffect {
        // `lag` of rows in reverse order, or by a negative number, needs later rows, which DataFusion's does not consider.
        if self.is_reversed || by_row::is_by_row(args, 1) || by_row::is_below(args, 1, 0) {
            return LimitEffect::Unknown;
        }
        self.inner.inner().limit_effect(args)
    }
}

#[derive(Debug)]
struct Whole(Box<dyn PartitionEvaluator>);

impl PartitionEvaluator for Whole {
    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        self.0.evaluate_all(values, rows)
    }
}
