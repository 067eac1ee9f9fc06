//! Aggregates over sliding frames for accumulators that cannot remove values: each frame is recomputed.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::concat;
use arrow::datatypes::{FieldRef, Schema};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, AggregateUDF};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};

use super::inner::of_frame;

type Make = Box<dyn Fn() -> Result<Box<dyn Accumulator>> + Send + Sync>;

/// The aggregate of the rows of a frame.
pub(super) struct Recomputed {
    make: Make,
    /// The arguments of the added rows, batch by batch.
    parts: Vec<Vec<ArrayRef>>,
    /// Number of rows that have left the frame.
    gone: usize,
}

impl Recomputed {
    /// `make` makes an accumulator for a frame.
    pub(super) fn new(
        make: impl Fn() -> Result<Box<dyn Accumulator>> + Send + Sync + 'static,
    ) -> Self {
        Self { make: Box::new(make), parts: Vec::new(), gone: 0 }
    }

    /// The arguments of all rows of the frame, which are one batch from then on.
    fn all(&mut self) -> Result<Vec<ArrayRef>> {
        let count = self.parts.first().map_or(0, Vec::len);
        let mut all = Vec::with_capacity(count);
        for argument in 0..count {
            let parts: Vec<&dyn Array> =
                self.parts.iter().map(|part| part[argument].as_ref()).collect();
            let values = concat(&parts)?;
            let Some(rest) = values.len().checked_sub(self.gone) else {
                return internal_err!("more values leave a frame than came");
            };
            all.push(values.slice(self.gone, rest));
        }
        self.gone = 0;
        self.parts = vec![all.clone()];
        Ok(all)
    }
}

impl fmt::Debug for Recomputed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recomputed").field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}

impl Accumulator for Recomputed {
    of_frame!();

    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.parts.push(values.to_vec());
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.gone += values.first().map_or(0, |values| values.len());
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let all = self.all()?;
        let mut accumulator = (self.make)()?;
        if all.first().is_some_and(|values| !values.is_empty()) {
            accumulator.update_batch(&all)?;
        }
        accumulator.evaluate()
    }

    fn size(&self) -> usize {
        let bytes = self.parts.iter().flatten().map(|values| values.get_array_memory_size());
        size_of_val(self) + bytes.sum::<usize>()
    }
}

/// The accumulator of a function for sliding frames: its own, if it can remove values.
pub(super) fn sliding(
    function: &Arc<AggregateUDF>,
    args: AccumulatorArgs,
) -> Result<Box<dyn Accumulator>> {
    match function.create_sliding_accumulator(args.clone()) {
        Ok(own) if own.supports_retract_batch() => Ok(own),
        // `sum(DISTINCT x)` of decimals has none.
        Ok(_) | Err(DataFusionError::NotImplemented(_)) => Ok(anew(Arc::clone(function), args)),
        Err(e) => Err(e),
    }
}

/// An accumulator for sliding frames that recomputes each frame with the function's accumulator.
pub(super) fn anew(function: Arc<AggregateUDF>, args: AccumulatorArgs) -> Box<dyn Accumulator> {
    let kept = Kept::new(&args);
    Box::new(Recomputed::new(move || function.accumulator(kept.args())))
}

/// The arguments from which accumulators are created.
pub(super) struct Kept {
    return_field: FieldRef,
    schema: Schema,
    ignore_nulls: bool,
    order_bys: Vec<PhysicalSortExpr>,
    is_reversed: bool,
    name: String,
    is_distinct: bool,
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    expr_fields: Vec<FieldRef>,
}

impl Kept {
    pub(super) fn new(args: &AccumulatorArgs) -> Self {
        Self {
            return_field: Arc::clone(&args.return_field),
            schema: args.schema.clone(),
            ignore_nulls: args.ignore_nulls,
            order_bys: args.order_bys.to_vec(),
            is_reversed: args.is_reversed,
            name: args.name.to_string(),
            is_distinct: args.is_distinct,
            exprs: args.exprs.to_vec(),
            expr_fields: args.expr_fields.to_vec(),
        }
    }

    pub(super) fn args(&self) -> AccumulatorArgs<'_> {
        AccumulatorArgs {
            return_field: Arc::clone(&self.return_field),
            schema: &self.schema,
            ignore_nulls: self.ignore_nulls,
            order_bys: &self.order_bys,
            is_reversed: self.is_reversed,
            name: &self.name,
            is_distinct: self.is_distinct,
            exprs: &self.exprs,
            expr_fields: &self.expr_fields,
        }
    }
}
