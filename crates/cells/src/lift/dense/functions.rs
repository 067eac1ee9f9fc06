//! SQL's aggregates as reductions, with DataFusion's results and types.

use arrow::datatypes::DataType;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::AggregateFunction;
use tessera_planner::dtype::DType;
use tessera_planner::ir::{MapOp, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

use super::super::labels::Factors;
use super::super::lower::{Reason, refused};
use super::super::table::dtype_of;
use super::aggregate::{Fate, Reduction};

impl Reduction<'_> {
    /// Lowers one aggregate to a node that broadcasts to the groups' shape.
    pub(super) fn aggregate(
        &mut self,
        call: &AggregateFunction,
        result: &DataType,
    ) -> Result<NodeId, Reason> {
        let name = call.func.name();
        let params = &call.params;
        if !params.order_by.is_empty() || params.null_treatment.is_some() {
            return Err(format!("{name} with ORDER BY or IGNORE NULLS has no dense form"));
        }
        let result = dtype_of(result)
            .ok_or_else(|| format!("{name} returns {result}, which tensors cannot contain"))?;
        let [arg] = params.args.as_slice() else {
            return Err(format!("{name} of {} arguments has no dense form", params.args.len()));
        };
        if params.distinct && !matches!(name, "min" | "max" | "bool_and" | "bool_or") {
            let is_plain = params.filter.is_none() && self.keep.is_none() && self.split.is_none();
            if name == "count" && is_plain {
                return self.count_distinct(arg);
            }
            return Err(format!("{name}(DISTINCT …) has no dense form here"));
        }
        let own = match &params.filter {
            Some(filter) => Some(self.lower.is_true(filter)?),
            None => None,
        };
        if let ("count", Expr::Literal(value, _)) = (name, arg)
            && !value.is_null()
        {
            return self.rows(own);
        }
        if name == "sum"
            && let Some(product) = self.product(arg, own)?
        {
            return self.lower.cast(product, result);
        }
        let mut node = self.lower.expr(arg)?;
        if let Some(keep) = self.both(own)? {
            node = self.lower.map_op(MapOp::Mask, &[node, keep])?;
        }
        let out = self.named(name, node)?;
        if self.lower.b.dtype(out) == result {
            return Ok(out);
        }
        self.lower.cast(out, result)
    }

    fn named(&mut self, name: &str, node: NodeId) -> Result<NodeId, Reason> {
        let dtype = self.lower.b.dtype(node);
        match name {
            "count" => self.count(node),
            "sum" => self.sum(node),
            // Broadcast cells do not change a mean, an extreme or a population variance. A mean of times is exact.
            "avg" if !dtype.is_datetime() => {
                let node = self.lower.cast(node, DType::Float64)?;
                self.reduce(node, ReduceKind::Mean)
            }
            "min" | "max" if dtype.is_float() || dtype == DType::Bool => {
                let is_min = name == "min";
                let kind = if is_min { ReduceKind::MinTotal } else { ReduceKind::MaxTotal };
                let out = self.reduce(node, kind)?;
                if !dtype.is_float() {
                    return Ok(out);
                }
                // The reduction may return -0.0 or 0.0; the row path has only 0.0.
                let zero = self.lower.constant(Scalar::zero(dtype))?;
                self.lower.map(ScalarOp::Add, &[out, zero])
            }
            "min" | "max" => {
                let kind = if name == "min" { ReduceKind::Min } else { ReduceKind::Max };
                self.reduce(node, kind)
            }
            "bool_and" | "bool_or" if dtype == DType::Bool => {
                let kind = if name == "bool_and" { ReduceKind::All } else { ReduceKind::Any };
                let out = self.reduce(node, kind)?;
                self.at_least(1, node, out)
            }
            "var_pop" | "stddev_pop" => {
                let node = self.lower.cast(node, DType::Float64)?;
                let out = self.reduce(node, ReduceKind::Var { ddof: 0 })?;
                self.root(name, out)
            }
            "var" | "var_samp" | "stddev" | "stddev_samp" => {
                let node = self.lower.cast(node, DType::Float64)?;
                let node = self.whole(node)?;
                let out = self.reduce(node, ReduceKind::Var { ddof: 1 })?;
                let out = self.root(name, out)?;
                // One value has no sample variance: NULL, not NaN.
                self.at_least(2, node, out)
            }
            _ => Err(format!("{name} of {dtype} has no dense form")),
        }
    }

    fn root(&mut self, name: &str, variance: NodeId) -> Result<NodeId, Reason> {
        if name.starts_with("stddev") {
            return self.lower.map(ScalarOp::Sqrt, &[variance]);
        }
        Ok(variance)
    }

    /// A sum. The sum of a broadcast float is one product; that of an integer is exact and may overflow.
    fn sum(&mut self, node: NodeId) -> Result<NodeId, Reason> {
        if !self.lower.b.dtype(node).is_float() {
            let node = self.whole(node)?;
            return self.reduce(node, ReduceKind::Sum);
        }
        let node = self.lower.cast(node, DType::Float64)?;
        let repeats = self.repeats(node);
        let own = self.reduce(node, ReduceKind::Sum)?;
        if !repeats.contains(&true) {
            return Ok(own);
        }
        let times = self.times(&repeats)?;
        let times = self.lower.b.cast(times, DType::Float64).map_err(refused)?;
        self.lower.map(ScalarOp::Mul, &[own, times])
    }

    /// The value, or NULL if the group has fewer than `least` cells.
    fn at_least(&mut self, least: i64, node: NodeId, value: NodeId) -> Result<NodeId, Reason> {
        let count = self.count(node)?;
        let below = self.lower.constant(Scalar::i64(least - 1))?;
        let enough = self.lower.map(ScalarOp::Gt, &[count, below])?;
        self.lower.map_op(MapOp::Mask, &[value, enough])
    }

    /// Counts distinct labels of one dimension, which are known now.
    fn count_distinct(&mut self, arg: &Expr) -> Result<NodeId, Reason> {
        let relation = self.lower.relation;
        let Some(axis) = relation.axis(arg) else {
            return Err("count(DISTINCT …) of values has no dense form".to_string());
        };
        let values = relation
            .evaluate(arg, Some(axis), self.lower.state)
            .map_err(|e| e.strip_backtrace())?;
        let factors =
            Factors::of(std::slice::from_ref(&values)).map_err(|e| e.strip_backtrace())?;
        let groups = self.out[axis] as usize;
        let mut seen = std::collections::BTreeSet::new();
        let mut counts = vec![0i64; groups];
        for (i, &label) in factors.codes.iter().enumerate() {
            let group = match &self.fates[axis] {
                Fate::Keep => i,
                Fate::All => 0,
                Fate::Group(f) => f.codes[i] as usize,
            };
            if arrow::array::Array::is_valid(&values, i) && seen.insert((group, label)) {
                counts[group] += 1;
            }
        }
        self.along(axis, &counts)
    }
}
